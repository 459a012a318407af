"""How many rules are tried on how many samples."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtint8.range_choice.tournament import rounds, samples_of_all


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
