"""The arithmetic of factors, by hand."""

import numpy as np
import pytest

from trtint8.equalization.factors import migration_factors, product_error, product_factors


def test_migration_by_hand():
    made, read = np.array([1.0, 100.0]), np.array([4.0, 1.0])
    # sqrt(1 * 4) / 4 and sqrt(100 * 1) / 1: both ranges become the same.
    np.testing.assert_allclose(migration_factors(made, read, 0.5), [0.5, 10])
    np.testing.assert_allclose(migration_factors(made, read, 1.0), [1, 100])
    np.testing.assert_allclose(migration_factors(made, read, 0.0), [0.25, 1])


def test_dead_channels_keep_their_values_and_factors_are_bounded():
    made = np.array([0, 1e9, 1e-9, np.inf, 1])
    read = np.array([1, 1, 1, 1, 0.0])
    np.testing.assert_allclose(migration_factors(made, read, 0.5), [1, 1000, 1e-3, 1, 1])


def test_factors_of_a_product_by_hand():
    first, second = np.array([100.0, 1.0, 0.0]), np.array([1.0, 1.0, 5.0])
    factors = product_factors(first, second, 0.5)
    np.testing.assert_allclose(factors, [10, 1, 1])
    # With a strength of 0 only the level changes: both sides reach sqrt(100 * 1).
    np.testing.assert_allclose(product_factors(first, second, 0.0), [10, 10, 1])
    np.testing.assert_array_equal(product_factors(np.zeros(2), np.ones(2), 0.5), [1, 1])


def test_error_of_a_product_by_hand():
    first, second = np.array([3.0, 1.0]), np.array([2.0, 5.0])
    powers = np.array([1.0, 2.0]), np.array([4.0, 6.0])
    assert product_error(first, second, *powers, one_scale=False) == pytest.approx(9 * 10 + 25 * 3)
    assert product_error(first, second, *powers, one_scale=True) == pytest.approx(25 * 13)
