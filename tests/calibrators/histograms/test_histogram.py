import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from calibrators.histograms import histogram as module
from calibrators.histograms.binning import NUMPY, kernel
from calibrators.histograms.counting import ParallelHistograms
from calibrators.histograms.histogram import Histogram

KERNELS = {found.name: found for found in (NUMPY, kernel())}
ARRAYS = hnp.arrays(np.float32, st.integers(0, 60), elements=st.floats(width=32))


def _observed(*arrays):
    histogram = Histogram(np.zeros(64, np.int64))
    for array in arrays:
        histogram.observe(array)
    return histogram


@given(ARRAYS, st.integers(1, 60), st.randoms(use_true_random=False))
def test_neither_batches_nor_order_leave_a_trace(values, size, random):
    order = list(range(len(values)))
    random.shuffle(order)
    shuffled = values[order]
    pieces = [shuffled[start : start + size] for start in range(0, len(shuffled), size)]
    assert _observed(*pieces) == _observed(values)


@given(ARRAYS, ARRAYS)
def test_merging_is_observing_both(first, second):
    merged = _observed(first).merge(_observed(second))
    assert merged == _observed(first, second) == _observed(second).merge(_observed(first))


@given(ARRAYS)
def test_every_value_is_counted_where_it_belongs(values):
    histogram = _observed(values)
    finite = np.abs(values[np.isfinite(values)]).astype(np.float64)
    assert histogram.nans == np.isnan(values).sum()
    assert histogram.infs == np.isinf(values).sum()
    assert histogram.zeros == (finite == 0).sum()
    assert histogram.total == len(finite)
    assert histogram.amax == (finite.max() if len(finite) else 0)
    if histogram.bin_width:
        bins = np.floor(finite[finite > 0] / histogram.bin_width).astype(int)
        np.testing.assert_array_equal(histogram.counts, np.bincount(bins, minlength=64))
        assert np.log2(histogram.bin_width) % 1 == 0


def test_histograms_of_other_sizes_do_not_merge():
    with pytest.raises(ValueError, match="64 and 128 bins"):
        _observed().merge(Histogram(np.zeros(128, np.int64)))


def test_what_a_range_cuts_off():
    histogram = Histogram()
    assert histogram.above(1.0) == 0
    histogram.observe(np.array([0, 0.5, -1.0, 2.0, -3.0, 4.0], np.float32))
    assert [histogram.above(amax) for amax in (4.5, 3.5, 2.5, 0.75, 0.25)] == [0, 1, 2, 4, 5]


def _by_numpy(function):
    """What a function returns where histograms are counted by NumPy."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "kernel", lambda: NUMPY)
        return function()


@pytest.mark.skipif(kernel() is NUMPY, reason="trtint8 was installed without a C compiler")
@given(ARRAYS, ARRAYS)
def test_both_kernels_count_the_same(first, second):
    assert _observed(first, second) == _by_numpy(lambda: _observed(first, second))


@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_stops_at_the_block_with_a_value_that_is_in_no_bin(name):
    values = np.full(200_000, -0.75, np.float32)
    values[:3] = 0
    for bad in (1.0, np.inf, np.nan):
        values[150_000] = bad
        found = KERNELS[name].count(values, 0.25, 4)
        assert 65_536 < found.taken <= 150_000
        assert found.counts.tolist() == [3, 0, 0, found.taken - 3]
        assert (found.zeros, found.peak) == (3, 0.75)


@pytest.mark.parametrize("size", [1, 4_095, 4_097, 70_001])
def test_large_arrays_with_everything_in_them(size):
    random = np.random.default_rng(size)
    values = (random.standard_normal(size) * 10.0 ** random.uniform(-45, 37, size)).astype(np.float32)
    values[random.random(size) < 0.1] = 0
    values[random.random(size) < 0.001] = np.nan
    values[random.random(size) < 0.001] = -np.inf
    found = Histogram()
    found.observe(values)
    assert found == _by_numpy(lambda: _whole(values))
    finite = np.abs(values[np.isfinite(values)]).astype(np.float64)
    assert (found.total, found.amax) == (len(finite), finite.max(initial=0))
    assert (found.nans, found.infs) == (np.isnan(values).sum(), np.isinf(values).sum())


def test_values_up_to_the_end_of_float32_and_more_bins_than_16_bits_number():
    for bins in (64, 1 << 17):
        histogram = Histogram(np.zeros(bins, np.int64))
        histogram.observe(np.array([np.finfo(np.float32).max, 1.0, 1e-45], np.float32))
        assert (histogram.counts[0], histogram.counts[-1], histogram.total) == (2, 1, 3)


def test_arrays_of_other_types_and_layouts():
    values = np.arange(24, dtype=np.float64).reshape(4, 6)
    expected = _whole(values)
    unaligned = np.frombuffer(b"x" + values.astype(np.float32).tobytes(), np.uint8)[1:].view("<f4")
    for same in (values.T, values[::-1], values.astype(np.float16), unaligned):
        assert _whole(same) == expected


def _whole(values):
    histogram = Histogram()
    histogram.observe(values)
    return histogram


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads_leave_no_trace(threads):
    random = np.random.default_rng(0)
    arrays = {name: random.standard_normal(size) for name, size in {"a": 3_000_000, "b": 7, "c": 0}.items()}
    before = {name: _whole(np.array([100.0])) for name in arrays}
    with ParallelHistograms(before, threads) as counted:
        counted.observe(arrays.items())
        counted.observe([("b", np.array([np.nan, 5.0]))])
        assert counted.nans() == ("b", 1)
        merged = counted.merged()
    for name, values in arrays.items():
        expected = _whole(np.append(values, [100.0, np.nan, 5.0] if name == "b" else [100.0]))
        assert merged[name] == expected
    assert before["a"] == _whole(np.array([100.0]))


def test_without_the_compiled_part_numpy_counts(monkeypatch):
    monkeypatch.delitem(sys.modules, "calibrators.histograms.compiled", raising=False)
    monkeypatch.setitem(sys.modules, "calibrators.histograms._counting", None)
    monkeypatch.delattr("calibrators.histograms._counting", raising=False)
    monkeypatch.delattr("calibrators.histograms.compiled", raising=False)
    assert kernel.__wrapped__() is NUMPY


def test_a_range_that_reaches_the_largest_value_cuts_nothing_off():
    histogram = Histogram()
    histogram.observe(np.array([0.5, 1.0, 1.0], np.float32))
    assert histogram.bin_width * 1024 == 1.0  # 1.0 begins a bin
    assert (histogram.above(1.0), histogram.above(0.9)) == (0, 2)
    assert Histogram().above(0.0) == 0
