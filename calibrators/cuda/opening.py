"""Opens a GPU with the CUDA package that is installed: PyCUDA, else cuda-python."""

from __future__ import annotations

import functools
import importlib.util

from calibrators.cuda.device import Device
from calibrators.cuda.driver import check_ordinal, share_driver
from calibrators.errors import UnsupportedError


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
        UnsupportedError: Neither PyCUDA nor cuda-python is installed.
    """
    check_ordinal(ordinal)
    # Imported here, since both packages need a driver or are absent on most machines.
    if _installed("pycuda.driver"):
        # A PyCUDA that was built on a machine without a driver does not name the library that it needs.
        share_driver()
        try:
            from calibrators.cuda.pycuda_device import PycudaDevice
        except ImportError as error:
            raise UnsupportedError(
                f"PyCUDA is installed but cannot be imported ({error}); install it again with "
                "pip install --force-reinstall --no-binary pycuda pycuda"
            ) from error
        return PycudaDevice(ordinal)
    if _installed("cuda.bindings.driver"):
        from calibrators.cuda.cuda_python_device import CudaPythonDevice

        return CudaPythonDevice(ordinal)
    raise UnsupportedError(
        "no Python package for CUDA is installed; run pip install 'trtint8[cuda]' (PyCUDA, which needs a "
        "CUDA toolkit) or 'trtint8[cuda-python]'"
    )


def _installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # not even the package that holds it
        return False
