"""Histograms of a tensor and of what a Relu makes of it, counted at once."""

import numpy as np
import pytest
from hypothesis import given

from calibrators.histograms import histogram as module
from calibrators.histograms.binning import NUMPY
from calibrators.histograms.counting import histogram_of
from calibrators.histograms.histogram import Histogram, SignedHistogram
from tests.calibrators.histograms.kernels import ARRAYS, by_numpy, observed, whole


@given(ARRAYS)
def test_every_value_is_counted_where_it_belongs(values):
    histogram = observed(values)
    finite = np.abs(values[np.isfinite(values)]).astype(np.float64)
    assert histogram.nans == np.isnan(values).sum()
    assert histogram.infs == np.isinf(values).sum()
    assert histogram.zeros == (finite == 0).sum()
    assert histogram.total == len(finite)
    assert histogram.amax == (finite.max() if len(finite) else 0)
    values = values[np.isfinite(values)]
    assert histogram.ends == (values.min(initial=0), values.max(initial=0))
    if histogram.bin_width:
        bins = np.floor(finite[finite > 0] / histogram.bin_width).astype(int)
        np.testing.assert_array_equal(histogram.counts, np.bincount(bins, minlength=64))
        assert np.log2(histogram.bin_width) % 1 == 0


def test_histograms_of_other_sizes_do_not_merge():
    with pytest.raises(ValueError, match="64 and 128 bins"):
        observed().merge(Histogram(np.zeros(128, np.int64)))


def test_what_a_range_cuts_off():
    histogram = Histogram()
    assert histogram.above(1.0) == histogram.above(0.0) == 0
    histogram.observe(np.float32([0, 0.5, -1.0, 2.0, -3.0, 4.0]))
    assert [histogram.above(amax) for amax in (4.5, 4.0, 3.5, 2.5, 0.75, 0.25)] == [0, 0, 1, 2, 4, 5]
    ones = whole(np.float32([0.5, 1.0, 1.0]))
    assert ones.bin_width * 1024 == 1.0  # 1.0 begins a bin
    assert (ones.above(1.0), ones.above(0.9)) == (0, 2)


@pytest.mark.parametrize("size", [1, 4_095, 4_097, 70_001])
def test_large_arrays_with_everything_in_them(size):
    random = np.random.default_rng(size)
    values = (random.standard_normal(size) * 10.0 ** random.uniform(-45, 37, size)).astype(np.float32)
    values[random.random(size) < 0.1] = 0
    values[random.random(size) < 0.001] = np.nan
    values[random.random(size) < 0.001] = -np.inf
    found = whole(values)
    assert found == by_numpy(lambda: whole(values))
    finite = np.abs(values[np.isfinite(values)]).astype(np.float64)
    assert (found.total, found.amax) == (len(finite), finite.max(initial=0))
    assert (found.nans, found.infs) == (np.isnan(values).sum(), np.isinf(values).sum())
    assert found.ends == tuple(f(values[np.isfinite(values)], initial=0) for f in (np.min, np.max))


@pytest.mark.parametrize(
    ("values", "ends"),
    [
        ([], (0.0, 0.0)),
        ([-0.0], (0.0, 0.0)),
        ([np.nan, np.inf, -np.inf], (0.0, 0.0)),
        ([2.0, 5.0], (0.0, 5.0)),
        ([-2.0, -5.0], (-5.0, 0.0)),
        ([-1e-45, 3.0, np.inf], (float(np.float32(-1e-45)), 3.0)),
        ([-(2.0**127), 0.5, -np.nan], (-(2.0**127), 0.5)),
    ],
)
def test_the_signed_ends_of_all_values(either_kernel, values, ends):
    array = np.array(values, np.float32)
    assert observed(array).ends == signed(array).magnitudes.ends == ends
    assert signed(array).rectified.ends == (0.0, ends[1])
    assert histogram_of(np, array).ends == ends


def test_ends_of_an_older_file_are_not_known_and_no_merge_makes_them_up():
    old = whole(np.float32([-1.0, 2.0]))
    old.ends = None
    new = whole(np.float32([-3.0]))
    assert old.merge(new).ends is None is new.merge(old).ends
    old.observe(np.float32([-4.0]))
    assert (old.ends, old.amax) == (None, 4.0)
    old.check()


def test_values_up_to_the_end_of_float32_and_more_bins_than_16_bits_number():
    for bins in (64, 1 << 17):
        histogram = Histogram(np.zeros(bins, np.int64))
        histogram.observe(np.float32([np.finfo(np.float32).max, 1.0, 1e-45]))
        assert (histogram.counts[0], histogram.counts[-1], histogram.total) == (2, 1, 3)


def test_arrays_of_other_types_and_layouts():
    values = np.arange(24, dtype=np.float64).reshape(4, 6)
    expected = whole(values)
    unaligned = np.frombuffer(b"x" + values.astype(np.float32).tobytes(), np.uint8)[1:].view("<f4")
    for same in (values.T, values[::-1], values.astype(np.float16), unaligned):
        assert whole(same) == expected


