"""Thresholds against values from other implementations, on three distributions of a million samples."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from calibrators.histograms import thresholds
from calibrators.histograms.histogram import Histogram
from calibrators.histograms.rules import range_sqnr
from tests.calibrators.histograms.distributions import DISTRIBUTIONS, histogram_of
from tests.calibrators.histograms.kernels import whole


def _samples(name):
    rng = np.random.default_rng(0)
    if name == "laplace":
        return rng.laplace(size=1_000_000).astype(np.float32)
    values = rng.standard_normal(1_000_000).astype(np.float32)
    if name == "relu with outliers":
        values = np.maximum(values, 0)
        values[:10] = 20
    return values


def _histogram(name):
    magnitudes = np.abs(_samples(name)).astype(np.float64)
    counts, edges = np.histogram(magnitudes, 2048, (0, magnitudes.max()))
    return Histogram(counts.astype(np.int64), float(edges[1]), float(edges[-1]))


@pytest.mark.parametrize(
    ("name", "entropy", "bins", "mse", "percentile", "ncnn"),
    [
        ("normal", 4.65802, 2016, 3.91288, 3.89324, 4.52054),
        ("laplace", 11.2006, 1501, 9.7119, 9.32014, 10.2939),
        ("relu with outliers", 4.4043, 451, 15.9131, 3.76953, 4.36035),
    ],
)
def test_reference_values(name, entropy, bins, mse, percentile, ncnn):
    histogram = _histogram(name)
    found = thresholds.entropy(histogram)
    assert found == pytest.approx(entropy, rel=1e-5)
    assert round(found / histogram.bin_width) == bins
    assert found == pytest.approx(ncnn, rel=0.1)
    assert thresholds.mse(histogram) == pytest.approx(mse, rel=1e-5)
    assert thresholds.percentile(histogram) == pytest.approx(percentile, rel=1e-5)


def test_divergence_of_eight_bins_merged_to_two_levels():
    counts = np.array([1, 0, 2, 3, 5, 3, 1, 7], np.float64)
    assert thresholds.Sums.of(counts).divergence(np.array([8]), 2)[0] == pytest.approx(0.150315, abs=5e-7)


def test_divergence_equals_its_definition():
    rng = np.random.default_rng(1)
    for _ in range(50):
        counts = rng.integers(0, 6, 24).astype(np.float64)
        counts[-1] = 2
        candidates = np.arange(4, 25)
        expected = [_literal_divergence(counts, int(i), 4) for i in candidates]
        np.testing.assert_allclose(thresholds.Sums.of(counts).divergence(candidates, 4), expected, atol=1e-12)


def _literal_divergence(counts, i, levels):
    p = counts[:i].copy()
    p[-1] += counts[i:].sum()
    q = np.zeros(i)
    level = [
        next(k for k in range(levels) if -(-k * i // levels) <= j < -(-(k + 1) * i // levels))
        for j in range(i)
    ]
    for k in range(levels):
        members = [j for j in range(i) if level[j] == k and counts[j] > 0]
        q[members] = counts[members].mean() if members else 0
    if ((q == 0) & (p > 0)).any():
        return np.inf
    p, q = p / p.sum(), q / max(q.sum(), 1.0)
    return float(sum(a * np.log(a / b) for a, b in zip(p, q, strict=True) if a > 0))


@given(
    arrays(np.int64, st.integers(16, 64), elements=st.integers(0, 5) | st.integers(0, 10**6)),
    st.sampled_from([2, 4, 16]),
)
def test_no_candidate_of_the_least_divergence_is_left_out(counts, levels):
    counts = np.append(counts, 1).astype(np.float64)
    candidates = np.arange(levels, len(counts) + 1)
    every = thresholds.Sums.of(counts).divergence(candidates, levels)
    found = thresholds.least_divergences(counts, candidates, levels)
    computed = np.isfinite(found)
    np.testing.assert_array_equal(found[computed], every[computed])
    assert computed[every == every.min()].all()


def test_the_last_bin_and_all_others_say_which_candidates_are_left_out():
    rng, levels = np.random.default_rng(4), 4
    left_out = 0
    for _ in range(20):
        counts = rng.integers(0, 9, 60) * rng.geometric(0.2, 60).astype(np.float64)
        counts[-1] = 3
        candidates = np.arange(levels, len(counts) + 1)
        every = thresholds.Sums.of(counts).divergence(candidates, levels)
        found = thresholds.least_divergences(counts, candidates, levels)
        coarse = np.arange(len(candidates)) % 16 == 0  # from which the bound comes
        bounds = np.array([_divergence_of_last(counts, i, levels) for i in candidates])
        kept = coarse | (bounds <= every[coarse].min())
        np.testing.assert_array_equal(found, np.where(kept, every, np.inf))
        left_out += np.isfinite(every[~kept]).sum()
    assert left_out > 100


def _divergence_of_last(counts, i, levels):
    """KL(P || Q), as defined above, of two bins: the last one in range, and all others."""
    inside, group = counts[:i], counts[-(-(levels - 1) * i // levels) : i]
    p = counts[i - 1 :].sum() / counts.sum()
    q = group.sum() / max(np.count_nonzero(group), 1) / max(inside.sum(), 1)
    if inside[-1] == 0 or not 0 < q < 1:
        return 0.0
    return sum(a * np.log(a / b) for a, b in ((p, q), (1 - p, 1 - q)) if a > 0)


@pytest.mark.parametrize("name", ["normal", "log-mel features", "gates near 1"])
def test_candidates_that_diverge_more_than_another_by_their_last_bin_are_left_out(name):
    counts = thresholds.occupied(histogram_of(name))
    candidates = np.arange(thresholds.LEVELS, len(counts) + 1)
    found = thresholds.least_divergences(counts, candidates)
    every = thresholds.Sums.of(counts).divergence(candidates)
    assert np.isfinite(found).sum() < np.isfinite(every).sum()
    assert np.argmin(found) == np.argmin(every)


def test_the_zero_spike_of_a_relu_does_not_drag_the_range_down():
    values = np.maximum(np.random.default_rng(2).standard_normal(200_000).astype(np.float32), 0)
    histogram = whole(values)
    assert histogram.zeros > 90_000
    assert thresholds.entropy(histogram) > 3.0


def test_minmax_is_exact_and_percentile_keeps_its_bounds():
    histogram = _histogram("normal")
    assert thresholds.minmax(histogram) == histogram.amax
    assert thresholds.percentile(histogram, 100) == histogram.amax
    for bad in (0, -1, 100.1):
        with pytest.raises(ValueError, match="percentile"):
            thresholds.percentile(histogram, bad)


def test_mse_equals_a_search_over_the_definition():
    counts = np.random.default_rng(3).integers(0, 100, 64).astype(np.float64)
    centres = np.arange(64) + 0.5
    candidates = np.arange(1, 64)
    expected = []
    for i in candidates:
        step = (i + 0.5) / 15
        quantized = np.clip(np.round(centres / step), 0, 15) * step
        expected.append((counts * (quantized - centres) ** 2).sum())
    np.testing.assert_allclose(
        thresholds.Moments.of(counts).quantization_error(candidates, 16), expected, rtol=1e-9
    )


@given(
    # With more values in all than 2^53 / (bins * levels), sums would be rounded.
    arrays(np.int64, st.integers(2, 300), elements=st.sampled_from([0, 0, 1, 7, 1000, 10**6, 10**8])),
    st.sampled_from([1, 8]),
    st.sampled_from([1.0, 1.2]),
)
def test_ranges_of_nearly_the_least_error_are_never_left_out(counts, stride, factor):
    counts[-1] = 1
    candidates = np.arange(1, len(counts), stride)
    every = thresholds.Moments.of(counts.astype(np.float64)).quantization_error(candidates)
    found = thresholds.least_errors(counts.astype(np.float64), candidates, factor=factor)
    close = every <= factor * every.min()
    np.testing.assert_array_equal(found[close], every[close])
    assert found.argmin() == every.argmin()


def test_ranges_that_clip_much_are_left_out():
    histogram = histogram_of("normal")
    counts = thresholds.occupied(histogram)
    found = thresholds.least_errors(counts, np.arange(1, len(counts)))
    assert np.isinf(found[: len(found) // 2]).all()


def test_nothing_but_zeros_has_the_range_zero():
    histogram = whole(np.zeros(10, np.float32))
    assert {method(histogram) for method in thresholds.METHODS.values()} == {0.0}


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_entropy_costs_at_most_a_decibel_more_than_the_least(name):
    histogram = histogram_of(name)
    assert range_sqnr(histogram, thresholds.entropy(histogram)) > (
        range_sqnr(histogram, thresholds.mse(histogram)) - 1
    )


def _clipped(counts):
    """The share of non-zero values that entropy clips of these counts, from the first bin on."""
    histogram = Histogram(np.asarray(counts, np.int64), 1.0, float(np.flatnonzero(counts)[-1]) + 0.5)
    return histogram.above(thresholds.entropy(histogram)) / histogram.counts.sum()


@given(
    arrays(np.int64, st.integers(129, 400), elements=st.sampled_from([0, 0, 1, 5, 1000, 10**6])).filter(
        np.any
    )
)
def test_entropy_clips_at_most_one_value_in_a_thousand(counts):
    assert _clipped(counts) <= 0.001


@pytest.mark.parametrize("spikes", [{2047: 9}, {300: 1000, 2047: 9}, {0: 10**6, 2047: 1}])
def test_entropy_of_spikes_clips_no_more(spikes):
    counts = np.zeros(2048, np.int64)
    counts[list(spikes)] = list(spikes.values())
    assert _clipped(counts) <= 0.001


@pytest.mark.parametrize(("count", "clips"), [(999, True), (998, False)])
def test_entropy_clips_one_value_in_a_thousand_and_none_of_fewer(count, clips):
    counts = np.zeros(2048, np.int64)
    counts[:130:2], counts[1:130:2] = 3, 12  # which a range that keeps them apart diverges least from
    counts[129] += count - counts.sum()
    counts[299] = 1
    assert (thresholds.entropy(Histogram(counts, 1.0, 299.5)) <= 130) is clips


def test_entropy_of_few_discrete_values_keeps_the_largest():
    histogram = whole(np.repeat(np.float32([0.5, 1, 2, 3]), [1000, 100, 10, 2]))
    assert thresholds.entropy(histogram) == 3.0
