"""Factors applied to constants."""

import numpy as np

from tests.trtint8.equalization.transformers import SIZE, Blocks, followed, samples
from tests.trtint8.tuning.networks import array, run
from trtint8.equalization.following.channels import Change, NetworkChannels
from trtint8.equalization.rewriting import apply_factors, changed_constant, changes_by_constant, factors_of


def three_channels(changes=()):
    """Channels 1 and 2 have factors of their own; channel 3 has the reciprocal of the second one's."""
    representatives, powers = np.array([0, 1, 2, 2]), np.array([1, 1, 1, -1])
    return NetworkChannels(representatives, powers, (), (), (), tuple(changes), (), {}, {})


def test_factors_and_their_reciprocals():
    factors = np.array([1, 4, 10, 77.0])
    np.testing.assert_allclose(
        factors_of(three_channels(), factors, np.array([[0, 1], [2, 3]])), [[1, 4], [10, 0.1]]
    )


def test_a_constant_with_two_changes():
    rows = Change("layer", 1, np.array([[1], [2]]), 1)
    columns = Change("layer", 1, np.array([[0, 3]]), -1)
    channels = three_channels([rows, columns])
    assert changes_by_constant(channels) == {("layer", 1): [rows, columns]}
    found = changed_constant(
        np.ones((2, 2), np.float32), channels, np.array([1, 4, 10, 77.0]), [rows, columns]
    )
    np.testing.assert_allclose(found, [[4, 40], [10, 100]])
    assert found.dtype == np.float32


def test_copies_are_made_only_where_factors_differ_from_1():
    g = Blocks()
    x = g.layer_norm_by_parts("x", "norm")
    model = g.finish(g.op("Add", [x, g.linear(x, SIZE, SIZE, "layer")], "sum"))
    channels = followed(model, samples())
    factors = np.ones(len(channels.representatives))
    same = model.clone()
    apply_factors(same, channels, factors)
    assert [node.name for node in same.graph] == [node.name for node in model.graph]
    factors[channels.producers[-1].labels.reshape(-1)] = 2.0
    other = model.clone()
    apply_factors(other, channels, factors)
    added = [node.name for node in other.graph if node.name not in {one.name for one in model.graph}]
    assert added == ["norm_gamma_equalized", "norm_beta_equalized"]
    np.testing.assert_allclose(array(other, "norm_beta_equalized", 1), array(model, "norm_beta", 1) / 2)
    np.testing.assert_array_equal(array(other, "norm_beta", 1), array(model, "norm_beta", 1))
    # Factors that are powers of two change no rounding.
    np.testing.assert_array_equal(run(other, samples())[0], run(model, samples())[0])
