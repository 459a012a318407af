"""Faults on purpose, each in a process of its own: ``python -m gpu_checks.fault_cases NAME SETTINGS``.

What must happen is what the docstrings of the calls say: one of this project's errors, nothing left behind,
and later calls work.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import os
import shutil
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from calibrators.cuda import Device, open_device
from calibrators.data.inputs import InputSpec
from calibrators.errors import (
    BuildError,
    EngineError,
    GpuMemoryError,
    TrtInt8Error,
    UnsupportedError,
)
from calibrators.tensorrt import flavor
from calibrators.tensorrt.calibrators import calibrator_class
from gpu_checks.checking import Check, Settings, one_line
from gpu_checks.records import Finding
from gpu_checks.subjects import small_options
from trtint8 import Engine, ShapeRange, build_int8_engine, model_inputs
from trtint8.builder.build import Build
from trtint8.data import DEMO_MODEL
from trtint8.engine.file import sidecar_path

TABLE = "What happens"

_IMAGES = np.random.default_rng(0).standard_normal((64, 1, 8, 8), np.float32)
_PROFILES = [{"images": ShapeRange((1, 1, 8, 8), (8, 1, 8, 8), (64, 1, 8, 8))}]
_OPTIONS = small_options()
#: What a library may keep for itself once it was used.
_POOLED = 64 << 20
_REFUSALS = (EngineError, UnsupportedError)
_BATCH = 16
_LARGE = (1, 1024, 1024)


def make_plan(folder: Path) -> None:
    """The engine that the cases use: the demo model, as ``demo.engine``."""
    _build(_IMAGES, folder / "demo.engine")


# Memory.


def no_memory_for_inputs(folder: Path) -> Finding:
    """The inputs of a large batch do not fit."""
    plan = folder / "large.engine"
    plan.write_bytes(_large_engine())
    engine, images = Engine.load(plan), np.ones((64, *_LARGE), np.float32)
    before = engine.infer({"x": images[:1]})["y"]
    with _filled(engine.device):
        said = _said(lambda: engine.infer({"x": images}), GpuMemoryError)
    after = engine.infer({"x": images[:2]})["y"]
    good = np.array_equal(before[0], after[0]) and np.array_equal(after[0], after[1])
    return _finding(said, good, "" if good else "afterwards the outputs are wrong")


def no_memory_for_a_build(folder: Path) -> Finding:
    """TensorRT builds while hardly anything is free: one of this project's errors, or an engine."""
    with _filled(open_device()):
        said = _said(
            lambda: _build(_IMAGES, folder / "x" / "x.engine"), (BuildError, GpuMemoryError), may_work=True
        )
    return _finding(said, *_nothing_left(folder / "x", allowed=said == "it works"))


def no_memory_in_calibration(folder: Path) -> Finding:
    """The memory is gone when the second batch comes."""
    device = open_device()
    with contextlib.ExitStack() as held:

        def feeds() -> Iterator[dict[str, NDArray[np.float32]]]:
            yield {"images": _IMAGES[:_BATCH]}
            held.enter_context(_filled(device))
            yield {"images": _IMAGES[_BATCH : 2 * _BATCH]}

        said = _said(lambda: _calibrated(feeds, folder / "x"), TrtInt8Error, may_work=True)
    return _finding(said, *_nothing_left(folder / "x", allowed=said == "it works"))


# Calibration.


def exception_in_calibration(folder: Path) -> Finding:
    """The data source fails with an exception of its own, which the build raises."""
    return _failing_source(folder / "x", ValueError("the disk is gone"), lambda error: _raise(error))


def interrupt_in_calibration(folder: Path) -> Finding:
    """Ctrl-C, as the terminal sends it, while TensorRT calibrates."""
    return _failing_source(folder / "x", KeyboardInterrupt(), lambda _: os.kill(os.getpid(), signal.SIGINT))


def _failing_source(folder: Path, error: BaseException, fail: Callable[[BaseException], object]) -> Finding:
    device = open_device()
    _warm(folder)
    with device.active():
        before = device.memory()[0]

    def feeds() -> Iterator[dict[str, NDArray[np.float32]]]:
        yield {"images": _IMAGES[:_BATCH]}
        yield {"images": _IMAGES[:_BATCH]}
        fail(error)
        yield {"images": _IMAGES[:_BATCH]}
        yield {"images": _IMAGES[:_BATCH]}

    said = _said(lambda: _calibrated(feeds, folder), type(error))
    with device.active():
        lost = before - device.memory()[0]
    good, note = _nothing_left(folder)
    if lost > _POOLED:
        good, note = False, f"{lost / 1e6:.0f} MB are not given back"
    return _finding(said, good, note)


