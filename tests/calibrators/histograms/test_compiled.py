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


def test_sides_are_counted_apart():
    values = np.array([0.0, -0.0, 0.25, -0.3, 0.5, 0.99, -1.75, -7.5], np.float32)
    taken, counts, zeros, peaks = compiled.count_sides(values, (0.5, 2.0), 4)
    assert (taken, zeros, peaks) == (8, 2, (float(np.float32(0.99)), 7.5))
    assert counts.tolist() == [[3, 2, 0, 0], [2, 0, 0, 1]]
    assert counts.dtype == np.int64


@pytest.mark.parametrize("beyond", [2.0, -8.0, np.inf, -np.inf, np.nan, -np.nan])
def test_a_value_that_is_in_no_bin_of_its_side_ends_the_count(beyond):
    values = np.array([0.5, beyond, -1.5], np.float32)
    assert compiled.count_sides(values, (0.5, 2.0), 4)[0] == 0


@pytest.mark.parametrize("widths", [(0.0, 1.0), (1.0, 0.0)])
def test_a_side_without_bins_takes_no_value_but_zero(widths):
    values = np.array([0.0, -0.0, 0.5 if widths[0] else -0.5], np.float32)
    taken, counts, zeros, _ = compiled.count_sides(values, widths, 4)
    assert (taken, zeros, counts.sum()) == (3, 2, 3)
    assert compiled.count_sides(-values, widths, 4)[0] == 0


@pytest.mark.parametrize("size", [1, 127, 128, 129, 1000, 100_003])
def test_zeros_of_either_sign_among_whole_and_broken_blocks(size):
    random = np.random.default_rng(size)
    values = random.standard_normal(size).astype(np.float32)
    values[random.random(size) < 0.6] = 0.0
    values[random.random(size) < 0.1] = -0.0
    width, bins = 2.0**-8, 2048
    taken, counts, zeros, _ = compiled.count(values, width, bins)
    assert (taken, zeros) == (size, np.count_nonzero(values == 0))
    np.testing.assert_array_equal(counts, np.bincount((abs(values) / width).astype(int), minlength=bins))
    taken, counts, zeros, _ = compiled.count_sides(values, (width, 2 * width), bins)
    assert (taken, zeros) == (size, np.count_nonzero(values == 0))
    sides = (values[values >= 0] / width, -values[values < 0] / (2 * width))
    for found, side in zip(counts, sides, strict=True):
        np.testing.assert_array_equal(found, np.bincount(side.astype(int), minlength=bins))
