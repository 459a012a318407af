"""Ranges of many widths for one tensor."""

import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from calibrators.histograms import thresholds
from calibrators.histograms.histogram import BINS, Histogram
from calibrators.histograms.rules import (
    RULES,
    RangeLoss,
    decibels,
    excessive_losses,
    near_least_error,
    range_loss,
    range_of,
    range_sqnr,
    ranges_by_rule,
)
from calibrators.histograms.thresholds import mse
from tests.calibrators.histograms.distributions import DISTRIBUTIONS, histogram_of
from tests.calibrators.histograms.kernels import whole


def ranges(histogram):
    return {rule: found["x"] for rule, found in ranges_by_rule({"x": histogram})}


def test_every_rule_has_a_range_for_every_tensor():
    histograms = {name: histogram_of(name) for name in DISTRIBUTIONS}
    by_rule = dict(ranges_by_rule(histograms))
    assert list(by_rule["mse"]) == list(histograms)
    for name, histogram in histograms.items():
        found = {rule: each[name] for rule, each in by_rule.items()}
        assert found == ranges(histogram) == {rule: range_of(histogram, rule) for rule in RULES}
        assert set(found) == set(RULES)
        assert (found["mse"], found["wide"]) == near_least_error(histogram)
        for method in thresholds.METHODS.keys() & set(RULES):
            assert found[method] == thresholds.METHODS[method](histogram)


@given(st.integers(0, 2**32 - 1), st.sampled_from([1, 2, 4]))
def test_least_error_lies_below_wide(seed, power):
    histogram = whole(np.random.default_rng(seed).standard_normal(3000).astype(np.float32) ** power)
    found = ranges(histogram)
    assert 0 < found["mse"] <= found["wide"] <= found["minmax"] == histogram.amax
    assert all(0 < value <= histogram.amax for value in found.values())


def test_wide_costs_at_most_half_a_decibel():
    histogram = histogram_of("normal")
    counts = thresholds.occupied(histogram)
    last = round(near_least_error(histogram)[1] / histogram.bin_width - 0.5)
    error = thresholds.Moments.of(counts).quantization_error(np.arange(1, len(counts)))
    assert error[last - 1] <= error.min() * 10**0.05 < error[last]


@pytest.mark.parametrize("values", [[], [0.0, 0.0]])
def test_nothing_but_zeros_has_the_range_zero(values):
    histogram = whole(np.array(values, np.float32))
    assert ranges(histogram) == dict.fromkeys(RULES, 0.0)


@given(st.integers(0, BINS - 1), st.integers(1, 10**6))
@example(0, 5)
def test_values_in_one_bin_keep_that_bin(index, count):
    counts = np.zeros(BINS, np.int64)
    counts[index] = count
    amax = (index + 0.5 if index == 0 else index + 1) * 0.5
    for rule, found in ranges(Histogram(counts, 0.5, amax)).items():
        assert index * 0.5 <= found <= amax and (index or found == amax), rule


UNIFORM = Histogram(np.full(BINS, 10, np.int64), 2.0**-11, 1.0)


class TestSqnr:
    def test_rounding_noise_of_uniform_values(self):
        # A step of d makes noise of d^2 / 12, and the signal is 1/3.
        assert range_sqnr(UNIFORM, 1.0) == pytest.approx(10 * math.log10(4 * 127**2), abs=0.02)

    def test_clipping_noise_of_uniform_values(self):
        noise = 1 / 24 + 0.5 * (0.5 / 127) ** 2 / 12
        assert range_sqnr(UNIFORM, 0.5) == pytest.approx(10 * math.log10(1 / 3 / noise), abs=0.001)

    def test_levels_at_the_ends(self):
        assert range_sqnr(Histogram(), 1.0) == math.inf
        assert range_sqnr(Histogram(np.full(2048, 1, np.int64), 1.0, 2048.0), 0.0) == 0.0

    def test_it_agrees_with_the_values_themselves(self):
        values = np.random.default_rng(0).laplace(0, 1, 200_000).astype(np.float32)
        histogram = whole(values)
        for amax in (3.0, 6.0, histogram.amax):
            scale = amax / 127
            error = np.abs(values) - scale * np.minimum(np.rint(np.abs(values) / scale), 127)
            wanted = 10 * math.log10(float((values.astype(np.float64) ** 2).sum() / (error**2).sum()))
            assert range_sqnr(histogram, amax) == pytest.approx(wanted, abs=0.1)

    @pytest.mark.parametrize("amax", [0.3, 0.77, 1.5, 2.5, 3.0])
    def test_the_largest_value_may_begin_its_bin(self, amax):
        counts = np.zeros(BINS, np.int64)
        counts[[5, 100, 1000, 1280]] = 3, 4, 5, 100
        histogram = Histogram(counts, 2.0**-9, 1280 * 2.0**-9)
        inner = ((np.array([5, 100, 1000])[:, None] + (np.arange(1000) + 0.5) / 1000) * 2.0**-9).ravel()
        values = np.append(inner, 2.5)
        weights = np.append(np.repeat([3, 4, 5], 1000) / 1000, 100)
        scale = amax / 127
        error = values - scale * np.minimum(np.rint(values / scale), 127)
        wanted = 10 * math.log10((weights @ values**2) / (weights @ error**2))
        assert range_sqnr(histogram, amax) == pytest.approx(wanted, abs=1e-3)


