"""Histograms and ranges where a few values are so large that all others share a few bins of equal width."""

import functools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrators.histograms import thresholds
from calibrators.histograms.binning import PER_OCTAVE, Octaves
from calibrators.histograms.counting import histogram_of
from calibrators.histograms.histogram import Histogram, SignedHistogram
from calibrators.histograms.rules import NEAR, RULES, TIGHT, range_loss, range_of, range_sqnr
from tests.calibrators.histograms.kernels import ARRAYS, by_numpy, observed, whole

COUNT = 20_000


def bulk(seed=0, count=COUNT):
    return np.random.default_rng(seed).standard_normal(count).astype(np.float32)


def with_huge(huge, seed=0, count=COUNT, every=None, at=77):
    values = bulk(seed, count)
    values[at :: every or count] = huge
    return values


def squared_error(values, amax):
    magnitudes, step = np.abs(values).astype(np.float64), amax / 127
    return float(((magnitudes - step * np.minimum(np.rint(magnitudes / step), 127)) ** 2).sum())


def least_error(values):
    """The least squared error of all ranges on a fine grid, from the values themselves."""
    magnitudes = np.sort(np.abs(values).astype(np.float64))
    grid = np.unique(
        np.append(np.geomspace(1e-2, magnitudes[-1], 3000), magnitudes[-1] * np.array([1, 0.999]))
    )
    clipped = np.array([((magnitudes[np.searchsorted(magnitudes, t) :] - t) ** 2).sum() for t in grid])
    least = np.inf
    for number in np.argsort(clipped):
        if clipped[number] > least:
            break
        least = min(least, squared_error(values, grid[number]))
    return least


@pytest.mark.parametrize("huge", [60, 1e3, -1e4, 1e6, -1e8, 1e12, 1e30])
@pytest.mark.parametrize("at", [0, 77, COUNT - 1])
def test_percentiles_are_numpys_at_any_ratio(huge, at):
    values = with_huge(huge, at=at)
    histogram = whole(values)
    for percent in (99.0, 99.9, 99.99):
        wanted = np.percentile(np.abs(values), percent)
        assert thresholds.percentile(histogram, percent) == pytest.approx(wanted, rel=0.002)
    assert thresholds.percentile(histogram, 100) == thresholds.minmax(histogram) == np.abs(values).max()


@given(
    st.integers(0, 2**32 - 1),
    st.floats(2, 12),
    st.sampled_from([None, 1000, 3000, 7000]),
    st.sampled_from([99.0, 99.9, 99.99]),
    st.sampled_from([1e-30, 1.0, 1e20]),
)
def test_percentiles_of_any_share_of_huge_values(seed, exponent, every, percent, unit):
    values = with_huge(np.float32(10.0**exponent), seed, every=every) * np.float32(unit)
    histogram = whole(values)
    wanted = np.percentile(np.abs(values).astype(np.float64), percent)
    assert thresholds.percentile(histogram, percent) == pytest.approx(wanted, rel=0.004)


@pytest.mark.parametrize("percent", [5, 50, 77.7, 99.9])
def test_a_percentile_takes_the_values_of_a_bin_as_spread_evenly_over_it(percent):
    histogram = whole(with_huge(1e6))
    bins = histogram.filled()
    spread = [
        low + (np.arange(count) + 0.5) / count * (high - low)
        for low, high, count in zip(bins.low, bins.high, bins.counts, strict=True)
    ]
    wanted = np.percentile(np.concatenate(spread), percent)
    assert thresholds.percentile(histogram, percent) == pytest.approx(wanted, rel=1e-9)


def test_several_scales_at_once():
    values = with_huge(1e3, every=400)
    values[5] = 1e7
    histogram = whole(values)
    magnitudes = np.abs(values)
    assert thresholds.percentile(histogram) == pytest.approx(np.percentile(magnitudes, 99.99), rel=0.004)
    assert thresholds.percentile(histogram, 99) == pytest.approx(np.percentile(magnitudes, 99), rel=0.004)
    assert range_of(histogram, TIGHT) == pytest.approx(1000, rel=0.004)
    assert thresholds.entropy(histogram) == pytest.approx(1000, rel=0.01)