@pytest.mark.parametrize("bins", [1024, 128, 2, 1])
@pytest.mark.parametrize("scale", [1e-44, 1e-38, 1.0, 3e37])
def test_fewer_bins_are_those_of_observing_into_fewer(bins, scale):
    values = np.random.default_rng(7).standard_normal(5000).astype(np.float32) * np.float32(scale)
    whole, fewer = Histogram(), Histogram(np.zeros(bins, np.int64))
    for histogram in (whole, fewer):
        histogram.observe(np.concatenate([values, np.float32([0, np.inf, np.nan])]))
    assert whole.coarsened(bins) == fewer
    assert Histogram(zeros=3).coarsened(bins) == Histogram(np.zeros(bins, np.int64), zeros=3)


def _observed():
    return whole(np.float32([0, 0.25, -1.5, 3, np.inf, np.nan]))


def test_what_was_observed_is_what_an_observation_leaves():
    generator = np.random.default_rng(8)
    for _ in range(50):
        histogram = Histogram()
        for scale in 10.0 ** generator.integers(-45, 38, generator.integers(0, 5)):
            values = (generator.standard_normal(100) * scale).astype(np.float32)
            values[generator.random(100) < 0.3] = 0
            histogram.observe(values)
        histogram.check()
        histogram.merge(_observed()).check()
        histogram.coarsened(64).check()


def _moved(histogram, source, target):
    histogram.counts[target] += histogram.counts[source]
    histogram.counts[source] = 0


def _with(name, *values):
    return [lambda h, value=value: setattr(h, name, value) for value in values]


@pytest.mark.parametrize(
    "change",
    [
        *_with("bin_width", 1e-300, 1.0, 1e300, 0.0, np.nan),
        *(lambda h, f=factor: setattr(h, "bin_width", h.bin_width * f) for factor in (0.5, 1.5, -1.0)),
        *_with("amax", 1e30, np.inf, np.nan, -3.0, 0.0, 2.999, 3.0000000001),
        *_with("zeros", 10**30, 2**62, -1, 1.0, True),
        *_with("nans", 2**63),
        *_with("infs", -1),
        *_with("ends", (-1.5, 2.5), (-3.5, 3.0), (0.5, 3.0), (-3.0, -1.0), (-0.1, 3.0), (np.nan, 3.0)),
        lambda h: setattr(h, "counts", h.counts[:1000]),
        lambda h: setattr(h, "counts", h.counts[:0]),
        lambda h: setattr(h, "counts", h.counts.astype(np.float64)),
        lambda h: setattr(h, "counts", h.counts.reshape(2, -1)),
        lambda h: setattr(h, "counts", h.counts * 0),
        lambda h: h.counts.__setitem__(5, -1),
        lambda h: h.counts.__setitem__([5, 6, 7], 1 << 62),
        lambda h: h.counts.__setitem__(2047, 1),
        lambda h: _moved(h, int(np.flatnonzero(h.counts)[-1]), 3),
    ],
)
def test_numbers_that_no_observation_leaves_are_refused(change):
    histogram = _observed()
    histogram.check()
    change(histogram)
    with pytest.raises(ValueError, match=r"^(it|a count is negative)"):
        histogram.check()


def signed(*arrays, bins=64):
    found = SignedHistogram.of_bins(bins)
    for array in arrays:
        found.observe(array)
    return found


def rectified(values):
    return np.where(values < 0, np.float32(0), values)


@pytest.fixture(params=["fastest", "NumPy"], scope="module")
def either_kernel(request):
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "NumPy":
            patch.setattr(module, "kernel", lambda: NUMPY)
        yield


@given(ARRAYS, ARRAYS)
def test_both_histograms_are_those_of_two_looks(either_kernel, first, second):
    found = signed(first, second)
    assert found.magnitudes == observed(first, second)
    assert found.rectified == observed(rectified(first), rectified(second))


@pytest.mark.parametrize("size", [1, 511, 512, 513, 70_001])
@pytest.mark.parametrize("infinite", [0, 0.001])
def test_signed_large_arrays_with_everything_in_them(either_kernel, size, infinite):
    random = np.random.default_rng(size)
    values = (random.standard_normal(size) * 10.0 ** random.uniform(-45, 37, size)).astype(np.float32)
    values[random.random(size) < 0.1] = 0
    values[random.random(size) < 0.1] = -0.0
    for odd in (np.nan, np.inf, -np.inf):
        values[random.random(size) < infinite] = odd
    found = signed(values[: size // 3], values[size // 3 :], bins=2048)
    assert found.magnitudes == whole(values)
    assert found.rectified == whole(rectified(values))


@pytest.mark.parametrize("values", [[], [0.0, -0.0], [2.0], [-2.0, -0.0], [3e38, -1e-45], [-3e38, 1e-45]])
def test_values_of_one_sign_and_of_very_different_sizes(either_kernel, values):
    array = np.array(values, np.float32)
    found = signed(array)
    assert (found.magnitudes, found.rectified) == (observed(array), observed(rectified(array)))
    assert found.upper.total == (array >= 0).sum() and found.lower.total == (array < 0).sum()


def test_each_side_has_bins_of_its_own_width():
    found = signed(np.float32([0.5, -40.0]))
    assert (found.upper.bin_width, found.lower.bin_width) == (2.0**-6, 1.0)
    assert found.magnitudes.bin_width == 1.0 and found.rectified.bin_width == 2.0**-6
