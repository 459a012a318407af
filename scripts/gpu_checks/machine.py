"""What the checks ran on."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import re
from pathlib import Path

from calibrators.cuda import driver_version, gpu_names
from calibrators.tensorrt import flavor
from trtint8 import __version__

_PACKAGES = (
    "numpy",
    "onnx",
    "onnxruntime",
    "onnxruntime-gpu",
    "onnx-ir",
    "pycuda",
    "polygraphy",
    "torch",
    "cupy-cuda12x",
    "cupy-cuda13x",
)


def describe() -> dict[str, str]:
    """Device, driver, versions and date, in words."""
    found = {
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "device": "; ".join(gpu_names()) or "none",
        "driver": f"{_driver_release()}, CUDA {driver_version() or 'none'}",
        "processor": f"{os.cpu_count()} cores, {platform.machine()}, {platform.system()}",
        "TensorRT": ", ".join(map(str, flavor.installed())) or "none",
        "trtint8": __version__,
        "python": platform.python_version(),
    }
    return found | {name: version for name in _PACKAGES if (version := _version(name))}


def _driver_release() -> str:
    try:
        text = Path("/proc/driver/nvidia/version").read_text()
    except OSError:
        return "release unknown"
    match = re.search(r"\b(\d{3,}\.\d+(?:\.\d+)?)\b", text)
    return f"release {match[1]}" if match else "release unknown"


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
