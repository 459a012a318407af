"""What is found in quantized models made elsewhere, and that mending agrees with it."""

import re

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from calibrators.errors import ModelError
from calibrators.tables.table import CalibrationTable
from tests.trtint8.integer_models import operators, run
from tests.trtint8.interop.pairs_by_hand import (
    CONV,
    LAYER,
    ZERO,
    concat_of,
    model_of,
    proto_of,
    rules,
)
from tests.trtint8.onnx_models import function, normal, parsed, tied
from trtint8 import build_int8_engine, quantize
from trtint8.interop.lint import lint, mend
from trtint8.interop.unquantize import extract_table, pair_ranges, quantized_nodes
from trtint8.models.model import load_model
from trtint8.models.serialization import to_proto

#: Weights of a convolution that lie on no steps.
FLOATS = normal(4, 4, 1, 1) * np.float32(0.1)
ROWS = "float[N, 16] x"
BLOCKS = "d = Pair (x, s) v = Stored <axis = 0, block_size = 2> (w, p) product = MatMul (d, v)"


def blocks(scales=3):
    """Weights of four blocks, with a number of scales."""
    return model_of(
        BLOCKS, "float[N, 8] x", opset=21, w=np.ones((8, 2), np.int8), p=np.ones((scales, 2), np.float32)
    )


@pytest.mark.parametrize(
    ("model", "rule"),
    [
        (model_of("m = ReduceMax <keepdims = 0> (x) d = Pair (x, m, z)" + LAYER, z=ZERO), "scale-computed"),
        (
            model_of("m = ReduceMax <keepdims = 0> (x) z = Cast <to = 3> (m) d = Pair (x, s, z)" + LAYER),
            "scale-computed",
        ),
        # Along axis 1, the default.
        (model_of(CONV.replace("(w, s)", "(w, p)"), w=np.ones((8, 4, 1, 1), np.int8), p=[0.1] * 8), "axis"),
        (blocks(), "unmendable"),
    ],
)
def test_what_cannot_be_mended_is_found(model, rule):
    found = [finding for finding in lint(model) if not finding.mendable]
    assert {finding.rule for finding in found} == {rule}
    with pytest.raises(ModelError):
        mend(model)


def test_layers_whose_weights_lie_on_no_steps_stay_in_float():
    model = model_of("d = Pair (x, s) conv = Conv <kernel_shape = [1, 1]> (d, f)", f=FLOATS)
    (finding,) = lint(model)
    assert (finding.rule, finding.node) == ("one-sided", "conv") and "'f'" in finding.message
    assert mend(model).quantized_nodes == () and mend(model).unquantized.kept_float == ["conv"]


def test_a_layer_whose_weights_have_no_elements_has_nothing_to_quantize():
    """As an adapter of rank 0 beside a layer; also in what mending writes."""
    adapter = " low = Conv <kernel_shape = [1, 1]> (d, a) up = Conv <kernel_shape = [1, 1]> (low, b)"
    empty = np.zeros((0, 4, 1, 1), np.float32)
    assert rules(model_of(f"{CONV} {adapter} sum = Add (conv, up)", a=empty, b=empty.swapaxes(0, 1))) == []


#: Rule to what violates it.
CASES = {
    "zero-point": model_of(CONV, d_z=np.int8(3)),
    "type": model_of(CONV, d_z=np.uint8(0)),
    "bias-int32": model_of(
        "d = Pair (x, s) v = Stored (w, s) b = Stored (i, t) conv = Conv <kernel_shape = [1, 1]> (d, v, b)",
        i=np.ones(4, np.int32),
        t=0.01,
    ),
    "activation-per-channel": model_of("d = Pair <axis = 1> (x, p)" + LAYER, p=[0.1, 0.2, 0.3, 0.4]),
    "scalar-constant": model_of(CONV + " c = Stored (i, s) mul = Mul (conv, c)", i=np.int8(3)),
    "pair-before-activation": model_of(CONV + " mid = Pair (conv, s) relu = Relu (mid)"),
    "one-sided": model_of("d = Pair (x, s) conv = Conv <kernel_shape = [1, 1]> (d, f)", f=FLOATS),
    "weight-axis": model_of(CONV.replace("(w, s)", "<axis = 1> (w, p)"), p=[0.1] * 4),
    "concat-scales": concat_of(0.1, 0.2),
    "kernel-shape": model_of("d = Pair (x, s) v = Stored (w, s) conv = Conv (d, v)"),
    "scale-shape": model_of("d = Pair (x, p)" + LAYER, p=[0.1]),
}


@pytest.mark.parametrize("rule", CASES)
def test_each_rule_finds_its_case(rule):
    assert set(rules(CASES[rule])) - {"steps"} == {rule}


WITHOUT_ZERO = "q = QuantizeLinear {} (x, s) dq = DequantizeLinear (q, s)" + LAYER.replace("(d,", "(dq,")


def test_a_quantizer_may_name_its_type_without_a_zero_point():
    model = model_of(WITHOUT_ZERO.format("<output_dtype = 3>"), opset=21)
    assert rules(model) == []
    mended = mend(model)
    assert mended.unquantized.restored == [] and mended.unquantized.ranges == pytest.approx({"x": 12.7})
    unnamed = lint(model_of(WITHOUT_ZERO.format(""), opset=21))
    (message,) = {finding.message for finding in unnamed if finding.rule == "type"}
    assert "uint8" in message


def test_a_quantizer_to_floats_is_not_mended():
    model = model_of(WITHOUT_ZERO.format("<output_dtype = 17>"), opset=21)
    found = [(one.rule, one.node, one.mendable) for one in lint(model)]
    assert found == [("type", "q", False), ("type", "dq", False)]
    with pytest.raises(ModelError, match=r"'q'.*float8e4m3fn"):
        mend(model)


def test_one_scale_per_block_of_weights():
    model = blocks(scales=4)
    (finding,) = lint(model)
    assert (finding.rule, finding.mendable) == ("block-scales", True) and " 2 " in finding.message
    assert rules(load_model(to_proto(mend(model).graph_model))) == []


def product(shape, axis=None, *, turned=False, rows="N, 3", shaped=True):
    """A MatMul of an activation and quantized weights, which may be transposed behind their pair."""
    along, scales = ("", 0.1) if axis is None else (f"<axis = {axis}>", [0.1] * shape[axis])
    turn = " v = Transpose <perm = [1, 0]> (t)" if turned else ""
    body = f"d = Pair (x, s) {'t' if turned else 'v'} = Stored {along} (w, p) {turn} product = MatMul (d, v)"
    proto = proto_of(body, f"float[{rows}, 4] x", w=np.ones(shape, np.int8), p=scales)
    if not shaped:
        del proto.graph.value_info[:]
    return load_model(proto)


