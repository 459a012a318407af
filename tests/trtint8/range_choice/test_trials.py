"""Runs of the quantized network, several at once."""

import threading
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrators.errors import CalibrationDataError
from calibrators.histograms.rules import RULES, TIGHT, range_of, ranges_by_rule
from calibrators.histograms.thresholds import minmax, mse
from tests.trtint8.range_choice import networks
from tests.trtint8.range_choice.noisy import HISTOGRAMS, NoisyInTurn, choose, chosen
from trtint8.range_choice.auto import USUAL, RuleComparison, Trials, rounds, samples_of_all
from trtint8.range_choice.trial_network import References, noise_levels

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
                found[rule] += more
        for rule, levels in found.items():
            alone = [
                noise_levels(
                    network.reference(feed), network.outputs(feed, scales_of(network, placement, rule)), 1
                )[0]
                for feed in FEEDS[: len(levels)]
            ]
            np.testing.assert_allclose(levels, alone, atol=1e-3)
    assert {rule: len(levels) for rule, levels in found.items()} == {"narrow": 2, "wide": 5}
    assert steps == [2, 2, 3]


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
    np.testing.assert_allclose(found["a"], [-20] * 4, atol=1e-4)
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
    assert min(choice.samples.values()) <= 4


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_rule_whose_outputs_are_not_finite_is_not_taken(bad):
    largest = np.float32(HISTOGRAMS["a"].amax)
    amax, choice, _ = chosen(lambda found: 0.1 if found == largest else bad)
    assert amax["a"] == largest
    assert choice.sqnr_db[choice.rule] == pytest.approx(20, abs=0.01)
    assert min(choice.sqnr_db.values()) == 0


def test_wide_ranges_may_cost_a_decibel_for_twice_the_width():
    amax, _, _ = chosen(lambda found: 0.01 * found ** (0.95 / 20 / np.log10(2)))
    assert amax["a"] == HISTOGRAMS["a"].amax
    amax, _, _ = chosen(lambda found: 0.01 * found ** (1.05 / 20 / np.log10(2)))
    narrowest = range_of(HISTOGRAMS["a"], TIGHT)
    assert amax["a"] == narrowest < min(found["a"] for _, found in ranges_by_rule(HISTOGRAMS))


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


def test_the_usual_rule_is_kept_where_no_other_is_clearly_better():
    chance = iter(np.random.default_rng(4).uniform(0.05, 0.2, 1000))
    amax, choice, _ = chosen(lambda found: next(chance), rows=1)
    assert choice.rule == USUAL == "mse"
    assert amax == {name: mse(histogram) for name, histogram in HISTOGRAMS.items()}


@pytest.mark.parametrize(
    ("calibrated", "late", "rule", "tried"),
    [(64, 0.05, "minmax", 12), (64, 0.2, "mse", 12), (64, 0.1001, "mse", 16), (6, 0.05, "minmax", 6)],
)
def test_what_is_better_but_not_clearly_so_is_run_on_more_samples(calibrated, late, rule, tried):
    """Of the first six samples one is much better with minmax; later ones decide, where there are any.

    Where there are none, minmax is better by more than a decibel for a typical sample.
    """
    largest = np.float32(HISTOGRAMS["a"].amax)

    def noise(found, sample):
        if found != largest:
            return 0.1 if found == np.float32(range_of(HISTOGRAMS["a"], "mse")) else 0.9
        return {0: 0.01, 1: 0.11, 2: 0.12, 3: 0.11, 4: 0.1, 5: 0.1}.get(sample, late)

    feeds = [{"x": np.full((1, 256), row + 1, np.float32)} for row in range(min(calibrated, 32))]
    network = NoisyInTurn(noise, rows=1)
    _, choice = choose(network, feeds, calibrated)
    assert choice.rule == rule
    assert choice.samples["minmax"] == choice.samples["mse"] == tried
    assert {choice.samples[name] for name in RULES} == {3, tried}  # the others are worse on all


