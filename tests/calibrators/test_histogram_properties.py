import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from calibrators.histogram import Histogram

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
