"""The best of several candidates, with few measurements of the poor ones."""

from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtint8.range_choice.tournament import play, samples_of_all


def each(measure):
    """Measures several candidates by what measures one."""
    return lambda names, start, stop: {name: measure(name, start, stop) for name in names}


def played(costs, samples, handicaps=None):
    """What every candidate measured, and who was measured on which samples."""
    calls = []

    def measure(name, start, stop):
        calls.append((name, start, stop))
        return [float(costs[name])] * (stop - start)

    return play(handicaps or dict.fromkeys(costs, 0.0), samples, each(measure), fmean), calls


def test_the_sequence_of_measurements():
    found, calls = played({"a": 7, "b": 6, "c": 5, "d": 4, "e": 3, "f": 2, "g": 1, "h": 0}, 32)
    assert calls == [
        *((name, 0, 4) for name in "abcdefgh"),
        *((name, 4, 8) for name in "hgfe"),
        *((name, 8, 16) for name in "hg"),
        *((name, 16, 32) for name in "hg"),
    ]
    assert list(found) == list("hgfedcba")
    assert found["h"] == [0.0] * 32 and found["e"] == [3.0] * 8 and found["a"] == [7.0] * 4


def test_of_few_samples_half_are_measured_by_all():
    found, calls = played({"a": 4, "b": 3, "c": 2, "d": 1, "e": 0}, 16)
    rounds = [("abcde", 0, 4), ("edcba", 4, 8), ("ed", 8, 16)]
    assert calls == [(name, start, stop) for names, start, stop in rounds for name in names]
    assert list(found) == list("edcba")


@pytest.mark.parametrize(("left", "rounds"), [("ab", [2, 2, 4]), ("b", [2, 2, 4]), ("", [2])])
def test_only_what_is_promising_goes_on(left, rounds):
    costs = dict(zip("abcd", range(4), strict=True))
    calls = []

    def measure(name, start, stop):
        calls.append((name, stop - start))
        return [float(costs[name])] * (stop - start)

    found = play(
        dict.fromkeys(costs, 0.0),
        8,
        each(measure),
        fmean,
        usual="c",
        promising=lambda name, _measured: name in left,
    )
    for name in "abcd":
        went_on = name in left or (name == "c" and left)
        assert [size for called, size in calls if called == name] == (rounds if went_on else [2])
    assert (
        list(found) == [*left, "c", *(name for name in "abd" if name not in left)] if left else list("abcd")
    )


def test_measurements_decide_together_with_the_handicap():
    found, _ = played({"a": 1, "b": 0}, 8, {"a": -1.5, "b": 0.0})
    assert list(found) == ["a", "b"]


def test_the_handicap_decides_ties():
    assert list(played(dict.fromkeys("abc", 4), 8, {"a": 0.0, "b": -0.1, "c": 0.1})[0]) == ["b", "a", "c"]


def test_a_late_sample_changes_who_is_best():
    costs = {"a": [0, 0, 0, 0, 9, 9, 9, 9], "b": [1] * 8, "c": [20] * 8}
    found = play(dict.fromkeys(costs, 0.0), 8, each(lambda name, start, stop: costs[name][start:stop]), fmean)
    assert list(found) == ["b", "a", "c"]
    assert found == {"b": costs["b"], "a": costs["a"], "c": [20] * 4}


def test_one_sample_is_measured_by_all():
    found, calls = played({"a": 2, "b": 0, "c": 1}, 1)
    assert calls == [(name, 0, 1) for name in "abc"]
    assert list(found) == ["b", "c", "a"]


def test_fewer_samples_than_rounds():
    _, calls = played({"a": 2, "b": 0, "c": 1}, 2)
    assert calls == [("a", 0, 1), ("b", 0, 1), ("c", 0, 1), ("b", 1, 2), ("c", 1, 2)]


@given(st.integers(1, 12), st.integers(1, 70), st.randoms(use_true_random=False))
def test_the_best_has_seen_every_sample_once(candidates, samples, random):
    costs = {str(number): random.random() for number in range(candidates)}
    found, calls = played(costs, samples)
    best = next(iter(found))
    assert best == min(costs, key=costs.get)
    assert [number for name, *part in calls if name == best for number in range(*part)] == [*range(samples)]


def test_the_mean_that_was_asked_for_decides():
    costs = {"a": [0, 9, 0, 9], "b": [5, 5, 5, 5]}

    def measure(name, start, stop):
        return costs[name][start:stop]

    assert [next(iter(play(dict.fromkeys(costs, 0.0), 4, each(measure), mean))) for mean in (fmean, max)] == [
        "a",
        "b",
    ]


def test_the_usual_one_plays_as_long_as_any_other():
    calls = []

    def measure(name, start, stop):
        calls.append((name, start, stop))
        return [float(ord(name))] * (stop - start)

    found = play(dict.fromkeys("abcdefgz", 0.0), 32, each(measure), fmean, usual="z")
    assert [part for name, *part in calls if name == "z"] == [[0, 4], [4, 8], [8, 16], [16, 32]]
    assert len(found["z"]) == len(found["a"]) == 32 and len(found["g"]) == 4


def test_nothing_more_is_measured_once_it_is_decided():
    seen = []

    def decided(measured):
        seen.append({name: len(found) for name, found in measured.items()})
        return len(seen) == 2

    costs = dict(zip("abcd", range(4), strict=True))
    found = play(
        dict.fromkeys(costs, 0.0),
        32,
        each(lambda name, start, stop: [float(costs[name])] * (stop - start)),
        fmean,
        usual="d",
        decided=decided,
    )
    assert seen == [{"a": 4, "b": 4, "c": 4, "d": 4}, {"a": 8, "b": 8, "d": 8, "c": 4}]
    assert {name: len(measured) for name, measured in found.items()} == seen[-1]


@given(st.integers(2, 24), st.integers(1, 70), st.randoms(use_true_random=False))
def test_who_has_left_does_not_come_back(candidates, samples, random):
    seen = {str(number): [] for number in range(candidates)}
    costs = {name: random.random() for name in seen}

    def measure(name, start, stop):
        assert start == len(seen[name])
        seen[name] += range(start, stop)
        return [costs[name]] * (stop - start)

    def promising(_name, _measured):
        return random.random() < 0.5

    play(dict.fromkeys(seen, 0.0), samples, each(measure), fmean, usual="0", promising=promising)
    assert all(found == [*range(len(found))] for found in seen.values())


@given(st.integers(1, 12), st.integers(1, 70))
def test_how_many_samples_all_are_measured_on_is_known_beforehand(candidates, samples):
    _, calls = played({str(number): number for number in range(candidates)}, samples)
    assert {stop for _, start, stop in calls if start == 0} == {samples_of_all(samples)}
