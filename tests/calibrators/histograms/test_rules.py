"""Ranges of many widths for one tensor."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrators.histograms import thresholds
from calibrators.histograms.histogram import BINS, Histogram
from calibrators.histograms.rules import RULES, near_least_error, range_of, ranges_by_rule
from tests.calibrators.histograms.distributions import DISTRIBUTIONS, histogram_of

NAMES = ("entropy", "percentile", "mse", "minmax", "wide")


def ranges(histogram):
    return {rule: found["x"] for rule, found in ranges_by_rule({"x": histogram})}


def test_names():
    assert RULES == NAMES


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_every_rule_has_a_range(name):
    histogram = histogram_of(name)
    found = ranges(histogram)
    assert set(found) == set(NAMES)
    for method, threshold in thresholds.METHODS.items():
        assert found[method] == threshold(histogram)
    assert (found["mse"], found["wide"]) == near_least_error(histogram)
    assert {rule: range_of(histogram, rule) for rule in RULES} == found


def test_every_tensor_has_its_own_ranges():
    histograms = {name: histogram_of(name) for name in DISTRIBUTIONS}
    found = dict(ranges_by_rule(histograms))
    assert list(found["mse"]) == list(histograms)
    for name, histogram in histograms.items():
        assert {rule: each[name] for rule, each in found.items()} == ranges(histogram)


@settings(max_examples=20)
@given(st.integers(0, 2**32 - 1), st.sampled_from([1, 2, 4]))
def test_least_error_lies_below_wide(seed, power):
    histogram = Histogram()
    histogram.observe(np.random.default_rng(seed).standard_normal(3000).astype(np.float32) ** power)
    found = ranges(histogram)
    assert 0 < found["mse"] <= found["wide"] <= found["minmax"] == histogram.amax
    assert all(0 < value <= histogram.amax for value in found.values())


def test_wide_costs_at_most_half_a_decibel():
    histogram = histogram_of("normal")
    counts = thresholds.occupied(histogram)
    last = round(near_least_error(histogram)[1] / histogram.bin_width - 0.5)
    error = thresholds.quantization_error(counts, np.arange(1, len(counts)))
    assert error[last - 1] <= error.min() * 10**0.05 < error[last]


@pytest.mark.parametrize("values", [[], [0.0, 0.0]])
def test_nothing_but_zeros_has_the_range_zero(values):
    histogram = Histogram()
    histogram.observe(np.array(values, np.float32))
    assert ranges(histogram) == dict.fromkeys(NAMES, 0.0)


def test_values_in_the_first_bin_alone():
    counts = np.zeros(BINS, np.int64)
    counts[0] = 5
    assert set(ranges(Histogram(counts, 0.5, 0.25)).values()) == {0.25}


@settings(max_examples=40)
@given(st.integers(1, BINS - 1), st.integers(1, 10**6))
def test_values_in_one_bin_keep_that_bin(index, count):
    counts = np.zeros(BINS, np.int64)
    counts[index] = count
    amax = (index + 1) * 0.5
    for rule, found in ranges(Histogram(counts, 0.5, amax)).items():
        assert index * 0.5 <= found <= amax, rule
