"""Runs of the quantized network, several at once, and the comparison of rules by them."""

import threading
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrators.errors import CalibrationDataError
from calibrators.histograms.rules import RULES, TIGHT, range_of
from tests.trtint8.range_choice import networks
from tests.trtint8.range_choice.noisy import HISTOGRAMS, NoisyInTurn, choose, chosen
from trtint8.range_choice.auto import USUAL, RuleComparison, Trials, first_samples, runs_to_spend
from trtint8.range_choice.trial_network import Noise, References

FEEDS = [{"x": image[None]} for image in networks.normal(5)]
AMAX = {"narrow": 1.0, "wide": 9.0}


def opened(network, advance=lambda _steps: None, rows=16):
    return Trials(network, References(network.reference, FEEDS, rows, first=3, separate=True), advance)


def scales_of(network, placement, rule):
    return network.scales(dict.fromkeys(placement.tensors, AMAX[rule]))


@pytest.mark.parametrize("at_once", [1, 2, 3])
@pytest.mark.parametrize("rows", [1, 2, 16])
def test_every_sample_has_the_noise_that_it_has_by_itself(at_once, rows):
    steps = []
    with networks.trial_network(networks.convolutions()) as (_, placement, network):
        network.runs_at_once = at_once
        with opened(network, steps.append, rows) as trials:
            for rule in AMAX:
                trials.add(rule, scales_of(network, placement, rule), 2)
            found = trials.noise(AMAX, 0, 2)
            for rule, more in trials.noise(["wide"], 2, 5).items():
                found[rule] = Noise.joined([found[rule], more])
        for rule, noise in found.items():
            scales = scales_of(network, placement, rule)
            alone = [
                Noise.of(network.reference(feed), network.outputs(feed, scales), 1)
                for feed in FEEDS[: len(noise.levels)]
            ]
            np.testing.assert_allclose(noise.levels, Noise.joined(alone).levels, atol=1e-3)
    assert {rule: len(noise.levels) for rule, noise in found.items()} == {"narrow": 2, "wide": 5}
    assert sum(steps) == 2 + 2 + 3


class Meeting:
    """A network of which several runs have to be going on at once, each of some samples."""

    def __init__(self, runs):
        self.runs_at_once = runs
        self.sizes = []
        self._all = threading.Barrier(runs, timeout=30)

    def reference(self, feed):
        return [feed["x"]]

    def outputs(self, feed, scales):
        self.sizes.append(len(feed["x"]))
        self._all.wait()
        return [feed["x"] * scales["a"]]


@pytest.mark.parametrize(("rows", "sizes"), [(16, [2, 2]), (2, [1, 1, 1, 1])])
def test_runs_at_once_share_samples_and_memory(rows, sizes):
    network = Meeting(2)
    with opened(network, rows=rows) as trials:
        trials.add("a", {"a": np.float32(1.1)}, 4)
        found = trials.noise(["a"], 0, 4)
    np.testing.assert_allclose(found["a"].levels, [-20] * 4, atol=1e-4)
    assert network.sizes == sizes


def test_a_failing_sample_is_reported():
    network = Meeting(1)

    def fail(feed, scales):
        raise CalibrationDataError("the model fails on a sample: too large")

    network.outputs = fail
    with pytest.raises(CalibrationDataError, match="too large"), opened(network) as trials:
        trials.add("a", {}, 2)
        trials.noise(["a"], 0, 2)


@pytest.mark.parametrize(
    ("options", "at_once"),
    [
        ({"threads": 1}, 1),
        ({"threads": 2}, 2),
        ({"threads": 8}, 2),
        ({"threads": 8, "return_memory": True}, 1),
    ],
)
def test_two_runs_at_once_where_there_are_threads_and_memory_for_them(options, at_once):
    with networks.trial_network(networks.convolutions(), **options) as (_, _, network):
        assert network.runs_at_once == at_once


