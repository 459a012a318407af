"""The search's decisions, with scores that are given."""

import dataclasses
import itertools
import math
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import trtint8
from calibrators.data.batches import Batches
from calibrators.errors import TableError
from tests.calibrators.host.checkpoint_files import change, document_of
from tests.trtint8.tuning.networks import normal, uneven
from trtint8.data import DEMO_MODEL
from trtint8.models.graph import constant_input, set_constant_input
from trtint8.models.model import load_model, prepare
from trtint8.models.serialization import to_proto
from trtint8.tuning.candidates import Candidate, cost_shares
from trtint8.tuning.journal import Journal, JournalFile, OutOfTimeError, TimeLimit
from trtint8.tuning.search import (
    Search,
    cheapest,
    expected_score,
    fewest,
    first_guess,
    gain_on_others,
    with_layers_in_float,
)
from trtint8.validation.budget import Score


class NoSamples:
    """What a scorer has to have besides scores."""

    batches = Batches.of_feeds(lambda: iter(()))

    def margin(self):
        return 0.0


class GivenScores(NoSamples):
    """Each layer in INT8 costs so many points, and a method has so many decibels."""

    def __init__(self, costs, levels=()):
        self._costs, self._levels = costs, dict(levels)

    def score(self, candidate):
        drop = sum(cost for name, cost in self._costs.items() if name not in candidate.keep_float)
        return Score(drop, self._levels.get(candidate.table.method, 30.0) + len(candidate.keep_float))


def search_of(scorer, fits=lambda _score: True, journal=None, **options):
    usual = {
        "recalibrate": None,
        "round_weights": True,
        "on_trial": lambda _trial: None,
        "limit": TimeLimit(),
    }
    samples = NoSamples.batches
    return Search(scorer, fits, samples=samples, seed=0, journal=journal or Journal(), **{**usual, **options})


@pytest.fixture(scope="module")
def start(table):
    return Candidate(prepare(load_model(DEMO_MODEL)), dataclasses.replace(table, histograms={}))


@pytest.fixture
def searched(start, monkeypatch):
    def run(costs, max_drop, order=(), candidate=start, levels=(), shares=None, **options):
        reported = []
        search = search_of(
            GivenScores(costs, levels),
            lambda score: score.drop <= max_drop,
            round_weights=False,
            on_trial=reported.append,
            **options,
        )
        own = {name: costs.get(name, 0.0) / (sum(costs.values()) or 1.0) for name in order}
        shares = own if shares is None else dict(zip(order, shares, strict=True))
        search.for_weights = {"bias correction": lambda _start: None}
        monkeypatch.setattr(search, "_noise_shares", lambda _start: shares)
        monkeypatch.setattr(search, "_by_noise_per_cost", lambda _shares: list(order))
        found = search.run(candidate)
        of_result = reported[found.number]
        assert (of_result.score, of_result.keep_float) == (found.score, len(found.candidate.keep_float))
        return found.candidate, found.score, reported

    return run


def test_every_remedy_for_weights_is_documented():
    search = search_of(GivenScores({}))
    page = (Path(trtint8.__file__).parents[1] / "docs" / "how-to" / "accuracy-drops.md").read_text()
    assert [name for name in search.for_weights if name not in page] == []


#: What each of six layers costs in INT8, in points.
COSTS = (3.0, 2.0, 1.0, 0.4, 0.2, 0.1)


def test_nothing_is_tried_where_nothing_is_lost(searched):
    best, score, trials = searched({}, 0.5)
    assert (best.keep_float, score.drop) == ((), 0)
    assert [(trial.what, trial.taken) for trial in trials] == [("as calibrated", True)]


def test_the_fewest_layers_in_the_given_order_become_float(searched, start):
    names = start.placement.quantized_nodes[:6]
    costs = dict(zip(names, COSTS, strict=True))
    best, score, trials = searched(costs, 0.8, names)
    assert best.keep_float == names[:3]
    assert score.drop == pytest.approx(0.7)
    # From the number that the shares of the noise promise, down to one that is too small; then layers of less
    # arithmetic; and then each one is tried back in INT8, the one of least noise first.
    assert [trial.what for trial in trials[1:4]] == [f"{n} layers in float" for n in (6, 5, 3)]
    assert trials[3].taken
    assert (
        [trial.what for trial in trials[4:]]
        == [
            "1 layer in float",
            "2 layers in float",
            "4 layers of less arithmetic in float",  # more than the third makes noise, and yet not enough
            *(f"'{name}' back in INT8" for name in names[1::-1]),  # the last of three was tried
        ]
    )
    assert not any(trial.taken for trial in trials[4:])


