"""Random directions in the space of outputs."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from trtint8.sensitivity.directions import along_principal_axes, random_signs

MATRICES = hnp.arrays(
    np.float32,
    hnp.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=12),
    elements=st.floats(-8, 8, width=16),
)


def drawn(values, seed=0):
    random = np.random.default_rng(seed)
    return along_principal_axes(random_signs(values.shape, random), values, random)


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
def test_other_outputs_keep_their_signs(values):
    signs = random_signs(values.shape, np.random.default_rng(3))
    np.testing.assert_array_equal(along_principal_axes(signs, values, np.random.default_rng(4)), signs)
