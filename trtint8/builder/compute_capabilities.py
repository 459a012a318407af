"""Compute capabilities: the generations of GPU that an engine of TensorRT for RTX is built for."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from calibrators.cuda import gpu_problem
from calibrators.errors import UnsupportedError
from calibrators.tensorrt.flavor import Flavor

_CURRENT = "current"
_TURING = "7.5"


def resolve_capabilities(flavor: Flavor, wanted: Sequence[str]) -> tuple[str, ...]:
    """Decides what to build for.

    Args:
        flavor: The TensorRT that will build.
        wanted: Like "8.6" or "SM86", or "current" for this machine's GPU. Empty leaves the choice here:
            this machine's GPU, or everything from Ampere on where there is none.

    Returns:
        Like ("8.6",) or ("current",); empty where TensorRT builds for the GPU that it runs on and cannot
        be told otherwise.

    Raises:
        UnsupportedError: The flavor cannot build for one of them.
    """
    if not flavor.has_compute_capabilities:
        if wanted:
            raise UnsupportedError(
                f"{flavor} builds for the GPU it runs on, so compute capabilities ({', '.join(wanted)}) "
                f"cannot be chosen; leave them out, or build with TensorRT for RTX"
            )
        return ()
    if wanted:
        return tuple(dict.fromkeys(_resolve(flavor, name) for name in wanted))
    # Portability is free here: a plan holds the network once and its kernels are compiled when it is
    # loaded. ResNet-20 in Q/DQ form builds in 0.3 s to 2.74 MB for 8.6 alone, and for all five as well.
    return _available(flavor) if gpu_problem() else (_CURRENT,)


def set_capabilities(trt: Any, config: Any, names: Sequence[str]) -> None:
    """Tells the builder.

    Args:
        trt: The TensorRT module.
        config: The builder's ``IBuilderConfig``.
        names: From :func:`resolve_capabilities`; empty does nothing.
    """
    if names:
        config.num_compute_capabilities = len(names)
    for index, name in enumerate(names):
        member = "CURRENT" if name == _CURRENT else f"SM{name.replace('.', '')}"
        config.set_compute_capability(trt.ComputeCapability.__members__[member], index)


def _resolve(flavor: Flavor, name: str) -> str:
    if name.lower() == _CURRENT:
        problem = gpu_problem()
        if problem:
            raise UnsupportedError(
                f"the engine cannot be built for the current GPU, because {problem}; choose among "
                f"{', '.join(_available(flavor))}"
            )
        return _CURRENT
    match = re.fullmatch(r"(?:sm_?)?(\d+)\.?(\d)", name, re.IGNORECASE)
    capability = f"{match[1]}.{match[2]}" if match else name
    if capability == _TURING:
        # Its kernels there dequantize and multiply in float, and refuse FP32 matrix products. A build
        # that fails so even leaves the builder in a state in which the next one runs in float, too.
        raise UnsupportedError(
            f"{flavor} has no INT8 kernels for compute capability 7.5; choose among "
            f"{', '.join(_available(flavor))}"
        )
    if capability not in _available(flavor):
        raise UnsupportedError(
            f"{flavor} cannot build for compute capability '{name}'; choose among "
            f"{', '.join(_available(flavor))}, or current"
        )
    return capability


def _available(flavor: Flavor) -> tuple[str, ...]:
    members = (re.fullmatch(r"SM(\d+)(\d)", name) for name in flavor.module.ComputeCapability.__members__)
    names = (f"{match[1]}.{match[2]}" for match in members if match)
    return tuple(name for name in names if name != _TURING)
