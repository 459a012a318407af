import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtint8.validation.significance import (
    Estimate,
    Share,
    _bootstrapped,
    as_number,
    by_group,
    compare_hits,
    compare_totals,
    independent_samples,
    mcnemar,
    paired_interval,
    t95,
    totals_interval,
)

counts = st.integers(0, 60)


def test_shares():
    assert Share(8, 10).interval == pytest.approx((0.49016, 0.94331), abs=1e-5)  # Wilson's
    assert (Share(0, 5).interval[0], Share(5, 5).interval[1]) == (0.0, 1.0)
    assert (as_number(Share(1, 4)), as_number(2.0), as_number(None)) == (0.25, 2.0, None)
    with pytest.raises(ValueError, match="3 of 2"):
        Share(3, 2)
    assert Share(2, 2).value == 1


@pytest.mark.parametrize(
    ("freedom", "quantile", "off"),
    [
        (1, 12.7062, 0.12),
        (2, 4.30265, 0.008),
        (3, 3.18245, 0.0013),
        (8, 2.306004, 2e-5),
        (15, 2.13145, 1e-5),
        (999, 1.96234, 1e-5),
    ],
)
def test_quantiles_of_the_t_distribution_as_tables_have_them(freedom, quantile, off):
    assert t95(freedom) == pytest.approx(quantile, rel=off)


def level(totals):
    with np.errstate(divide="ignore"):
        return 10 * np.log10(totals[..., 0] / totals[..., 1])


def noisy(samples, seed=0, spread=1.0):
    """Signal and noise of samples, of which some are much noisier than others."""
    random = np.random.default_rng(seed)
    return np.stack([random.uniform(1, 2, samples), 0.01 * random.lognormal(0, spread, samples)], axis=1)


@given(seed=st.integers(0, 1000), samples=st.integers(6, 40), spread=st.floats(0.1, 2.0))
def test_a_level_lies_in_its_interval_which_no_order_changes(seed, samples, spread):
    sums = noisy(samples, seed, spread)
    low, high = totals_interval(sums, level)
    assert low < level(sums.sum(axis=0)) < high
    again = totals_interval(sums * [[3.0, 3.0]], level)  # another unit of the signal
    assert again == pytest.approx((low, high), abs=1e-3)
    # Samples of which each is a group stand alone.
    groups = np.random.default_rng(seed).permutation(samples)
    assert (by_group(sums, groups) == sums).all()
    assert independent_samples(sums[:, 1], groups) == samples


def widths(samples):
    found = [totals_interval(noisy(samples, seed), level) for seed in range(20)]
    return np.mean([high - low for low, high in found])


