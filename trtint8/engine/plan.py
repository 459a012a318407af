"""Whether bytes can be a plan for this TensorRT and GPU: asked before TensorRT sees them, which may crash."""

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
    """Which TensorRT a plan is of.

    Args:
        plan: The engine file's bytes.
        source: What to call them in messages.

    Raises:
        EngineError: They are empty, truncated, or something else.
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
        info: What the sidecar says.
        flavor: The TensorRT that is to run it.
        source: What to call the engine in messages.

    Raises:
        EngineError: Names both sides.
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
        info: What the sidecar says.
        capability: The GPU's compute capability, like "8.9".
        source: What to call the engine in messages.

    Raises:
        EngineError: Names both sides.
    """
    built_for = info.compute_capabilities
    if "current" not in built_for and not any(_runs(name, capability, info) for name in built_for):
        raise EngineError(
            f"{source} was built for compute capability {', '.join(built_for)}, and this GPU has "
            f"{capability}; build the engine for it"
        )


def _rtx_size(plan: bytes) -> int:
    # The header's third word is the size of the whole.
    return int.from_bytes(plan[16:24], "little")


def _release(version: str) -> tuple[int, ...]:
    """Major, minor and patch; a rebuild of the same release reads its plans."""
    return tuple(int(part) for part in version.split(".")[:3] if part.isdigit())


def _runs(built: str, here: str, info: EngineInfo) -> bool:
    """Whether an engine for one compute capability runs on another."""
    (major, minor), (our_major, our_minor) = (tuple(map(int, name.split("."))) for name in (built, here))
    if info.hardware_compatibility == "ampere_plus":
        return our_major >= _AMPERE
    if info.flavor == "rtx":
        # Compiled when it is loaded, for the same generation upwards.
        return major == our_major and minor <= our_minor
    return built == here
