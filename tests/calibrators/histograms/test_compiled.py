"""The compiled kernel, called directly."""

import numpy as np
import pytest

compiled = pytest.importorskip(
    "calibrators.histograms.compiled", reason="trtint8 was installed without a C compiler"
)


def test_counts_zeros_and_peak():
    values = np.array([0.0, -0.0, 0.25, -0.3, 0.5, 0.99, -1.75], np.float32)
    taken, counts, zeros, peak = compiled.count(values, 0.5, 4)
    assert (taken, zeros, peak) == (7, 2, 1.75)
    assert counts.tolist() == [4, 2, 0, 1]
    assert counts.dtype == np.int64


@pytest.mark.parametrize("beyond", [2.0, -2.0, np.inf, np.nan])
def test_a_value_that_is_in_no_bin_ends_the_count_before_its_block(beyond):
    values = np.array([0.5, beyond, 1.5], np.float32)
    assert compiled.count(values, 0.5, 4)[0] == 0


def test_the_largest_range_ends_beyond_float32():
    values = np.array([np.finfo(np.float32).max, 1.0], np.float32)
    taken, counts, zeros, peak = compiled.count(values, 2.0**118, 1024)
    assert (taken, zeros, peak) == (2, 0, float(values[0]))
    assert (counts[0], counts[1023], counts.sum()) == (1, 1, 2)
