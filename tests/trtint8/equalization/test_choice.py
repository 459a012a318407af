"""Strengths chosen by the error at the readers."""

import dataclasses

import numpy as np

from tests.trtint8.equalization.choosing import begin
from tests.trtint8.equalization.transformers import SIZE, Blocks, samples
from tests.trtint8.tuning.networks import normal
from trtint8.equalization.choice import choose_strength


def scaled(g, *shape, axis, channel, times):
    weights = g.random.standard_normal(shape).astype(np.float32)
    index = [slice(None)] * len(shape)
    index[axis] = channel
    weights[tuple(index)] *= times
    return g.constant(weights)


def two_layers(times):
    g = Blocks()
    x = g.op("MatMul", ["x", scaled(g, SIZE, 12, axis=1, channel=5, times=times)], "up")
    x = g.op("Relu", [x], "relu")
    return g.finish(g.op("MatMul", [x, scaled(g, 12, SIZE, axis=0, channel=5, times=1 / times)], "down"))


def test_a_channel_that_is_50_times_larger_is_divided_by_about_as_much():
    choice, forms = begin(two_layers(50), samples(16))
    form = forms["'up' to 'down'"]
    strength = choose_strength(choice, form)
    assert strength is not None
    factors = choice.factors[form.representatives]
    assert 25 < factors[5] / np.median(factors) < 100


def test_a_layer_that_stays_in_float_is_no_reason_to_change_anything():
    choice, forms = begin(two_layers(50), samples(16))
    (form,) = forms.values()
    assert set(choice.layers) == {"up", "down"}
    choice = dataclasses.replace(choice, layers={})
    assert choose_strength(choice, form) is None
    assert (choice.factors == 1).all()


def attention(times):
    """Queries of one channel are larger, and keys smaller, by the same factor."""
    g = Blocks()
    q = g.op("MatMul", ["x", scaled(g, SIZE, SIZE, axis=1, channel=3, times=times)], "q")
    k = g.op("MatMul", ["x", scaled(g, SIZE, SIZE, axis=1, channel=3, times=1 / times)], "k")
    v = g.linear("x", SIZE, SIZE, "v")
    return g.finish(g.linear(g.attention(q, k, v, "a"), SIZE, SIZE, "projection"))


def test_queries_and_keys_get_the_same_ranges():
    choice, forms = begin(attention(50), samples(16))
    form = forms["'q', 'k' within 'a_scores'"]
    strength = choose_strength(choice, form)
    assert strength is not None
    q, k = (choice.producers[name] for name in "qk")
    before = [choice.observed.peaks[one.tensor].reshape(-1) for one in (q, k)]
    after = [
        choice.observed.peaks[one.tensor].reshape(-1) / choice.factors_of(one.labels).reshape(-1)
        for one in (q, k)
    ]
    assert before[0][3] > 20 * before[1][3]
    assert 0.3 < after[0][3] / after[1][3] < 3
    np.testing.assert_allclose(after[0].max(), after[1].max(), rtol=1e-6)
    np.testing.assert_allclose(before[0] * before[1], after[0] * after[1], rtol=1e-6)


def test_differences_that_other_samples_do_not_have_are_no_reason_to_change_anything():
    """Channels that are alike, with rare large values: in few samples their peaks differ."""
    g = Blocks()
    gate = g.op("MatMul", ["x", g.constant(normal(SIZE, 256, seed=1))], "gate")
    gate = g.op("Mul", [gate, g.op("Mul", [gate, gate], "square")], "cube")
    up = g.op("MatMul", ["x", g.constant(normal(SIZE, 256, seed=2))], "up")
    model = g.finish(g.linear(g.op("Mul", [up, gate], "gated"), 256, SIZE, "down"))
    choice, forms = begin(model, samples(8), method="mse")
    assert choose_strength(choice, forms["'up' to 'down'"]) is None
    assert (choice.factors == 1).all()
