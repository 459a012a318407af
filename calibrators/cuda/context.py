"""CUDA contexts: making a GPU's primary one current, whether it is, and whether an address belongs to it.

CUDA's runtime, and with it TensorRT, PyTorch and CuPy, works in the context that is current in the thread.
Contexts other than the primary one, like that of ``pycuda.autoinit``, cannot use its memory.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Iterator

from calibrators.cuda.driver import call, check_ordinal, status_of

# Values of CUpointer_attribute in cuda.h.
_ATTRIBUTE_CONTEXT = 1
_ATTRIBUTE_DEVICE_ORDINAL = 9

_WITH_PYCUDA = "with PyCUDA, import pycuda.autoprimaryctx in place of pycuda.autoinit"


@contextlib.contextmanager
def primary_context(ordinal: int) -> Iterator[None]:
    """Makes a GPU's primary context current in this thread, and afterwards the one that was before.

    Args:
        ordinal: The GPU's index in CUDA's order.

    Raises:
        GpuUnavailableError: There is no driver, no GPU, or none of that index.
        EngineError: The driver cannot use the GPU.
    """
    check_ordinal(ordinal)
    call("cuCtxPushCurrent_v2", ctypes.c_void_p(retained_context(ordinal)))
    try:
        yield
    finally:
        call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))


def current_device() -> int | None:
    """Index of the GPU whose context is current in this thread; None where no context is.

    Raises:
        EngineError: The driver fails.
    """
    device = ctypes.c_int()
    if _current() is None:
        return None
    call("cuCtxGetDevice", ctypes.byref(device))
    # Devices are numbered as they are listed.
    return device.value


def pointer_problem(pointer: int, ordinal: int) -> str | None:
    """Why work on a GPU cannot use an address, in words that follow "is"; None where it can.

    Args:
        pointer: A device address, or an address of page-locked host memory.
        ordinal: Index of the GPU, whose primary context must be current.
    """
    owner, context, address = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64(pointer)
    function = "cuPointerGetAttribute"
    if status_of(function, ctypes.byref(owner), ctypes.c_int(_ATTRIBUTE_DEVICE_ORDINAL), address):
        return "no memory that the GPU can use"
    if owner.value != ordinal:
        return f"on GPU {owner.value} and the engine on GPU {ordinal}"
    # Memory of a pool belongs to no context.
    status_of(function, ctypes.byref(context), ctypes.c_int(_ATTRIBUTE_CONTEXT), address)
    if context.value and context.value != _current():
        return (
            "of another CUDA context than the primary one, which CUDA's runtime, PyTorch and CuPy use "
            f"({_WITH_PYCUDA})"
        )
    return None


def context_problem(ordinal: int) -> str | None:
    """Why work in this thread cannot use memory of a GPU's primary context, in a clause; None where it can.

    Args:
        ordinal: Index of the GPU.

    Raises:
        EngineError: The driver fails.
    """
    # Where no context is current, CUDA's runtime takes the primary one.
    if _current() in (None, retained_context(ordinal)):
        return None
    return (
        f"another CUDA context is current than the primary one of GPU {ordinal}, whose memory it cannot use; "
        f"make that one current ({_WITH_PYCUDA})"
    )


def _initialize() -> None:
    """Initializes the driver, which answers nothing before; where it is initialized, nothing happens."""
    call("cuInit", ctypes.c_uint(0))


@functools.cache
def retained_context(ordinal: int) -> int:
    """The primary context of a GPU; it stays retained, because releasing it last would reset the GPU."""
    _initialize()
    device, context = ctypes.c_int(), ctypes.c_void_p()
    call("cuDeviceGet", ctypes.byref(device), ctypes.c_int(ordinal))
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    return context.value or 0


def _current() -> int | None:
    _initialize()
    context = ctypes.c_void_p()
    call("cuCtxGetCurrent", ctypes.byref(context))
    return context.value