@pytest.mark.parametrize(("odd", "rule", "tried"), [(0.15, "minmax", {3, 6}), (None, "mse", {3, 6})])
def test_one_sample_decides_against_no_rule(odd, rule, tried):
    """Minmax is far better on all samples but the first, or on none: three samples never decide."""
    largest = np.float32(HISTOGRAMS["a"].amax)

    def noise(found, sample):
        if found == largest:
            return 0.9 if odd is None else odd if sample == 0 else 0.001
        return 0.1 if found == np.float32(range_of(HISTOGRAMS["a"], "mse")) else 0.2

    feeds = [{"x": np.full((1, 256), row + 1, np.float32)} for row in range(6)]
    _, choice = choose(NoisyInTurn(noise, rows=1), feeds)
    assert (choice.rule, set(choice.samples.values())) == (rule, tried)


@pytest.mark.parametrize(
    ("gain", "rule", "tried"),
    [
        ([-0.01], "mse", 8),  # worse after a quarter of the samples
        ([-0.01] * 4 + [0.05] * 27, "minmax", 31),  # worse after an eighth of them
        ([0.01] * 8 + [-0.01] * 8, "mse", 16),  # no difference after half of them
        ([0.01] * 8 + [-0.005] * 8, "mse", 16),  # better by less than one standard error
        ([0.02, 0.03], "minmax", 31),
        ([0.05] * 16 + [-0.05] * 15, "mse", 31),  # better at first, and not in the end
    ],
)
def test_some_of_the_samples_are_enough_where_no_rule_is_better(gain, rule, tried):
    """The noise with mse is 0.1 of the signal, at random a quarter more or less; minmax has the gain less."""
    usual, largest = (float(np.float32(rule(HISTOGRAMS["a"]))) for rule in (mse, minmax))
    chance = np.random.default_rng(6).uniform(0.75, 1.25, (2, 31))

    def noise(found, number):
        if found == largest:
            return 0.1 * chance[1, number] - gain[number % len(gain)]
        return 0.1 * chance[0, number] if found == usual else 0.3

    feeds = [{"x": np.full((1, 2), row + 1, np.float32)} for row in range(31)]
    _, choice = choose(NoisyInTurn(noise, rows=1), feeds, 500)
    assert (choice.rule, choice.samples["mse"]) == (rule, tried)


@pytest.mark.parametrize(("gain", "tried"), [(-0.03, 6), (0.015, 16)])
def test_what_is_stopped_is_not_continued_later(gain, tried):
    """Minmax is better by less than a quarter of a standard error after six of twelve samples, or by more."""
    usual, largest = (float(np.float32(rule(HISTOGRAMS["a"]))) for rule in (mse, minmax))
    gains, seen = [0.03, -0.03, gain, 0.0], {usual: [], largest: []}

    def noise(found, number):
        seen.setdefault(found, []).append(number)
        if found == largest:
            return 0.1 - gains[number % 4]
        return 0.1 if found == usual else 0.3

    feeds = [{"x": np.full((1, 256), row + 1, np.float32)} for row in range(31)]
    _, choice = choose(NoisyInTurn(noise, rows=1), feeds, 192)
    assert choice.rule == "mse" and seen[usual] == seen[largest] == [*range(tried)]


@pytest.mark.parametrize(("level", "rule"), [(-1.1, "a"), (-0.9, USUAL)])
def test_no_rule_is_taken_that_is_a_decibel_below_another(level, rule):
    """However much wider its ranges are: one broken sample makes them a thousand times as wide."""
    trials = GivenTrials(lambda name, _number: -40.0 + (level if name == "a" else 0.0))
    comparison = RuleComparison(SimpleNamespace(scales=dict), trials, 6, 0.25)
    comparison.enter("a", {"x": 1.0}, samples_of_all(6))
    comparison.enter(USUAL, {"x": 1000.0}, samples_of_all(6))
    assert comparison.best(6, {}) == rule


