"""Random directions in the space of outputs."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from trtint8.sensitivity.directions import draw_directions, random_signs

MATRICES = hnp.arrays(
    np.float32,
    hnp.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=12),
    elements=st.floats(-8, 8, width=16),
)


def drawn(values, seed=0):
    return draw_directions(values, 1, np.random.default_rng(seed))[0]


def test_signs_are_one_or_minus_one():
    signs = random_signs((1000,), np.random.default_rng(0))
    assert signs.dtype == np.float32
    assert set(signs.tolist()) == {-1, 1}
    assert abs(signs.mean()) < 0.1
    assert random_signs((), np.random.default_rng(0)).shape == ()


@given(values=MATRICES, seed=st.integers(0, 99))
def test_every_direction_has_the_same_product_with_all_rows(values, seed):
    directions = drawn(values, seed).astype(np.float64)
    squares = np.square(directions @ values.T.astype(np.float64)).sum(axis=1)
    np.testing.assert_allclose(squares, np.square(values, dtype=np.float64).sum(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("rows", [2, 30])
def test_the_mean_square_of_a_product_is_the_square_of_the_length(rows):
    random = np.random.default_rng(1)
    values = random.standard_normal((rows, 5)).astype(np.float32) * [3, 1, 1, 0.1, 0]
    errors = np.array([[1, 0, 0, 0, 0], [0, 0, 0, 0, 1], [1, -2, 3, -4, 5]], np.float64)
    directions = np.concatenate([drawn(values, seed) for seed in range(8000)])
    means = np.square(directions @ errors.T).mean(axis=0)
    np.testing.assert_allclose(means, np.square(errors).sum(axis=1), rtol=0.05)


def test_few_directions_are_enough_where_errors_lie_where_outputs_do():
    random = np.random.default_rng(2)
    mixed = random.standard_normal((6, 6))
    values, errors = (random.standard_normal((60, 3)) @ mixed[:3] for _ in range(2))
    exact = np.square(errors).sum()

    def spread(directions):
        return np.std([np.square((errors * one).sum(axis=1)).sum() / exact for one in directions])

    turned = [drawn(values.astype(np.float32), seed) for seed in range(200)]
    plain = [random_signs(values.shape, np.random.default_rng(seed)) for seed in range(200)]
    assert spread(turned) < 0.85 * spread(plain)


@pytest.mark.parametrize(
    "values", [np.ones((4, 3, 2)), np.full((4, 3), np.nan), np.ones((2, 4097)), np.ones(())]
)
def test_other_outputs_get_a_sign_for_every_value(values):
    directions = draw_directions(values, 2, np.random.default_rng(4))
    assert directions.shape == (2, *values.shape) and directions.dtype == np.float32
    np.testing.assert_array_equal(directions[0], random_signs(values.shape, np.random.default_rng(4)))
    assert set(np.unique(directions)) <= {-1, 1}


@given(
    errors=hnp.arrays(
        np.float32, st.sampled_from([(5, 4), (4, 3), (6, 1), (3, 2, 2)]), elements=st.floats(-8, 8, width=32)
    ),
    seed=st.integers(0, 99),
)
def test_as_many_directions_as_components_show_all_of_an_error(errors, seed):
    """Of four components each has a column of its own, so nothing that two have in common is left."""
    random = np.random.default_rng(seed)
    values = random.standard_normal(errors.shape)
    directions = draw_directions(values, 4, random).astype(np.float64)
    sample = tuple(range(2, directions.ndim))
    shown = np.square((directions * errors).sum(axis=sample)).mean(axis=0)
    exact = np.square(errors, dtype=np.float64).sum(axis=tuple(range(1, errors.ndim)))
    np.testing.assert_allclose(shown, exact, rtol=1e-4, atol=1e-3)


def test_two_directions_of_a_sample_are_at_a_right_angle():
    """Independent ones have on average a tenth of their length in common."""
    values = np.random.default_rng(5).standard_normal((40, 10))
    first, second = draw_directions(values, 2, np.random.default_rng(6)).astype(np.float64)
    np.testing.assert_allclose((first * second).sum(axis=1), 0, atol=1e-5)
    np.testing.assert_allclose(np.square(first).sum(axis=1), 10, rtol=1e-5)


def test_opposed_directions_tell_more_than_independent_ones():
    random = np.random.default_rng(7)
    values, errors = (random.standard_normal((60, 10)) for _ in range(2))
    exact = np.square(errors).sum()

    def spread(pairs):
        found = [np.square((pair * errors).sum(axis=2)).mean(axis=0).sum() / exact for pair in pairs]
        return np.std(found)

    opposed = [draw_directions(values, 2, np.random.default_rng(seed)) for seed in range(300)]
    independent = [np.stack([drawn(values, seed), drawn(values, 1000 + seed)]) for seed in range(300)]
    assert spread(opposed) < 0.98 * spread(independent)
