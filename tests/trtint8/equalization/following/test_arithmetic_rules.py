"""Sums, products and quotients of elements."""

import numpy as np
import pytest
from onnx import helper

from tests.trtint8.equalization.transformers import (
    SIZE,
    TOKENS,
    Blocks,
    check,
    followed,
    samples,
    with_random_factors,
)
from tests.trtint8.tuning.networks import array, normal
from trtint8.equalization.forms import find_forms


def test_rotary_positions_tie_the_channels_that_they_mix():
    g = Blocks()
    q, k, v = g.separate("x", "a")
    cos, sin = (g.constant(normal(1, TOKENS, SIZE, seed=seed)) for seed in (1, 2))

    def turned(x, name):
        parts = [
            g.op("Slice", [x, g.integers(at), g.integers(at + SIZE // 2), g.integers(2)], f"{name}_{at}")
            for at in (0, SIZE // 2)
        ]
        half = g.op("Concat", [g.op("Neg", [parts[1]], f"{name}_neg"), parts[0]], f"{name}_half", axis=2)
        return g.op(
            "Add",
            [g.op("Mul", [x, cos], f"{name}_cos"), g.op("Mul", [half, sin], f"{name}_sin")],
            f"{name}_turned",
        )

    model = g.finish(g.linear(g.attention(turned(q, "q"), turned(k, "k"), v, "a"), SIZE, SIZE, "projection"))
    check(model, samples(), SIZE // 2 + SIZE)


@pytest.mark.parametrize("fused", [False, True])
def test_of_a_gated_layer_the_part_that_is_multiplied_is_free(fused):
    g = Blocks()
    if fused:
        x = g.linear("x", SIZE, 24, "both")
        g.nodes.append(helper.make_node("Split", [x, g.integers(12, 12)], ["gate", "up"], name="s", axis=2))
        gate, up = "gate", "up"
    else:
        gate, up = g.linear("x", SIZE, 12, "gate"), g.linear("x", SIZE, 12, "up")
    gate = g.op("Mul", [gate, g.op("Sigmoid", [gate], "sigmoid")], "silu")
    x = g.op("Mul", [gate, up], "gated")
    channels = check(g.finish(g.linear(x, 12, SIZE, "down")), samples(), 12)
    (form,) = find_forms(channels)
    assert form.producers == (("both",) if fused else ("up",))


def test_two_factors_of_one_product_do_not_both_change():
    g = Blocks()
    up, gate = g.linear("x", SIZE, 12, "up"), g.op("Relu", [g.linear("x", SIZE, 12, "gate")], "relu")
    model = g.finish(g.linear(g.op("Mul", [up, gate], "gated"), 12, SIZE, "down"))
    channels = check(model, samples(), 12)
    assert "gate" in channels.skipped and "up" not in channels.skipped


def test_a_square_is_left_alone():
    g = Blocks()
    x = g.linear("x", SIZE, 12, "up")
    check(g.finish(g.linear(g.op("Mul", [x, x], "square"), 12, SIZE, "down")), samples(), 0)


def test_a_larger_constant_is_added_to_channels_that_it_fits():
    """An offset of one element becomes one per channel."""
    g = Blocks()
    x = g.op("Add", [g.linear("x", SIZE, 12, "up"), g.constant(np.float32([2]))], "offset")
    model = g.finish(g.linear(x, 12, SIZE, "down"))
    check(model, samples(), 12)
    other, _ = with_random_factors(model, followed(model, samples()), 0)
    assert array(other, "offset", 1).shape == (12,)
