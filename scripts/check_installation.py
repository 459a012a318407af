"""Uses every verb and every public name of the trtint8 that this Python has, and prints what does not work.

What an extra brings has to work where the extra is installed. Elsewhere it may be refused with the command
that installs it. Nothing else may fail. The exit status is 1 if anything does.
"""

from __future__ import annotations

import contextlib
import io
import os
import pkgutil
import re
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib import metadata
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper, save

import trtint8
from calibrators.imports import install_command
from trtint8.cli.main import VERBS, main
from trtint8.data import DEMO_MODEL

_REFERENCE = Path(__file__).resolve().parents[1] / "docs/reference"

#: In place of an extra: what may be refused in any words, because only some GPUs can do it.
_GPU = "GPU"

#: Small jobs of the verbs, each with the extras that it needs. They read what those before them wrote.
_COMMANDS = {
    "demo": "demo rtx",
    "doctor --json": "",
    "calibrate net.onnx data.npz -o net.table.json": "",
    "calibrate pictures.onnx pictures --scale 1 -o pictures.table.json": "images",
    "quantize net.onnx net.table.json -o int8.onnx --float16": "",
    "migrate net.onnx net.table.json -o migrated.onnx": "rtx",
    "migrate net.onnx net.table.json -o migrated.onnx --no-proof": "",
    "lint int8.onnx --fix -o mended.onnx": "",
    "build net.onnx net.table.json -o net.engine": "rtx",
    "audit net.onnx net.table.json --gpu A10 --target rtx --json": "rtx",
    "validate int8.onnx data.npz --reference net.onnx --json": "",
    "sensitivity net.onnx net.table.json data.npz --json": "",
    "tune net.onnx data.npz data.npz --max-drop 40 -o tuned.onnx": "",
    "run net.engine data.npz -o outputs.npz": _GPU,
    "bench net.engine": _GPU,
    "deploy net.onnx --table net.table.json --to ort-trt -o deployed": "",
    "report int8.onnx net.table.json -o report.html": "report",
    "report int8.onnx net.table.json -o samples.html --model net.onnx --data data.npz": "report",
    "table set net.table.json images=2 -o set.table.json": "",
    "compare net.table.json set.table.json": "",
    "compare net.table.json set.table.json --json": "",
    "compare net.table.json set.table.json -o comparison.html": "report",
}

#: The same for statements of Python.
_STATEMENTS = {
    "trtint8.doctor()": "",
    "inputs = trtint8.model_inputs('net.onnx')": "",
    "table = trtint8.calibrate('net.onnx', 'data.npz')": "",
    "table._repr_html_()": "",
    "table.to_pandas()": "notebook",
    "table.plot('images')": "notebook",
    "trtint8.calibrate('pictures.onnx', 'pictures', preprocessing=trtint8.Preprocessing())": "images",
    "trtint8.calibrate('net.onnx', 'data.npz', executor=trtint8.RayExecutor(workers=1))": "ray",
    "trtint8.calibrate('net.onnx', 'data.npz', device='cuda')": _GPU,
    "model = trtint8.quantize('net.onnx', table)": "",
    "trtint8.write_quantized('net.onnx', table, 'written.onnx')": "",
    "trtint8.lint(model)": "",
    "trtint8.mend(model)": "",
    "trtint8.migrate('net.onnx', table)": "",
    "trtint8.cut_model('net.onnx', ['/flatten/Flatten_output_0'])": "",
    "accuracy = trtint8.validate(model, 'data.npz', reference='net.onnx')": "",
    "accuracy._repr_html_()": "",
    "accuracy.to_pandas()": "notebook",
    "trtint8.validate('boxes.onnx', 'boxes.npz', reference='boxes.onnx', metrics=['map'])": "detection",
    "sensitivity = trtint8.measure_sensitivity('net.onnx', table, 'data.npz')": "",
    "sensitivity._repr_html_()": "",
    "sensitivity.to_pandas()": "notebook",
    "sensitivity.plot()": "notebook",
    "tuned = trtint8.tune('net.onnx', 'data.npz', 'data.npz', max_drop=40)": "",
    "tuned._repr_html_()": "",
    "tuned.to_pandas()": "notebook",
    "tuned.plot()": "notebook",
    "trtint8.deploy('net.onnx', 'ort-trt', 'deploys', table=table)": "",
    "comparison = trtint8.compare_runs(['net.table.json', 'set.table.json'])": "",
    "trtint8.write_comparison(comparison, 'written.html')": "report",
    "trtint8.write_report(['int8.onnx', 'net.table.json'], 'written.html')": "report",
    "trtint8.build_int8_engine('net.onnx', table, 'built.engine')._repr_html_()": "rtx",
    "trtint8.read_engine_info('built.engine')": _GPU,
    "trtint8.Engine.load('built.engine')": _GPU,
    "trtint8.run_engine('built.engine', 'data.npz')": _GPU,
    "trtint8.bench(['built.engine'])": _GPU,
    "trtint8.refit(trtint8.Engine.load('built.engine'), {})": _GPU,
    "from trtint8.runtime.polygraphy_runner import TrtInt8Runner": "polygraphy",
    "from calibrators.tensorrt import EntropyCalibrator2": _GPU,
}

