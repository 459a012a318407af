"""The fewest layers in float."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtint8.tuning.fewest_in_float import expected_score, fewest, first_guess
from trtint8.validation.scores import Score


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
