"""Channels followed through networks: whatever the factors, the function stays."""

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper

from tests.trtint8.equalization.transformers import (
    NORMS,
    SIZE,
    TOKENS,
    WIDTH,
    Blocks,
    assert_same,
    check,
    followed,
    samples,
    with_random_factors,
)
from tests.trtint8.onnx_models import parsed
from tests.trtint8.quantization.attention_models import FORMS
from tests.trtint8.tuning.networks import array, normal, prepared
from trtint8.equalization.following import follow
from trtint8.equalization.following.follow import is_spatial, reduced_axes
from trtint8.equalization.forms import find_forms
from trtint8.models.model import load_model, prepare


@pytest.mark.parametrize("activation", ["Sigmoid", "Erf", "Tanh", "Softplus", "HardSwish"])
def test_other_activations_are_left_alone_and_named(activation):
    g = Blocks()
    x = g.op(activation, [g.linear("x", SIZE, 12, "up")], "act")
    channels = check(g.finish(g.linear(x, 12, SIZE, "down")), samples(), 0)
    assert channels.skipped["up"] == f"{activation}(s x) is not s {activation}(x) ('act')"
    assert channels.skipped["down"] == "'down_bias_out' is an output of the model"


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


@st.composite
def norms_in_parts(draw):
    """A normalization, or two, whose channels are told apart before weights or other nodes read them."""
    g = Blocks(draw(st.integers(0, 1000)))
    outputs = []
    for number in range(draw(st.integers(1, 2))):
        name = f"norm{number}"
        x = getattr(g, draw(st.sampled_from([*NORMS, "scaled"])))("x", name)
        for part in getattr(g, draw(st.sampled_from(["halves", "slices", "gathers"])))(x, name):
            reader = draw(st.sampled_from(["nothing", "Sigmoid", "weights", "weights", "other part"]))
            if reader == "Sigmoid":
                part = g.op("Sigmoid", [part], f"{part}_gate")
            elif reader == "other part" and outputs:
                part = g.op("Add", [part, outputs.pop()], f"{part}_sum")
            if reader == "weights":
                part = g.linear(part, SIZE // 2, SIZE // 2, f"{part}_layer")
            outputs += [part] if reader != "nothing" else []
        if draw(st.booleans()):
            outputs.append(g.linear(x, SIZE, SIZE // 2, f"{name}_whole"))
    outputs.append(g.linear("x", SIZE, SIZE // 2, "always"))
    return g.finish(g.op("Concat", outputs, "joined", axis=2))


def decoder(layers=2):
    """A transformer as language models have them."""
    g = Blocks()
    x = "x"
    for number in range(layers):
        name = f"layer{number}"
        q, k, v = g.separate(g.rms_norm(x, f"{name}_n1"), name, kv_heads=1)
        k = g.op("Mul", [k, g.vector(WIDTH)], f"{name}_k_scale")
        y = g.attention(g.rotated(q, f"{name}_q"), k, v, name, kv_heads=1)
        x = g.op("Add", [x, g.linear(y, SIZE, SIZE, f"{name}_projection", bias=False)], f"{name}_sum1")
        y = g.gated(g.rms_norm(x, f"{name}_n2"), 12, name, fused=number == 0)
        x = g.op("Add", [x, g.linear(y, 12, SIZE, f"{name}_down", bias=False)], f"{name}_sum2")
    return g.finish(g.linear(g.rms_norm(x, "last"), SIZE, 5, "head"))


def test_a_decoder():
    """Norms, values and gated channels are free; one key for all heads leaves as many classes as it has."""
    norms, keys, values, gated = 2 * SIZE, WIDTH, WIDTH, 12
    check(decoder(), samples(), 2 * (norms + keys + values + gated) + SIZE)


@pytest.mark.slow
@given(encoders(), st.integers(0, 100))
def test_any_factors_leave_any_encoder_as_it_is(model, seed):
    feed = samples()
    other, count = with_random_factors(model, followed(model, feed), seed)
    assert count >= 2 * SIZE
    assert_same(model, other, feed)


@given(norms_in_parts(), st.integers(0, 100))
def test_any_factors_leave_norms_in_parts_as_they_are(model, seed):
    feed = samples()
    channels = followed(model, feed)
    other, _ = with_random_factors(model, channels, seed)
    assert_same(model, other, feed)
    assert all(form.producers for form in find_forms(channels))


@pytest.mark.parametrize("form", ["hidden_by_the_lowest_number", "hidden_by_infinity"])
def test_attention_with_a_mask_of_run_time(form):
    """The product that restores zeros behind the attention multiplies all channels alike."""
    model = prepare(load_model(FORMS[form]())).graph_model
    feed = {"x": np.ones((2, 8, 32), np.float32), "mask": np.ones((2, 1, 1, 8), np.float32)}
    within, to = find_forms(followed(model, feed))
    assert within.producers == ("q_linear", "k_linear")
    assert to.producers == ("v_linear",) and [reading.node for reading in to.readings] == ["out_linear"]


def node(text):
    constants = {"around": [0, 0, 1, 1, 0, 0, 1, 1], "channels": [0, 1, 0, 0, 0, 0, 0, 0], "one": [1]}
    arrays = {name: np.array(values) for name, values in constants.items()}
    arrays |= {"three": np.float32(3), "twice": np.float32([1, 1, 2, 2]), "region": np.ones(8, np.float32)}
    made = parsed("float[N, 2, 4, 4] x", "float[] y", f"[node] y = {text}", **arrays)
    return next(one for one in prepared(made).graph if one.name == "node")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("MaxPool <kernel_shape = [2, 2]> (x)", True),
        ("Pad (x, around)", True),
        ("Pad (x, channels)", False),
        ("Pad (x, around, three)", False),
        ("""Resize <mode = "linear"> (x, "", twice)""", True),
        (
            """Resize <mode = "linear", coordinate_transformation_mode = "tf_crop_and_resize">
            (x, region, twice)""",
            False,
        ),
        ("Softmax (x)", False),
    ],
)
def test_spatial_operators(text, expected):
    assert is_spatial(node(text)) is expected


@pytest.mark.parametrize(
    ("text", "axes"),
    [
        ("ReduceMean <axes = [-1, 2]> (x)", (2, 3)),
        ("ReduceSum (x, one)", (1,)),
        ("ReduceMax (x)", (0, 1, 2, 3)),
        ("ReduceSum <noop_with_empty_axes = 1> (x)", ()),
    ],
)
def test_reduced_axes(text, axes):
    assert reduced_axes(node(text), 4) == axes


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


@pytest.mark.parametrize("activation", ["Relu", "LeakyRelu", "PRelu", "Identity"])
def test_a_homogeneous_activation_between_two_layers(activation):
    g = Blocks()
    x = g.linear("x", SIZE, 12, "up")
    x = g.op(activation, [x, g.vector(12)] if activation == "PRelu" else [x], "act")
    check(g.finish(g.linear(x, 12, SIZE, "down")), samples(), 12)


def conv_net(between, channels):
    """A convolution, what makes ``m`` of its output ``c`` of (N, 6, 4, 4), and a layer."""
    body = f"[conv] c = Conv <pads = [1, 1, 1, 1]> (x, w, b) {between} [layer] y = MatMul (m, v)"
    constants = {"rows": [0, 6, 16], "mixed": [0, 16, 6], "axes": [2, 3], "pads": [0, 0, 1, 0, 0, 0, 0, 0]}
    constants |= {"lengths": [6, 6], "some": [5, 0, 2]}
    arrays = {name: np.array(values) for name, values in constants.items()}
    arrays |= {"w": normal(6, 3, 3, 3), "b": normal(6), "v": normal(channels, 5), "grid": normal(2, 3, 3, 2)}
    return prepared(parsed("float[N, 3, 4, 4] x", "float[] y", body, **arrays))


THROUGH = {
    "tokens": ("r = Reshape (c, rows) m = Transpose <perm = [0, 2, 1]> (r)", 6),
    "flatten": ("m = Flatten (c)", 96),
    "pooled": ("p = GlobalAveragePool (c) m = Squeeze (p, axes)", 6),
    "mean": ("m = ReduceMean <axes = [2, 3], keepdims = 0> (c)", 6),
    "padded": ("p = Pad (c, pads) m = Flatten (p)", 120),
    "turned round": ("t = ReverseSequence <batch_axis = 0, time_axis = 1> (c, lengths) m = Flatten (t)", 96),
    "looked up": ("s = GridSample (c, grid) m = Flatten (s)", 54),
    "to depth": ("d = SpaceToDepth <blocksize = 2> (c) m = Flatten (d)", 96),
}


@pytest.mark.parametrize("way", THROUGH)
def test_a_convolution_and_a_layer_behind_moves(way):
    between, channels = THROUGH[way]
    check(conv_net(between, channels), {"x": normal(2, 3, 4, 4)}, 6)


def test_a_move_that_mixes_channels_leaves_them_alone():
    channels = check(conv_net("m = Reshape (c, mixed)", 6), {"x": normal(2, 3, 4, 4)}, 0)
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


ALONG = {
    "joined": ("Concat <axis = 1> (c, c)", (1, 6, 1, 1), 12),
    "stacked": ("Concat <axis = 2> (c, c)", (1, 6, 4, 1), 6),
    "taken": ("Gather <axis = 1> (c, some)", (1, 6, 1, 1), 3),
}


@pytest.mark.parametrize("way", ALONG)
def test_labels_stay_compact_along_axes_that_are_left_alone(way, monkeypatch):
    between, shape, channels = ALONG[way]
    seen, moved = [], follow.moved

    def noted(node, opset, arrays):
        seen.append(arrays[0].shape)
        return moved(node, opset, arrays)

    monkeypatch.setattr(follow, "moved", noted)
    check(
        conv_net(f"d = {between} p = GlobalAveragePool (d) m = Flatten (p)", channels),
        {"x": normal(2, 3, 4, 4)},
        6,
    )
    assert seen[0] == shape


@pytest.mark.parametrize("norm", NORMS)
def test_a_norm_and_all_layers_that_read_it(norm):
    g = Blocks()
    x = getattr(g, norm)("x", "norm")
    x = g.op("Add", [g.linear(x, SIZE, SIZE, "a"), g.linear(x, SIZE, SIZE, "b", bias=False)], "sum")
    model = g.finish(x)
    channels = check(model, samples(), SIZE)
    (form,) = find_forms(channels)
    assert [reading.node for reading in form.readings] == ["a", "b"]
    assert not channels.copies


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


@pytest.mark.parametrize("parts", ["halves", "slices", "gathers"])
@pytest.mark.parametrize("norm", [*NORMS, "scaled"])
def test_a_norm_of_which_weights_read_a_part_keeps_its_values(norm, parts):
    """Nothing divides the channels, so the weights must not be multiplied."""
    g = Blocks()
    x = getattr(g, norm)("x", "norm")
    read, other = getattr(g, parts)(x, "part")
    layer = g.linear(read, SIZE // 2, SIZE // 2, "layer")
    product = g.op("Mul", [layer, g.op("Sigmoid", [other], "gate")], "product")
    channels = check(g.finish(product), samples(), 0)
    assert find_forms(channels) == []
    (reason,) = set(channels.skipped.values()) - {"'product_out' is an output of the model"}
    assert "gate" in reason or "passes only a part of" in reason


def test_a_norm_of_which_weights_read_a_part_is_divided_for_others():
    g = Blocks()
    x = g.layer_norm("x", "norm")
    read, other = g.halves(x, "part")
    parts = [g.linear(read, SIZE // 2, SIZE, "half"), g.op("Sigmoid", [other], "gate")]
    x = g.op("Concat", [*parts, g.linear(x, SIZE, SIZE, "whole")], "joined", axis=2)
    channels = check(g.finish(x), samples(), SIZE)
    (form,) = find_forms(channels)
    assert form.producers == ("norm",) and form.readers == ("whole",)
    assert channels.copies[0].readers == ("whole",)


def test_a_norm_that_is_an_output_of_the_model_is_copied():
    g = Blocks()
    norm = g.layer_norm("x", "norm")
    model = g.model({"x": [2, TOKENS, SIZE]}, g.linear(norm, SIZE, SIZE, "layer"))
    model.graph.output.append(helper.make_tensor_value_info(norm, TensorProto.FLOAT, [2, TOKENS, SIZE]))
    channels = check(prepared(model), samples(), SIZE)
    assert channels.copies[0].nodes == ("norm",)


@pytest.mark.skipif(onnx.defs.onnx_opset_version() < 23, reason="onnx is older than RMSNormalization")
@pytest.mark.parametrize("operator", ["RMSNormalization", "LayerNormalization"])
def test_norms_of_opset_23(operator):
    g = Blocks()
    constants = [g.vector(SIZE)] + ([g.vector(SIZE)] if operator == "LayerNormalization" else [])
    x = g.op(operator, ["x", *constants], "norm")
    made = g.model({"x": [2, TOKENS, SIZE]}, g.op("Add", [x, g.linear(x, SIZE, SIZE, "layer")], "sum"))
    made.opset_import[0].version, made.ir_version = 23, 11
    check(prepared(onnx.shape_inference.infer_shapes(made)), samples(), SIZE)


@pytest.mark.parametrize("kind", ["separate", "fused_split", "fused_slices", "fused_gathers"])
def test_attention(kind):
    channels = check(Blocks().attending(kind), samples(), 2 * SIZE)
    within, to = find_forms(channels)
    assert [product.node for product in within.products] == ["a_scores"] and not within.readings
    assert [reading.node for reading in to.readings] == ["projection"]
    fused = ("a_qkv",)
    assert within.producers == (("a_q", "a_k") if kind == "separate" else fused)
    assert to.producers == (("a_v",) if kind == "separate" else fused)


def test_a_key_that_serves_several_queries_ties_them():
    check(Blocks().attending("separate", kv_heads=1), samples(), 2 * WIDTH)


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
