"""The rule that costs the network least, on networks whose noise is known."""

import numpy as np
import pytest

from calibrators.histograms.rules import RULES, range_of, ranges_by_rule
from calibrators.histograms.thresholds import minmax, mse
from calibrators.tables.choice import RangeChoice
from tests.trtint8.range_choice import networks
from trtint8.range_choice.choose import USUAL, choose_ranges, plain_ranges, samples_to_try

HISTOGRAMS = networks.histograms_of({"a": networks.normal(20), "unquantized": networks.normal(9, seed=1)})
FEEDS = [{"x": np.full((1, 2), row + 1, np.float32)} for row in range(8)]


class Noisy:
    """A network that returns its input; quantized with noise that the range of ``a`` decides.

    Args:
        noise: Called with the range; gives the share of the signal that is added to it.
        rows: How many samples it takes at most.
    """

    runs_at_once = 1
    one_at_a_time = False

    def __init__(self, noise, rows=16):
        self._noise, self._rows = noise, rows
        self.sizes = []

    def scales(self, amax):
        return {"a": np.float32(amax["a"])}

    def reference(self, feed):
        if len(feed["x"]) > self._rows:
            raise ValueError("too many")
        return [feed["x"]]

    def outputs(self, feed, scales):
        self.sizes.append(len(feed["x"]))
        return [feed["x"] * np.float32(1 + self._noise(float(scales["a"])))]


def chosen(noise, feeds=FEEDS, **options):
    network = Noisy(noise, **options)
    return *choose_ranges(network, HISTOGRAMS, ["a"], feeds, len(feeds)), network


@pytest.mark.parametrize("rule", ["percentile", "entropy", "minmax"])
def test_the_rule_with_the_least_noise_gives_the_ranges_of_all_tensors(rule):
    wanted = range_of(HISTOGRAMS["a"], rule)
    amax, choice, _ = chosen(lambda found: 0.01 if found == np.float32(wanted) else 0.1)
    assert range_of(HISTOGRAMS["a"], choice.rule) == wanted
    assert amax == {name: range_of(histogram, choice.rule) for name, histogram in HISTOGRAMS.items()}
    assert choice.sqnr_db[choice.rule] == pytest.approx(40, abs=0.01)
    assert choice.samples[choice.rule] == 8 and set(choice.samples) == set(RULES)
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
    assert amax["a"] == min(found["a"] for _, found in ranges_by_rule(HISTOGRAMS))


@pytest.mark.parametrize(("rows", "largest"), [(16, 4), (1, 1)])
def test_samples_are_run_together_where_the_network_takes_batches(rows, largest):
    amax, choice, network = chosen(lambda found: 0.1 / found, rows=rows)
    assert max(network.sizes) == largest
    assert (amax["a"], choice.samples["minmax"]) == (HISTOGRAMS["a"].amax, 8)


def test_without_floating_point_outputs_the_squared_error_decides():
    feeds = [{"x": np.ones((1, 2), np.int64)}]
    amax, choice, network = chosen(lambda found: 0.1, feeds)
    assert (amax, choice) == plain_ranges(HISTOGRAMS) and not network.sizes
    assert amax == {name: mse(histogram) for name, histogram in HISTOGRAMS.items()}
    assert choice == RangeChoice("mse", {}, {})


@pytest.mark.parametrize(
    ("calibrated", "elements", "tried"),
    [
        (1, 10, 1),
        (4, 1000, 4),
        (16, 1000, 6),
        (16, 255, 16),
        (11, 255, 11),
        (17, 10, 16),
        (272, 255, 17),
        (10**6, 10, 64),
        (17, 256, 6),
        (112, 1000, 7),
        (10**6, 1000, 24),
    ],
)
def test_how_many_samples_are_tried(calibrated, elements, tried):
    assert samples_to_try(calibrated, elements) == tried


def test_the_usual_rule_is_kept_where_no_other_is_clearly_better():
    chance = iter(np.random.default_rng(4).uniform(0.05, 0.2, 1000))
    amax, choice, _ = chosen(lambda found: next(chance), rows=1)
    assert choice.rule == USUAL == "mse"
    assert amax == {name: mse(histogram) for name, histogram in HISTOGRAMS.items()}


class NoisyInTurn(Noisy):
    """A network whose noise depends on the sample's number as well."""

    def outputs(self, feed, scales):
        noise = self._noise(float(scales["a"]), int(feed["x"][0, 0]) - 1)
        return [feed["x"] * np.float32(1 + noise)]