@pytest.mark.parametrize("rule", ["percentile", "entropy", "minmax"])
def test_the_rule_with_the_least_noise_gives_the_ranges_of_all_tensors(rule):
    wanted = range_of(HISTOGRAMS["a"], rule)
    amax, choice, _ = chosen(lambda found: 0.01 if found == np.float32(wanted) else 0.1)
    assert range_of(HISTOGRAMS["a"], choice.rule) == wanted
    assert amax == {name: range_of(histogram, choice.rule) for name, histogram in HISTOGRAMS.items()}
    assert choice.sqnr_db[choice.rule] == pytest.approx(40, abs=0.01)
    narrow = wanted < range_of(HISTOGRAMS["a"], USUAL)
    assert choice.samples[choice.rule] == 8 and set(choice.samples) == {*RULES, *([TIGHT] if narrow else [])}


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_rule_whose_outputs_are_not_finite_is_not_taken(bad):
    largest = np.float32(HISTOGRAMS["a"].amax)
    amax, choice, _ = chosen(lambda found: 0.1 if found == largest else bad)
    assert amax["a"] == largest
    assert choice.sqnr_db[choice.rule] == pytest.approx(20, abs=0.01)
    assert min(choice.sqnr_db.values()) == 0


@pytest.mark.parametrize(
    ("usual", "tight", "rule", "tried"),
    [
        (0.3, 0.05, TIGHT, 8),  # the usual rule does badly
        (0.3, 0.295, USUAL, 8),  # but this one no better, for ranges that are so much narrower
        (0.1, 0.05, USUAL, None),  # the usual one does well
    ],
)
def test_tight_ranges_are_tried_where_nothing_is_good(usual, tight, rule, tried):
    noise = {
        np.float32(range_of(HISTOGRAMS["a"], name)): level for name, level in [(USUAL, usual), (TIGHT, tight)]
    }
    amax, choice, _ = chosen(lambda found: noise.get(np.float32(found), 0.9))
    assert choice.rule == rule and choice.samples.get(TIGHT) == (tried and choice.samples[USUAL])
    assert amax == {name: range_of(histogram, rule) for name, histogram in HISTOGRAMS.items()}


@pytest.mark.parametrize(("tight", "rule"), [(0.005, TIGHT), (0.02, "entropy")])
def test_tight_ranges_are_tried_where_narrow_ones_are_best(tight, rule):
    narrow, narrowest = (np.float32(range_of(HISTOGRAMS["a"], rule)) for rule in ("entropy", TIGHT))
    assert narrowest < narrow < range_of(HISTOGRAMS["a"], USUAL)
    amax, choice, _ = chosen(lambda found: {narrow: 0.01, narrowest: tight}.get(np.float32(found), 0.1))
    assert (choice.rule, choice.samples[TIGHT]) == (rule, 8)
    assert amax["a"] == range_of(HISTOGRAMS["a"], rule)


@pytest.mark.parametrize("odd", range(8))
def test_one_sample_does_not_decide(odd):
    """Minmax is far worse on one sample and far better on all others; wherever that one stands."""
    largest = np.float32(HISTOGRAMS["a"].amax)

    def noise(found, sample):
        if found == largest:
            return 0.9 if sample == odd else 0.001
        return 0.1

    _, choice = choose(NoisyInTurn(noise, rows=1))
    assert choice.rule == "minmax" and choice.samples["minmax"] == 8


class GivenTrials:
    """Trials of rules whose noise is known, 40 dB lower; remembers which rule was tried on which samples.

    Args:
        noise: Called with a rule and the number of a sample; gives decibels.
        signal: The signal's power of each sample in turn.
    """

    def __init__(self, noise, signal=(1.0,)):
        self._noise, self._signal, self.calls = noise, signal, []

    def add(self, rule, scales, stop):
        pass

    def noise(self, rules, start, stop):
        self.calls += [(rule, start, stop) for rule in rules]
        return {rule: self._noise_of(rule, range(start, stop)) for rule in rules}

    def _noise_of(self, rule, numbers):
        signal = np.array([[self._signal[number % len(self._signal)] for number in numbers]])
        levels = np.array([[self._noise(rule, number) - 40.0 for number in numbers]])
        return Noise(signal, signal * 10 ** (levels / 10))

    def samples(self, rule):
        """The numbers of the samples that a rule was tried on."""
        return [number for name, *part in self.calls if name == rule for number in range(*part)]

    @property
    def runs(self):
        """How often the network was run."""
        return sum(stop - start for rule, start, stop in self.calls if rule != TIGHT)