def test_a_layer_that_turns_out_not_to_be_needed_goes_back(searched, start):
    names = start.placement.quantized_nodes[:4]
    costs = dict(zip(names, (1.0, 0.0, 1.0, 1.0), strict=True))
    best, score, trials = searched(costs, 0.5, names, shares=[0.25] * 4)
    assert best.keep_float == (names[0], names[2], names[3])
    assert score.drop == 0
    assert f"'{names[1]}' back in INT8" in [trial.what for trial in trials if trial.taken]


def test_layers_of_less_arithmetic_are_taken_where_they_are_enough(searched, start):
    names = start.placement.quantized_nodes[:4]
    costs = dict(zip(names, (1.0, 1.0, 1.0, 1.0), strict=True))
    # By the order the first and the second layer would be float, and one of less arithmetic does as well.
    arithmetic = cost_shares(start.model.graph_model, {})
    best, score, _ = searched(costs, 2.5, names, shares=[0.25] * 4)
    assert score.drop == 2.0
    assert (
        sum(arithmetic[name] for name in best.keep_float)
        <= sorted(arithmetic[one] + arithmetic[other] for one, other in itertools.combinations(names, 2))[0]
        + 1e-9
    )


def test_where_no_number_of_layers_is_enough_all_are_taken(searched, start):
    names = start.placement.quantized_nodes[:3]
    best, score, _ = searched({"elsewhere": 5.0, **dict.fromkeys(names, 1.0)}, 0.5, names)
    assert (best.keep_float, score.drop) == (names, 5.0)


def test_chosen_ranges_are_taken_where_they_leave_less_noise(searched, start, table, monkeypatch):
    chosen = dataclasses.replace(table, method="auto")
    monkeypatch.setattr("trtint8.tuning.search.choose_ranges_anew", lambda *_: chosen)
    other = dataclasses.replace(start, table=dataclasses.replace(table, method="mse"))
    for level, method in ((31.0, "auto"), (29.0, "mse")):
        best, _, trials = searched({}, 0.5, candidate=other, levels={"auto": level})
        assert best.table.method == method
        assert [(trial.what, trial.taken) for trial in trials] == [
            ("as calibrated", True),
            ("ranges chosen by the network's outputs", method == "auto"),
        ]


def test_without_time_it_ends_with_the_best_so_far(searched, start):
    class Over(TimeLimit):
        """Leaves time for so many checks."""

        def check(self):
            if next(checks) >= 5:
                raise OutOfTimeError

    names = start.placement.quantized_nodes[:3]
    checks = itertools.count()
    costs = dict.fromkeys(names, 1.0)
    best, score, trials = searched(costs, 0.5, names, limit=Over())
    # Checked before anything is made, and before it is scored.
    assert [trial.what for trial in trials] == ["as calibrated", "3 layers in float"]
    assert (best.keep_float, score.drop) == (names, 0)


def interrupted(search, folder, known):
    """What a search finds, and what it finds once more where only its first trials are known."""
    file = JournalFile(folder / "t.checkpoint", resume=True)
    whole = search(file.open({}))
    trials = document_of(file.path)["progress"]["trials"]
    change(file.path, lambda document: document["progress"].update(trials=trials[:known]))
    return whole, search(file.open({}))


@pytest.mark.parametrize("known", range(10))
def test_an_interrupted_search_makes_the_same_decisions(searched, start, tmp_path, known):
    names = start.placement.quantized_nodes[:6]
    costs = dict(zip(names, COSTS, strict=True))
    whole, again = interrupted(lambda journal: searched(costs, 0.8, names, journal=journal), tmp_path, known)
    assert len(whole[2]) == 9
    assert again[:2] == whole[:2]
    assert [trial.what for trial in again[2]] == [trial.what for trial in whole[2]]
    # The first is scored again, which opens the float network, and the others are those that were recorded.
    assert again[2][1:known] == whole[2][1:known]