class GivenTrials:
    """Trials of rules whose noise is known; remembers which rule was tried on which samples."""

    def __init__(self, noise):
        self._noise, self.calls = noise, []

    def add(self, rule, scales, stop):
        pass

    def noise(self, rules, start, stop):
        self.calls += [(rule, start, stop) for rule in rules]
        return {rule: [self._noise(rule, number) for number in range(start, stop)] for rule in rules}

    def samples(self, rule):
        """The numbers of the samples that a rule was tried on."""
        return [number for name, *part in self.calls if name == rule for number in range(*part)]


def compared(rules, noise, samples, *, handicaps=None, margin=1.0):
    """Rules that were compared on samples, 40 dB above the noise that is given; and their trials."""
    trials = GivenTrials(lambda rule, number: noise(rule, number) - 40.0)
    comparison = RuleComparison(SimpleNamespace(scales=dict), trials, samples, margin)
    for rule in rules:
        comparison.enter(rule, {"x": 2.0 ** -(handicaps or {}).get(rule, 0.0)}, samples_of_all(samples))
    comparison.best(samples, {})
    comparison.levels.pop(TIGHT, None)
    return comparison, trials


def lengths(comparison):
    """Rule to how many samples it was tried on."""
    return {rule: len(found) for rule, found in comparison.levels.items()}


def steady(costs, samples, **options):
    """The same of rules that have the same noise on every sample."""
    return compared(costs, lambda rule, _number: costs.get(rule, 0.0), samples, **options)


def test_the_sequence_of_trials():
    costs = {**dict(zip("abcdefgh", range(7, -1, -1), strict=True)), USUAL: 8}
    comparison, trials = steady(costs, 32)
    assert trials.calls == [
        *((rule, 0, 4) for rule in (*"abcdefgh", USUAL)),
        *((rule, 4, 8) for rule in (*"hgfed", USUAL)),
        *((rule, 8, 16) for rule in (*"hgf", USUAL)),
        *((rule, 16, 32) for rule in (*"hg", USUAL)),
    ]
    assert list(comparison.levels) == ["h", "g", USUAL, *"fedcba"]
    assert comparison.levels["h"] == [-40.0] * 32 and comparison.levels["e"] == [-37.0] * 8


def test_of_few_samples_half_are_tried_with_all():
    comparison, trials = steady({"a": 4, "b": 3, "c": 2, "d": 1, "e": 0, USUAL: 5}, 16)
    turns = [("abcde", 0, 4), ("edcba", 4, 8), ("edc", 8, 16)]
    assert trials.calls == [(rule, *part) for rules, *part in turns for rule in (*rules, USUAL)]
    assert list(comparison.levels) == [*"edc", USUAL, *"ba"]


@pytest.mark.parametrize(("better", "tried"), [("ab", [4, 4, 8]), ("b", [4, 4, 8]), ("", [4, 4])])
def test_only_rules_that_may_be_better_than_the_usual_one_go_on(better, tried):
    costs = {**{rule: 1 if rule in better else 3 for rule in "abd"}, USUAL: 2}
    comparison, trials = steady(costs, 16)
    for rule in costs:
        parts = [stop - start for name, start, stop in trials.calls if name == rule]
        assert parts == (tried if rule in (*better, USUAL) else [4, 4])
    assert list(comparison.levels) == [*better, USUAL, *(rule for rule in "abd" if rule not in better)]


def test_noise_decides_together_with_the_handicap():
    assert list(steady({"a": 1, USUAL: 0}, 8, handicaps={"a": -1.5})[0].levels) == ["a", USUAL]


def test_the_handicap_decides_ties():
    costs, handicaps = dict.fromkeys(("a", "b", USUAL), 4), {"a": 0.1, "b": -0.1}
    assert list(steady(costs, 8, handicaps=handicaps)[0].levels) == ["b", USUAL, "a"]


def test_a_late_sample_changes_which_is_best():
    noise = {"a": [0] * 4 + [9] * 4, "b": [1] * 8, "c": [19] * 8, USUAL: [20] * 8}
    comparison, _ = compared(noise, lambda rule, number: noise[rule][number], 8)
    assert list(comparison.levels) == ["b", "a", USUAL, "c"]
    assert {rule: len(found) for rule, found in comparison.levels.items()} == {
        "b": 8,
        "a": 8,
        USUAL: 8,
        "c": 4,
    }