@pytest.mark.parametrize(
    ("shape", "axis"), [((4, 5), 1), ((4, 5), -1), ((4, 5), None), ((1, 4, 5), 2), ((3, 4, 5), -1)]
)
@pytest.mark.parametrize("shaped", [True, False])
def test_weights_of_products_have_scales_along_their_last_axis(shape, axis, shaped):
    assert rules(product(shape, axis, rows="3, 2" if shape[0] == 3 else "N, 3", shaped=shaped)) == []


def weights_on_the_left():
    """TensorRT for RTX runs such a product in INT8 with one scale only, as its layer lists say."""
    body = "v = Stored <axis = 1> (w, p) d = Pair (x, s) product = MatMul (v, d)"
    return model_of(body, "float[4, 5] x", w=np.ones((3, 4), np.int8), p=[0.1] * 4)


@pytest.mark.parametrize(
    ("model", "rule", "named"),
    [
        (
            model_of(
                CONV.replace("(w, s)", "<axis = 0> (w, p)"),
                p=[0.1] * 4,
                v_z=np.int8([0, 3, 0, 1]),
            ),
            "zero-point",
            " 3,",
        ),
        (
            model_of(
                """d = Pair (x, s) v = Stored <axis = 1> (w, p)
                conv = ConvTranspose <group = 2, kernel_shape = [1, 1]> (d, v)""",
                w=np.ones((4, 2, 1, 1), np.int8),
                p=[0.1, 0.2],
            ),
            "weight-axis",
            "axis 1 .*one scale",
        ),
        (weights_on_the_left(), "weight-axis", "axis 1 .*one scale"),
        (product((4, 5), 0, shaped=False), "weight-axis", "axis 0 .* 1:"),
        (product((5, 4), 1, turned=True), "weight-axis", "axis 0 .* 1:"),
    ],
    ids=["zero points", "grouped", "left operand", "product", "transposed"],
)
def test_what_tensorrt_does_not_take_is_found_once(model, rule, named):
    (finding,) = lint(model)
    assert finding.rule == rule and re.search(named, finding.message)


def float_pair(scale):
    body = "d = Pair (x, s) v = Pair <axis = 1> (f, p) product = MatMul (d, v)"
    return model_of(body, "float[N, 3, 4] x", f=normal(4, 5) * np.float32(0.1), p=[scale] * 5)


TWO_SCALES = """d = Pair (x, s) v = Stored (w, s) a = Conv <kernel_shape = [1, 1]> (d, v) a_part = Pair (a, s)
    u = Stored (w, s) b = Conv <kernel_shape = [1, 1]> (d, u) b_part = Pair (b, t)
    add = Add (a_part, b_part) sum = Pair (add, t) r = Stored (w, s)
    y = Conv <kernel_shape = [1, 1]> (sum, r)"""


@pytest.mark.parametrize(
    "model",
    [
        model_of(CONV),
        concat_of(0.1, 0.1),
        model_of(TWO_SCALES, t=0.3),
        product((5, 4), 0, turned=True),
        float_pair(0.1),
        load_model(to_proto(mend(weights_on_the_left()).graph_model)),
    ],
    ids=["Conv", "Concat", "an Add of two scales", "transposed weights", "float weights", "mended"],
)
def test_models_as_tensorrt_wants_them(model):
    assert rules(model) == []


def test_weights_far_beyond_their_range_lie_on_no_steps():
    assert rules(float_pair(1e-42)) == ["weight-steps"]


def test_changes_that_are_made_were_found():
    model = model_of(CONV, d_z=np.int8(3))
    assert set(mend(model).changes) <= set(lint(model)) and mend(model).changes
    widened = mend(concat_of(0.1, 0.21)).changes
    assert [(one.rule, one.node) for one in widened] == [("steps", "a_part_q")]
    assert mend(concat_of(0.1, 0.1)).changes == ()


@pytest.mark.parametrize("scale", [0.0, np.inf, np.nan])
def test_scales_that_are_none_are_not_mended(scale):
    model = model_of("d = Pair (x, t)" + LAYER, t=scale)
    assert "scale" in rules(model)
    with pytest.raises(ModelError, match="'d"):
        mend(model)


@pytest.mark.parametrize(
    "rule", sorted({*CASES} - {"type", "activation-per-channel", "one-sided", "concat-scales"})
)
def test_mended_models_have_nothing_left(rule):
    mended = mend(CASES[rule])
    assert mended.quantized_nodes == ("conv",) and repr(mended) == "<Mended: 1 node in INT8>"
    assert rules(load_model(to_proto(mended.graph_model))) == []


def test_what_was_float_stays_float():
    mended = mend(model_of(CONV + " second = Conv <kernel_shape = [1, 1]> (conv, f)", f=FLOATS))
    assert mended.quantized_nodes == ("conv",)
    assert mended.unquantized.kept_float == ["second"]


def test_ranges_become_as_wide_as_their_wider_side_and_symmetric_scales_stay_exactly():
    mended = mend(model_of("d = Pair (x, t)" + LAYER, t=0.5, d_z=np.int8(28)))
    # int8 from -128 to 127 around 28: -78 to 49.5.
    assert mended.unquantized.ranges == {"x_clip": 78.0}
    assert extract_table(load_model(to_proto(mended.graph_model))).amax == pytest.approx({"x_clip": 78.0})
    symmetric = to_proto(mend(model_of("d = Pair (x, t)" + LAYER, t=0.0123)).graph_model)
    assert extract_table(load_model(symmetric)).scale("x") == np.float32(0.0123)


SECOND = " clamp = Pair (conv, t) u = Stored (w, s) second = Conv <kernel_shape = [1, 1]> (clamp, u)"


def test_a_relu_that_stood_in_a_quantizer_comes_back():
    mended = mend(model_of(CONV + SECOND, t=0.1, clamp_z=np.int8(-128)))
    assert len(mended.unquantized.restored) == 1
    assert operators(to_proto(mended.graph_model)).count("Relu") == 1
    assert mended.unquantized.ranges["conv_clip"] == pytest.approx(25.5)


