"""Streams of other libraries."""

from __future__ import annotations

from typing import Protocol, TypeAlias, runtime_checkable

from calibrators.errors import CalibrationDataError


@runtime_checkable
class CudaStream(Protocol):
    """A stream that follows the protocol of cuda.core, as those of new CuPy do."""

    def __cuda_stream__(self) -> tuple[int, int]:
        """The version of the protocol, 0, and the handle."""
        ...


@runtime_checkable
class TorchStream(Protocol):
    """A stream of PyTorch."""

    @property
    def cuda_stream(self) -> int:
        """The handle."""
        ...


@runtime_checkable
class CupyStream(Protocol):
    """A stream of CuPy."""

    @property
    def ptr(self) -> int:
        """The handle."""
        ...


@runtime_checkable
class PycudaStream(Protocol):
    """A stream of PyCUDA, or of :mod:`calibrators.cuda`."""

    @property
    def handle(self) -> int:
        """The handle."""
        ...


#: A stream of any library, or its handle; 0 and 1 are the legacy default stream.
StreamLike: TypeAlias = int | CudaStream | TorchStream | CupyStream | PycudaStream

#: Number of the legacy default stream in the array interface, and its handle in the driver.
LEGACY_DEFAULT = 1


def stream_handle(stream: StreamLike) -> int:
    """The handle of a stream of any library.

    Args:
        stream: A stream or its handle.

    Raises:
        CalibrationDataError: It is none.
    """
    handle: object
    if isinstance(stream, int):
        handle = stream
    elif isinstance(stream, CudaStream):
        handle = stream.__cuda_stream__()[1]
    else:
        names = ("cuda_stream", "ptr", "handle")
        handle = next((getattr(stream, name) for name in names if hasattr(stream, name)), None)
    if not isinstance(handle, int) or handle < 0:
        raise CalibrationDataError(
            f"a {type(stream).__name__} is no CUDA stream; give one of PyTorch, CuPy or PyCUDA, or a handle"
        )
    return handle or LEGACY_DEFAULT
