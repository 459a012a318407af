"""The public call that says what is installed on a machine, and which routes work there."""

from __future__ import annotations

import platform
from importlib import metadata
from importlib.util import find_spec
from typing import Any

from calibrators.cuda import driver_version, gpu_names, gpu_problem
from calibrators.errors import TrtInt8Error
from calibrators.histograms.binning import NUMPY
from calibrators.histograms.histogram import kernel
from calibrators.host.cuda_session import open_device
from calibrators.imports import install_command
from calibrators.tensorrt import flavor
from trtint8.data import DEMO_MODEL

#: What each TensorRT that is installed stands behind.
FOUND = "found"


class Findings(list[tuple[str, str]]):
    """What was looked for on a machine, and what was found, in words.

    Attributes:
        works: What was looked for to whether it is there and works, for what either works or does not.
    """

    def __init__(self) -> None:
        super().__init__()
        self.works: dict[str, bool] = {}

    def add(self, what: str, words: str, works: bool | None = None) -> None:
        """Adds a finding.

        Args:
            what: What was looked for.
            words: What was found.
            works: Whether it works; None for what only says which one it is.
        """
        self.append((what, words))
        if works is not None:
            self.works[what] = works

    def to_json(self) -> dict[str, Any]:
        """Returns what ``trtint8 doctor --json`` prints: texts by name, ``found``, and ``works``."""
        found = [words for what, words in self if what == FOUND]
        return {**dict(self), FOUND: found, "works": dict(self.works)}


def doctor() -> Findings:
    """Says what is installed on this machine, and which routes work here.

    Returns:
        The findings, in words. ``works`` has the same as true or false.

    Examples:
        >>> trtint8.doctor().works["calibrate, quantize, validate"]
        True
    """
    problem = gpu_problem()
    flavors = flavor.installed()
    runtime = _version("onnxruntime-gpu") or _version("onnxruntime")
    install = install_command(flavor.ON_ANY_MACHINE)
    found = Findings()
    found.add("Python", platform.python_version())
    found.add("trtint8", _version("trtint8") or "?")
    found.add("ONNX", _version("onnx") or "missing")
    found.add("ONNX Runtime", runtime or "missing: pip install onnxruntime")
    for one in flavors:
        found.add(FOUND, f"{one}" + (f" ({one.import_problem})" if one.import_problem else ""))
    if not flavors:
        found.add("TensorRT", f"none: {install} builds engines on any machine", False)
    names = ", ".join(gpu_names()) if problem is None else f"none: {problem}"
    found.add("GPU", names, problem is None)
    found.add("driver", driver_version() or "none")
    found.add("PyCUDA", _version("pycuda") or "none, and none is needed")
    pillow = find_spec("PIL") is not None
    found.add("images from folders", "works" if pillow else install_command("images"), pillow)
    found.add("calibrate, quantize, validate", "work, on the CPU", runtime is not None)
    on_gpu = _gpu_calibration_problem()
    found.add("calibrate --device cuda", f"no: {on_gpu}" if on_gpu else "works", on_gpu is None)
    compiled = kernel() is not NUMPY
    slow = "by NumPy, 5 times slower: trtint8 was installed without a C compiler"
    found.add("counting activations", "compiled" if compiled else slow, compiled)
    usable = [f for f in flavors if not f.import_problem and (f.builds_without_gpu or problem is None)]
    builders = "works with " + ", ".join(map(str, usable)) if usable else install
    found.add("build, explicit route", builders, bool(usable))
    able = [f for f in flavors if f.implicit_int8 and not f.import_problem]
    needs = [*([] if able else ["TensorRT 8.5 to 10.x"]), *([] if problem is None else ["an NVIDIA GPU"])]
    implicit = f"needs {', '.join(needs)}" if needs else f"works with {', '.join(map(str, able))}"
    found.add("build, implicit route", implicit, not needs)
    runs = "needs an NVIDIA GPU" if problem is not None else "works" if usable else "needs a TensorRT"
    found.add("run, bench, validate on the GPU", runs, runs == "works")
    return found


def _gpu_calibration_problem() -> str | None:
    """Why ONNX Runtime calibrates no model on the GPU; None where it does."""
    try:
        open_device("cuda").open_session(DEMO_MODEL, optimize=True)
    except (TrtInt8Error, ImportError) as error:
        return str(error)
    return None


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
