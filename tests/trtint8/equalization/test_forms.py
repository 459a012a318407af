"""Channels grouped by their producers and readers."""

import dataclasses

import numpy as np

from tests.trtint8.equalization.transformers import SIZE, Blocks, followed, samples
from trtint8.equalization.forms import find_forms, from_last_to_first


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
