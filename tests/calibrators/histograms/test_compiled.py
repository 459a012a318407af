"""The compiled kernel, called directly."""

import numpy as np
import pytest

from calibrators.histograms.binning import NUMPY
from calibrators.histograms.histogram import kernel

compiled = kernel()
pytestmark = pytest.mark.skipif(compiled is NUMPY, reason="trtint8 was installed without a C compiler")


def test_counts_zeros_and_ends():
    values = np.float32([0.0, -0.0, 0.25, -0.3, 0.5, 0.99, -1.75])
    found = compiled.count(values, 0.5, 4)
    assert (found.taken, found.zeros, found.ends) == (7, 2, (-1.75, float(np.float32(0.99))))
    assert found.counts.tolist() == [4, 2, 0, 1]
    assert found.counts.dtype == np.int64


def test_octave_bins_share_the_upper_bits_of_a_float():
    values = np.float32([0.0, 0.25, -0.251, 0.5, 0.99, -1.75, 2**-127, 1e-45])
    for bins in (4, 512, 2048):
        octaves = compiled.count(values, 4 / bins, bins).octaves
        assert (octaves.first, octaves.counts.shape) == (0, (128, 256))
        found = {tuple(map(int, at)): int(octaves.counts[tuple(at)]) for at in np.argwhere(octaves.counts)}
        assert found == {
            (0, 0): 1,  # subnormals
            (0, 128): 1,
            (125, 0): 1,  # from 2^-2 on
            (125, 1): 1,
            (126, 0): 1,
            (126, 250): 1,
            (127, 192): 1,
        }


@pytest.mark.parametrize("beyond", [2.0, -2.0, np.inf, np.nan])
def test_a_value_that_is_in_no_bin_ends_the_count_before_its_block(beyond):
    values = np.float32([0.5, beyond, 1.5])
    found = compiled.count(values, 0.5, 4)
    assert (found.taken, found.octaves.counts.size) == (0, 0)


def test_the_largest_range_ends_beyond_float32():
    values = np.float32([np.finfo(np.float32).max, 1.0])
    found = compiled.count(values, 2.0**118, 1024)
    assert (found.taken, found.zeros, found.ends) == (2, 0, (0.0, float(values[0])))
    assert (found.counts[0], found.counts[1023], found.counts.sum()) == (1, 1, 2)
    assert (found.octaves.first, len(found.octaves.counts), found.octaves.counts[-1, -1]) == (127, 128, 1)


def test_sides_are_counted_apart():
    values = np.float32([0.0, -0.0, 0.25, -0.3, 0.5, 0.99, -1.75, -7.5])
    found = compiled.count_sides(values, (0.5, 2.0), 4)
    assert (found.taken, found.zeros, found.peaks) == (8, 2, (float(np.float32(0.99)), 7.5))
    assert found.counts.tolist() == [[3, 2, 0, 0], [2, 0, 0, 1]]
    assert found.counts.dtype == np.int64
    assert [octaves.first for octaves in found.octaves] == [125, 125]
    assert [octaves.counts.sum(axis=1).tolist() for octaves in found.octaves] == [[1, 2], [1, 0, 1, 0, 1]]


@pytest.mark.parametrize("beyond", [2.0, -8.0, np.inf, -np.inf, np.nan, -np.nan])
def test_a_value_that_is_in_no_bin_of_its_side_ends_the_count(beyond):
    values = np.float32([0.5, beyond, -1.5])
    assert compiled.count_sides(values, (0.5, 2.0), 4).taken == 0


@pytest.mark.parametrize("widths", [(0.0, 1.0), (1.0, 0.0)])
def test_a_side_without_bins_takes_no_value_but_zero(widths):
    values = np.float32([0.0, -0.0, 0.5 if widths[0] else -0.5])
    found = compiled.count_sides(values, widths, 4)
    assert (found.taken, found.zeros, found.counts.sum()) == (3, 2, 3)
    assert compiled.count_sides(-values, widths, 4).taken == 0


@pytest.mark.parametrize("size", [1, 127, 128, 129, 1000, 100_003])
def test_zeros_of_either_sign_among_whole_and_broken_blocks(size):
    random = np.random.default_rng(size)
    values = random.standard_normal(size).astype(np.float32)
    values[random.random(size) < 0.6] = 0.0
    values[random.random(size) < 0.1] = -0.0
    width, bins = 2.0**-8, 2048
    whole = compiled.count(values, width, bins)
    octaves = whole.octaves.copy()
    assert (whole.taken, whole.zeros) == (size, np.count_nonzero(values == 0))
    np.testing.assert_array_equal(
        whole.counts, np.bincount((abs(values) / width).astype(int), minlength=bins)
    )
    sides = compiled.count_sides(values, (width, 2 * width), bins)
    assert (sides.taken, sides.zeros) == (size, np.count_nonzero(values == 0))
    parts = (values[values >= 0] / width, -values[values < 0] / (2 * width))
    for counts, part in zip(sides.counts, parts, strict=True):
        np.testing.assert_array_equal(counts, np.bincount(part.astype(int), minlength=bins))
    assert sides.octaves[0].merge(sides.octaves[1]) == octaves


def test_counters_are_empty_again_whatever_was_counted_before():
    values = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    before = compiled.count(values, 2.0**-7, 1024)
    octaves = before.octaves.copy()
    for width, bins in ((2.0**-2, 32), (2.0**-13, 1 << 15), (2.0**-6, 64)):
        compiled.count(values, width, bins)
        compiled.count_sides(np.append(values, np.nan).astype(np.float32), (width, 2 * width), bins)
    after = compiled.count(values, 2.0**-7, 1024)
    np.testing.assert_array_equal(after.counts, before.counts)
    assert after.octaves == octaves
