"""Products with weights, and of two activations."""

import pytest

from tests.trtint8.equalization.transformers import (
    SIZE,
    TOKENS,
    WIDTH,
    Blocks,
    assert_same,
    check,
    samples,
    with_random_factors,
)
from trtint8.equalization.forms import find_forms


@pytest.mark.parametrize("kind", ["separate", "fused_split", "fused_slices", "fused_gathers"])
def test_attention(kind):
    g = Blocks()
    q, k, v = getattr(g, kind)("x", "a")
    model = g.finish(g.linear(g.attention(q, k, v, "a"), SIZE, SIZE, "projection"))
    channels = check(model, samples(), 2 * SIZE)
    within, to = find_forms(channels)
    assert [product.node for product in within.products] == ["a_scores"] and not within.readings
    assert [reading.node for reading in to.readings] == ["projection"]
    fused = ("a_qkv",)
    assert within.producers == (("a_q", "a_k") if kind == "separate" else fused)
    assert to.producers == (("a_v",) if kind == "separate" else fused)


def test_a_key_that_serves_several_queries_ties_them():
    g = Blocks()
    q, k, v = g.separate("x", "a", kv_heads=1)
    model = g.finish(g.linear(g.attention(q, k, v, "a", kv_heads=1), SIZE, SIZE, "projection"))
    check(model, samples(), 2 * WIDTH)


def test_heads_that_share_an_axis_with_the_samples():
    """The attention of older exporters: tokens come first, and samples times heads are one axis."""
    g = Blocks()
    x = g.op("Transpose", ["x"], "tokens_first", perm=[1, 0, 2])
    q, k, v = (
        g.op(
            "Transpose",
            [g.op("Reshape", [part, g.integers(TOKENS, -1, WIDTH)], f"{name}_split")],
            f"{name}_heads",
            perm=perm,
        )
        for part, name, perm in zip(g.separate(x, "a"), "qkv", ([1, 0, 2], [1, 2, 0], [1, 0, 2]), strict=True)
    )
    p = g.op("Softmax", [g.op("MatMul", [q, k], "scores")], "softmax")
    x = g.op("Transpose", [g.op("MatMul", [p, v], "mixed")], "back", perm=[1, 0, 2])
    x = g.op("Reshape", [x, g.integers(TOKENS, -1, SIZE)], "joined")
    model = g.finish(g.linear(x, SIZE, SIZE, "projection"))
    channels = check(model, samples(), 2 * SIZE)
    # The same factors serve any number of samples.
    other, _ = with_random_factors(model, channels, 0)
    assert_same(model, other, samples(5))
