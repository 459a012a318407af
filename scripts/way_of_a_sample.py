"""Counts the modules that a calibration enters, and those that its argument `data` passes.

python scripts/way_of_a_sample.py            # a model of three nodes, and data of every kind
python scripts/way_of_a_sample.py --calls    # every call that took the data, too

*Entered* are the modules of which anything was called before the first batch was run. The data *passes* a
module when a function of it is called with the data itself or with an object that holds it; a *return* is a
call into a module that the data had left. Both are counted up to the first batch. Samples that were copied
out of the data, and files of a folder, are not followed.
"""

from __future__ import annotations

import argparse
import functools
import inspect
import sys
import tempfile
import threading
import types
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import trtint8

_ROOT = Path(trtint8.__file__).parents[1]
_OWN = ("trtint8", "calibrators")

#: Objects are searched so deep for the data.
_DEPTH = 6


def model() -> onnx.ModelProto:
    """Returns a network of three nodes."""
    weights = np.random.default_rng(0).standard_normal((4, 3, 3, 3)).astype(np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "weights"], ["a"], pads=[1] * 4),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("GlobalAveragePool", ["b"], ["y"]),
    ]
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("x", ["n", 3, 8, 8]), ("y", ["n", 4, 1, 1]))
    ]
    graph = helper.make_graph(
        nodes, "graph", ends[:1], ends[1:], [numpy_helper.from_array(weights, "weights")]
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def kinds(folder: Path) -> dict[str, Callable[[], Any]]:
    """Returns data of every kind that needs no other package."""
    samples = np.random.default_rng(1).standard_normal((4, 3, 8, 8)).astype(np.float32)
    np.savez(folder / "data.npz", x=samples)
    (folder / "folder").mkdir()
    for number, sample in enumerate(samples):
        np.save(folder / "folder" / f"{number}.npy", sample)
    return {
        "array": lambda: samples.copy(),
        "file": lambda: str(folder / "data.npz"),
        "folder": lambda: str(folder / "folder"),
        "stream": lambda: [{"x": sample[None]} for sample in samples],
        "batch axis": lambda: trtint8.BatchAxes({"x": samples.copy()}, {"x": 0}),
        "random": lambda: "random:4",
    }


class Trace:
    """What was called while a function ran.

    Attributes:
        entered: The modules of which anything was called before the first batch was run.
        calls: Module and function of every call that took the data, in their order.
    """

    def __init__(self, data: Any) -> None:
        self.entered: set[str] = set()
        self.calls: list[tuple[str, str]] = []
        self._data, self._running, self._thread = data, False, threading.current_thread()

    def run(self, function: Callable[[], object]) -> None:
        """Runs a function."""
        threading.setprofile(self._note)
        sys.setprofile(self._note)
        try:
            function()
        finally:
            sys.setprofile(None)
            threading.setprofile(None)  # type: ignore[arg-type]  # takes None, as sys.setprofile does

    @property
    def way(self) -> list[str]:
        """The modules that the data passes, one after another."""
        names = [name for name, _ in self.calls]
        return [name for name, before in zip(names, [None, *names], strict=False) if name != before]

    def _note(self, frame: types.FrameType, event: str, _: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event != "call" or path.parts[: len(_ROOT.parts)] != _ROOT.parts:
            return
        name = ".".join(path.relative_to(_ROOT).with_suffix("").parts)
        if not name.startswith(_OWN):
            return
        self._running = self._running or frame.f_code.co_name == "run_in_place"
        if self._running:
            return
        self.entered.add(name)
        if threading.current_thread() is self._thread and self._is_new(frame) and self._takes_data(frame):
            self.calls.append((name, frame.f_code.co_name))

    @staticmethod
    def _is_new(frame: types.FrameType) -> bool:
        """True if a function is called, and no generator is continued."""
        return not frame.f_code.co_flags & inspect.CO_GENERATOR or frame.f_lasti < _FIRST_INSTRUCTIONS

    def _takes_data(self, frame: types.FrameType) -> bool:
        code = frame.f_code
        count = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & inspect.CO_VARARGS)
        sys.setprofile(None)
        try:
            return self._any_holds((frame.f_locals.get(name) for name in code.co_varnames[:count]), _DEPTH)
        finally:
            sys.setprofile(self._note)

    def _any_holds(self, values: Iterable[Any], depth: int) -> bool:
        return any(self._holds(value, depth) for value in values)

    def _holds(self, value: Any, depth: int) -> bool:
        """True if a value is the data or leads to it."""
        if value is self._data:
            return True
        if isinstance(value, str | Path):
            return isinstance(self._data, str) and str(value) == self._data
        if isinstance(value, np.ndarray):
            return any(np.may_share_memory(value, array) for array in _arrays(self._data))
        if not depth:
            return False
        return self._any_holds(_parts(value), depth - 1)


#: A generator that has not begun stands before this instruction.
_FIRST_INSTRUCTIONS = 8


def _arrays(data: Any) -> Iterable[np.ndarray[Any, Any]]:
    """The arrays that data has in memory."""
    if isinstance(data, np.ndarray):
        return [data]
    if isinstance(data, trtint8.BatchAxes):
        return list(data.data.values()) if isinstance(data.data, dict) else []
    return [array for item in data for array in item.values()] if isinstance(data, list) else []


def _parts(value: Any) -> Iterable[Any]:
    """What an object holds."""
    if isinstance(value, dict):
        return list(value.values())
    if isinstance(value, list | tuple):
        return value
    if isinstance(value, functools.partial):
        return (value.func, *value.args, *value.keywords.values())
    if isinstance(value, types.MethodType):
        return (value.__self__,)
    if isinstance(value, types.FunctionType):
        return [cell.cell_contents for cell in value.__closure__ or () if _is_filled(cell)]
    if isinstance(value, types.GeneratorType):
        return [] if value.gi_frame is None else list(value.gi_frame.f_locals.values())
    if type(value).__module__.startswith(_OWN):
        return list(getattr(value, "__dict__", {}).values())
    return ()


def _is_filled(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018  # raises where there is nothing
    except ValueError:
        return False
    return True


def main() -> None:
    """Prints a line for every kind of data."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--method", default="auto", help="how ranges are chosen; default auto")
    parser.add_argument("--calls", action="store_true", help="print every call that took the data")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    print(f"{'data':12} {'entered':>8} {'passed':>8} {'returns':>8}")
    with tempfile.TemporaryDirectory() as folder:
        for kind, make in kinds(Path(folder)).items():
            calibrate = functools.partial(
                trtint8.calibrate, model(), method=options.method, progress=False, seed=1
            )
            calibrate(make())  # what is imported or compiled once is not counted
            data = make()
            trace = Trace(data)
            trace.run(functools.partial(calibrate, data))
            way = trace.way
            print(f"{kind:12} {len(trace.entered):8} {len(set(way)):8} {len(way) - len(set(way)):8}")
            if options.calls:
                print(*(f"  {module}: {function}" for module, function in trace.calls), sep="\n")


if __name__ == "__main__":
    main()
