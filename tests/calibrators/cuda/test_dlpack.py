"""DLPack: NumPy is the other library, whose arrays are on the CPU, which the structures do not care about."""

import gc
import subprocess
import sys
import weakref

import ml_dtypes
import numpy as np
import pytest
from numpy.testing import assert_array_equal

from calibrators.cuda import dlpack
from calibrators.cuda.dlpack import give, on_gpu, take


class FromNumpy:
    """NumPy's arrays with the device of a GPU; notes the stream that it was asked to serve."""

    def __init__(self, array, device=2):
        self.array, self.device, self.streams = array, device, []

    def __dlpack__(self, *, stream=None):
        self.streams.append(stream)
        return self.array.__dlpack__()

    def __dlpack_device__(self):
        return self.device, 0


@pytest.mark.parametrize("dtype", ["f4", "f2", "i1", "i4", "i8", "u1", "?", "f8"])
def test_an_array_of_another_library(dtype):
    array = np.arange(24).reshape(2, 3, 4).astype(dtype)
    given = FromNumpy(array)
    taken = take(given, 77)
    assert (taken.pointer, taken.shape, taken.dtype) == (array.ctypes.data, (2, 3, 4), np.dtype(dtype))
    assert taken.contiguous
    assert given.streams == [77]


@pytest.mark.parametrize(
    ("change", "contiguous"),
    [
        (lambda array: array[:1], True),
        (lambda array: array[1:], True),
        (lambda array: array[:, :1], False),
        (lambda array: array.T, False),
        (lambda array: array[:, None], True),
        (lambda array: array[:0].T, True),
    ],
)
def test_arrays_that_are_not_contiguous(change, contiguous):
    array = change(np.arange(12, dtype=np.float32).reshape(3, 4))
    taken = take(FromNumpy(array), 0)
    assert (taken.shape, taken.contiguous) == (array.shape, contiguous)
    assert not array.size or taken.pointer == array.ctypes.data


def test_the_capsule_holds_the_memory_and_gives_it_back():
    array = np.zeros(1000)
    before = sys.getrefcount(array)
    taken = take(FromNumpy(array), 0)
    assert sys.getrefcount(array) > before
    del taken
    gc.collect()
    assert sys.getrefcount(array) == before


def test_what_is_on_a_gpu():
    for device, expected in ((2, True), (13, True), (1, False), (3, False), (10, False)):
        assert on_gpu(FromNumpy(np.zeros(1), device)) is expected
    assert not on_gpu(object())
    assert not on_gpu(np.zeros(1))


class Given:
    """Gives memory of NumPy away as this module does, on the device that NumPy takes: the CPU."""

    def __init__(self, array, dtype=None):
        self.array, self.dtype = array, dtype or array.dtype

    def __dlpack__(self, **_options):
        return give(self.array.ctypes.data, self.array.shape, self.dtype, 0, self)

    def __dlpack_device__(self):
        return 1, 0


@pytest.fixture
def to_numpy(monkeypatch):
    monkeypatch.setattr(dlpack, "CUDA", 1)
    return np.from_dlpack


@pytest.mark.parametrize("dtype", ["f4", "f2", "i1", "i4", "i8", "u1", "?"])
def test_another_library_takes_an_array(to_numpy, dtype):
    array = np.arange(24).reshape(2, 3, 4).astype(dtype)
    taken = to_numpy(Given(array))
    assert taken.ctypes.data == array.ctypes.data
    assert_array_equal(taken, array)
    scalar = to_numpy(Given(np.array(5, np.float32)))
    assert scalar.shape == () and scalar == 5


def test_the_consumer_holds_the_memory_and_lets_it_go(to_numpy):
    given = Given(np.arange(6.0))
    alive = weakref.ref(given)
    taken = to_numpy(given)
    del given
    gc.collect()
    assert alive() is not None and len(dlpack._given) == 1
    assert taken.sum() == 15
    del taken
    gc.collect()
    assert alive() is None and not dlpack._given


def test_a_capsule_that_nobody_takes_lets_go_as_well():
    given = Given(np.arange(6.0))
    alive = weakref.ref(given)
    capsule = given.__dlpack__()
    del given
    assert alive() is not None
    del capsule
    gc.collect()
    assert alive() is None and not dlpack._given


AT_EXIT = """
import numpy as np
from calibrators.cuda import dlpack

class Holder:
    pass

kept = Holder()
kept.itself = kept  # so that only the garbage collector finds it
kept.capsule = dlpack.give(4096, (2, 3), np.dtype("f4"), 0, None)
"""


@pytest.mark.slow
def test_a_capsule_may_be_there_when_the_interpreter_exits():
    ended = subprocess.run([sys.executable, "-c", AT_EXIT], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, np.float32, np.int64, bool])
def test_what_is_given_can_be_taken_back(dtype):
    array = np.ones((2, 3), dtype)

    class OnGpu(Given):
        def __dlpack_device__(self):
            return 2, 0

    taken = take(OnGpu(array), 5)
    assert (taken.pointer, taken.shape, taken.dtype) == (array.ctypes.data, (2, 3), np.dtype(dtype))


def test_types_that_are_not_there():
    with pytest.raises(BufferError, match="DLPack has no type for"):
        give(0, (1,), np.dtype("S3"), 0, None)
    with pytest.raises(TypeError, match="NumPy has no type for DLPack's type 5 of 64 bits"):
        take(FromNumpy(np.zeros(2, np.complex64)), 0)