def test_a_journal_of_other_samples_is_refused(searched, tmp_path):
    file = JournalFile(tmp_path / "t.checkpoint", resume=True)
    searched({}, 0.5, journal=file.open({}))
    with pytest.raises(TableError, match="was made with other samples: 'as calibrated' has another score"):
        searched({"elsewhere": 0.1}, 0.5, journal=file.open({}))


#: Short names of remedies, to what they are called.
NAMES = {"equalize": "cross-layer equalization", "round": "adaptive rounding", "bias": "bias correction"}


#: What a candidate is called that has the other remedies.
UNEQUALIZED = "without equalization, with adaptive rounding, bias correction"


class GivenGains(NoSamples):
    """Every remedy changes the SQNR by so many decibels, and layers in float cost nothing."""

    def __init__(self, drop, gains):
        self._drop, self._gains = drop, {NAMES[name]: gain for name, gain in gains.items()}

    def score(self, candidate):
        gained = sum(self._gains[name] for name in candidate.remedies)
        return Score(0.0 if candidate.keep_float else self._drop, 30.0 + gained)


@pytest.fixture
def remedied(start, monkeypatch):
    """Searches with remedies of given gains; returns the best candidate and what was tried."""

    def run(drop, gains, fits=lambda score: score.drop <= 0.5, scorer=None, journal=None, absent=()):
        trials = []
        search = search_of(
            scorer or GivenGains(drop, gains),
            fits,
            recalibrate=lambda *_: None,
            on_trial=trials.append,
            journal=journal,
        )

        def remedy(name, candidate, **_options):
            if name in absent:
                return None
            return dataclasses.replace(candidate, remedies=(*candidate.remedies, NAMES[name]))

        monkeypatch.setattr(search, "_equalized", partial(remedy, "equalize"))
        search.for_weights = {NAMES[name]: partial(remedy, name) for name in ("round", "bias")}
        monkeypatch.setattr(
            "trtint8.tuning.search.with_layers_in_float",  # these remedies change no weights
            lambda _plain, compensated, names: dataclasses.replace(compensated, keep_float=names),
        )
        shares = dict.fromkeys(start.placement.quantized_nodes[:1], 1.0)
        monkeypatch.setattr(search, "_noise_shares", lambda _start: shares)
        found = search.run(start)
        assert trials[found.number].score == found.score
        return found.candidate, [(trial.what, trial.taken) for trial in trials[1:]]

    return run


def test_remedies_without_cost_are_tried_within_the_budget_too(remedied):
    best, tried = remedied(0.0, {"equalize": 4.0, "round": -1.0, "bias": 0.5})
    assert best.remedies == (NAMES["equalize"], NAMES["bias"])
    assert tried == [
        (NAMES["equalize"], True),
        (NAMES["round"], False),
        (NAMES["bias"], True),
        (UNEQUALIZED, False),
    ]


@pytest.mark.parametrize(
    ("name", "drop", "gain", "taken"),
    [
        ("round", 0.0, 0.1, False),
        ("round", 0.0, 0.11, True),
        # Equalization has to gain more within the budget.
        ("equalize", 0.0, 2.9, False),
        ("equalize", 0.0, 3.1, True),
        ("equalize", 1.0, 0.2, True),
    ],
)
def test_how_much_changed_weights_have_to_gain(remedied, name, drop, gain, taken):
    best, tried = remedied(drop, {"equalize": 0.0, "round": 0.0, "bias": 0.0, name: gain})
    assert (NAMES[name], taken) in tried and (NAMES[name] in best.remedies) == taken


def test_layers_in_float_are_judged_with_the_remedies_that_were_taken(remedied):
    best, tried = remedied(1.0, {"equalize": 1.0, "round": 0.0, "bias": 1.0})
    assert (best.remedies, len(best.keep_float)) == ((NAMES["equalize"], NAMES["bias"]), 1)
    assert tried == [
        (NAMES["equalize"], True),
        (NAMES["round"], False),
        (NAMES["bias"], True),
        (UNEQUALIZED, False),
        ("1 layer in float, with bias correction", True),
        # The cost is the same, and so is the budget: the noise decides.
        ("the same layers in float, with adaptive rounding, bias correction", False),
        ("the same layers in float", False),
    ]


