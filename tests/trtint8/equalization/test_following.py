"""Channels followed through networks: whatever the factors, the function stays."""

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from tests.trtint8.equalization.transformers import (
    SIZE,
    TOKENS,
    WIDTH,
    Blocks,
    followed,
    samples,
    with_random_factors,
)
from tests.trtint8.onnx_models import Shaped
from tests.trtint8.tuning.networks import array, normal, prepared, run
from trtint8.equalization.forms import find_forms

NORMS = ("layer_norm", "layer_norm_by_parts", "rms_norm")


def assert_same(model, other, feed):
    for before, after in zip(run(model, feed), run(other, feed), strict=True):
        np.testing.assert_allclose(after, before, rtol=1e-5, atol=1e-5 * np.abs(before).max())


def check(model, feed, classes):
    """Factors of 0.01 to 100 for all classes of channels leave the outputs as they are."""
    channels = followed(model, feed)
    other, count = with_random_factors(model, channels, 0)
    assert count == classes
    assert_same(model, other, feed)
    return channels


def descriptions(model, channels):
    return [form.description for form in find_forms(channels)]


@pytest.mark.parametrize("norm", NORMS)
def test_a_norm_and_all_layers_that_read_it(norm):
    g = Blocks()
    x = getattr(g, norm)("x", "norm")
    x = g.op("Add", [g.linear(x, SIZE, SIZE, "a"), g.linear(x, SIZE, SIZE, "b", bias=False)], "sum")
    model = g.finish(x)
    channels = check(model, samples(), SIZE)
    (form,) = find_forms(channels)
    assert [reading.node for reading in form.readings] == ["a", "b"]
    assert channels.copies == ()


@pytest.mark.parametrize("norm", NORMS)
def test_a_residual_after_the_norm_reads_it_unchanged(norm):
    g = Blocks()
    x = getattr(g, norm)("x", "norm")
    model = g.finish(g.op("Add", [x, g.linear(x, SIZE, SIZE, "layer")], "sum"))
    channels = check(model, samples(), SIZE)
    (copy,) = channels.copies
    assert copy.readers == ("layer",)
    assert [name.removesuffix("_equalized") for name in copy.copies] == list(copy.nodes)
    assert len(copy.nodes) == (2 if norm == "layer_norm_by_parts" else 1)


def test_a_norm_that_is_an_output_of_the_model_is_copied():
    g = Blocks()
    norm = g.layer_norm("x", "norm")
    model = g.model({"x": [2, TOKENS, SIZE]}, g.linear(norm, SIZE, SIZE, "layer"))
    model.graph.output.append(helper.make_tensor_value_info(norm, TensorProto.FLOAT, [2, TOKENS, SIZE]))
    channels = check(prepared(model), samples(), SIZE)
    assert channels.copies[0].nodes == ("norm",)


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


@pytest.mark.parametrize("activation", ["Relu", "LeakyRelu", "PRelu", "Identity"])
def test_a_homogeneous_activation_between_two_layers(activation):
    g = Blocks()
    x = g.linear("x", SIZE, 12, "up")
    x = g.op(activation, [x, g.vector(12)] if activation == "PRelu" else [x], "act")
    check(g.finish(g.linear(x, 12, SIZE, "down")), samples(), 12)


@pytest.mark.parametrize("activation", ["Sigmoid", "Erf", "Tanh", "Softplus", "HardSwish"])
def test_other_activations_are_left_alone_and_named(activation):
    g = Blocks()
    x = g.op(activation, [g.linear("x", SIZE, 12, "up")], "act")
    channels = check(g.finish(g.linear(x, 12, SIZE, "down")), samples(), 0)
    assert channels.skipped["up"] == f"{activation}(s x) is not s {activation}(x) ('act')"
    assert channels.skipped["down"] == "'down_bias_out' is an output of the model"


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


def conv_net(between, channels, size=4):
    """A convolution, what ``between`` makes of its output of (N, 6, 4, 4), and a layer."""
    g = Shaped(quantized=False)
    x = g.op("Conv", ["x", g.weights(6, 3, 3, 3), g.weights(6)], "conv", pads=[1] * 4)
    x = g.op("MatMul", [between(g, x), g.weights(channels, 5)], "layer")
    return prepared(g.model({"x": ["N", 3, size, size]}, x))


def ints(g, *values):
    return g.constant(np.array(values, np.int64))


THROUGH = {
    "tokens": (
        lambda g, x: g.op(
            "Transpose", [g.op("Reshape", [x, ints(g, 0, 6, 16)], "reshape")], "turn", perm=[0, 2, 1]
        ),
        6,
    ),
    "flatten": (lambda g, x: g.op("Flatten", [x], "flatten"), 96),
    "pooled": (
        lambda g, x: g.op("Squeeze", [g.op("GlobalAveragePool", [x], "pool"), ints(g, 2, 3)], "squeeze"),
        6,
    ),
    "mean": (lambda g, x: g.op("ReduceMean", [x], "mean", axes=[2, 3], keepdims=0), 6),
    "padded": (
        lambda g, x: g.op("Flatten", [g.op("Pad", [x, ints(g, 0, 0, 1, 0, 0, 0, 0, 0)], "pad")], "flatten"),
        120,
    ),
    "to depth": (
        lambda g, x: g.op("Flatten", [g.op("SpaceToDepth", [x], "depth", blocksize=2)], "flatten"),
        96,
    ),
}


