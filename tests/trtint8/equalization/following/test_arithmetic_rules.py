"""Sums, products and quotients of elements."""

import numpy as np
import pytest

from tests.trtint8.equalization.transformers import (
    SIZE,
    Blocks,
    check,
    followed,
    samples,
    with_random_factors,
)
from tests.trtint8.tuning.networks import array
from trtint8.equalization.forms import find_forms


def test_rotary_positions_tie_the_channels_that_they_mix():
    g = Blocks()
    q, k, v = g.separate("x", "a")
    model = g.finish(
        g.linear(g.attention(g.rotated(q, "q"), g.rotated(k, "k"), v, "a"), SIZE, SIZE, "projection")
    )
    check(model, samples(), SIZE // 2 + SIZE)


@pytest.mark.parametrize("fused", [False, True])
def test_of_a_gated_layer_the_part_that_is_multiplied_is_free(fused):
    g = Blocks()
    x = g.gated("x", 12, "mlp", fused)
    channels = check(g.finish(g.linear(x, 12, SIZE, "down")), samples(), 12)
    (form,) = find_forms(channels)
    assert form.producers == (("mlp_both",) if fused else ("mlp_up",))


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
