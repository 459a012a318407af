"""What is asked of the driver alone, and what it answers where something is missing."""

import re

import pytest

from calibrators import cuda
from calibrators.errors import EngineError, GpuUnavailableError
from tests.calibrators.cuda.fake_driver import driver


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


def test_a_gpu_that_the_driver_does_not_give_has_no_name(install):
    install(driver(get=100))
    with pytest.raises(EngineError, match="the GPU failed with CUDA_ERROR_NO_DEVICE in cuDeviceGet;"):
        cuda.gpu_names()


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
