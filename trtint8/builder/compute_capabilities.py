"""Compute capabilities: the generations of GPU that an engine of TensorRT for RTX is built for."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from calibrators.cuda import compute_capability, gpu_problem
from calibrators.errors import UnsupportedError
from calibrators.tensorrt.flavor import Flavor

_CURRENT = "current"
_TURING = "7.5"


def resolve_capabilities(flavor: Flavor, wanted: Sequence[str], device: int = 0) -> tuple[str, ...]:
    """Decides for which compute capabilities to build.

    Args:
        flavor: The TensorRT that builds.
        wanted: Compute capabilities like "8.6" or "SM86", or "current" for this machine's GPU. Empty means
            this machine's GPU, or, where there is none, every compute capability from Ampere on.
        device: Index of this machine's GPU.

    Returns:
        Compute capabilities like ("8.6",) or ("current",); empty where TensorRT can build only for the GPU on
        which it runs.

    Raises:
        UnsupportedError: The flavor cannot build for one of them.
        GpuUnavailableError: There is a GPU, but none of that index.
    """
    if not flavor.has_compute_capabilities:
        if wanted:
            raise UnsupportedError(
                f"{flavor} builds for the GPU it runs on, so compute capabilities ({', '.join(wanted)}) "
                f"cannot be chosen; leave them out, or build with TensorRT for RTX"
            )
        return ()
    if wanted:
        return tuple(dict.fromkeys(_resolve(flavor, name, device) for name in wanted))
    # More compute capabilities cost neither time nor size: a plan holds the network once, and its kernels are
    # compiled when it is loaded. ResNet-20 in Q/DQ form takes 0.3 s and 2.74 MB for 8.6 alone, and for all
    # five.
    return _available(flavor) if gpu_problem() else (_current(flavor, device),)


def nearest_capability(flavor: Flavor, wanted: str) -> str | None:
    """The compute capability to build for where a graph is compiled to be looked at, not to be run.

    Args:
        flavor: The TensorRT that builds.
        wanted: The GPU's compute capability, like "9.0".

    Returns:
        ``wanted`` where the flavor can build for it; else the highest below it, else the lowest of all. None
        where TensorRT can build only for the GPU on which it runs.
    """
    if not flavor.has_compute_capabilities:
        return None
    available = sorted(_available(flavor), key=_version)
    below = [name for name in available if _version(name) <= _version(wanted)]
    return below[-1] if below else available[0]


def set_capabilities(trt: Any, config: Any, names: Sequence[str]) -> None:
    """Sets the compute capabilities in the builder's configuration.

    Args:
        trt: The TensorRT module.
        config: The builder's ``IBuilderConfig``.
        names: Compute capabilities from :func:`resolve_capabilities`; empty changes nothing.
    """
    if names:
        config.num_compute_capabilities = len(names)
    for index, name in enumerate(names):
        member = "CURRENT" if name == _CURRENT else f"SM{name.replace('.', '')}"
        config.set_compute_capability(trt.ComputeCapability.__members__[member], index)


def _resolve(flavor: Flavor, name: str, device: int) -> str:
    if name.lower() == _CURRENT:
        problem = gpu_problem()
        if problem:
            raise UnsupportedError(
                f"the engine cannot be built for the current GPU, because {problem}; choose among "
                f"{', '.join(_available(flavor))}"
            )
        return _current(flavor, device)
    match = re.fullmatch(r"(?:sm_?)?(\d+)\.?(\d)", name, re.IGNORECASE)
    capability = f"{match[1]}.{match[2]}" if match else name
    _refuse_turing(flavor, capability)
    if capability not in _available(flavor):
        raise UnsupportedError(
            f"{flavor} cannot build for compute capability '{name}'; choose among "
            f"{', '.join(_available(flavor))}, or current"
        )
    return capability


def _current(flavor: Flavor, device: int) -> str:
    """Stands for the GPU of that index, if engines can be built for it."""
    _refuse_turing(flavor, compute_capability(device))
    return _CURRENT


def _refuse_turing(flavor: Flavor, capability: str) -> None:
    if capability == _TURING:
        # For 7.5, TensorRT for RTX has kernels that dequantize and multiply in float, and none for FP32
        # matrix products. After a build that failed because of these, even the next engine runs in float.
        raise UnsupportedError(
            f"{flavor} has no INT8 kernels for compute capability 7.5; choose among "
            f"{', '.join(_available(flavor))}"
        )


def _version(capability: str) -> tuple[int, ...]:
    return tuple(map(int, capability.split(".")))


def _available(flavor: Flavor) -> tuple[str, ...]:
    members = (re.fullmatch(r"SM(\d+)(\d)", name) for name in flavor.module.ComputeCapability.__members__)
    names = (f"{match[1]}.{match[2]}" for match in members if match)
    return tuple(name for name in names if name != _TURING)