_IN_PYTORCH = (
    "trtint8.calibrate(torch.nn.Linear(4, 2), np.ones((8, 4), np.float32), example_inputs=torch.ones(1, 4))"
)


def check() -> int:
    """Prints what does not work, and returns how much that is. The current folder is written to."""
    _write_inputs()
    tried, failed = 0, 0
    for name, extras, act in _jobs():
        tried += 1
        if problem := _problem(extras, act):
            failed += 1
            print(f"{name}\n  {problem}")
    print(f"{tried - failed} of {tried} things work as they should")
    return failed


def _jobs() -> Iterator[tuple[str, str, Callable[[], object]]]:
    """What is done, each with the extras that it needs."""
    pages = "\n".join(path.read_text(encoding="utf-8") for path in sorted(_REFERENCE.rglob("*.md")))
    for name in [*(f"trtint8.{name}" for name in trtint8.__all__), *re.findall(r"^::: (\S+)", pages, re.M)]:
        yield name, "polygraphy" if "polygraphy" in name else "", partial(pkgutil.resolve_name, name)
    for verb in VERBS:
        yield f"trtint8 {verb} --help", "", partial(_run, f"{verb} --help")
    for command, extras in _COMMANDS.items():
        yield f"trtint8 {command}", extras, partial(_run, command)
    names = {"trtint8": trtint8, "np": np}
    for statement, extras in _STATEMENTS.items():
        yield statement, extras, partial(exec, statement, names)
    if _installed("torch"):  # the user's own import
        yield _IN_PYTORCH, "torch", partial(exec, f"import torch; {_IN_PYTORCH}", names)


class _RefusedError(Exception):
    """A verb that ended with the status 2, and what it said."""


def _run(command: str) -> None:
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        try:
            status = main(command.split())
        except SystemExit as end:
            status = end.code
    if status:
        raise (_RefusedError if status == 2 else RuntimeError)(said.getvalue().strip())


def _problem(extras: str, act: Callable[[], object]) -> str | None:
    """What is wrong with how something works, or is refused; None where all is right."""
    try:
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            act()
    except (_RefusedError, trtint8.TrtInt8Error) as error:
        said = str(error)
        missing = [extra for extra in extras.split() if not _installed(extra)]
        is_right = extras == _GPU or any(install_command(extra) in said for extra in missing)
        return None if is_right else said
    except Exception:  # noqa: BLE001 - whatever it is, it is what is looked for
        return traceback.format_exc()
    return None


def _installed(extra: str) -> bool:
    """Whether all packages are there that an extra names."""
    needed = [text for text in metadata.requires("trtint8") or () if f'extra == "{extra}"' in text]
    found = {re.sub(r"[-_.]+", "-", one.metadata["Name"]).lower() for one in metadata.distributions()}
    return {re.sub(r"[-_.]+", "-", re.match(r"[\w.-]+", text)[0]).lower() for text in needed} <= found


def _write_inputs() -> None:
    random = np.random.default_rng(0)
    Path("net.onnx").write_bytes(DEMO_MODEL.read_bytes())
    np.savez("data.npz", images=3 * random.standard_normal((64, 1, 8, 8), np.float32))
    _write_model("pictures.onnx", [1, 3, 8, 8])
    Path("pictures").mkdir()
    Path("pictures/one.ppm").write_bytes(b"P6 8 8 255\n" + random.integers(0, 256, 192, np.uint8).tobytes())
    _write_model("boxes.onnx", [1, 3, 6])
    boxes = np.tile(np.array([1, 1, 5, 5, 0.9, 0], np.float32), (4, 3, 1))
    np.savez("boxes.npz", x=boxes, labels=boxes[..., [0, 1, 2, 3, 5]])


def _write_model(name: str, shape: Sequence[int]) -> None:
    first, last = (helper.make_tensor_value_info(tensor, TensorProto.FLOAT, shape) for tensor in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "graph", [first], [last])
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), name)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        failed = check()
        os.chdir("/")
    sys.exit(bool(failed))
