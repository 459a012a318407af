"""What is queued on streams, through the driver itself.

Streams may be those of other libraries, for which PyCUDA has no objects, and a call costs less than one
microsecond.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable

from calibrators.cuda.driver import call, prepared

_EVENT_DISABLE_TIMING = 2

_Copy = Callable[[int, int, int, int], None]


def upload(target: int, source: int, nbytes: int, stream: int) -> None:
    """Queues a copy to the GPU.

    Args:
        target: Device address.
        source: Host address, whose memory must stay as it is until the copy is done.
        nbytes: How many bytes.
        stream: Handle of the stream.

    Raises:
        EngineError: The driver refuses.
    """
    if nbytes:
        _copy("cuMemcpyHtoDAsync_v2", ctypes.c_uint64, ctypes.c_void_p)(target, source, nbytes, stream)


def download(target: int, source: int, nbytes: int, stream: int) -> None:
    """Queues a copy from the device address ``source`` to the host address ``target``; see :func:`upload`."""
    if nbytes:
        _copy("cuMemcpyDtoHAsync_v2", ctypes.c_void_p, ctypes.c_uint64)(target, source, nbytes, stream)


def copy(target: int, source: int, nbytes: int, stream: int) -> None:
    """Queues a copy from one device address to another; see :func:`upload`."""
    if nbytes:
        _copy("cuMemcpyDtoDAsync_v2", ctypes.c_uint64, ctypes.c_uint64)(target, source, nbytes, stream)


def wait_for_stream(waiting: int, producing: int) -> None:
    """Makes what is queued on a stream from now on wait for what is in another one now.

    Args:
        waiting: Handle of the stream that waits.
        producing: Handle of the other stream; 1 is the legacy default stream, 2 the default stream of this
            thread.

    Raises:
        EngineError: One of them is no stream of this GPU, or work in it has failed.
    """
    event = ctypes.c_void_p()
    call("cuEventCreate", ctypes.byref(event), ctypes.c_uint(_EVENT_DISABLE_TIMING))
    try:
        call("cuEventRecord", event, ctypes.c_void_p(producing))
        call("cuStreamWaitEvent", ctypes.c_void_p(waiting), event, ctypes.c_uint(0))
    finally:
        # The driver keeps it until the wait is over.
        call("cuEventDestroy_v2", event)


@functools.cache
def _copy(function: str, target: type, source: type) -> _Copy:
    return prepared(function, target, source, ctypes.c_size_t, ctypes.c_void_p)