#: x * clip(x + 3, 0, 6) / 6 of a convolution, whose Clip was absorbed, before another convolution.
HARD_SWISH = """d = Pair (x, t) i = Stored (eye, one) first = Conv <kernel_shape = [1, 1]> (d, i)
    wide = Pair (first, t11) add = Add (wide, three) gate = Pair (add, t6) mul = Mul (wide, gate)
    product = Mul (mul, sixth) swish = Pair (product, t) v = Stored (w, s)
    second = Conv <kernel_shape = [1, 1]> (swish, v)"""


@pytest.mark.parametrize("opset", [10, 17])
def test_a_clip_that_stood_in_a_quantizer_comes_back(opset):
    scales = {"t": 0.05, "one": 1.0, "t11": 0.11, "three": 3.0, "t6": 6 / 255, "sixth": 1 / 6}
    eye = np.eye(4, dtype=np.int8)[..., None, None]
    model = proto_of(HARD_SWISH, opset=opset, eye=eye, gate_z=np.int8(-128), **scales)
    mended = mend(load_model(model))
    assert mended.unquantized.restored == ["add_clip"]
    clip = next(node for node in mended.graph_model.graph if node.op_type == "Clip")
    assert [float(value.const_value.numpy()) for value in clip.inputs[1:]] == [0, 6]
    x = np.linspace(-6, 6, 256, dtype=np.float32).reshape(1, 4, 8, 8)
    wanted, found = (run(one, optimize=False, x=x) for one in (model, to_proto(mended.graph_model)))
    # Rounding. Without the Clip results differ by up to 0.2.
    np.testing.assert_allclose(found, wanted, atol=0.02)


def test_a_quantized_tensor_that_an_identity_gives_out_keeps_its_pair():
    body = """d = Pair (x, t) v = Stored (w, s) first = Conv <kernel_shape = [1, 1]> (d, v)
        relu = Relu (first) mid = Pair (relu, s) feature = Identity (relu) u = Stored (w, s)
        second = Conv <kernel_shape = [1, 1]> (mid, u)"""
    mended = mend(model_of(body, outputs=["feature"], t=0.05))
    assert mended.quantized_nodes == ("first", "second")
    assert mended.unquantized.ranges == pytest.approx({"x": 6.35, "feature": 12.7})
    assert [value.name for value in mended.graph_model.graph.outputs] == ["second", "feature"]


def stored_like(proto, *shape):
    """The constants of a shape."""
    arrays = map(numpy_helper.to_array, proto.graph.initializer)
    return [array for array in arrays if array.shape == shape]


@pytest.mark.parametrize(
    ("whole", "scale"),
    [
        (np.arange(-127, 129, 17)[:16].clip(-127, 127).astype(np.int8), None),
        # Those that int8 cannot hold get new scales.
        (np.resize(np.array([0, 100, 200, 254], np.uint8), 16), 0.5),
    ],
)
def test_weights_keep_their_values_or_get_new_scales(whole, scale):
    whole = whole.reshape(4, 4, 1, 1)
    made = to_proto(mend(model_of(CONV.replace("(w, s)", "(w, t)"), w=whole, t=0.25)).graph_model)
    if scale is None:
        assert np.array_equal(stored_like(made, 4, 4, 1, 1)[0], whole * np.float32(0.25))
    else:
        assert np.array_equal(stored_like(made, 4)[0], np.full(4, scale, np.float32))


def test_float_weights_behind_a_pair_stay_the_same_integers():
    """As quantization-aware training exports them, with scales that clip some weights."""
    body = """d = Pair (x, s) v = Pair <axis = 0> (f, p) t = Transpose <perm = [1, 0]> (v)
        product = MatMul (d, t)"""
    floats = np.float32([[0.5, -8], [1, 2], [3, 4]])
    source = proto_of(body, "float[N, 2] x", f=floats, p=[0.01, 0.02, 0.03])
    same(source, to_proto(mend(load_model(source)).graph_model), np.float32([[1, 2], [3, -4]]))


def same(source, mended, x):
    np.testing.assert_array_equal(run(mended, optimize=False, x=x), run(source, optimize=False, x=x))


def test_weights_with_few_values_beyond_int8_keep_their_steps():
    steps = np.array([128, 64, 63, 65, 64, 63, 65, 64])  # int8 has no 128
    whole = (np.tile(steps[:, None], 4) + 127).astype(np.uint8)
    body = "d = Pair (x, s) v = Stored (w, t) product = MatMul (d, v)"
    model = model_of(body, w=whole, t=0.25, v_z=np.uint8(127))
    assert {one.rule for one in lint(model)} == {"weight-steps", "zero-point", "type"}
    scales = stored_like(to_proto(mend(model).graph_model), 4)
    assert any(np.array_equal(one, np.full(4, 0.25, np.float32)) for one in scales)


def test_weights_that_are_read_along_two_axes_keep_a_pair_for_each():
    quantized = quantize(tied(), CalibrationTable({"x": 3.0, "relu_out": 9.0}))
    assert lint(load_model(quantized)) == []
    same(quantized, to_proto(mend(load_model(quantized)).graph_model), normal(8, 16))


def test_integers_of_the_caller_get_the_scale_of_their_concat():
    body = "given = Stored (u, t, z) d = Pair (x, s) joined = Concat <axis = 1> (given, d)"
    layer = " v = Stored (w, s) conv = Conv <kernel_shape = [1, 1]> (joined, v)"
    inputs = "uint8[N, 2, 8, 8] u, float[N, 2, 8, 8] x"
    model = model_of(body + layer, inputs, t=0.02, z=np.uint8(128))
    assert [finding.node for finding in lint(model) if finding.rule == "steps"] == ["given"]
    assert set(pair_ranges(mend(model).graph_model).values()) == {127 * float(np.float32(0.1))}


def test_a_mended_concat_has_the_widest_scale():
    mended = load_model(to_proto(mend(concat_of(0.1, 0.21)).graph_model))
    assert rules(mended) == []
    table = extract_table(mended)
    assert {table.scale(name) for name in ("a_clip", "b", "concat")} == {np.float32(0.21)}