def test_the_whole_range_of_uniform_values_loses_nothing():
    loss = range_loss(UNIFORM, 1.0)
    assert (loss.clipped, loss.sqnr_db, loss.excessive) == (0, range_sqnr(UNIFORM, 1.0), False)
    assert loss.best_db == pytest.approx(loss.sqnr_db, abs=0.05)
    assert range_loss(Histogram(), 1.0) == RangeLoss(0.0, math.inf, math.inf)  # nothing was observed


def test_half_the_range_of_uniform_values():
    loss = range_loss(UNIFORM, 0.5)
    # Of the values beyond the range, those within half a step of it lose no more than rounding costs.
    assert loss.clipped == pytest.approx(0.5 - 0.5 * 0.5 / 127, abs=1 / BINS)
    assert loss.sqnr_db == range_sqnr(UNIFORM, 0.5) == pytest.approx(9.03, abs=0.01)
    assert loss.best_db == pytest.approx(range_sqnr(UNIFORM, 1.0), abs=0.05)
    assert loss.excessive


@pytest.mark.parametrize(("bin_number", "clipped"), [(1031, 0.0), (1032, 0.1)])
def test_only_what_lies_more_than_half_a_step_beyond_is_clipped(bin_number, clipped):
    counts = np.zeros(BINS, np.int64)
    counts[500], counts[bin_number] = 90, 10
    histogram = Histogram(counts, 1.0, bin_number + 0.5)
    assert range_loss(histogram, 1027.0).clipped == clipped  # half a step is 4.04


def test_zeros_are_values_that_nothing_clips():
    counts = np.zeros(BINS, np.int64)
    counts[10], counts[2000] = 10, 10
    assert range_loss(Histogram(counts, 1.0, 2000.5, zeros=80), 100.0).clipped == 0.1


@given(st.integers(0, 2**32 - 1), st.floats(0.01, 2), st.sampled_from([1, 3]))
def test_no_range_is_better_than_the_best(seed, share, power):
    histogram = whole(np.random.default_rng(seed).standard_normal(2000).astype(np.float32) ** power)
    loss = range_loss(histogram, share * histogram.amax)
    assert loss.best_db >= loss.sqnr_db
    assert 0 <= loss.clipped <= 1


@pytest.mark.parametrize(
    ("loss", "excessive"),
    [
        (RangeLoss(0.01, 30.0, 36.0), False),
        (RangeLoss(0.0101, 35.4, 36.0), True),
        (RangeLoss(0.01, 35.4, 36.0), False),
        (RangeLoss(0.0101, 35.5, 36.0), False),  # no other range would lose less
        (RangeLoss(0.0, 29.9, 36.0), True),
        (RangeLoss(0.0, 40.0, 40.0), False),
        (RangeLoss(0.1, 40.0, 80.0), False),  # and it leaves enough
    ],
)
def test_what_is_excessive(loss, excessive):
    assert loss.excessive == excessive


def test_the_worst_come_first_and_tensors_without_a_histogram_are_left_out():
    histograms = dict.fromkeys(("whole", "half", "quarter", "most"), UNIFORM)
    amax = {"whole": 1.0, "half": 0.5, "quarter": 0.25, "most": 0.9, "imported": 0.1}
    found = excessive_losses(histograms, amax)
    assert list(found) == ["quarter", "half", "most"]
    assert found["half"] == range_loss(UNIFORM, 0.5)


@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from([1, 3, 9]),
    st.sampled_from([None, 2, 5, 30]),
    st.sampled_from([0.0, 100.0]),
)
def test_the_range_of_least_squared_error_never_loses_too_much(seed, power, steps, offset):
    values = np.random.default_rng(seed).standard_normal(3000) ** power + offset
    if steps:
        values = np.rint(values * steps) / steps
    histogram = whole(values.astype(np.float32))
    assert not range_loss(histogram, mse(histogram)).excessive


def test_powers_whose_ratio_is_no_number_have_a_level():
    assert decibels(1e-300, 1e300) == -math.inf
    assert decibels(1e300, 1e-300) == math.inf
    assert math.isnan(decibels(math.nan, 1.0))