@pytest.mark.parametrize("every", [None, 5000, 1000])
@pytest.mark.parametrize("huge", [70, 100, 300, 1e3, 1e5, 1e12])
def test_the_least_squared_error_is_that_of_the_values(huge, every):
    values = with_huge(huge, every=every)
    histogram = whole(values)
    assert squared_error(values, thresholds.mse(histogram)) <= 1.02 * least_error(values)
    wide = range_of(histogram, "wide")
    assert thresholds.mse(histogram) <= wide <= histogram.amax
    assert squared_error(values, wide) <= 1.15 * least_error(values)


@pytest.mark.parametrize("huge", [60, 1e3, 1e6, 1e12, 1e30])
@pytest.mark.parametrize("shape", ["normal", "relu", "laplace"])
def test_entropy_keeps_the_bulk_apart(shape, huge):
    values = np.random.default_rng(3).laplace(size=COUNT) if shape == "laplace" else bulk(3)
    values = np.maximum(values, 0) if shape == "relu" else values
    rest = thresholds.entropy(whole(values))
    values[77] = huge
    histogram = whole(values)
    found = thresholds.entropy(histogram)
    assert found == pytest.approx(rest, rel=0.25)
    assert histogram.above(found) <= 0.001 * COUNT


@pytest.mark.parametrize("huge", [1e3, 1e6, 1e12])
def test_what_a_range_clips_and_leaves_is_counted_among_the_bulk(huge):
    values = with_huge(huge)
    histogram = whole(values)
    for amax in (0.5, 2.0, 3.0):
        clipped = (np.abs(values) > amax).sum()
        assert histogram.above(amax) == pytest.approx(clipped, rel=0.02)
    assert histogram.above(np.abs(bulk()).max()) == 1
    for amax in (3.0, huge / 2, histogram.amax):
        noise = squared_error(values, amax)
        wanted = 10 * np.log10((values.astype(np.float64) ** 2).sum() / noise)
        assert range_sqnr(histogram, amax) == pytest.approx(wanted, abs=0.1)


def test_a_range_loses_too_much_where_it_serves_neither_the_few_nor_the_others():
    histogram = whole(with_huge(1e6))
    assert not range_loss(histogram, thresholds.percentile(histogram)).excessive
    assert not range_loss(histogram, thresholds.entropy(histogram)).excessive
    for amax in (1e6, 1e3, 0.2):
        loss = range_loss(histogram, amax)
        assert loss.excessive
        assert loss.most.best_db == pytest.approx(42, abs=2)
    assert loss.most.sqnr_db < 3
    # One that is but 70 times as large, at most a little is lost of either.
    histogram = whole(with_huge(70))
    assert not range_loss(histogram, 4.0).excessive
    assert not range_loss(histogram, 70.0).excessive


def test_subnormal_values_beside_the_largest():
    values = bulk() * np.float32(1e-39)
    values[9] = 1e30
    histogram = whole(values)
    wanted = np.percentile(np.abs(values).astype(np.float64), 99.99)
    assert thresholds.percentile(histogram) == pytest.approx(wanted, rel=0.01)
    assert thresholds.entropy(histogram) == pytest.approx(wanted, rel=0.2)
    assert thresholds.mse(histogram) == histogram.amax


def test_zeros_are_no_bulk():
    values = np.zeros(500_000, np.float32)
    values[:500] = bulk()[:500]
    values[500] = 1e6
    histogram = whole(values)
    assert thresholds.percentile(histogram) == pytest.approx(np.percentile(np.abs(values), 99.99), rel=0.004)
    values[10:500] = 0  # now the percentile is 0, which is no range: it is that of the other values
    assert thresholds.percentile(whole(values)) == pytest.approx(1e6, rel=0.01)


@pytest.mark.parametrize("count", [1, 2, 16, 500, 999])
def test_tiny_tensors(count):
    values = with_huge(1e6, count=count, at=0)
    histogram = whole(values)
    for rule in (*RULES, TIGHT, NEAR):
        assert 0 < range_of(histogram, rule) <= histogram.amax
    assert thresholds.percentile(histogram) == pytest.approx(np.percentile(np.abs(values), 99.99), rel=0.11)


@given(ARRAYS, ARRAYS, st.integers(1, 60), st.randoms(use_true_random=False))
def test_neither_partition_nor_order_leave_a_trace(first, second, size, random):
    values = np.concatenate([first, second])
    order = list(range(len(values)))
    random.shuffle(order)
    shuffled = values[order]
    pieces = [shuffled[start : start + size] for start in range(0, len(shuffled), size)]
    merged = functools.reduce(Histogram.merge, map(observed, random.sample(pieces, len(pieces))), observed())
    at_once = observed(values)
    assert merged == observed(*pieces) == at_once
    assert at_once == by_numpy(lambda: observed(values)) == histogram_of(np, values, 64)
    signed = SignedHistogram.of_bins(64)
    signed.observe(values)
    assert signed.magnitudes == at_once
    at_once.check()