class LessAfterEqualization(NoSamples):
    """Biases are corrected by more where channels are as they were."""

    def score(self, candidate):
        equalized = NAMES["equalize"] in candidate.remedies
        gained = 1.0 if equalized else 2.0 * (NAMES["bias"] in candidate.remedies)
        return Score(0.0 if candidate.keep_float else 1.0, 30.0 + gained)


def test_equalization_is_given_up_where_other_remedies_gain_more_without_it(remedied):
    best, tried = remedied(None, {}, scorer=LessAfterEqualization())
    assert (best.remedies, len(best.keep_float)) == ((NAMES["round"], NAMES["bias"]), 1)
    assert tried[:5] == [
        (NAMES["equalize"], True),
        (NAMES["round"], False),
        (NAMES["bias"], False),
        (UNEQUALIZED, True),
        ("1 layer in float, with adaptive rounding, bias correction", True),
    ]


class OnlyTogether(NoSamples):
    """A layer in float is enough with rounded weights and corrected biases only, which alone gain nothing."""

    def score(self, candidate):
        fits = bool(candidate.keep_float) and len(candidate.remedies) == 2
        return Score(0.0 if fits else 1.0, 30.0 + len(candidate.keep_float))


def test_layers_in_float_are_judged_with_remedies_that_were_not_taken_without_them(remedied):
    best, tried = remedied(None, {}, scorer=OnlyTogether(), absent=("equalize",))
    assert (best.remedies, len(best.keep_float)) == ((NAMES["round"], NAMES["bias"]), 1)
    assert tried[:3] == [
        (NAMES["round"], False),
        (NAMES["bias"], False),
        ("1 layer in float, with adaptive rounding, bias correction", True),
    ]


@pytest.mark.parametrize("known", range(9))
@pytest.mark.parametrize("absent", [(), ("round",), ("round", "bias")])
def test_an_interrupted_search_with_remedies_makes_the_same_decisions(remedied, tmp_path, known, absent):
    gains = {"equalize": 1.0, "round": 0.0, "bias": 1.0}
    whole, again = interrupted(
        lambda journal: remedied(1.0, gains, journal=journal, absent=absent), tmp_path, known
    )
    assert again[1] == whole[1]
    assert (again[0].remedies, again[0].keep_float) == (whole[0].remedies, whole[0].keep_float)


def test_layers_in_float_keep_the_weights_that_they_have(start):
    """Others have weights that are a tenth less, which some share with no other, and larger biases."""
    compensated = start
    for index, change_one in ((1, lambda old: old * np.float32(0.9)), (2, lambda old: old + np.float32(0.5))):
        graph_model = compensated.model.graph_model.clone()
        for node in graph_model.graph:
            old = constant_input(node, index)
            if node.name in start.placement.quantized_nodes and old is not None:
                set_constant_input(node, index, change_one(old))
        compensated = dataclasses.replace(
            compensated,
            model=dataclasses.replace(compensated.model, graph_model=graph_model),
            remedies=(*compensated.remedies, f"changed {index}"),
        )

    def weights(candidate, name):
        return constant_input(candidate.model.graph_model.graph.node(name), 1)

    kept, *others = (name for name in start.placement.quantized_nodes if weights(start, name) is not None)
    mixed = with_layers_in_float(start, compensated, (kept,))
    assert mixed.keep_float == (kept,) and mixed.remedies == compensated.remedies
    assert np.array_equal(weights(mixed, kept), weights(start, kept))
    for name in others:
        assert np.array_equal(weights(mixed, name), weights(compensated, name))
    assert mixed.quantized()
    every = start.placement.quantized_nodes
    assert with_layers_in_float(start, compensated, every).remedies == start.remedies


@given(st.integers(1, 200), st.data())
def test_the_least_number_that_fits_is_found(most, data):
    least, guess = data.draw(st.integers(1, most + 1)), data.draw(st.integers(1, most))
    tried = []

    def fits(count):
        tried.append(count)
        return count >= least

    assert fewest(most, fits, guess) == min(least, most)
    assert len(tried) == len(set(tried))
    assert all(1 <= count <= most for count in tried)
    # Steps that double, and halving: both grow with the logarithm of how wrong the guess was.
    assert len(tried) <= 3 + 2 * math.log2(1 + abs(guess - min(least, most)))


def test_a_right_guess_takes_two_trials():
    tried = []
    assert fewest(50, lambda count: tried.append(count) or count >= 7, 7) == 7
    assert tried == [7, 6]