@pytest.mark.parametrize("way", THROUGH)
def test_a_convolution_and_a_layer_behind_moves(way):
    between, channels = THROUGH[way]
    check(conv_net(between, channels), {"x": normal(2, 3, 4, 4)}, 6)


def test_a_move_that_mixes_channels_leaves_them_alone():
    between = lambda g, x: g.op("Reshape", [x, ints(g, 0, 16, 6)], "reshape")  # noqa: E731
    channels = check(conv_net(between, 6), {"x": normal(2, 3, 4, 4)}, 0)
    assert channels.skipped["conv"] == "'layer' sums over another axis than that of the channels"


def test_indices_that_depend_on_the_data_leave_channels_alone():
    g = Blocks()
    up = g.linear("x", SIZE, 12, "up")
    where = g.op("ArgMax", ["x"], "where", axis=2, keepdims=0)
    where = g.op(
        "Slice", [g.op("Reshape", [where, g.integers(-1)], "flat"), g.integers(0), g.integers(6)], "six"
    )
    x = g.op("Gather", [up, where], "gather", axis=2)
    channels = check(g.finish(g.linear(x, 6, SIZE, "down")), samples(), 0)
    assert channels.skipped["up"] == "where 'gather' (Gather) moves them is not constant"


def test_a_subgraph_that_reads_channels_leaves_them_alone():
    g = Blocks()
    up = g.linear("x", SIZE, 12, "up")
    branch = helper.make_graph(
        [helper.make_node("Exp", [up], ["e"])],
        "branch",
        [],
        [helper.make_tensor_value_info("e", TensorProto.FLOAT, None)],
    )
    g.nodes.append(
        helper.make_node(
            "If", [g.constant(np.bool_(True))], ["if_out"], name="if", then_branch=branch, else_branch=branch
        )
    )
    x = g.op("Add", [g.linear(up, 12, 12, "down"), "if_out"], "sum")
    channels = followed(g.finish(x), samples())
    assert (channels.representatives == 0).all()


def test_a_larger_constant_is_added_to_channels_that_it_fits():
    """An offset of one element becomes one per channel."""
    g = Blocks()
    x = g.op("Add", [g.linear("x", SIZE, 12, "up"), g.constant(np.float32([2]))], "offset")
    model = g.finish(g.linear(x, 12, SIZE, "down"))
    check(model, samples(), 12)
    other, _ = with_random_factors(model, followed(model, samples()), 0)
    assert array(other, "offset", 1).shape == (12,)


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


@pytest.mark.skipif(onnx.defs.onnx_opset_version() < 23, reason="onnx is older than RMSNormalization")
@pytest.mark.parametrize("operator", ["RMSNormalization", "LayerNormalization"])
def test_norms_of_opset_23(operator):
    g = Blocks()
    constants = [g.vector(SIZE)] + ([g.vector(SIZE)] if operator == "LayerNormalization" else [])
    x = g.op(operator, ["x", *constants], "norm")
    made = g.model({"x": [2, TOKENS, SIZE]}, g.op("Add", [x, g.linear(x, SIZE, SIZE, "layer")], "sum"))
    made.opset_import[0].version, made.ir_version = 23, 11
    check(prepared(onnx.shape_inference.infer_shapes(made)), samples(), SIZE)


@st.composite
def encoders(draw):
    """A transformer of one or two layers, of random parts."""
    g = Blocks(draw(st.integers(0, 1000)))
    x = "x"
    for number in range(draw(st.integers(1, 2))):
        name = f"layer{number}"
        norm = getattr(g, draw(st.sampled_from(NORMS)))
        kind = draw(st.sampled_from(["separate", "fused_split", "fused_slices", "fused_gathers"]))
        before = draw(st.booleans())
        source = norm(x, f"{name}_n1") if before else x
        y = g.linear(g.attention(*getattr(g, kind)(source, name), name), SIZE, SIZE, f"{name}_projection")
        x = g.op("Add", [x, y], f"{name}_sum1")
        x = source = norm(x, f"{name}_n2") if not before else x
        source = norm(x, f"{name}_n2") if before else x
        y = g.linear(source, SIZE, 12, f"{name}_up")
        y = g.op(draw(st.sampled_from(["Relu", "LeakyRelu", "Sigmoid"])), [y], f"{name}_act")
        x = g.op("Add", [x, g.linear(y, 12, SIZE, f"{name}_down")], f"{name}_sum2")
    return g.finish(g.layer_norm(x, "last"))


@pytest.mark.slow
@settings(max_examples=40)
@given(encoders(), st.integers(0, 100))
def test_any_factors_leave_any_encoder_as_it_is(model, seed):
    feed = samples()
    other, count = with_random_factors(model, followed(model, feed), seed)
    assert count >= 2 * SIZE
    assert_same(model, other, feed)
