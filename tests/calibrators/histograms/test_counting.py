"""Histograms of many tensors, counted by several threads."""

import importlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from calibrators.histograms import counting
from calibrators.histograms import histogram as histogram_module
from calibrators.histograms.binning import NUMPY
from calibrators.histograms.counting import DeviceHistograms, OnDevice, ParallelHistograms, histogram_of
from calibrators.histograms.histogram import Histogram
from tests.calibrators.histograms.kernels import whole


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads_leave_no_trace(threads):
    random = np.random.default_rng(0)
    arrays = {name: random.standard_normal(size) for name, size in {"a": 3_000_000, "b": 7, "c": 0}.items()}
    before = {name: whole(np.array([100.0])) for name in arrays}
    with ParallelHistograms(before, threads) as counted:
        counted.observe(arrays.items())
        counted.observe([("b", np.array([np.nan, 5.0]))])
        assert counted.first_with_nan() == "b"
        merged = counted.merged()
    for name, values in arrays.items():
        expected = whole(np.append(values, [100.0, np.nan, 5.0] if name == "b" else [100.0]))
        assert merged[name] == expected
    assert before["a"] == whole(np.array([100.0]))


@pytest.mark.parametrize("threads", [1, 3])
def test_what_a_relu_gives_is_counted_with_what_it_takes(threads):
    random = np.random.default_rng(2)
    arrays = [random.standard_normal(size).astype(np.float32) * 3 for size in (2_500_000, 9)]
    before = {name: whole(np.array([8.0, 0.0])) for name in ("x", "other", "y")}
    with ParallelHistograms(before, threads, {"y": "x"}) as counted:
        for array in arrays:
            counted.observe([("x", array), ("other", array)])
        merged = counted.merged()
        assert counted.merged() == merged and counted.first_with_nan() is None
        counted.observe([("x", np.array([np.nan, -np.nan, np.nan]))])
        assert counted.first_with_nan() == "x"
    values = np.concatenate([*arrays, np.float32([8.0, 0.0])])
    assert list(merged) == list(before)
    assert merged["x"] == merged["other"] == whole(values)
    assert merged["y"] == whole(np.maximum(values, 0))


def test_threads_that_count_by_themselves_leave_no_trace():
    random = np.random.default_rng(3)
    arrays = [random.standard_normal((50, 1000)).astype(np.float32) for _ in range(3)]
    before = {name: whole(np.array([8.0])) for name in ("x", "y")}
    with ParallelHistograms(before, 3, {"y": "x"}) as counted, ThreadPoolExecutor(3) as pool:
        work = [
            pool.submit(counted.observe_in_thread, number, [("x", array)])
            for number, array in enumerate(arrays)
        ]
        for done in work:
            done.result()
        merged = counted.merged()
        counted.observe_in_thread(2, [("x", np.array([np.nan, 1.0]))])
        assert counted.first_with_nan() == "x"
    values = np.append(np.concatenate(arrays), np.float32(8.0))
    assert merged == {"x": whole(values), "y": whole(np.maximum(values, 0))}


ARRAYS = hnp.arrays(np.float32, st.integers(0, 60), elements=st.floats(width=32))
LARGEST, SMALLEST = np.finfo(np.float32).max, np.finfo(np.float32).smallest_subnormal


@pytest.fixture(scope="module", params=["numpy", "torch"])
def library(request):
    try:
        return importlib.import_module(request.param)
    except ImportError:
        pytest.skip(f"{request.param} is not installed")


def _there(library, array):
    return array if library is np else library.from_numpy(array.copy())