@pytest.mark.parametrize(
    ("body", "found", "named"),
    [
        (
            "c = Cast <to = 2> (x) conv = ConvInteger (c, i, u, u) out = Cast <to = 1> (conv)",
            [("integer-operator", "conv")],
            "'conv'.*ConvInteger.*'out'",
        ),
        (
            "q = QuantizeLinear (x, s, z) d = DequantizeLinear (q, t, z)" + LAYER,
            [("integer-data", "d")],
            "'d'.*'q'",
        ),
        (
            "q = QuantizeLinear (x, s, z) abs = Abs (q) d = DequantizeLinear (abs, s, z)",
            [("integer-data", "abs"), ("integer-data", "d")],
            "'abs'.*'q'",
        ),
    ],
)
def test_integers_that_are_used_otherwise_are_told_and_not_mended(body, found, named):
    model = model_of(body, z=ZERO, t=0.2, u=np.uint8(0), i=np.ones((4, 4, 1, 1), np.uint8))
    assert [(one.rule, one.node, one.mendable) for one in lint(model)] == [(*one, False) for one in found]
    with pytest.raises(ModelError, match=named):
        mend(model)


def test_nodes_without_names_are_mended_too():
    proto = proto_of(CONV + " second = Conv <kernel_shape = [1, 1]> (conv, f)", f=FLOATS)
    for node in proto.graph.node:
        node.name = ""
    assert mend(load_model(proto)).quantized_nodes == ("Conv_conv",)


QLINEAR = {
    "conv": """q = QuantizeLinear (x, a, z)
        conv = QLinearConv <pads = [1, 1, 1, 1]> (q, a, z, w, p, pz, b, z, i)
        y = DequantizeLinear (conv, b, z)""",
    "matmul": """q = QuantizeLinear (x, a, z) product = QLinearMatMul (q, a, z, w, p, pz, b, z)
        y = DequantizeLinear (product, b, z)""",
}


def qlinear(kind, shape, scales, step):
    weights = np.random.default_rng(0).integers(-127, 128, shape).astype(np.int8)
    constants = {"a": 0.05, "z": ZERO, "w": weights, "p": scales, "b": step}
    zeros, bias = np.zeros(np.shape(scales), np.int8), np.array([100, -200, 300, 0], np.int32)
    return proto_of(QLINEAR[kind], pz=zeros, i=bias, **constants)


PER_CHANNEL = qlinear("conv", (4, 4, 3, 3), [0.02] * 4, 0.7)


@pytest.mark.parametrize(
    ("source", "step"),
    [
        (qlinear("conv", (4, 4, 3, 3), 0.02, 0.7), 0.7),
        (PER_CHANNEL, 0.7),
        (qlinear("matmul", (8, 3), 0.02, 0.5), 0.5),
    ],
)
def test_qlinear_operators_become_pairs(source, step):
    model = load_model(source)
    assert rules(model) == ["qlinear"]
    mended = mend(model)
    assert len(mended.quantized_nodes) == 1
    proto = to_proto(mended.graph_model)
    assert rules(load_model(proto)) == []
    x = np.random.default_rng(1).uniform(-6, 6, (2, 4, 8, 8)).astype(np.float32)
    # The mended model leaves its output unquantized, so it may differ by half a step of the old output.
    limit = 127 * step
    ours, theirs = (np.clip(run(one, optimize=False, x=x), -limit, limit) for one in (proto, source))
    assert np.abs(ours - theirs).max() <= step * 0.5001


def test_parameters_in_constant_nodes_are_read():
    source = onnx.ModelProto()
    source.CopyFrom(PER_CHANNEL)
    made = [helper.make_node("Constant", [], [one.name], value=one) for one in source.graph.initializer]
    nodes = [*made, *PER_CHANNEL.graph.node]
    del source.graph.initializer[:], source.graph.node[:], source.graph.value_info[:]
    source.graph.node.extend(nodes)
    model = load_model(source)
    assert rules(model) == ["qlinear"]
    same(
        *(to_proto(mend(one).graph_model) for one in (model, load_model(PER_CHANNEL))), normal(2, 4, 8, 8) * 3
    )


HEADS = """{0}_in = Pair (x, s) {0}_w = Stored (w, t) {0}_linear = MatMul ({0}_in, {0}_w)
    {0}_cut = Reshape ({0}_linear, shape) {0}_heads = Transpose <perm = [0, 2, {1}]> ({0}_cut)
    {0} = Pair ({0}_heads, s) """


@pytest.mark.parametrize("output_pair", [True, False])
def test_an_attention_without_a_pair_behind_it_becomes_float_whole(output_pair):
    """A pair behind the attention, or none, that nothing quantized reads."""
    body = "".join(HEADS.format(*one) for one in (("q", "1, 3"), ("k", "3, 1"), ("v", "1, 3")))
    body += """scores = MatMul (q, k) softmax = Softmax <axis = -1> (scores) p = Pair (softmax, p127)
        context = MatMul (p, v) """
    body += "o = Pair (context, s) relu = Relu (o)" if output_pair else "relu = Relu (context)"
    constants = {
        "w": np.ones((32, 32), np.int8),
        "t": 0.01,
        "p127": 1 / 127,
        "shape": np.array([0, 0, 2, 16]),
    }
    mended = mend(model_of(body, "float[N, 8, 32] x", **constants))
    linear = {"q_linear", "k_linear", "v_linear"}
    assert set(mended.quantized_nodes) == linear | ({"scores", "context"} if output_pair else set())
    changed = {one.node for one in mended.changes}
    assert changed == (set() if output_pair else {"q_q", "k_q", "v_q", "p_q"})


@pytest.mark.parametrize("zero", [np.int8(0), np.uint8(0)])
@pytest.mark.parametrize(("guarded", "masked"), [(False, False), (True, False), (True, True)])
def test_an_attention_with_a_guard_against_nan_is_mended(guarded, masked, zero):
    """PyTorch's guard stands before the softmax's pair."""
    shapes = {"q": (1, 2, 4, 16), "k": (1, 2, 16, 4), "v": (1, 2, 4, 16)} | (
        {"mask": (1, 1, 4, 4)} if masked else {}
    )
    body = "q_pair = Pair (q, s) k_pair = Pair (k, s) v_pair = Pair (v, s) scores = MatMul (q_pair, k_pair) "
    body += (
        """shown = Cast <to = 9> (mask) hidden = Where (shown, zero, low) masked = Add (scores, hidden)
        p = Softmax <axis = -1> (masked) """
        if masked
        else "p = Softmax <axis = -1> (scores) "
    )
    body += (
        "nan = IsNaN (p) guard = Where (nan, zero, p) w_p = Pair (guard, t)"
        if guarded
        else "w_p = Pair (p, t)"
    )
    body += " context = MatMul (w_p, v_pair) o = Pair (context, s) e = Stored (w, t) last = MatMul (o, e)"
    weights = np.arange(-128, 128, dtype=np.int8).reshape(16, 16)
    numbers = {"t": 1 / np.iinfo(zero.dtype).max, "zero": 0.0, "low": -np.inf}
    inputs = ", ".join(f"float{list(shape)} {name}" for name, shape in shapes.items())
    model = proto_of(body, inputs, w=weights, w_p_z=zero, **numbers)
    mended = mend(load_model(model))
    assert mended.quantized_nodes == ("scores", "context", "last")
    assert mended.unquantized.restored == []
    assert mended.unquantized.ranges["p"] == pytest.approx(1)
    assert "guard" not in mended.unquantized.ranges
    feed = {name: normal(*shape, seed=number) for number, (name, shape) in enumerate(shapes.items())}
    if masked:
        feed["mask"] = np.tril(np.ones((1, 1, 4, 4), np.float32), -1)  # hides the whole first row
    wanted, found = (run(one, optimize=False, **feed) for one in (model, to_proto(mended.graph_model)))
    assert not masked or not wanted[:, :, 0].any()
    # uint8 has smaller steps than int8.
    np.testing.assert_allclose(found, wanted, atol=1e-5 if zero.dtype == np.int8 else 0.25)


