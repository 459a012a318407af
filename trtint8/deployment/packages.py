"""The Python packages of the TensorRT that built an engine."""

from __future__ import annotations

import re
from dataclasses import dataclass

from trtint8.deployment.source import DeploySource


@dataclass(frozen=True)
class Packages:
    """What ``run.py`` is installed with.

    Attributes:
        python: A Python version that all packages are for, like "3.12".
        requirements: What pip is to install.
        index: The index that has what PyPI lacks; None where PyPI has everything.
        environment: What stands before the command that calls pip.
        has_tensorrt: Whether TensorRT is among the requirements. Of version 9, PyPI has only placeholders,
            which refuse to be installed.
    """

    python: str
    requirements: tuple[str, ...]
    index: str | None = None
    environment: str = ""
    has_tensorrt: bool = True


_OTHERS = ("numpy>=1.26", "pillow>=10", "ml_dtypes>=0.4")
_CUDA_12 = "cuda-bindings>=12.8,<13"


def runtime_packages(source: DeploySource) -> Packages:
    """The packages that ``run.py`` needs: the TensorRT that built the engine, and bindings of CUDA."""
    version = _published(source.info.tensorrt_version)
    pinned = _pinned(version)
    if source.is_rtx:
        return Packages("3.12", (f"tensorrt-rtx-cu12{pinned}", _CUDA_12, *_OTHERS))
    parts = [int(part) for part in version.split(".") if part.isdigit()]
    if parts >= [10]:
        return Packages("3.12", (f"tensorrt-cu12{pinned}", _CUDA_12, *_OTHERS))
    if parts >= [9]:
        return Packages("3.10", (_CUDA_12, *_OTHERS), has_tensorrt=False)
    # The libraries of version 8 are linked with cuDNN 8, and their packages would take any. The bindings are
    # for Python up to 3.10, those of 8.6.1 up to 3.11.
    if parts >= [8, 6]:
        # PyPI has the libraries of 8.6.0, and of 8.6.1 only a package that requires those of NVIDIA's index.
        # The first release of that package fails: it calls a pip that is not there.
        pinned = "==8.6.1.post1" if version == "8.6.1" else pinned
        needed = (f"tensorrt{pinned}", "nvidia-cudnn-cu12<9", _CUDA_12, *_OTHERS)
        # Otherwise the package runs ps, which small images lack, to decide whether to call a pip of its own.
        alone = "NVIDIA_TENSORRT_DISABLE_INTERNAL_PIP=1 "
        return Packages("3.10", needed, "https://pypi.nvidia.com", alone)
    return Packages(
        "3.10", (f"tensorrt{pinned}", "nvidia-cudnn-cu11<9", "cuda-bindings>=11.8.6,<12", *_OTHERS)
    )


def _published(version: str) -> str:
    """The part of a TensorRT's version that its package on PyPI has; empty where the version is not known."""
    found = re.match(r"[0-9]+(\.[0-9]+)*((a|b|rc)[0-9]+)?(\.post[0-9]+)?(\.dev[0-9]+)?", version)
    return found[0] if found else ""


def _pinned(version: str) -> str:
    """What of a requirement stands behind the name of the package."""
    if not version:
        return ""
    is_whole = version.count(".") >= 3 or not version.replace(".", "").isdigit()
    return f"=={version}" if is_whole else f"=={version}.*"


def requirements_file(source: DeploySource) -> str:
    """The packages in pip's own form: the file ``requirements.txt``."""
    packages = runtime_packages(source)
    lines = [f"# For Python {packages.python}."]
    if not packages.has_tensorrt:
        lines.append(f"# PyPI has no {source.tensorrt}: install the one that built the engine.")
    if packages.index is not None:
        lines.append(f"--extra-index-url {packages.index}")
    return "\n".join([*lines, *packages.requirements]) + "\n"