def _on_host(*arrays, bins=2048):
    """What NumPy's kernel counts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(histogram_module, "kernel", lambda: NUMPY)
        histogram = Histogram(np.zeros(bins, np.int64))
        for array in arrays:
            histogram.observe(array)
    return histogram


@given(ARRAYS, st.sampled_from([4, 64, 2048]))
def test_the_same_as_on_the_host(library, values, bins):
    assert histogram_of(library, _there(library, values), bins) == _on_host(values, bins=bins)


@given(st.lists(ARRAYS, max_size=5), st.integers(1, 20))
def test_batches_of_growing_values_and_pieces(library, arrays, piece):
    with (
        pytest.MonkeyPatch.context() as patch,
        DeviceHistograms(
            {"x": Histogram()}, 1, lambda values, bins: histogram_of(library, values, bins)
        ) as counted,
    ):
        patch.setattr(counting, "_PIECE", piece)
        for array in arrays:
            counted.observe([("x", OnDevice(_there(library, array)))])
        assert counted.merged() == {"x": _on_host(*arrays)}


@pytest.mark.parametrize(
    "values",
    [
        [],
        [0.0, -0.0],
        [np.nan],
        [np.inf, -np.inf],
        [np.nan, -np.inf, -0.0, SMALLEST],
        [SMALLEST, -SMALLEST, 0.0],
        [2.0**-127, -(2.0**-126), 2.0**-116],
        [LARGEST, -LARGEST, 1.0, SMALLEST],
        [2.0**127, np.nextafter(np.float32(2.0**127), np.float32(0))],
        [-3.0, np.nextafter(np.float32(4), np.float32(0)), 4.0],
    ],
)
def test_values_at_the_edges(library, values):
    array = np.array(values, np.float32)
    assert histogram_of(library, _there(library, array)) == _on_host(array)


def test_shapes_and_more_than_one_piece(library):
    random = np.random.default_rng(3)
    values = (
        random.standard_normal((5, 1000, 1000)) * 10.0 ** random.uniform(-45, 37, (5, 1000, 1000))
    ).astype(np.float32)
    values[random.random(values.shape) < 0.1] = 0
    values[0, 0, :3], values[4, 999, 997:] = np.nan, -np.inf
    there = _there(library, values)
    assert histogram_of(library, there) == _on_host(values)
    assert np.array_equal(np.asarray(there), values, equal_nan=True)  # nothing was written
    scalar = np.array(-2.5, np.float32)
    assert histogram_of(library, _there(library, scalar)) == _on_host(scalar)


class _Flushing(np.ndarray):
    """Takes and gives 0 for subnormal floats, as CuPy's kernels do."""

    def __array_ufunc__(self, ufunc, method, *inputs, **options):
        result = getattr(ufunc, method)(*map(_flushed, inputs), **options)
        return np.asarray(_flushed(result)).view(_Flushing)


def _flushed(values):
    if isinstance(values, np.ndarray):
        values = values.view(np.ndarray)
        if values.dtype == np.float32:
            return np.where(np.abs(values) < np.finfo(np.float32).tiny, np.float32(0), values)
    return values


def test_subnormals_that_the_library_flushes_to_zero():
    values = np.float32([SMALLEST, -(2.0**-127), 0.0, 2.0**-126, 2.0**-120, -0.0, np.inf])
    there = values.view(_Flushing)
    assert int((there * 1.0 == 0).sum()) == 4
    assert histogram_of(np, there) == _on_host(values)
    assert histogram_of(np, there[:3]) == _on_host(values[:3])
    assert histogram_of(np, there).zeros == 2


def test_some_tensors_there_and_some_here():
    values = np.random.default_rng(0).standard_normal((3, 1_500_000)).astype(np.float32)
    asked = []

    def count(array, bins):
        asked.append(array.shape)
        return histogram_of(np, array, bins)

    before = {name: _on_host(np.float32([100.0])) for name in ("a", "b")}
    with DeviceHistograms(before, 3, count) as counted:
        counted.observe([("a", OnDevice(values[0])), ("b", values[1]), ("a", values[2])])
        assert counted.first_with_nan() is None
        counted.observe([("b", OnDevice(np.float32([np.nan, 200.0])))])
        assert counted.first_with_nan() == "b"
        merged = counted.merged()
    hundred = np.float32([100.0])
    assert merged["a"] == _on_host(hundred, values[0], values[2])
    assert merged["b"] == _on_host(hundred, values[1], np.float32([np.nan, 200.0]))
    assert asked == [(1_500_000,), (2,)]
    assert before["a"] == _on_host(hundred)