def compared(rules, noise, samples=64, *, first=4, calibrated=None, widths=None, signal=(1.0,)):
    """The rule that is taken, rules that were compared on samples, and their trials.

    Args:
        rules: Their names; the usual rule is one.
        noise: Called with a rule and the number of a sample; gives decibels.
        samples: How many samples there are.
        first: How many all rules are tried on.
        calibrated: How many the ranges are of; as many where None.
        widths: Rule to the binary logarithm of its range, 0 where it has none.
        signal: The signal's power of each sample in turn.
    """
    trials = GivenTrials(noise, signal)
    first = min(first, samples)
    comparison = RuleComparison(SimpleNamespace(scales=dict), trials, first, samples, calibrated or samples)
    for rule in rules:
        comparison.enter(rule, {"x": 2.0 ** (widths or {}).get(rule, 0.0)})
    return comparison.best({}), comparison, trials


def steady(costs, *arguments, **options):
    """The same of rules that have the same noise on every sample."""
    return compared(costs, lambda rule, _number: costs.get(rule, 0.0), *arguments, **options)


def chance(seed, spread):
    """Noise that rules share on each sample, and noise of their own, so many decibels wide."""
    shared = np.random.default_rng(seed).normal(0, 5, 64)
    own = {}

    def noise(rule, number):
        own.setdefault(rule, np.random.default_rng((seed, *rule.encode())).normal(0, spread, 64))
        return float(shared[number] + own[rule][number])

    return noise


def test_the_better_half_goes_on_to_twice_as_many_samples():
    costs = {**dict(zip("abcdefg", range(7), strict=True)), USUAL: 8}
    noise = chance(0, 30.0)  # nothing is ever certain
    _, comparison, trials = compared(
        costs, lambda rule, number: noise(rule, number) + 60 * costs[rule], 32, calibrated=400
    )
    turns = [((*"abcdefg", USUAL), 0, 4), ("abcd", 4, 8), ("ab", 8, 16), ("ab", 16, 32)]
    wanted = [(rule, *part) for rules, *part in turns for rule in rules]
    assert trials.calls == wanted[: len(trials.calls)] and len(trials.calls) >= 12
    assert list(comparison.levels)[:4] == ["a", "b", "c", "d"]


@pytest.mark.parametrize(("first", "tried"), [(4, {8: 2, 4: 2}), (8, {8: 4})])
def test_what_is_certain_is_not_tried_further(first, tried):
    """By the better half only, as long as fewer than eight samples were seen."""
    best, comparison, _ = steady({"a": 0, "b": 3, "c": 6, USUAL: 9}, first=first)
    lengths = [len(levels) for levels in comparison.levels.values()]
    assert best == "a" and {length: lengths.count(length) for length in lengths} == tried


def test_rules_that_are_equally_good_are_not_tried_further():
    best, comparison, _ = steady({"a": 0.1, "b": 0.0, USUAL: 0.15})
    assert max(map(len, comparison.levels.values())) == 8
    assert best == USUAL  # which others have to be better than by a fifth of a decibel