def test_weights_that_are_transposed_behind_their_pair_stay_quantized():
    mended = mend(product((5, 4), 0, turned=True))
    assert mended.quantized_nodes == ("product",)
    assert mended.unquantized.kept_float == []


def test_a_mended_model_says_what_it_was_made_from():
    """Where it does; of others the float model is not known."""
    model = model_of(CONV)
    assert not mend(model).graph_model.metadata_props
    made_from = {
        "trtint8.float_model": "f" * 64,
        "trtint8.calibration_data": "d" * 64,
        "trtint8.calibration_samples": "500",
    }
    model.graph_model.metadata_props.update(made_from)
    assert mend(model).graph_model.metadata_props == made_from


#: What moves a convolution's output, by operator.
MOVING = {
    "Concat": "Concat <axis = 0> (mid)",
    "Identity": "Identity (mid)",
    "MaxPool": "MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (mid)",
    "Pad": "Pad (mid, pads)",
    "Reshape": "Reshape (mid, shape)",
    "Slice": "Slice (mid, start, end, axis)",
}


def moved(operator):
    """A convolution, its pair, the operator, and a convolution that reads it without a pair of its own."""
    body = f"""{CONV} relu = Relu (conv) mid = Pair (relu, t) between = {MOVING[operator]} u = Stored (w, s)
        second = Conv <kernel_shape = [1, 1]> (between, u)"""
    constants = {
        "pads": [0, 0, 1, 1, 0, 0, 1, 1],
        "shape": [0, 4, 4, 16],
        "start": [0],
        "end": [4],
        "axis": [2],
    }
    return model_of(body, t=0.2, **{name: np.array(value) for name, value in constants.items()})


@pytest.mark.parametrize("operator", MOVING)
def test_a_pair_is_read_through_operators_that_move_values(operator):
    model = moved(operator)
    assert lint(model) == []
    assert quantized_nodes(model.graph_model) == ("conv", "second")
    assert mend(model).quantized_nodes == ("conv", "second")


def test_a_resize_and_stored_weights_are_not_read_through():
    body = """q = Pair (x, s) d = Resize <mode = "nearest"> (q, "", twice)"""
    assert rules(model_of(body + LAYER, twice=[1.0, 1.0, 2.0, 2.0])) == ["one-sided"]
    body = (
        "d = Pair (x, s) u = Stored (w, s) v = Reshape (u, shape) conv = Conv <kernel_shape = [1, 1]> (d, v)"
    )
    weights = np.ones((16, 1, 1, 1), np.int8)
    assert "one-sided" in rules(model_of(body, w=weights, shape=np.array([4, 4, 1, 1])))


@pytest.mark.slow
@pytest.mark.parametrize("operator", ["MaxPool", "Reshape"])
def test_what_is_read_through_runs_in_int8_before_and_after(operator, rtx, tmp_path):
    model = moved(operator)
    mend(model).save(tmp_path / "mended.onnx")
    for number, source in enumerate((to_proto(model.graph_model), tmp_path / "mended.onnx")):
        path, options = tmp_path / f"{number}.engine", {"compute_capabilities": "8.6", "progress": False}
        result = build_int8_engine(source, None, path, target="rtx", **options)
        inputs = {
            node: layer.inputs
            for layer in result.info.layers.layers
            for node in layer.onnx_nodes
            if layer.kind in ("correlation", "conv", "gemm")
        }
        assert result.info.float_nodes == () and inputs["second"][0] == "Int8"


#: A convolution in FP16 between inputs and outputs in FP16, with pairs, by opset.
HALF = {
    # These pairs are in FP32, and Casts stand around them.
    17: """wide = Cast <to = 1> (x) q = Pair (wide, t) d = Cast <to = 10> (q) e = Stored (w, t)
        v = Cast <to = 10> (e) conv = Conv <kernel_shape = [1, 1]> (d, v)""",
    19: """q = QuantizeLinear (x, h, z) d = DequantizeLinear (q, h, z) v = DequantizeLinear (w, h, z)
        conv = Conv <kernel_shape = [1, 1]> (d, v)""",
}


@pytest.mark.parametrize("opset", HALF)
def test_pairs_of_models_in_fp16_are_kept(opset):
    model = proto_of(HALF[opset], "float16[N, 4, 8, 8] x", opset=opset, t=0.05, h=np.float16(0.05), z=ZERO)
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT16
    assert quantized_nodes(load_model(model).graph_model) == ("conv",)
    mended = mend(load_model(model))
    assert mended.quantized_nodes == ("conv",) and mended.filled == {}
    assert [round(amax, 3) for amax in mended.unquantized.ranges.values()] == [pytest.approx(6.35, abs=2e-3)]
    assert operators(to_proto(mended.graph_model)).count("Cast") == 2  # the input's and the output's
    x = normal(2, 4, 8, 8).astype(np.float16)
    wanted, found = (run(one, optimize=False, x=x) for one in (model, to_proto(mended.graph_model)))
    assert found.dtype == np.float16
    np.testing.assert_allclose(found, wanted, atol=2e-3)