def test_one_large_level_counts_more_than_in_the_mean_of_decibels():
    noise = {"a": [0, 9.8, 0, 9.8], "b": [5] * 4, USUAL: [20] * 4}
    comparison, _ = compared(noise, lambda rule, number: noise[rule][number], 4)
    assert list(comparison.levels) == ["b", "a", USUAL]


def test_one_sample_is_tried_with_all():
    comparison, trials = steady({"a": 2, "b": 0, USUAL: 1}, 1)
    assert trials.calls == [(rule, 0, 1) for rule in ("a", "b", USUAL)]
    assert list(comparison.levels) == ["b", USUAL, "a"]


def test_fewer_samples_than_rounds():
    _, trials = steady({"a": 2, "b": 0, USUAL: 1}, 2)
    assert trials.calls == [*((rule, 0, 1) for rule in ("a", "b", USUAL)), ("b", 1, 2), (USUAL, 1, 2)]


def test_nothing_more_is_tried_once_it_is_decided():
    """The best is better by less than a thousand standard errors."""
    costs = {"a": [0.0, 0.2], "b": [1.0, 1.1], "c": [2.0], USUAL: [1.5]}
    comparison, _ = compared(
        costs, lambda rule, number: costs[rule][number % len(costs[rule])], 32, margin=1000
    )
    assert {rule: len(found) for rule, found in comparison.levels.items()} == {
        "a": 8,
        "b": 8,
        USUAL: 8,
        "c": 4,
    }


@given(st.integers(1, 12), st.integers(1, 70), st.randoms(use_true_random=False))
def test_the_best_has_seen_every_sample_once(rules, samples, random):
    names = [*map(str, range(rules)), USUAL]
    costs = dict(zip(names, random.sample(range(20), len(names)), strict=True))
    comparison, trials = steady(costs, samples)
    best = next(iter(comparison.levels))
    assert best == min(costs, key=costs.get)
    assert best == USUAL or trials.samples(best) == [*range(samples)]


@given(st.integers(1, 24), st.integers(1, 70), st.randoms(use_true_random=False))
def test_a_rule_that_was_left_out_does_not_come_back(rules, samples, random):
    names = [*map(str, range(rules)), USUAL]
    comparison, trials = compared(names, lambda _rule, _number: random.random(), samples, margin=-1000)
    tried = lengths(comparison)
    assert all(trials.samples(rule) == [*range(length)] for rule, length in tried.items())
    assert tried[USUAL] == max(tried.values())
    first = {(rule, start, stop) for rule, start, stop in trials.calls if start == 0 and rule != TIGHT}
    assert first == {(rule, 0, samples_of_all(samples)) for rule in names}


@pytest.mark.parametrize(
    ("samples", "rules", "wanted"),
    [
        (32, 8, [(8, 4), (4, 8), (2, 16), (2, 32)]),
        (100, 20, [(20, 13), (10, 25), (5, 50), (3, 100)]),
        (17, 5, [(5, 3), (3, 5), (2, 9), (2, 17)]),
        # Of few samples half are tried with all.
        (16, 5, [(5, 4), (5, 8), (2, 16)]),
        (8, 9, [(9, 2), (9, 4), (4, 8)]),
        # Fewer samples than rounds.
        (2, 3, [(3, 1), (2, 2)]),
        (1, 3, [(3, 1)]),
    ],
)
def test_rounds(samples, rules, wanted):
    assert rounds(samples, rules) == wanted


@given(st.integers(1, 70), st.integers(1, 24))
def test_every_round_has_more_samples_and_no_more_rules(samples, rules):
    found = rounds(samples, rules)
    stops = [stop for _, stop in found]
    assert stops == sorted(set(stops)) and stops[-1] == samples and stops[0] == samples_of_all(samples)
    most = [most for most, _ in found]
    assert most == sorted(most, reverse=True) and most[0] == max(2, rules) and most[-1] >= 2