def test_noise_powers_add_and_losses_grow_with_the_amplitude():
    assert expected_score(Score(None, 20.0, 20.0), 0.9) == Score(None, pytest.approx(30), pytest.approx(30))
    assert expected_score(Score(2.0, 20.0, 78.0), 0.75) == Score(1.0, pytest.approx(20 + 6.0206), 79.0)
    infinite = Score(math.inf, 20.0, 30.0)  # FP32 has the labels themselves
    assert expected_score(infinite, 0.9) == Score(math.inf, pytest.approx(30), pytest.approx(40))
    # What all shares together leave out.
    assert expected_score(Score(None, 20.0, None), 1.2) == Score(None, 40.0, None)


@pytest.mark.parametrize(("least", "count"), [(20.1, 1), (23.0, 1), (23.1, 2), (26.1, 3), (60.0, 4)])
def test_the_guess_follows_the_shares(least, count):
    shares = (0.5, 0.25, 0.125, 0.125)
    assert first_guess(Score(None, 20.0, 20.0), shares, lambda score: score.sqnr_db >= least) == count


@pytest.fixture(scope="module")
def other_samples_start():
    model = uneven()
    table = trtint8.calibrate(model, normal(32, 3, 6, 6), method="minmax", tensors="placed", progress=False)
    return Candidate(prepare(load_model(model)), table)


def calibrated(model, samples):
    data = {"x": np.concatenate([feed["x"] for feed in samples])}
    proto = to_proto(model.graph_model)
    return trtint8.calibrate(proto, data, method="minmax", tensors="placed", progress=False)


def test_channels_that_differ_a_thousandfold(other_samples_start):
    samples = [{"x": image[None]} for image in normal(13, 3, 6, 6, seed=5)]
    seen = []

    def calibrate(model, some):
        seen.append([float(feed["x"].sum()) for feed in some])
        return calibrated(model, some)

    assert gain_on_others(other_samples_start, samples, calibrate) > 10
    assert seen == [[float(feed["x"].sum()) for feed in samples[::2]]] * 2


def test_ranges_that_others_exceed_show_as_a_loss(other_samples_start):
    samples = [{"x": image[None]} for image in normal(12, 3, 6, 6, seed=5)]

    def calibrate(model, some):
        table = calibrated(model, some)
        if model.fingerprint == other_samples_start.model.fingerprint:
            return table
        return table.override({name: value / 100 for name, value in table.amax.items()})

    assert gain_on_others(other_samples_start, samples, calibrate) < 0


def test_the_cheapest_layers_of_a_part_of_the_noise():
    shares = {"large": 0.6, "a": 0.25, "b": 0.25, "none": 0.0, "c": 0.1}
    costs = {"large": 0.5, "a": 0.1, "b": 0.2, "none": 0.0, "c": 0.01}
    assert cheapest(shares, costs, 0.1) == ("c",)
    assert cheapest(shares, costs, 0.25) == ("a",)
    assert cheapest(shares, costs, 0.3) == ("a", "c")
    assert cheapest(shares, costs, 0.5) == ("a", "b")
    assert cheapest(shares, costs, 0.65) == ("large", "c")
    assert cheapest(shares, costs, 1.2) == ("large", "a", "b", "c")
    assert cheapest(shares, costs, 9.0) == ("large", "a", "b", "c")
    assert cheapest({"x": 0.0}, {}, 0.5) == ()
    rng = np.random.default_rng(0)
    names = [f"layer{number}" for number in range(10)]
    for _ in range(20):  # against all sets
        noise = dict(zip(names, np.floor(rng.dirichlet(np.ones(10)) * 2000) / 2000, strict=True))
        arithmetic = dict(zip(names, rng.dirichlet(np.ones(10)), strict=True))
        needed = 0.5 * sum(noise.values())
        sets = (one for size in range(11) for one in itertools.combinations(names, size))
        enough = (one for one in sets if sum(noise[name] for name in one) >= needed - 1e-9)
        least = min(sum(arithmetic[name] for name in one) for one in enough)
        chosen = cheapest(noise, arithmetic, needed)
        assert sum(noise[name] for name in chosen) >= needed - 1e-3
        assert sum(arithmetic[name] for name in chosen) <= least + 1e-4
