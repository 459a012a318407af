"""What is queued: which functions of the driver get which addresses and handles."""

import ctypes
from types import SimpleNamespace

import pytest

from calibrators.cuda import driver as driver_module
from calibrators.cuda import queueing
from calibrators.errors import EngineError

TYPES = (ctypes.c_uint64, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)


@pytest.fixture
def driver(monkeypatch):
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
def test_copies(driver, copy, function):
    copy(0x7F0000000000, 0x1000, 24, 0x5EED)
    copy(0x7F0000000000, 0x1000, 0, 0x5EED)  # nothing to copy
    assert driver.calls == [(function, 0x7F0000000000, 0x1000, 24, 0x5EED)]
    driver.failing = function
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


def test_one_stream_waits_for_another(driver):
    queueing.wait_for_stream(0x5EED, 1)
    assert driver.calls == [
        ("cuEventCreate", "new", 2),
        ("cuEventRecord", 0xE, 1),
        ("cuStreamWaitEvent", 0x5EED, 0xE, 0),
        ("cuEventDestroy_v2", 0xE),
    ]


def test_the_event_is_given_back_where_the_other_is_no_stream(driver):
    driver.failing = "cuEventRecord"
    with pytest.raises(EngineError, match="cuEventRecord"):
        queueing.wait_for_stream(0x5EED, 77)
    assert driver.calls[-1] == ("cuEventDestroy_v2", 0xE)