@pytest.mark.parametrize(
    ("calibrated", "late", "rule", "tried"),
    [(64, 0.05, "minmax", 12), (64, 0.2, "mse", 12), (64, 0.1001, "mse", 16), (6, 0.05, "mse", 6)],
)
def test_what_is_better_but_not_clearly_so_is_run_on_more_samples(calibrated, late, rule, tried):
    """Of the first six samples one is much better with minmax; later ones decide, where there are any."""
    largest = np.float32(HISTOGRAMS["a"].amax)

    def noise(found, sample):
        if found != largest:
            return 0.1 if found == np.float32(range_of(HISTOGRAMS["a"], "mse")) else 0.9
        return {0: 0.01, 1: 0.11, 2: 0.12, 3: 0.11, 4: 0.1, 5: 0.1}.get(sample, late)

    feeds = [{"x": np.full((1, 256), row + 1, np.float32)} for row in range(min(calibrated, 32))]
    network = NoisyInTurn(noise, rows=1)
    _, choice = choose_ranges(network, HISTOGRAMS, ["a"], feeds, calibrated)
    assert choice.rule == rule
    assert choice.samples["minmax"] == choice.samples["mse"] == tried
    assert {choice.samples[name] for name in RULES} == {2, tried}  # the others are worse on both


@pytest.mark.parametrize(("odd", "rule", "tried"), [(0.15, "minmax", {2, 6}), (None, "mse", {2})])
def test_one_sample_decides_against_no_rule(odd, rule, tried):
    """Minmax is far better on all samples but the first, or on none."""
    largest = np.float32(HISTOGRAMS["a"].amax)

    def noise(found, sample):
        if found == largest:
            return 0.9 if odd is None else odd if sample == 0 else 0.001
        return 0.1 if found == np.float32(range_of(HISTOGRAMS["a"], "mse")) else 0.2

    feeds = [{"x": np.full((1, 256), row + 1, np.float32)} for row in range(6)]
    _, choice = choose_ranges(NoisyInTurn(noise, rows=1), HISTOGRAMS, ["a"], feeds, 6)
    assert (choice.rule, set(choice.samples.values())) == (rule, tried)


def test_no_more_samples_are_run_at_once_than_fit():
    network = Noisy(lambda found: 0.1 / found)
    choose_ranges(network, HISTOGRAMS, ["a"], FEEDS, 8, rows=3)
    assert max(network.sizes) == 3


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
    network = NoisyInTurn(noise, rows=1)
    _, choice = choose_ranges(network, HISTOGRAMS, ["a"], feeds, 500)
    assert (choice.rule, choice.samples["mse"]) == (rule, tried)


@pytest.mark.parametrize(("gain", "tried"), [(0.002, 4), (0.015, 16)])
def test_what_is_stopped_halfway_is_not_continued_later(gain, tried):
    """Minmax is better by less than a quarter of a standard error after four of seven samples, or by more."""
    usual, largest = (float(np.float32(rule(HISTOGRAMS["a"]))) for rule in (mse, minmax))
    gains, seen = [0.03, -0.03, gain, 0.0], {usual: [], largest: []}

    def noise(found, number):
        seen.setdefault(found, []).append(number)
        if found == largest:
            return 0.1 - gains[number % 4]
        return 0.1 if found == usual else 0.3

    feeds = [{"x": np.full((1, 256), row + 1, np.float32)} for row in range(31)]
    _, choice = choose_ranges(NoisyInTurn(noise, rows=1), HISTOGRAMS, ["a"], feeds, 112)
    assert choice.rule == "mse" and seen[usual] == seen[largest] == [*range(tried)]


@pytest.mark.parametrize(("separate", "references"), [(False, [3, 1, 3]), (True, [3, 3])])
def test_a_network_that_is_known_to_take_batches_is_not_asked(separate, references):
    network = Noisy(lambda found: 0.1 / found)
    feeds = [{"x": np.full((1, 256), row + 1, np.float32)} for row in range(8)]
    seen, reference = [], network.reference
    network.reference = lambda feed: (seen.append(len(feed["x"])), reference(feed))[1]
    _, choice = choose_ranges(network, HISTOGRAMS, ["a"], feeds, 8, separate=separate)
    assert seen == references and choice.rule == "minmax"


def test_an_output_without_a_row_per_sample_is_compared_sample_by_sample():
    network = Noisy(lambda found: 0.1 / found)
    network.reference = lambda feed: [feed["x"].sum(axis=0)]
    network.outputs = lambda feed, scales: [feed["x"].sum(axis=0) * np.float32(1 + 0.1 / scales["a"])]
    _, choice = choose_ranges(network, HISTOGRAMS, ["a"], FEEDS, 8)
    assert (choice.rule, choice.samples["minmax"]) == ("minmax", 8)
