"""Checks whether bytes can be a plan for this TensorRT and GPU, because TensorRT may crash on others."""

from __future__ import annotations

from typing import Any

from calibrators import records
from calibrators.errors import EngineError
from calibrators.tensorrt.flavor import Flavor, FlavorName
from trtint8.engine.file import EngineInfo

# Every plan begins with a letter and "trt"; the letter of TensorRT for RTX is "v".
_MAGIC = b"trt"
_RTX = b"vtrt"
_SHORTEST = 64
# The second 32-bit word is the version of the header; in version 0 these bytes hold TensorRT's version.
_HEADER_VERSION = slice(4, 8)
_TENSORRT_VERSION = slice(24, 28)
# Ultralytics and others write a JSON object before the plan, and its length before that.
_LENGTH_BYTES = 4
_LONGEST_METADATA = 1 << 20
_AMPERE = 8


def allow_code_of_plans(runtime: Any, flavor: Flavor) -> None:
    """Lets code run that plans contain; before TensorRT 8.6 they contain none, and there is nothing to allow.

    Args:
        runtime: The ``IRuntime`` that will load plans.
        flavor: The TensorRT that it is of.
    """
    if flavor.has_version_compatible_plans:
        runtime.engine_host_code_allowed = True


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


def without_metadata(data: bytes) -> bytes:
    """The plan in an engine file that may begin with metadata, as Ultralytics writes it.

    Args:
        data: The bytes of the engine file.

    Returns:
        The bytes after a length-prefixed JSON object that a plan follows; ``data`` where there is none.
    """
    start = _LENGTH_BYTES + int.from_bytes(data[:_LENGTH_BYTES], "little")
    if data[1:4] == _MAGIC or start > _LONGEST_METADATA or data[start + 1 : start + 4] != _MAGIC:
        return data
    try:
        metadata = records.parse(data[_LENGTH_BYTES:start])
    except records.RecordError:
        return data
    return data[start:] if isinstance(metadata, dict) else data


def plan_version(plan: bytes) -> str | None:
    """The TensorRT that built a plan, like "8.6.1.6"; None where its header has another form.

    Args:
        plan: The plan, whose beginning :func:`plan_flavor` has checked.
    """
    if any(plan[_HEADER_VERSION]) or not plan[_TENSORRT_VERSION.start]:
        return None
    return ".".join(map(str, plan[_TENSORRT_VERSION]))


def check_plan_version(plan: bytes, flavor: Flavor, source: str) -> None:
    """Refuses a plan of another version, where no sidecar says more of it.

    Args:
        plan: The plan.
        flavor: The TensorRT that is to run it.
        source: The engine's name in messages.

    Raises:
        EngineError: Another TensorRT built the plan; the message names both versions.
    """
    built = plan_version(plan)
    if built is None or _release(built) == _release(flavor.version):
        return
    # A package has the version of the bindings, and the library is what loads the plan.
    if _release(built) != flavor.library_version:
        raise _other_version(built, flavor, source)


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
        raise _other_version(info.tensorrt_version, flavor, source)


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


def _other_version(built: str, flavor: Flavor, source: str) -> EngineError:
    return EngineError(
        f"{source} was built with version {built} and this is {flavor}; install that version or build the "
        "engine again"
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