def test_more_samples_make_intervals_narrower_and_groups_make_them_wider():
    assert 3.5 > widths(8) / widths(32) > 1.7  # as the root of four, or more for the noisy ones
    sums = noisy(12).repeat(8, axis=0)  # windows that are all the same
    alone, grouped = (totals_interval(by_group(sums, groups), level) for groups in (None, np.arange(96) // 8))
    assert grouped == pytest.approx(totals_interval(noisy(12), level), abs=1e-3)
    assert grouped[1] - grouped[0] > 2 * (alone[1] - alone[0])


def test_the_truth_is_rarely_below_an_interval():
    """In one of forty by its name. Resamples alone put it there in one of eight."""
    truth = level(noisy(1_000_000, 7).sum(axis=0))
    lows, highs = np.transpose([totals_interval(noisy(16, seed), level) for seed in range(100)])
    assert np.mean(lows > truth) < 0.06 and np.mean(highs < truth) < 0.06


@pytest.mark.parametrize(
    ("sums", "expected"),
    [
        (noisy(5), None),  # too few
        (noisy(10) * [1, 0], (math.inf, math.inf)),  # no noise anywhere
        (noisy(10) * [1, 0] + [0, 1e-9] * (np.arange(10) == 3)[:, None], None),  # one makes all of it
        (np.ones((10, 2)), None),  # all the same
        (np.full((10, 2), np.nan), None),
    ],
)
def test_samples_that_do_not_tell(sums, expected):
    assert totals_interval(sums, level) == expected


@given(st.lists(st.booleans(), min_size=2, max_size=40), st.integers(2, 6), st.integers(0, 99))
def test_samples_in_groups_say_no_more_than_alone(hits, size, seed):
    values = np.array(hits, np.float64)
    groups = np.random.default_rng(seed).integers(0, size, len(values))
    assert 1 <= independent_samples(values, groups) <= len(values)
    # Where a group is one sample over and over, it says as much as that one.
    copies = independent_samples(values.repeat(size), np.arange(len(values)).repeat(size))
    assert copies <= len(values)


def estimate(count, total):
    return Estimate(Share(count, total).value, Share(count, total).interval)


def test_the_difference_of_estimates_that_are_not_paired():
    # Newcombe, "Interval estimation for the difference between independent proportions", Statistics in
    # Medicine 17, 1998: the first example, by method 10.
    found = estimate(56, 70).minus(estimate(48, 80))
    assert (found.value, *found.interval) == pytest.approx((0.2, 0.0524, 0.3339), abs=5e-5)
    assert found.is_above_chance and estimate(48, 80).minus(estimate(56, 70)).is_above_chance
    for interval, above in (((0.0, 1.0), False), ((-1.0, 0.0), False), ((0.1, 1.0), True)):
        assert Estimate(0.5, interval).is_above_chance is above


@pytest.mark.parametrize(
    ("gained", "lost", "p"),
    [
        (10, 3, 756 / 8192),  # 2 (1 + 13 + 78 + 286) / 2^13
        (3, 10, 756 / 8192),
        # P = 0.0129 in Armitage and Berry, Statistical Methods in Medical Research, 1994, p. 127.
        (12, 2, 212 / 16384),
        (5, 5, 1.0),
        (0, 0, 1.0),
        (0, 6, 2 / 64),
    ],
)
def test_mcnemars_exact_test(gained, lost, p):
    assert mcnemar(gained, lost) == pytest.approx(p, rel=1e-9)


@given(st.integers(0, 400), st.integers(0, 400))
def test_mcnemar_is_the_sum_of_binomial_coefficients(gained, lost):
    n = gained + lost
    tail = sum(math.comb(n, k) for k in range(min(gained, lost) + 1))
    assert mcnemar(gained, lost) == pytest.approx(min(1.0, 2 * tail / 2**n), rel=1e-9)
    # That of many pairs is nearly normal, with the continuity correction.
    z = (500 - 1) / math.sqrt(100_500)
    assert mcnemar(50_000, 50_500) == pytest.approx(math.erfc(z / math.sqrt(2)), rel=1e-3)


@pytest.mark.parametrize(
    ("table", "interval"),
    [
        # Newcombe, Statistics in Medicine 17, 1998: the examples, by method 10.
        ((36, 12, 2, 0), (0.0569, 0.3404)),
        ((18, 12, 2, 18), (0.0562, 0.3290)),
        ((53, 0, 0, 1), (-0.0729, 0.0729)),
        ((0, 30, 0, 0), (0.8395, 1.0)),
    ],
)
def test_the_interval_of_a_paired_difference(table, interval):
    assert paired_interval(*table) == pytest.approx(interval, abs=5e-5)


@pytest.mark.parametrize("table", [(10, 10, 10, 10), (12, 10, 10, 10), (11, 10, 10, 11)])
def test_shares_that_hardly_depend_on_each_other_are_as_those_of_other_samples(table):
    """The continuity correction takes away an excess of up to half of the samples."""
    both, gained, lost, neither = table
    assert 0 <= both * neither - gained * lost <= sum(table) / 2
    first, second = estimate(both + gained, sum(table)), estimate(both + lost, sum(table))
    assert paired_interval(*table) == pytest.approx(first.minus(second).interval)


def test_shares_that_exclude_each_other_have_a_wider_interval():
    """Their correlation is -1/2, and no continuity correction makes it less."""
    low, high = Share(20, 60).interval
    below, above = 1 / 3 - low, high - 1 / 3
    half = math.sqrt(below**2 + below * above + above**2)
    assert paired_interval(0, 20, 20, 20) == pytest.approx((-half, half))


@given(counts, counts, counts, counts.map(lambda n: n + 1))
def test_the_interval_holds_the_difference_and_turns_round_with_it(both, gained, lost, neither):
    low, high = paired_interval(both, gained, lost, neither)
    difference = (gained - lost) / (both + gained + lost + neither)
    assert -1 <= low <= difference + 1e-12 and difference - 1e-12 <= high <= 1
    assert paired_interval(both, lost, gained, neither) == pytest.approx((-high, -low), abs=1e-12)


def hits_of(both, gained, lost, neither):
    """Two models' hits with so many samples of each kind."""
    pairs = ((True, True), (True, False), (False, True), (False, False))
    counts = (both, gained, lost, neither)
    judged, other = (np.repeat([pair[side] for pair in pairs], counts) for side in (0, 1))
    return judged, other


@pytest.mark.parametrize(
    ("table", "p_value"),
    [
        ((70, 0, 5, 25), 0.0625),  # Newcombe's interval alone: -10.0 to -0.2 points
        ((70, 5, 0, 25), 0.0625),
        ((1400, 2, 9, 589), 268 / 2**12),
        ((9500, 0, 6, 494), 2 / 64),  # Newcombe's interval alone: -0.124 to +0.001 points
        ((9500, 6, 0, 494), 2 / 64),
        ((36, 0, 0, 0), 1.0),
        ((2, 1, 2, 0), 1.0),
    ],
)
def test_the_interval_and_the_test_say_the_same_of_zero(table, p_value):
    _, gained, lost, _ = table
    found = compare_hits(*hits_of(*table), "FP32")
    assert (found.against, found.gained, found.lost, found.pairs) == ("FP32", gained, lost, sum(table))
    assert found.difference == pytest.approx((gained - lost) / sum(table))
    assert found.p_value == pytest.approx(p_value)
    low, high = found.interval
    assert (low <= 0 <= high) == (p_value >= 0.05) == (not found.significant)
    assert found.interval == pytest.approx(paired_interval(*table), abs=0.002)


@given(counts, counts, counts, counts.map(lambda n: n + 1))
def test_they_say_the_same_for_all_counts(both, gained, lost, neither):
    found = compare_hits(*hits_of(both, gained, lost, neither), "FP32")
    low, high = found.interval
    assert low <= found.difference + 1e-12 and found.difference - 1e-12 <= high
    assert (low <= 0 <= high) == (not found.significant)
    newcombe = paired_interval(both, gained, lost, neither)
    # Only the end beside zero is another than Newcombe's, and only where zero lies between the two.
    for end, own in zip((low, high), newcombe, strict=True):
        assert end == own or abs(end) <= 5e-324


@pytest.mark.parametrize("sign", [-1, 1])
@pytest.mark.parametrize(("below", "significant"), [(48, True), (49, True), (50, False), (51, False)])
def test_the_bootstrap_says_the_same_in_both_ways(sign, below, significant):
    """Of 2,000 resamples, so many lie on the other side of zero."""
    resampled = sign * np.where(np.arange(2000) < below, -0.001, 1.0)
    found = _bootstrapped(resampled, sign * 0.9, "FP32", 60, "samples")
    low, high = found.interval
    assert (low > 0 or high < 0) == found.significant == significant


def ratio(totals):
    with np.errstate(divide="ignore", invalid="ignore"):
        return totals[..., 0] / totals[..., 1]


def compare_values(values, other, weights=1.0):
    """Compares the means of values."""
    weights = weights * np.ones(len(values))
    own, others = (np.stack([weights * side, weights], axis=1) for side in (values, other))
    return compare_totals(own, others, ratio, "FP32", "samples")


def test_the_interval_of_a_bootstrap_leaves_out_one_resample_in_forty_at_each_end():
    found = _bootstrapped(np.random.default_rng(0).permutation(2000) + 1.0, 1000.5, "FP32", 60, "samples")
    assert found.interval == (50.0, 1951.0)


def test_the_bootstrap_finds_a_shift_within_the_noise_of_the_samples():
    rng = np.random.default_rng(0)
    other = rng.normal(0, 10, 400)  # the spread that both models share does not count
    judged = other + 0.2 + rng.normal(0, 1, 400)
    found = compare_values(judged, other)
    mean, error = (judged - other).mean(), (judged - other).std() / 20
    assert found.difference == pytest.approx(mean)
    assert found.interval == pytest.approx((mean - 1.96 * error, mean + 1.96 * error), abs=0.02)
    assert found.significant and found.test == "bootstrap"
    assert compare_values(judged, other) == found
    weighed = compare_values(np.array([1.0, 4.0]), np.zeros(2), np.array([2.0, 1.0]))
    assert weighed.difference == pytest.approx(2.0)
    # The other twice; the one twice would be 1, but two pairs say nothing of which model is better.
    assert weighed.interval == pytest.approx((0.0, 4.0))
    equal = compare_values(np.arange(5.0), np.arange(5.0))
    assert (equal.difference, equal.interval, equal.p_value) == (0.0, (0.0, 0.0), 1.0)


@pytest.mark.parametrize("sign", [-1, 1])
@pytest.mark.parametrize(
    ("pairs", "p_value", "interval"),
    [(2, 0.5, (0.0, 2.0)), (5, 0.0625, (0.0, 5.0)), (6, 0.03125, (1.0, 6.0))],
)
def test_few_pairs_say_no_more_than_their_signs(pairs, p_value, interval, sign):
    """All differences are on one side, which two of 2^pairs ways to choose their signs have."""
    values = sign * np.arange(1.0, pairs + 1)
    found = compare_values(values, np.zeros(pairs))
    assert (found.p_value, found.significant) == (p_value, pairs == 6)
    low, high = sorted(sign * end for end in found.interval)
    assert interval[0] <= low <= high <= interval[1] and (low == 0) == (pairs < 6)
    sums = np.stack([values, np.ones(pairs)], axis=1)
    of_totals = compare_totals(sums, sums * [0, 1], ratio, "FP32", "samples")
    assert (of_totals.p_value, 0 in of_totals.interval) == (p_value, pairs < 6)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("infinite", [math.inf, -math.inf, math.nan])
def test_the_bootstrap_needs_finite_values_and_two_pairs(infinite):
    values = np.array([1.0, infinite, 3.0])
    for one, other in ((values, values), (values, np.ones(3)), (np.ones(3), values)):
        assert compare_values(one, other) is None
    assert compare_values(np.ones(1), np.zeros(1)) is None
    for totals in (np.array([[1.0, 2.0]]), np.array([[1.0, 0.0], [1.0, 0.0]])):
        assert compare_totals(totals, totals, ratio, "B", "samples") is None


def test_a_function_of_totals_is_compared_by_the_totals_of_resamples():
    random = np.random.default_rng(0)
    own = np.stack([random.random(200) + 0.2, np.ones(200)], axis=1)
    other = np.stack([own[:, 0] - 0.2 + 0.1 * random.random(200), np.ones(200)], axis=1)
    found = compare_totals(own, other, ratio, "B", "samples")
    values = compare_values(own[:, 0], other[:, 0])
    assert found.difference == pytest.approx(values.difference)
    assert found.interval == pytest.approx(values.interval, abs=1e-3)
    assert (found.pairs, found.unit, found.test, found.significant) == (200, "samples", "bootstrap", True)
    # Samples count by their totals: the first three hundred times as much as the second.
    uneven = np.array([[300.0, 300.0], [0.0, 1.0]])
    found = compare_totals(uneven, uneven * [0.5, 1.0], ratio, "B", "samples")
    assert found.difference == pytest.approx(150 / 301)