def test_what_a_models_own_functions_compute_in_float_stays_float():
    model = parsed(
        "float[N, 4] x",
        "float[N, 4] y",
        """q = QuantizeLinear (x, s, z) d = DequantizeLinear (q, s, z) v = DequantizeLinear (w, s, z)
        h = MatMul (d, v) y = own.product (h, v)""",
        function("product", "a, b", "c", "c = MatMul (a, b)"),
        domains=["own"],
        s=np.float32(0.05),
        z=ZERO,
        w=np.resize(np.arange(1, 10, dtype=np.int8), (4, 4)),
    )
    mended = mend(load_model(model))
    assert len(mended.quantized_nodes) == len(mended.unquantized.kept_float) == 1
    assert rules(load_model(to_proto(mended.graph_model))) == []


@pytest.mark.parametrize("verb", [lint, mend])
def test_pairs_in_branches_alone_are_named(verb):
    body = """choice = If (keep) <then_branch = then () => (float[N, 4] t) { t = Relu (x) },
        else_branch = other () => (float[N, 4] e) {
            q = QuantizeLinear (x, s, z) e = DequantizeLinear (q, s, z) }>"""
    model = parsed(
        "float[N, 4] x, bool keep", "float[N, 4] choice", f"[choice] {body}", s=np.float32(0.05), z=ZERO
    )
    with pytest.raises(ModelError, match=r"'model'.* If 'choice'"):
        verb(load_model(model))


def test_integers_that_a_branch_reads_are_told_and_not_mended():
    body = f"""q = QuantizeLinear (x, s, z) d = DequantizeLinear (q, s, z) {LAYER}
        choice = If (yes) <then_branch = a () => (float[] t) {{ t = DequantizeLinear (q, s, z) }},
            else_branch = b () => (float[] e) {{ e = DequantizeLinear (q, s, z) }}>
        sum = Add (conv, choice)"""
    model = model_of(body, z=np.uint8(128), yes=np.array(True))
    assert [(one.node, one.rule) for one in lint(model) if not one.mendable] == [("choice", "integer-data")]
    with pytest.raises(ModelError, match="choice"):
        mend(model)


@pytest.mark.parametrize("zero", [np.int8(0), np.uint8(128)])
def test_what_a_resize_writes_outside_is_clipped_as_it_was(zero):
    body = """g = Sigmoid (x) r = Resize <mode = "linear", extrapolation_value = 9.0,
        coordinate_transformation_mode = "tf_crop_and_resize"> (g, region, "", sizes) d = Pair (r, t)"""
    constants = {"region": [0.0, 0, -0.5, -0.5, 1, 1, 1.5, 1.5], "t": 0.02}
    proto = proto_of(body + LAYER, "float[2, 4, 6, 6] x", sizes=np.array([2, 4, 8, 8]), d_z=zero, **constants)
    stays(proto, inputs=[normal(2, 4, 6, 6)])


def test_the_kernel_shape_of_computed_weights_is_no_finding():
    body = """k = Reshape (x, four) v = Pair (k, s) e = Expand (image, five) d = Pair (e, s)
        conv = Conv (d, v)"""
    sizes = {"four": np.array([4, 4, 1, 1]), "five": np.array([1, 4, 5, 5])}
    model = model_of(body, "float[1, 16] x", image=np.ones((1, 4, 5, 5), np.float32), **sizes)
    assert "kernel-shape" not in rules(model)


@pytest.mark.parametrize(("dtype", "zero"), [(np.int8, 0), (np.int8, 9), (np.uint8, 128), (np.uint8, 0)])
def test_integers_that_the_caller_gives_may_be_moved_first(dtype, zero):
    body = """turned = Transpose <perm = [0, 3, 1, 2]> (x) d = DequantizeLinear (turned, t, z)
        v = Pair <axis = 0> (f, p) conv = Conv <kernel_shape = [1, 1]> (d, v)"""
    kind = np.dtype(dtype).name
    proto = proto_of(body, f"{kind}[N, 5, 5, 4] x", t=0.02, z=dtype(zero), f=FLOATS, p=[0.01] * 4)
    ends = np.iinfo(dtype)
    given = np.random.default_rng(0).integers(ends.min, ends.max + 1, (2, 5, 5, 4)).astype(dtype)
    found = set(rules(load_model(proto)))
    assert "integer-data" in found
    assert found <= {"integer-data", "type", "zero-point", "steps", "kernel-shape"}
    mended = mend(load_model(proto))
    assert mended.quantized_nodes == ("conv",)
    assert [value.dtype.numpy() for value in mended.graph_model.graph.inputs] == [dtype]
    if "steps" not in found:
        wanted, ours = (run(one, optimize=False, x=given) for one in (proto, to_proto(mended.graph_model)))
        assert sqnr(wanted, ours) > 100


WEIGHTS = np.random.default_rng(1).integers(-127, 128, (16, 16)).astype(np.int8)
INSIDE, OUTSIDE = (normal(32, 16, seed=2) * np.float32(size) for size in (0.3, 9))


def sqnr(wanted, found):
    noise = float(np.square(wanted.astype(np.float64) - found).sum())
    return np.inf if noise == 0 else 10 * np.log10(float(np.square(wanted.astype(np.float64)).sum()) / noise)


def stays(proto, int8=1, inputs=(INSIDE, OUTSIDE)):
    """The mended model, which computes what the original does, within the ranges and outside of them."""
    mended = mend(load_model(proto))
    made = to_proto(mended.graph_model)
    onnx.checker.check_model(made, full_check=True)
    assert len(mended.quantized_nodes) == int8
    for x in inputs:
        assert sqnr(run(proto, optimize=False, x=x), run(made, optimize=False, x=x)) > 100
    assert mended.changes == () and lint(load_model(made)) == []
    return made


#: A layer that reads ``d``, of weights ``w``.
ROW_LAYER = " v = Stored (w, t) product = Gemm (d, v)"
STEPS = {"a": 0.02, "b": 0.05, "t": 0.01}


def rows_of(body, opset=17, **constants):
    """A model of rows whose constants are scales and the weights, too."""
    return proto_of(body, ROWS, opset=opset, **{"w": WEIGHTS, **STEPS, **constants})


@pytest.mark.parametrize(("first", "second"), [(0.02, 0.005), (0.005, 0.02), (0.02, 0.015), (0.02, 0.02)])
def test_pairs_behind_one_another_compute_what_they_did(first, second):
    made = stays(rows_of("one = Pair (x, a) d = Pair (one, b)" + ROW_LAYER, a=first, b=second))
    # Of two pairs with the same steps one is enough.
    assert operators(made).count("QuantizeLinear") == (2 if first == second else 3)


