"""Opens a GPU: through PyCUDA where that is installed, else through NVIDIA's driver by itself."""

from __future__ import annotations

import contextlib
import functools
from importlib.util import find_spec

from calibrators.cuda.device import Device
from calibrators.cuda.driver import check_ordinal, share_driver


@functools.cache
def open_device(ordinal: int = 0) -> Device:
    """A GPU by its index.

    Args:
        ordinal: The GPU's index in CUDA's order.

    Returns:
        The device, the same one for every call: its primary context stays retained.

    Raises:
        GpuUnavailableError: There is no driver, no GPU, or none of that index.
        EngineError: The driver cannot use the GPU.
    """
    check_ordinal(ordinal)
    # Where PyCUDA is used in the process, contexts must be entered through it: it keeps a stack of its own.
    if find_spec("pycuda") is not None:
        # A PyCUDA that was built on a machine without a driver does not name the library that it needs.
        share_driver()
        # Nobody uses one that cannot be imported, and the driver does without.
        with contextlib.suppress(ImportError):
            from calibrators.cuda.pycuda_device import PycudaDevice

            return PycudaDevice(ordinal)
    return Device(ordinal)
