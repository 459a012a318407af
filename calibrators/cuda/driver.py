"""The CUDA driver by itself: whether this machine has a usable GPU, and what is queued on streams.

TensorRT's ``Builder`` and ``Runtime`` can crash the whole process where there is no driver, so this is
asked first. Only ctypes is needed: no CUDA toolkit, no Python CUDA package. Streams may be those of other
libraries, for which PyCUDA has no objects, and a call costs less than one microsecond.
"""

from __future__ import annotations

import ctypes
import functools
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from calibrators.errors import EngineError, GpuUnavailableError

_LIBRARY = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
_SUCCESS = 0
_COMPUTE_CAPABILITY_MAJOR = 75
_COMPUTE_CAPABILITY_MINOR = 76


def gpu_problem() -> str | None:
    """Why no GPU can be used, in words; None where one can."""
    try:
        driver = _loaded()
    except OSError:
        return f"no NVIDIA driver is installed ({_LIBRARY} was not found)"
    status = driver.cuInit(0)
    if status != _SUCCESS:
        return f"the NVIDIA driver does not start ({_error_name(status)})"
    count = ctypes.c_int()
    status = driver.cuDeviceGetCount(ctypes.byref(count))
    if status != _SUCCESS:
        return f"the NVIDIA driver cannot list its GPUs ({_error_name(status)})"
    return None if count.value else "the NVIDIA driver sees no GPU"


def require_gpu(purpose: str, instead: str = "run this on a machine that has one") -> None:
    """Fails unless a GPU can be used.

    Args:
        purpose: What needs the GPU, as the beginning of the sentence "... needs an NVIDIA GPU".
        instead: What to do without one.

    Raises:
        GpuUnavailableError: There is no driver or no GPU.
    """
    problem = gpu_problem()
    if problem:
        raise GpuUnavailableError(f"{purpose} needs an NVIDIA GPU, but {problem}; {instead}")


def driver_version() -> str | None:
    """The newest CUDA version that the installed driver supports, like "12.4"; None without a driver."""
    try:
        driver = _loaded()
    except OSError:
        return None
    version = ctypes.c_int()
    if driver.cuDriverGetVersion(ctypes.byref(version)) != _SUCCESS:
        return None
    return f"{version.value // 1000}.{version.value % 1000 // 10}"


def gpu_names() -> list[str]:
    """The visible GPUs in CUDA's order, like "NVIDIA L4 (compute capability 8.9)"; empty without one.

    Raises:
        EngineError: The driver returns an error.
    """
    if gpu_problem():
        return []
    count = ctypes.c_int()
    call("cuDeviceGetCount", ctypes.byref(count))
    return [_describe(ordinal) for ordinal in range(count.value)]


def gpu_name(ordinal: int) -> str:
    """The name of a GPU, like "NVIDIA L4".

    Args:
        ordinal: Its index in CUDA's order.

    Raises:
        EngineError: The driver returns an error.
    """
    name = ctypes.create_string_buffer(256)
    call("cuDeviceGetName", name, len(name), _device(ordinal))
    return name.value.decode(errors="replace")


def check_ordinal(ordinal: int) -> None:
    """Fails unless there is a GPU of that index.

    Raises:
        GpuUnavailableError: There is no driver, no GPU, or none of that index.
    """
    require_gpu("running on a device")
    names = gpu_names()
    if not 0 <= ordinal < len(names):
        raise GpuUnavailableError(
            f"there is no GPU with index {ordinal}; this machine has {len(names)}: {', '.join(names)}"
        )


def compute_capability(ordinal: int) -> str:
    """A GPU's compute capability, like "8.9".

    Raises:
        GpuUnavailableError: There is no such GPU.
    """
    check_ordinal(ordinal)
    return _capability(ordinal)


