"""Checks whether bytes can be a plan for this TensorRT and GPU, because TensorRT may crash on others."""

from __future__ import annotations

from calibrators.errors import EngineError
from calibrators.tensorrt.flavor import Flavor, FlavorName
from trtint8.engine.file import EngineInfo

# Every plan begins with a letter and "trt"; the letter of TensorRT for RTX is "v".
_MAGIC = b"trt"
_RTX = b"vtrt"
_SHORTEST = 64
_AMPERE = 8


def plan_flavor(plan: bytes, source: str) -> FlavorName:
    """Finds out which TensorRT built a plan.

    Args:
        plan: The bytes of the engine file.
        source: The engine's name in messages.

    Returns:
        "tensorrt" or "rtx".

    Raises:
        EngineError: The plan is empty, truncated, or no plan.
    """
    if plan[1:4] != _MAGIC:
        kind = "is empty" if not plan else "is not a TensorRT engine"
        raise EngineError(f"{source} {kind}; give a file that 'trtint8 build' or TensorRT wrote")
    if len(plan) < _SHORTEST or (plan[:4] == _RTX and len(plan) != _rtx_size(plan)):
        raise EngineError(f"{source} is truncated; copy it again or build the engine again")
    return "rtx" if plan[:4] == _RTX else "tensorrt"


def check_version(info: EngineInfo, flavor: Flavor, source: str) -> None:
    """Refuses an engine that was built by another version.

    Args:
        info: The engine's sidecar.
        flavor: The TensorRT that is to run the engine.
        source: The engine's name in messages.

    Raises:
        EngineError: This TensorRT cannot run the engine; the message names both versions.
    """
    built, here = _release(info.tensorrt_version), _release(flavor.version)
    runs = built <= here if info.version_compatible else built == here
    if not runs:
        raise EngineError(
            f"{source} was built with version {info.tensorrt_version} and this is {flavor}; install that "
            "version or build the engine again"
        )


def check_capability(info: EngineInfo, capability: str, source: str) -> None:
    """Refuses an engine that was built for other GPUs.

    Args:
        info: The engine's sidecar.
        capability: The GPU's compute capability, like "8.9".
        source: The engine's name in messages.

    Raises:
        EngineError: The GPU cannot run the engine; the message names all compute capabilities.
    """
    built_for = info.compute_capabilities
    if "current" not in built_for and not any(_runs(name, capability, info) for name in built_for):
        raise EngineError(
            f"{source} was built for compute capability {', '.join(built_for)}, and this GPU has "
            f"{capability}; build the engine for it"
        )


def _rtx_size(plan: bytes) -> int:
    # The third 64-bit word of the header is the size of the plan in bytes.
    return int.from_bytes(plan[16:24], "little")


def _release(version: str) -> tuple[int, ...]:
    """Major, minor and patch version; builds of the same release can run each other's plans."""
    return tuple(int(part) for part in version.split(".")[:3] if part.isdecimal())


def _runs(built: str, here: str, info: EngineInfo) -> bool:
    """Whether an engine for one compute capability runs on another."""
    (major, minor), (our_major, our_minor) = (tuple(map(int, name.split("."))) for name in (built, here))
    if info.hardware_compatibility == "ampere_plus":
        return our_major >= _AMPERE
    if info.flavor == "rtx":
        # Kernels are compiled when the engine is loaded, for the same or a later GPU of the same generation.
        return major == our_major and minor <= our_minor
    return built == here