@pytest.mark.parametrize(
    ("body", "int8"),
    [
        (
            """d = Pair (x, a) v = Stored (w, t) one = Gemm (d, v) e = Pair (x, b) u = Stored (w, t)
            two = Gemm (e, u) sum = Add (one, two)""",
            2,
        ),
        (f"d = Pair (x, a) {ROW_LAYER} sum = Add (product, d)", 1),
        (f"d = Pair (x, a) {ROW_LAYER} end = Pair (product, b)", 1),
    ],
    ids=["side by side", "read by others too", "at the output"],
)
def test_pairs_stay_that_tensorrt_can_have(body, int8):
    stays(rows_of(body, b=0.005 if int8 == 2 else 0.05), int8)


@pytest.mark.parametrize("zero", [np.int8(0), np.uint8(128)])
def test_constants_that_are_joined_with_activations_keep_their_pair(zero):
    body = "one = Pair (x, a) two = Pair (token, a) d = Concat <axis = 0> (one, two)"
    stays(rows_of(body + ROW_LAYER, token=normal(8, 16, seed=3), one_z=zero, two_z=zero))


#: A layer that reads two pairs of other scales, joined.
JOINED = "q = Pair (x, a) n = Neg (x) second = Pair (n, b) d = Concat <axis = 0> (q, second)" + ROW_LAYER


@pytest.mark.parametrize("moved", [False, True])
def test_joined_pairs_before_a_layer_get_one_scale_and_are_named(moved):
    between = "(n, b) r = Reshape (second, shape) i = Identity (r)"
    body = JOINED.replace("(n, b)", between).replace("q, second", "q, i") if moved else JOINED
    model = load_model(rows_of(body, shape=np.array([-1, 16])))
    assert {(one.rule, one.node) for one in lint(model)} == {("concat-scales", "d"), ("steps", "q_q")}
    made = mend(model)
    assert made.quantized_nodes == ("product",)
    assert lint(load_model(to_proto(made.graph_model))) == []


def test_a_pair_that_is_placed_anew_gets_the_scale_of_the_one_beside_it():
    # The Clip of the first is what both other pairs read.
    body = """fine = Pair (x, e) relu = Relu (fine) finest = Pair (relu, f) coarse = Pair (fine, a)
        d = Concat <axis = 0> (coarse, finest)"""
    zeros = {"fine_z": np.int16(0), "finest_z": np.int16(0)}
    model = load_model(rows_of(body + ROW_LAYER, opset=21, e=1.6e-5, f=2e-6, **zeros))
    assert {*rules(model)} >= {"steps", "concat-scales"}
    mended = mend(model)
    assert mended.quantized_nodes == ("product",)
    assert lint(load_model(to_proto(mended.graph_model))) == []


@pytest.mark.slow
def test_joined_pairs_run_in_int8_once_they_have_one_scale(rtx, tmp_path):
    del rtx
    given = rows_of(JOINED)
    for source, count in ((given, 0), (to_proto(mend(load_model(given)).graph_model), 1)):
        result = build_int8_engine(source, None, tmp_path / "m.engine", target="rtx", progress=False)
        assert result.info.int8_layers == (count, 1)


def test_joining_a_tensor_with_itself_again_and_again_takes_no_time():
    twice = "t{0} = Concat <axis = 1> (h{0}, h{0}) h{1} = Slice (t{0}, start, end, axis) "
    body = "h0 = Pair (x, a) " + "".join(twice.format(number, number + 1) for number in range(40))
    ends = {"start": np.array([0]), "end": np.array([16]), "axis": np.array([1])}
    stays(rows_of(body + ROW_LAYER.replace("(d,", "(h40,"), **ends))


@pytest.mark.parametrize("weights", ["Stored (w, t)", "Pair (f, t)"])
def test_mending_again_changes_no_name(weights):
    body = f"d = Pair (x, a) v = {weights} product = Gemm (d, v)"
    once = mend(load_model(rows_of(body, t=0.03, f=normal(16, 16, seed=4)))).graph_model
    again = mend(load_model(to_proto(once))).graph_model
    assert to_proto(again) == to_proto(once)


@pytest.mark.parametrize(
    ("zero", "low", "high"),
    [
        (np.int8(0), -127, 127),
        (np.int8(0), 0, 63),
        (np.int8(0), 10, 50),
        (np.uint8(0), 0, 127),
        (np.uint8(64), 0, 127),
        (np.uint8(128), 1, 255),
    ],
)
def test_a_clip_of_integers_becomes_one_in_float(zero, low, high):
    """As Brevitas and torch.fake_quantize are exported."""
    body = "q = QuantizeLinear (x, a, z) c = Clip (q, low, high) d = DequantizeLinear (c, a, z)" + ROW_LAYER
    made = stays(rows_of(body, z=zero, low=zero.dtype.type(low), high=zero.dtype.type(high)))
    assert operators(made)[:3] == ["Clip", "QuantizeLinear", "DequantizeLinear"]


MANY = np.linspace(0.005, 0.02, 16, dtype=np.float32)

#: What may stand between the pair of weights and their layer.
MOVED_WEIGHTS = {
    "Identity": "Identity (v)",
    "Reshape": "Reshape (v, shape)",
    "Slice": "Slice (v, start, end, axis)",
    "Gather": "Gather <axis = 0> (v, order)",
    "Mul": "Mul (v, column)",
    "Transpose": "Transpose <perm = [0, 1]> (v)",
    "Div": "Div (v, three)",
}
ARRAYS = {
    "shape": np.array([16, 16]),
    "start": np.array([0]),
    "end": np.array([16]),
    "axis": np.array([0]),
    "order": np.random.default_rng(0).permutation(16),
    "column": np.linspace(0.5, 2, 16, dtype=np.float32).reshape(16, 1),
    "three": np.float32(3),
}


@pytest.mark.parametrize("operator", MOVED_WEIGHTS)
@pytest.mark.parametrize("pair", ["Stored <axis = 0> (w, m)", "Pair <axis = 0> (f, m)"])
def test_weights_are_moved_with_their_pair(operator, pair):
    body = f"d = Pair (x, a) v = {pair} u = {MOVED_WEIGHTS[operator]} product = Gemm <transB = 1> (d, u)"
    stays(rows_of(body, m=MANY, f=(WEIGHTS * MANY[:, None] * 1.2).astype(np.float32), **ARRAYS))