def gpu_uuid(ordinal: int) -> str:
    """Identifies a GPU, or a part of one, among all of a machine, whatever index this process sees it under.

    Raises:
        GpuUnavailableError: There is no such GPU.
    """
    check_ordinal(ordinal)
    uuid = (ctypes.c_ubyte * 16)()
    call("cuDeviceGetUuid", uuid, _device(ordinal))
    return bytes(uuid).hex()


def gpu_clocks(ordinal: int) -> str:
    """The clocks at which a GPU runs now, like "1410 MHz, memory 1215 MHz"; empty where they are not known.

    The driver itself knows the highest clock only, so NVIDIA's program ``nvidia-smi`` is asked.

    Raises:
        GpuUnavailableError: There is no such GPU.
    """
    uuid, program = gpu_uuid(ordinal), shutil.which("nvidia-smi")
    if program is None:
        return ""
    name = "-".join(["GPU", uuid[:8], uuid[8:12], uuid[12:16], uuid[16:20], uuid[20:]])
    query = ["--query-gpu=clocks.sm,clocks.mem", "--format=csv,noheader,nounits"]
    try:
        said = subprocess.run(
            [program, f"--id={name}", *query], capture_output=True, text=True, timeout=10, check=False
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""
    # A part of a GPU has no clocks of its own, and some GPUs keep theirs to themselves: "[N/A]".
    found = re.match(r"(\d+), (\d+)$", said.strip())
    return f"{found[1]} MHz, memory {found[2]} MHz" if found else ""


def share_driver() -> None:
    """Lets libraries that are loaded later find the driver's functions, even where they do not name it."""
    ctypes.CDLL(_LIBRARY, mode=ctypes.RTLD_GLOBAL)


def call(function: str, *arguments: Any) -> None:
    """Calls the driver; for most functions a context must be current.

    Args:
        function: The C name, version suffix included.
        arguments: ctypes values.

    Raises:
        EngineError: The driver returns an error.
    """
    status = status_of(function, *arguments)
    if status != _SUCCESS:
        raise failure(function, status)


def status_of(function: str, *arguments: Any) -> int:
    """Calls the driver as :func:`call` does, and returns its status, which is 0 where nothing failed."""
    status: int = getattr(_loaded(), function)(*arguments)
    return status


def prepared(function: str, *types: type) -> Callable[..., None]:
    """A function of the driver for calls that are repeated; a context must be current when it is called.

    Args:
        function: The C name, version suffix included.
        types: The ctypes types of its parameters.

    Returns:
        A function that takes plain integers or ctypes values, and raises an :class:`EngineError` where the
        driver returns an error.
    """
    native = getattr(_loaded(), function)
    native.argtypes = types

    def checked(*arguments: Any) -> None:
        status = native(*arguments)
        if status != _SUCCESS:
            raise failure(function, status)

    return checked


@functools.cache
def _loaded() -> ctypes.CDLL:
    return ctypes.CDLL(_LIBRARY)


def failure(function: str, status: int) -> EngineError:
    """The error for a call that the driver answered with a status."""
    return EngineError(
        f"the GPU failed with {_error_name(status)} in {function}; check the inputs, and the GPU "
        "with nvidia-smi"
    )


def _describe(ordinal: int) -> str:
    return f"{gpu_name(ordinal)} (compute capability {_capability(ordinal)})"


def _capability(ordinal: int) -> str:
    device, major, minor = _device(ordinal), ctypes.c_int(), ctypes.c_int()
    call("cuDeviceGetAttribute", ctypes.byref(major), _COMPUTE_CAPABILITY_MAJOR, device)
    call("cuDeviceGetAttribute", ctypes.byref(minor), _COMPUTE_CAPABILITY_MINOR, device)
    return f"{major.value}.{minor.value}"


def _device(ordinal: int) -> ctypes.c_int:
    device = ctypes.c_int()
    call("cuDeviceGet", ctypes.byref(device), ordinal)
    return device


def _error_name(status: int) -> str:
    name = ctypes.c_char_p()
    _loaded().cuGetErrorName(status, ctypes.byref(name))
    return name.value.decode() if name.value else f"CUDA error {status}"


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