# Plans.


def truncated_plan(folder: Path) -> Finding:
    """A plan that ends early, with its sidecar and without."""
    return _plans(folder, truncations((folder / "demo.engine").read_bytes()))


def foreign_plan(folder: Path) -> Finding:
    """Plans of another version, of another TensorRT, and other files."""
    return _plans(folder, foreigners((folder / "demo.engine").read_bytes()))


def foreign_sidecar(folder: Path) -> Finding:
    """A sidecar that says that another version built the plan, or another GPU."""
    plan, changed = folder / "demo.engine", folder / "changed.engine"
    shutil.copy(plan, changed)
    info, said = json.loads(sidecar_path(plan).read_text()), []
    for other in ({"tensorrt_version": "8.5.0"}, {"compute_capabilities": ["1.0"]}):
        sidecar_path(changed).write_text(json.dumps({**info, **other}))
        said.append(_said(lambda: Engine.load(changed), EngineError))
    return _finding("; ".join(said), *_still_works(folder))


def truncations(plan: bytes) -> dict[str, bytes]:
    """Beginnings of a plan, by name."""
    lengths = (0, 10, 63, 64, 100, 1000, len(plan) // 2, len(plan) - 1000, len(plan) - 1)
    return {f"{length} of {len(plan)} bytes": plan[:length] for length in lengths if 0 <= length < len(plan)}


def foreigners(plan: bytes) -> dict[str, bytes]:
    """What is no plan of this TensorRT, by name."""
    size = 4096
    header = b"vtrt" + bytes(12) + size.to_bytes(8, "little")
    return {
        "another version in the header": plan[:24] + bytes(byte ^ 0x55 for byte in plan[24:28]) + plan[28:],
        "zeros behind the header": plan[:24] + bytes(len(plan) - 24),
        "a header of TensorRT for RTX": header + bytes(size - len(header)),
        "an ONNX model": DEMO_MODEL.read_bytes(),
        "text": b"hello " * 100,
    }


def _plans(folder: Path, plans: dict[str, bytes]) -> Finding:
    said, copy = [], folder / "copy.engine"
    shutil.copy(sidecar_path(folder / "demo.engine"), sidecar_path(copy))
    for name, data in plans.items():
        copy.write_bytes(data)
        # Said before, so that the log tells at which one the process died.
        print(f"loading {name}", flush=True)
        said += [_said(functools.partial(Engine.load, source), _REFUSALS) for source in (data, copy)]
    return _finding("; ".join(dict.fromkeys(said)), *_still_works(folder))


# Other libraries on the primary context.


def torch_before(folder: Path) -> Finding:
    """PyTorch used the GPU before this project did."""
    return _others(folder, "torch", first=True)


def torch_after(folder: Path) -> Finding:
    """PyTorch uses the GPU after this project did."""
    return _others(folder, "torch", first=False)


def cupy_before(folder: Path) -> Finding:
    """CuPy used the GPU before this project did."""
    return _others(folder, "cupy", first=True)


def cupy_after(folder: Path) -> Finding:
    """CuPy uses the GPU after this project did."""
    return _others(folder, "cupy", first=False)


def _others(folder: Path, name: str, *, first: bool) -> Finding:
    module = importlib.import_module(name)
    array: Any = _on_gpu(module, _IMAGES[:8]) if first else None
    with Engine.load(folder / "demo.engine") as engine:
        plain = engine.infer({"images": _IMAGES[:8]})["logits"]
        array = array if first else _on_gpu(module, _IMAGES[:8])
        given = engine.infer({"images": array})["logits"]
        taken = engine.infer({"images": array}, on_device=True)["logits"]
        theirs = module.as_tensor(taken, device="cuda") if name == "torch" else module.asarray(taken)
        doubled = _on_host(theirs + theirs)
    again = _on_host(array * 2)  # after the engine is closed, too
    good = (
        np.array_equal(given, plain)
        and np.array_equal(doubled, 2 * plain)
        and np.array_equal(again, 2 * _IMAGES[:8])
    )
    return _finding("the same outputs" if good else "different outputs", good)


def _on_gpu(module: Any, array: NDArray[np.float32]) -> Any:
    return module.from_numpy(array).cuda() if module.__name__ == "torch" else module.asarray(array)


def _on_host(array: Any) -> NDArray[np.float32]:
    host: NDArray[np.float32] = array.cpu().numpy() if hasattr(array, "cpu") else array.get()
    return host


#: Every case; the package that it needs, where it needs one.
CASES: dict[Callable[[Path], Finding], str | None] = {
    exception_in_calibration: None,
    interrupt_in_calibration: None,
    foreign_sidecar: None,
    foreign_plan: None,
    truncated_plan: None,
    no_memory_for_inputs: None,
    no_memory_in_calibration: None,
    no_memory_for_a_build: None,
    torch_before: "torch",
    torch_after: "torch",
    cupy_before: "cupy",
    cupy_after: "cupy",
}


def _said(
    work: Callable[[], object],
    wanted: type[BaseException] | tuple[type[BaseException], ...],
    *,
    may_work: bool = False,
) -> str:
    """What an error says; begins with "NOT" where it is not the wanted one."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            work()
    except wanted as error:
        return one_line(error)
    except BaseException as error:  # noqa: BLE001 what comes instead is the finding
        return f"NOT as documented: {one_line(error)}"
    return "it works" if may_work else "NOT as documented: no error"


def _finding(said: str, good: bool, note: str = "") -> Finding:
    return Finding({"says": said}, good and "NOT as documented" not in said, note)


def _nothing_left(folder: Path, *, allowed: bool = False) -> tuple[bool, str]:
    left = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    return (True, "") if allowed or not left else (False, f"left behind: {', '.join(left)}")


def _still_works(folder: Path) -> tuple[bool, str]:
    with Engine.load(folder / "demo.engine") as engine:
        good = engine.infer({"images": _IMAGES[:4]})["logits"].shape == (4, 10)
    return good, "" if good else "afterwards the engine does not run"


def _build(calibration: Any, output: Path) -> object:
    output.parent.mkdir(exist_ok=True)
    return build_int8_engine(
        DEMO_MODEL,
        calibration,
        output,
        target="tensorrt",
        route="explicit" if isinstance(calibration, np.ndarray) else "implicit",
        profiles=_PROFILES,
        options=_OPTIONS,
        progress=False,
    )


def _calibrated(feeds: Callable[[], Iterator[Any]], folder: Path) -> object:
    inputs: tuple[InputSpec, ...] = model_inputs(DEMO_MODEL)
    folder.mkdir(exist_ok=True)
    calibrator = calibrator_class("EntropyCalibrator2", flavor.load("tensorrt"))(
        feeds, inputs, cache=folder / "model.cache", progress=False
    )
    return _build(calibrator, folder / "model.engine")


def _warm(folder: Path) -> None:
    """A build that works, so that what libraries keep for themselves is not taken for a loss."""
    _calibrated(lambda: iter([{"images": _IMAGES[:_BATCH]}] * 2), folder)
    shutil.rmtree(folder)


def _large_engine() -> bytes:
    """Negates large images: what it takes and gives is most of what it needs."""
    shape: list[str | int] = ["N", *_LARGE]
    graph = helper.make_graph(
        [helper.make_node("Neg", ["x"], ["y"], "negate")],
        "large",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    profile = {"x": ShapeRange((1, *_LARGE), (2, *_LARGE), (64, *_LARGE))}
    serialized = model.SerializeToString()
    build = Build(flavor.load("tensorrt"), model_inputs(model), [profile], options=_OPTIONS, progress=False)
    return build.run(serialized).plan


@contextlib.contextmanager
def _filled(device: Device) -> Iterator[None]:
    """Takes nearly all of the GPU's memory for the duration of a block."""
    held: list[Any] = []
    size = 1 << 36
    with device.active():
        while size >= 1 << 20:
            try:
                held.append(device.allocate(size))
            except GpuMemoryError:
                size //= 2
    try:
        yield
    finally:
        with device.active():
            for buffer in held:
                buffer.free()


def _raise(error: BaseException) -> None:
    raise error


def main(name: str, settings: Settings) -> None:
    """One case, or ``make_plan``."""
    folder = settings.scratch
    if name == make_plan.__name__:
        make_plan(folder)
        return
    case = next(case for case in CASES if case.__name__ == name)
    Check(settings).attempt(TABLE, name.replace("_", " "), lambda: case(folder))


if __name__ == "__main__":
    main(sys.argv[1], Settings.from_json(sys.argv[2]))