@pytest.mark.parametrize(
    ("made", "whole"),
    [
        ("Reshape (w, shape)", WEIGHTS.reshape(-1)),
        ("Transpose <perm = [1, 0]> (w)", WEIGHTS),
        ("Clip (w, low, high)", WEIGHTS),
        ("Cast <to = 3> (w)", WEIGHTS.astype(np.int64)),
    ],
)
def test_integers_that_nodes_make_of_constants_are_constants(made, whole):
    body = f"make = {made} d = Pair (x, a) v = DequantizeLinear (make, t, z) product = Gemm (d, v)"
    proto = rows_of(body, w=whole, shape=ARRAYS["shape"], low=np.int8(-127), high=np.int8(127), z=ZERO)
    assert [(one.rule, one.node) for one in lint(load_model(proto))] == [("computed-constant", "make")]
    stays(proto)


def test_scales_and_zero_points_that_nodes_make_of_constants_are_constants():
    body = """abs = Abs (f) largest = ReduceMax <axes = [0], keepdims = 0> (abs) div = Div (largest, steps)
        zero = Cast <to = 3> (zeros) one = Squeeze (a1, first)
        v = Pair <axis = 1> (f, div, zero) d = Pair (x, one, z) product = Gemm (d, v)"""
    constants = {"steps": 127.0, "zeros": np.zeros(16), "a1": [0.02], "first": np.array([0]), "z": ZERO}
    proto = rows_of(body, f=normal(16, 16), **constants)
    assert {(finding.rule, finding.node) for finding in lint(load_model(proto))} == {
        ("computed-constant", name) for name in ("abs", "largest", "div", "zero", "one")
    }
    stays(proto)


@pytest.mark.parametrize(
    ("scale", "zero", "opset"),
    [
        (0.02, np.uint8(128), 17),
        (0.004, np.uint8(128), 17),  # clips some weights
        (0.3, np.array(0, ml_dtypes.int4), 21),
        (0.2, np.array(8, ml_dtypes.uint4), 21),
        (0.001, np.array(3, ml_dtypes.int4), 21),
        (0.006, ZERO, 17),
    ],
)
def test_float_weights_are_what_their_pair_makes_of_them(scale, zero, opset):
    body = "d = Pair (x, a) v = Pair (f, t) product = Gemm (d, v)"
    stays(rows_of(body, opset, f=normal(16, 16), t=scale, v_z=zero))


@pytest.mark.parametrize(("axis", "scale"), [("<axis = 1>", MANY), ("", np.float32(0.01))])
def test_weights_that_are_integers_already(axis, scale):
    """As TensorRT's documentation has them: floats that hold integers, and a QuantizeLinear with scale 1."""
    body = f"""d = Pair (x, a) q = QuantizeLinear {axis} (f, ones, z) v = DequantizeLinear {axis} (q, m, z)
        product = Gemm (d, v)"""
    zero = np.zeros(scale.shape, np.int8)
    proto = rows_of(body, f=WEIGHTS.astype(np.float32), ones=np.ones_like(scale), z=zero, m=scale)
    assert lint(load_model(proto)) == []
    stays(proto)


@pytest.mark.parametrize("scale", [MANY, MANY[:1]])
def test_float_weights_that_lie_on_steps_are_quantized_again(scale):
    """As tf2onnx leaves them: it computes the pairs of weights."""
    proto = rows_of("d = Pair (x, a) product = Gemm (d, f)", f=(WEIGHTS * scale).astype(np.float32))
    assert rules(load_model(proto)) == ["one-sided"]
    stays(proto)


def test_a_scale_for_the_whole_tensor_stays_one():
    body = "d = Pair (x, a) v = Stored (w, t) u = Reshape (v, shape) product = Gemm (d, u)"
    made = stays(rows_of(body, w=WEIGHTS.reshape(1, 256), shape=ARRAYS["shape"]))
    assert (stored_like(made, 16)[0] == np.float32(0.01)).all()


def test_layers_in_the_models_own_functions_are_mended():
    body = """q = QuantizeLinear (x, step, zero) d = DequantizeLinear (q, step, zero)
        v = DequantizeLinear (w, scale, zero) y = Gemm (d, v)"""
    layer = function("layer", "x, step, zero, w, scale", "y", body)
    constants = {"step": np.float32(0.02), "zero": ZERO, "w": WEIGHTS, "scale": np.float32(0.01)}
    call = "[call] y = own.layer (x, step, zero, w, scale)"
    proto = parsed(ROWS, "float[N, 16] y", call, layer, domains=["own"], **constants)
    assert load_model(proto).is_quantized
    stays(proto)


@pytest.mark.parametrize(
    ("scale", "zero", "low", "high"),
    [
        (0.01, np.uint8(0), 0, 2.55),
        (0.01, np.uint8(37), -0.37, 2.18),
        (0.01, np.int8(100), -2.28, 0.27),
        (-0.01, ZERO, -1.27, 1.28),
    ],
)
@pytest.mark.parametrize("layer", [True, False])
def test_the_ends_of_a_pair_that_tensorrt_cannot_have_are_kept(scale, zero, low, high, layer):
    body = "pair = Pair (x, a) " + ("v = Stored (w, b) y = Gemm (pair, v)" if layer else "y = Neg (pair)")
    proto = rows_of(body, a=scale, b=1.0, w=np.eye(16, dtype=np.int8), pair_z=zero)
    mended = mend(load_model(proto))
    assert [(one.rule, one.node) for one in mended.changes] == [("steps", "pair_q")]
    assert ("steps", "pair_q") in [(one.rule, one.node) for one in lint(load_model(proto))]
    x = np.linspace(-9, 9, 32 * 16, dtype=np.float32).reshape(32, 16)
    wanted, found = (run(model, optimize=False, x=x) for model in (proto, to_proto(mended.graph_model)))
    assert np.ptp(wanted) == pytest.approx(high - low, rel=1e-3)
    # Half a step of the pair that was, and where a layer reads it half a step of the new one.
    assert np.abs(wanted - found).max() <= 0.005 + (0.0101 if layer else 0)
    outside = (x < low - 0.1) | (x > high + 0.1)
    assert np.abs(wanted - found)[outside].max() <= (0.0101 if layer else 1e-6)


def test_weights_along_another_axis_are_rounded_again_and_named():
    body = "d = Pair (x, a) v = Stored <axis = 0> (w, m) product = Gemm (d, v)"
    mended = mend(load_model(rows_of(body, m=MANY)))
    assert mended.quantized_nodes == ("product",)
    assert [(one.rule, one.node) for one in mended.changes] == [("weight-steps", "product")]