def test_as_long_as_it_is_open_more_samples_are_tried_until_the_runs_are_spent():
    noise = chance(3, 12.0)
    costs = {"a": 0.0, "b": 0.0, "c": 90.0, USUAL: 90.0}
    for calibrated in (8, 64, 200, 1000):
        _, comparison, trials = compared(
            costs, lambda rule, number: noise(rule, number) + costs[rule], calibrated=calibrated
        )
        tried = max(map(len, comparison.levels.values()))
        assert trials.runs <= runs_to_spend(calibrated)
        # Four rules on four samples, and two on as many more as that leaves.
        assert tried == min(64, 4 + (runs_to_spend(calibrated) - 16) // 2)


def test_few_samples_are_all_tried():
    for samples in (1, 2, 3, 5):
        best, comparison, trials = steady({"a": 3, "b": 0, USUAL: 2}, samples)
        assert best == "b" and trials.samples("b") == [*range(samples)]
        assert len(comparison.levels["b"]) == samples


def test_of_equally_good_rules_the_one_with_the_least_noise_together_is_taken():
    """Rule `a` is a little better on most samples, and loses those with the largest signal."""
    signal = [1.0] * 7 + [30.0]
    noise = {"a": [-0.3] * 7 + [1.5], "b": [0.0] * 8, USUAL: [5.0] * 8}
    best, comparison, _ = compared(
        noise, lambda rule, number: noise[rule][number % 8], 8, first=8, signal=signal
    )
    assert next(iter(comparison.levels)) == "a" and best == "b"


@pytest.mark.parametrize("share", [8, 16])
def test_the_worst_samples_count(share):
    """One sample in eight, or in 16, has far more noise by the usual rule, which is better on all others."""
    tail = {USUAL: 12.0, "minmax": 4.0}
    best, *_ = compared(
        tail, lambda rule, number: tail[rule] if number % share == 3 else 0.3 * (rule != USUAL)
    )
    assert best == "minmax"


@pytest.mark.parametrize(
    ("calibrated", "extra", "rule"),
    [(16, 0.9, "a"), (16, 1.1, USUAL), (32, 0.9, "a"), (64, 0.4, "a"), (64, 0.6, USUAL), (3200, 0.2, USUAL)],
)
def test_wide_ranges_may_cost_a_decibel_for_twice_the_width(calibrated, extra, rule):
    """And less where the ranges are of many samples, which reach as far as later data."""
    costs = {"a": extra * 0.5 - 0.2, USUAL: 0.0}  # which others have to be better than by 0.2
    best, *_ = steady(costs, 32, calibrated=calibrated, widths={"a": 0.5})
    assert best == rule


@pytest.mark.parametrize(("level", "rule"), [(0.6, USUAL), (0.2, "a")])
def test_no_rule_is_taken_that_is_half_a_decibel_below_another(level, rule):
    """However much wider its ranges are: one broken sample makes them a thousand times as wide."""
    best, *_ = steady({"a": level, USUAL: 0.0}, 6, widths={"a": 10.0})
    assert best == rule


@given(st.integers(1, 12), st.integers(1, 70), st.randoms(use_true_random=False))
def test_the_best_has_seen_every_sample_once(rules, samples, random):
    names = [*map(str, range(rules)), USUAL]
    costs = dict(zip(names, random.sample(range(20), len(names)), strict=True))
    best, comparison, trials = steady(costs, samples)
    assert best == min(costs, key=costs.get) == next(iter(comparison.levels))
    assert trials.samples(best) == [*range(len(comparison.levels[best]))]
    assert len(comparison.levels[best]) >= min(4, samples)


@given(st.integers(1, 24), st.integers(1, 70), st.randoms(use_true_random=False))
def test_a_rule_that_was_left_out_does_not_come_back(rules, samples, random):
    names = [*map(str, range(rules)), USUAL]
    best, comparison, trials = compared(names, lambda _rule, _number: random.random(), samples)
    tried = {rule: len(found) for rule, found in comparison.levels.items()}
    assert all(trials.samples(rule) == [*range(length)] for rule, length in tried.items())
    assert tried[best] == max(tried.values()) and {*tried} - {TIGHT} == {*names}
    assert trials.runs <= max(runs_to_spend(samples), len(names) * min(samples, 4))


@pytest.mark.parametrize(("calibrated", "runs"), [(1, 36), (7, 37), (64, 52), (500, 161)])
def test_runs_are_a_quarter_of_the_calibration(calibrated, runs):
    assert runs_to_spend(calibrated) == runs


@pytest.mark.parametrize(("elements", "samples"), [(1, 8), (255, 8), (256, 4), (10**6, 4)])
def test_small_outputs_tell_less_by_a_sample(elements, samples):
    assert first_samples(elements) == samples
