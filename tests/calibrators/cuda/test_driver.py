"""What is asked of the driver alone, and what it answers where something is missing."""

import ctypes
import re
from types import SimpleNamespace

import pytest

from calibrators import cuda
from calibrators.cuda import driver as driver_module
from calibrators.cuda import driver as queueing
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
    assert cuda.gpu_name(1) == "NVIDIA Test"
    assert cuda.driver_version() == "12.4"
    install(driver(get=100))
    with pytest.raises(EngineError, match="CUDA_ERROR_NO_DEVICE in cuDeviceGet;"):
        cuda.gpu_names()


def test_require_gpu(install):
    install(driver(count=0))
    with pytest.raises(GpuUnavailableError, match=r"^building .*sees no GPU"):
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


@pytest.mark.parametrize(
    ("said", "clocks"),
    [("1410, 1215", "1410 MHz, memory 1215 MHz"), ("[N/A], [N/A]", ""), ("No devices were found", "")],
)
def test_the_clocks_that_nvidia_smi_knows(said, clocks, monkeypatch, tmp_path):
    monkeypatch.setattr(driver_module, "gpu_uuid", lambda ordinal: f"{ordinal}1234567" * 4)
    program = tmp_path / "nvidia-smi"
    program.write_text(
        f"#!/bin/sh\n[ $1 = --id=GPU-31234567-3123-4567-3123-456731234567 ] && echo '{said}'\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert cuda.gpu_clocks(3) == clocks
    program.unlink()
    assert cuda.gpu_clocks(3) == ""


TYPES = (ctypes.c_uint64, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)


@pytest.fixture
def queueing_driver(monkeypatch):
    """Notes every call as plain numbers; ``failing`` names a function that returns an error."""
    noted = SimpleNamespace(calls=[], failing=None)

    def function(name):
        def run(*arguments):
            values = [
                "new" if hasattr(value, "_obj") else getattr(value, "value", value) for value in arguments
            ]
            noted.calls.append((name, *values))
            if name == "cuEventCreate":
                arguments[0]._obj.value = 0xE
            return 700 if name == noted.failing else 0

        return run

    names = ("cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2", "cuMemcpyDtoDAsync_v2")
    names += ("cuEventCreate", "cuEventRecord", "cuStreamWaitEvent", "cuEventDestroy_v2")
    functions = {name: function(name) for name in names}
    functions["cuGetErrorName"] = lambda _status, pointer: setattr(pointer._obj, "value", b"CUDA_ERROR_X")
    monkeypatch.setattr(driver_module, "_loaded", lambda: SimpleNamespace(**functions))
    queueing._copy.cache_clear()
    yield noted
    queueing._copy.cache_clear()


@pytest.mark.parametrize(
    ("copy", "function"),
    [
        (queueing.upload, "cuMemcpyHtoDAsync_v2"),
        (queueing.download, "cuMemcpyDtoHAsync_v2"),
        (queueing.copy, "cuMemcpyDtoDAsync_v2"),
    ],
)
def test_copies(queueing_driver, copy, function):
    copy(0x7F0000000000, 0x1000, 24, 0x5EED)
    copy(0x7F0000000000, 0x1000, 0, 0x5EED)  # nothing to copy
    assert queueing_driver.calls == [(function, 0x7F0000000000, 0x1000, 24, 0x5EED)]
    queueing_driver.failing = function
    with pytest.raises(EngineError, match=f"the GPU failed with CUDA_ERROR_X in {function}; check"):
        copy(1, 2, 3, 4)


def test_addresses_of_64_bits_pass():
    calls = []

    def note(*arguments):
        calls.append(arguments)
        return 0

    native = ctypes.CFUNCTYPE(ctypes.c_int, *TYPES)(note)
    given = (0xFFFF_FFFF_FFFF_FF00, 0x7FFF_FFFF_FFFF, 1 << 33, 0x5EED)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(driver_module, "_loaded", lambda: SimpleNamespace(f=native))
        driver_module.prepared("f", *TYPES)(*given)
    assert calls == [given]


def test_one_stream_waits_for_another(queueing_driver):
    queueing.wait_for_stream(0x5EED, 1)
    assert queueing_driver.calls == [
        ("cuEventCreate", "new", 2),
        ("cuEventRecord", 0xE, 1),
        ("cuStreamWaitEvent", 0x5EED, 0xE, 0),
        ("cuEventDestroy_v2", 0xE),
    ]


def test_the_event_is_given_back_where_the_other_is_no_stream(queueing_driver):
    queueing_driver.failing = "cuEventRecord"
    with pytest.raises(EngineError, match="cuEventRecord"):
        queueing.wait_for_stream(0x5EED, 77)
    assert queueing_driver.calls[-1] == ("cuEventDestroy_v2", 0xE)
