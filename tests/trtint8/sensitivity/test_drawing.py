"""Drawing samples with a chance that grows with their noise."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trtint8.sensitivity.drawing import Draw, draw, share_to_draw


@pytest.mark.parametrize(
    ("samples", "share"),
    [(None, 1.0), (1, 1.0), (112, 1.0), (128, 0.875), (256, 0.4375), (500, 0.27), (10_000, 0.27)],
)
def test_about_a_quarter_of_the_samples_and_not_too_few(samples, share):
    assert share_to_draw(samples, 3 << 20) == share


@pytest.mark.parametrize(("samples", "share"), [(256, 1.0), (512, 0.5), (10_000, 0.27)])
def test_more_of_the_samples_where_they_are_small(samples, share):
    assert share_to_draw(samples, 1 << 20) == share


def test_chances_by_hand():
    """One sample has most of the noise, so its chance would be more than 1: it is drawn for certain."""
    noise, nobody = np.array([30.0, 1.0, 1.0, 1.0]), np.zeros(4, bool)
    seen = [draw(noise, nobody, 0.5, np.random.default_rng(seed)) for seed in range(20)]
    assert all(one.rows[0] == 0 and len(one.rows) == 2 for one in seen)
    # The others share the place that is left.
    np.testing.assert_allclose([one.chances for one in seen], [[1.0, 1 / 3]] * 20)
    assert {int(one.rows[1]) for one in seen} == {1, 2, 3}
    # Three tenths of each chance are even: 0.3 + 0.7 * 3 / 2 of four, times the two places.
    chances = {
        int(row): float(chance)
        for seed in range(20)
        for row, chance in zip(
            *vars(draw(np.array([3.0, 1.0, 2.0, 2.0]), nobody, 0.5, np.random.default_rng(seed))).values(),
            strict=True,
        )
    }
    assert chances == pytest.approx({0: 0.675, 1: 0.325, 2: 0.5, 3: 0.5})


noises = st.lists(st.floats(0, 1e6), min_size=1, max_size=70)


@given(noises, st.floats(0.01, 1.0), st.integers(1, 9), st.integers(0, 99))
def test_what_is_drawn(noise, share, every, seed):
    certain = np.arange(len(noise)) % every == 0
    drawn = draw(np.array(noise), certain, share, np.random.default_rng(seed))
    assert (np.diff(drawn.rows) > 0).all() and drawn.rows[0] >= 0 and drawn.rows[-1] < len(noise)
    assert ((drawn.chances > 0) & (drawn.chances <= 1)).all()
    assert set(np.flatnonzero(certain)) <= set(drawn.rows.tolist())
    assert (drawn.chances[certain[drawn.rows]] == 1).all()
    others = len(noise) - int(certain.sum())
    wanted = max(round(share * len(noise)), int(certain.sum()) + min(others, 1))
    assert len(drawn.rows) == wanted


@settings(max_examples=20)
@given(st.integers(0, 1000))
def test_sums_over_the_drawn_samples_are_right_on_average(seed):
    random = np.random.default_rng(seed)
    noise = random.lognormal(0.0, 1.0, 24)
    values = noise * random.lognormal(0.0, 0.5, 24)
    certain = np.arange(24) % 8 == 0

    def estimated(one: Draw) -> float:
        return float((values[one.rows] / one.chances).sum())

    found = [estimated(draw(noise, certain, 0.5, np.random.default_rng((seed, n)))) for n in range(400)]
    error = np.std(found) / math.sqrt(len(found))
    assert abs(np.mean(found) - values.sum()) < 5 * error


def test_a_noise_that_is_alike_in_all_layers_needs_fewer_samples():
    """Beside samples that are drawn with the same chance."""
    noise = np.random.default_rng(0).lognormal(0.0, 1.0, 64)
    spread = []
    for known in (noise, np.ones(64)):
        draws = [draw(known, np.zeros(64, bool), 0.25, np.random.default_rng(n)) for n in range(300)]
        spread.append(np.std([(noise[one.rows] / one.chances).sum() for one in draws]))
    assert spread[0] < 0.6 * spread[1]


@pytest.mark.parametrize("noise", [np.zeros(8), np.array([1.0, np.inf, *[1.0] * 6]), np.full(8, np.nan)])
def test_where_the_noise_says_nothing_all_chances_are_the_same(noise):
    drawn = draw(noise, np.zeros(8, bool), 0.5, np.random.default_rng(0))
    assert drawn.chances.tolist() == [0.5] * 4


def test_all_are_drawn_where_as_many_are_wanted():
    drawn = draw(np.ones(5), np.array([True, False, False, False, False]), 1.0, np.random.default_rng(0))
    assert drawn.rows.tolist() == [0, 1, 2, 3, 4] and drawn.chances.tolist() == [1.0] * 5
