import ctypes
import re
from types import SimpleNamespace

import pytest

from calibrators import cuda
from calibrators.errors import GpuUnavailableError, UnsupportedError


def driver(init=0, count=1):
    """Stands in for the driver library: two GPUs, or the failures that machines show."""

    def put(value, result=0):
        def call(pointer, *_):
            pointer._obj.value = value
            return result

        return call

    def error_name(status, pointer):
        if status == 100:
            pointer._obj.value = b"CUDA_ERROR_NO_DEVICE"

    def name(buffer, _size, _device):
        buffer.value = b"NVIDIA Test"

    def attribute(pointer, which, _device):
        pointer._obj.value = {75: 8, 76: 9}[which]

    return SimpleNamespace(
        cuInit=lambda _flags: init,
        cuDeviceGetCount=put(count),
        cuDriverGetVersion=put(12040),
        cuGetErrorName=error_name,
        cuDeviceGet=lambda pointer, ordinal: put(ordinal)(pointer),
        cuDeviceGetName=name,
        cuDeviceGetAttribute=attribute,
    )


@pytest.fixture
def install(monkeypatch):
    def use(library):
        def load(_name):
            if isinstance(library, OSError):
                raise library
            return library

        monkeypatch.setattr(ctypes, "CDLL", load)

    return use


def test_no_driver(install):
    install(OSError("libcuda.so.1: cannot open shared object file"))
    assert re.fullmatch(r"no NVIDIA driver is installed \(\S+ was not found\)", cuda.gpu_problem())
    assert cuda.driver_version() is None
    assert cuda.gpu_names() == []


@pytest.mark.parametrize(
    ("library", "problem"),
    [
        (driver(init=100), "the NVIDIA driver does not start (CUDA_ERROR_NO_DEVICE)"),
        (driver(init=7), "the NVIDIA driver does not start (CUDA error 7)"),
        (driver(count=0), "the NVIDIA driver sees no GPU"),
        (driver(), None),
    ],
)
def test_gpu_problem(install, library, problem):
    install(library)
    assert cuda.gpu_problem() == problem


def test_gpu_names_and_version(install):
    install(driver(count=2))
    assert cuda.gpu_names() == ["NVIDIA Test (compute capability 8.9)"] * 2
    assert cuda.driver_version() == "12.4"


def test_require_gpu(install):
    install(driver(count=0))
    with pytest.raises(
        GpuUnavailableError,
        match=r"^building needs an NVIDIA GPU, but the NVIDIA driver sees no GPU; run this",
    ):
        cuda.require_gpu("building")
    install(driver())
    cuda.require_gpu("building")


def test_this_machine_gives_consistent_answers():
    problem = cuda.gpu_problem()
    assert (problem is None) == bool(cuda.gpu_names())
    assert problem is None or "NVIDIA" in problem


def test_a_gpu_by_its_index(install):
    install(driver(count=2))
    assert cuda.compute_capability(1) == "8.9"
    for ordinal in (2, -1):
        with pytest.raises(GpuUnavailableError, match=f"no GPU with index {ordinal}; this machine has 2"):
            cuda.compute_capability(ordinal)
        with pytest.raises(GpuUnavailableError, match=f"there is no GPU with index {ordinal}"):
            cuda.open_device(ordinal)


def test_a_gpu_without_a_python_package(install, monkeypatch):
    install(driver(count=1))
    monkeypatch.setattr("calibrators.cuda.opening._installed", lambda _module: False)
    cuda.open_device.cache_clear()
    with pytest.raises(UnsupportedError, match=r"no Python package for CUDA is installed; run pip install"):
        cuda.open_device(0)
