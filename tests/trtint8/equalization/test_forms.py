"""Channels grouped by their producers and readers."""

import dataclasses

import numpy as np

from tests.trtint8.equalization.transformers import SIZE, Blocks, followed, samples
from tests.trtint8.tuning.networks import array, run
from trtint8.equalization.following.labelling import Change, NetworkChannels
from trtint8.equalization.forms import (
    apply_factors,
    changed_constant,
    factors_of,
    find_forms,
    from_last_to_first,
)


def encoder():
    g = Blocks()
    x = g.attention(*g.fused_split(g.layer_norm("x", "norm"), "a"), "a")
    x = g.linear(g.op("Relu", [g.linear(x, SIZE, 12, "up")], "relu"), 12, SIZE, "down")
    return g.finish(x)


def test_each_combination_of_producers_and_readers_is_a_form():
    model = encoder()
    forms = find_forms(followed(model, samples()))
    assert {form.description: len(form.representatives) for form in forms} == {
        "'norm' to 'a_qkv'": SIZE,
        "'a_qkv' within 'a_scores'": SIZE,
        "'a_qkv' to 'up'": SIZE,
        "'up' to 'down'": 12,
    }
    taken = np.concatenate([form.representatives for form in forms])
    assert len(set(taken.tolist())) == len(taken)


def test_forms_from_the_last_reader_to_the_first():
    model = encoder()
    positions = {node.name: position for position, node in enumerate(model.graph)}
    forms = from_last_to_first(find_forms(followed(model, samples())), positions)
    assert [form.readers for form in forms] == [("down",), ("up",), ("a_scores",), ("a_qkv",)]


def test_keys_that_serve_as_values_belong_to_the_form_of_the_projection():
    g = Blocks()
    q, k, _ = g.separate("x", "a")
    model = g.finish(g.linear(g.attention(q, k, k, "a"), SIZE, SIZE, "projection"))
    channels = followed(model, samples())
    (form,) = find_forms(channels)
    assert form.producers == ("a_q", "a_k")
    assert form.readers == ("projection", "a_scores")
    # Weights that read the reciprocals of factors are in no form.
    assert find_forms(dataclasses.replace(channels, powers=-channels.powers)) == []


def test_channels_that_nothing_produces_are_in_no_form():
    channels = followed(encoder(), samples())
    without = tuple(producer for producer in channels.producers if producer.node != "norm")
    forms = find_forms(dataclasses.replace(channels, producers=without))
    assert [form.description for form in forms] == [
        "'a_qkv' within 'a_scores'",
        "'a_qkv' to 'up'",
        "'up' to 'down'",
    ]


def three_channels():
    """Channels 1 and 2 have factors of their own; channel 3 has the reciprocal of the second one's."""
    representatives, powers = np.array([0, 1, 2, 2]), np.array([1, 1, 1, -1])
    return NetworkChannels(representatives, powers)


def test_factors_and_their_reciprocals():
    factors = np.array([1, 4, 10, 77.0])
    np.testing.assert_allclose(
        factors_of(three_channels(), factors, np.array([[0, 1], [2, 3]])), [[1, 4], [10, 0.1]]
    )


def test_a_constant_with_two_changes():
    rows, columns = Change(np.array([[1], [2]]), 1), Change(np.array([[0, 3]]), -1)
    found = changed_constant(
        np.ones((2, 2), np.float32), three_channels(), np.array([1, 4, 10, 77.0]), [rows, columns]
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