@given(ARRAYS)
def test_every_value_is_in_the_octave_bin_of_its_upper_bits(values):
    octaves = observed(values).octaves
    magnitudes = np.abs(values[np.isfinite(values) & (values != 0)])
    numbers = magnitudes.view(np.int32) >> 15
    found = np.repeat(octaves.first * 256 + np.arange(octaves.counts.size), octaves.counts.reshape(-1))
    np.testing.assert_array_equal(found, np.sort(numbers))
    edges, place = octaves.edges, numbers - octaves.first * 256
    assert (edges[place] <= magnitudes).all() and (magnitudes < edges[place + 1]).all()


@given(ARRAYS, st.sampled_from([1, 4, 256, 512, 2048, 1 << 14]))
def test_bins_of_equal_width_are_what_numpy_counts(values, bins):
    histogram = Histogram(np.zeros(bins, np.int64))
    histogram.observe(values)
    finite = np.abs(values[np.isfinite(values) & (values != 0)]).astype(np.float64)
    if len(finite):
        wanted = np.bincount((finite / histogram.bin_width).astype(int), minlength=bins)
        np.testing.assert_array_equal(histogram.counts, wanted)
    histogram.check()


def test_what_a_histogram_of_an_older_version_lacks_no_merge_makes_up():
    new = whole(with_huge(1e6))
    old = Histogram(new.counts, new.bin_width, new.amax)
    assert old.octaves is None and not old.crowded()
    assert old.merge(new) == new.merge(old)
    assert old.merge(new).octaves is None
    assert new.merge(Histogram()) == new
    old.observe(bulk())
    assert old.octaves is None and old.total == 2 * COUNT
    assert thresholds.percentile(old) == old.bin_width


@pytest.mark.parametrize("huge", [50, 1e3, 1e6, 1e12])
def test_values_far_from_most_do_not_count(huge):
    """One row in 16, so that no share of all values tells it from the others."""
    values = bulk()
    values[::16] *= np.float32(huge)
    alone = thresholds.mse(whole(bulk()))
    assert 0.8 * alone < range_of(whole(values), NEAR) < 2 * alone
    assert range_of(whole(bulk()), NEAR) == alone


def test_a_table_keeps_octaves_only_where_values_are_crowded():
    crowded, ordinary = whole(with_huge(1e6)), whole(bulk())
    far = whole(np.where(np.arange(COUNT) % 16, bulk(), 1e6 * bulk()))
    assert crowded.kept() == crowded and far.kept() == far
    assert ordinary.kept().octaves is None and ordinary.octaves is not None
    for rule in (*RULES, TIGHT, NEAR):
        assert range_of(ordinary.kept(), rule) == range_of(ordinary, rule)
    assert Histogram().kept() == Histogram()


@pytest.mark.parametrize(
    "change",
    [
        lambda counts: counts.__setitem__((-1, -1), 1),
        lambda counts: counts.__setitem__((20, 3), counts[20, 3] + 1),
        lambda counts: counts.__setitem__(0, 0),
    ],
)
def test_octaves_that_no_observation_leaves_are_refused(change):
    histogram = whole(with_huge(1e6))
    histogram.check()
    counts = histogram.octaves.counts.astype(np.uint32)
    change(counts)
    for octaves in (
        Octaves(histogram.octaves.first, counts),
        Octaves(histogram.octaves.first + 1, histogram.octaves.counts),
        Octaves(250, histogram.octaves.counts),
        Octaves(-1, histogram.octaves.counts),
        Octaves(histogram.octaves.first, histogram.octaves.counts[:, :100]),
        Octaves(histogram.octaves.first, histogram.octaves.counts.astype(np.float64)),
        Octaves(),
    ):
        histogram.octaves = octaves
        with pytest.raises(ValueError, match=r"^its octaves"):
            histogram.check()


def test_octaves_are_equal_where_they_begin_alike_and_count_alike():
    counts = np.ones((1, PER_OCTAVE), np.uint8)
    one = Octaves.of(127, counts)
    assert one == Octaves.of(127, counts.copy())
    assert one != Octaves.of(128, counts) and one != Octaves.of(127, 2 * counts)
