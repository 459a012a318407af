"""The search's decisions, with scores that are given."""

import dataclasses

import pytest

from trtint8.data import DEMO_MODEL
from trtint8.models.model import load_model, prepare
from trtint8.tuning.candidates import Candidate
from trtint8.tuning.scores import Score
from trtint8.tuning.search import Search


class GivenScores:
    """Each layer in INT8 costs so many points, and a method changes decibels."""

    def __init__(self, costs, levels=()):
        self._costs, self._levels = costs, dict(levels)

    def score(self, candidate):
        drop = sum(cost for name, cost in self._costs.items() if name not in candidate.keep_float)
        (method,) = set(candidate.methods.values()) or {"as it is"}
        return Score(drop, self._levels.get(method, 30.0) + len(candidate.keep_float))


@pytest.fixture(scope="module")
def start(table):
    return Candidate(prepare(load_model(DEMO_MODEL)), dataclasses.replace(table, histograms={}))


@pytest.fixture
def searched(start, monkeypatch):
    def run(costs, max_drop, order=(), candidate=start, levels=()):
        told = []
        search = Search(
            GivenScores(costs, levels),
            lambda score: score.drop <= max_drop,
            recalibrate=None,
            round_weights=False,
            seed=0,
            on_trial=told.append,
        )
        monkeypatch.setattr(search, "_bias_corrected", lambda _start: [])
        monkeypatch.setattr(search, "_by_noise_per_cost", lambda _start: list(order))
        best, score = search.run(candidate)
        assert told == search.trials
        return best, score, search.trials

    return run


def test_nothing_is_tried_where_nothing_is_lost(searched):
    best, score, trials = searched({}, 0.5)
    assert (best.keep_float, score.drop) == ((), 0)
    assert [(trial.what, trial.taken) for trial in trials] == [("as calibrated", True)]


def test_the_fewest_layers_in_the_given_order_become_float(searched, start):
    names = start.placement.quantized_nodes[:6]
    costs = dict(zip(names, (3.0, 2.0, 1.0, 0.4, 0.2, 0.1), strict=True))
    best, score, trials = searched(costs, 0.8, names)
    assert best.keep_float == names[:3]
    assert score.drop == pytest.approx(0.7)
    # By doubling, then by halving the gap; and then each one is tried back in INT8.
    assert [trial.what for trial in trials[1:4]] == [f"{n} layers in float" for n in (1, 2, 4)]
    assert trials[4].what == "3 layers in float" and trials[4].taken
    assert not any(trial.taken for trial in trials[5:])
    assert [trial.keep_float for trial in trials[5:]] == [2, 2]


def test_a_layer_that_turns_out_not_to_be_needed_goes_back(searched, start):
    names = start.placement.quantized_nodes[:4]
    costs = dict(zip(names, (1.0, 0.0, 1.0, 1.0), strict=True))
    best, score, trials = searched(costs, 0.5, names)
    assert best.keep_float == (names[0], names[2], names[3])
    assert score.drop == 0
    assert f"'{names[1]}' back in INT8" in [trial.what for trial in trials if trial.taken]


def test_where_no_number_of_layers_is_enough_all_are_taken(searched, start):
    names = start.placement.quantized_nodes[:3]
    best, score, _ = searched({"elsewhere": 5.0, **dict.fromkeys(names, 1.0)}, 0.5, names)
    assert (best.keep_float, score.drop) == (names, 5.0)


def test_the_method_with_the_most_decibels_is_taken(searched, start, table, monkeypatch):
    monkeypatch.setattr(Search, "_chosen_methods", lambda _self, candidate: {"images": "mse"})
    levels = {"entropy": 31.0, "percentile": 29.0, "mse": 33.0, "minmax": 28.0}
    best, _, trials = searched({}, 0.5, candidate=dataclasses.replace(start, table=table), levels=levels)
    assert set(best.methods.values()) == {"mse"}
    assert [trial.what for trial in trials if trial.taken] == [
        "as calibrated",
        "entropy for every tensor",
        "mse for every tensor",
    ]


class GivenGains:
    """Every remedy changes the SQNR by so many decibels, and layers in float cost nothing."""

    def __init__(self, drop, gains):
        self._drop, self._gains = drop, gains

    def score(self, candidate):
        gained = sum(self._gains[name] for name in candidate.remedies)
        return Score(0.0 if candidate.keep_float else self._drop, 30.0 + gained)


@pytest.fixture
def remedied(start, monkeypatch):
    """Searches with remedies of given gains; returns the best candidate and what was tried."""

    def run(drop, gains):
        search = Search(
            GivenGains(drop, gains),
            lambda score: score.drop <= 0.5,
            recalibrate=lambda model: None,
            round_weights=True,
            seed=0,
            on_trial=lambda _trial: None,
        )
        for method, name in (("_equalized", "equalize"), ("_rounded", "round"), ("_bias_corrected", "bias")):

            def remedy(candidate, name=name):
                yield name, dataclasses.replace(candidate, remedies=(*candidate.remedies, name))

            monkeypatch.setattr(search, method, remedy)
        monkeypatch.setattr(
            search, "_by_noise_per_cost", lambda _start: list(start.placement.quantized_nodes[:1])
        )
        best, _ = search.run(start)
        return best, [(trial.what, trial.taken) for trial in search.trials[1:]]

    return run


def test_remedies_without_cost_are_tried_within_the_budget_too(remedied):
    best, tried = remedied(0.0, {"equalize": 4.0, "round": -1.0, "bias": 0.5})
    assert best.remedies == ("equalize", "bias")
    assert tried == [("equalize", True), ("round", False), ("bias", True)]


@pytest.mark.parametrize(("gain", "remedies"), [(0.1, ()), (0.11, ("round",))])
def test_changed_weights_have_to_gain_more_than_a_tenth_of_a_decibel(remedied, gain, remedies):
    best, _ = remedied(0.0, {"equalize": 0.0, "round": gain, "bias": 0.0})
    assert best.remedies == remedies


@pytest.mark.parametrize(("drop", "gain", "taken"), [(0.0, 2.9, False), (0.0, 3.1, True), (1.0, 0.2, True)])
def test_equalization_has_to_gain_more_within_the_budget(remedied, drop, gain, taken):
    _, tried = remedied(drop, {"equalize": gain, "round": 0.0, "bias": 0.0})
    assert tried[0] == ("equalize", taken)


def test_what_stays_in_int8_beside_layers_in_float_is_corrected_anew(remedied):
    best, tried = remedied(1.0, {"equalize": 1.0, "round": 0.0, "bias": 1.0})
    assert (best.remedies, len(best.keep_float)) == (("equalize", "bias"), 1)
    assert tried == [
        ("equalize", True),
        ("round", False),
        ("bias", True),
        ("1 layers in float", True),
        ("round", False),
        ("bias", True),
    ]
