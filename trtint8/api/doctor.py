"""The public call that says what is installed on a machine, and which routes work there."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from importlib import metadata
from importlib.util import find_spec

from calibrators.cuda import driver_version, gpu_names, gpu_problem
from calibrators.errors import TrtInt8Error
from calibrators.histograms.binning import NUMPY, kernel
from calibrators.host.cuda_session import open_device
from calibrators.imports import install_command
from calibrators.tensorrt import flavor
from trtint8.data import DEMO_MODEL


def doctor() -> list[tuple[str, str]]:
    """Says what is installed on this machine, and which routes work here.

    Returns:
        The findings, each with what was looked for and what was found, in words.
    """
    problem = gpu_problem()
    flavors = flavor.installed()
    rows = [
        ("Python", platform.python_version()),
        ("trtint8", _version("trtint8") or "?"),
        ("ONNX", _version("onnx") or "missing"),
        (
            "ONNX Runtime",
            _version("onnxruntime-gpu") or _version("onnxruntime") or "missing: pip install onnxruntime",
        ),
    ]
    for found in flavors:
        rows.append(("found", f"{found}" + (f" ({found.import_problem})" if found.import_problem else "")))
    if not flavors:
        rows.append(("TensorRT", f"none: {install_command('rtx')} builds engines on any machine"))
    rows += [
        ("GPU", ", ".join(gpu_names()) if problem is None else f"none: {problem}"),
        ("driver", driver_version() or "none"),
        ("PyCUDA", _version("pycuda") or "none, and none is needed"),
        ("images from folders", "works" if find_spec("PIL") else install_command("images")),
        ("calibrate, quantize, validate", "work, on the CPU"),
        ("calibrate --device cuda", _gpu_calibration()),
        ("counting activations", _counting()),
    ]
    usable = [f for f in flavors if not f.import_problem and (f.builds_without_gpu or problem is None)]
    rows.append(
        (
            "build, explicit route",
            "works with " + ", ".join(map(str, usable)) if usable else install_command("rtx"),
        )
    )
    rows.append(("build, implicit route", _implicit(flavors, problem)))
    runs = "needs an NVIDIA GPU" if problem is not None else "works" if usable else "needs a TensorRT"
    rows.append(("run, bench, validate on the GPU", runs))
    return rows


def _gpu_calibration() -> str:
    try:
        open_device("cuda").open_session(DEMO_MODEL, optimize=True)
    except (TrtInt8Error, ImportError) as error:
        return f"no: {error}"
    return "works"


def _implicit(flavors: Sequence[flavor.Flavor], gpu_problem: str | None) -> str:
    able = [f for f in flavors if f.implicit_int8 and not f.import_problem]
    missing = []
    if not able:
        missing.append("TensorRT 8.5 to 10.x")
    if gpu_problem is not None:
        missing.append("an NVIDIA GPU")
    return f"needs {', '.join(missing)}" if missing else f"works with {', '.join(map(str, able))}"


def _counting() -> str:
    if kernel() is NUMPY:
        return "by NumPy, 5 times slower: trtint8 was installed without a C compiler"
    return "compiled"


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
