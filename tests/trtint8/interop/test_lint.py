"""What is found in quantized models made elsewhere, and that mending agrees with it."""

import re

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from calibrators.errors import ModelError
from calibrators.host.session import open_session
from calibrators.tables.table import CalibrationTable
from tests.trtint8.interop.pairs_by_hand import ZERO, Pairs, build_rule, concat_of, model_of, rules
from tests.trtint8.onnx_models import function, parsed, tied
from trtint8 import build_int8_engine, quantize
from trtint8.interop.lint import lint, mend
from trtint8.interop.unquantize import extract_table, pair_ranges, quantized_nodes
from trtint8.models.model import load_model
from trtint8.models.serialization import to_proto


def computed(which):
    """A convolution behind a pair whose scale or zero point is computed from the input."""
    g = Pairs()
    mean = g.op("ReduceMax", ["x"], "largest", keepdims=0)
    scale, zero = g.constant(np.float32(0.1)), g.constant(np.int8(0))
    if which == "scale":
        scale = mean
    else:
        zero = g.op("Cast", [mean], "cast", to=3)
    quantized = g.op("QuantizeLinear", ["x", scale, zero], "q")
    return model_of(g, g.conv(g.op("DequantizeLinear", [quantized, scale, zero], "dq")))


def misfit():
    g = Pairs()
    weights = g.stored(np.ones((8, 4, 1, 1), np.int8), [0.1] * 8, name="w")  # along axis 1, the default
    return model_of(g, g.conv(g.quantize("x"), weights))


def blocks(scales=3):
    """Weights of four blocks, with a number of scales."""
    g = Pairs()
    weights = g.stored(np.ones((8, 2), np.int8), np.ones((scales, 2)), axis=0, block_size=2)
    proto = g.model({"x": ["N", 8]}, g.op("MatMul", [g.quantize("x"), weights], "product"))
    proto.opset_import[0].version, proto.ir_version = 21, 10
    return load_model(proto)


@pytest.mark.parametrize(
    ("model", "rule"),
    [
        (computed("scale"), "scale-computed"),
        (computed("zero point"), "scale-computed"),
        (misfit(), "axis"),
        (blocks(), "unmendable"),
    ],
)
def test_what_cannot_be_mended_is_found(model, rule):
    found = [finding for finding in lint(model) if not finding.mendable]
    assert {finding.rule for finding in found} == {rule}
    with pytest.raises(ModelError):
        mend(model)


def test_layers_whose_weights_lie_on_no_steps_stay_in_float():
    g = Pairs()
    model = model_of(g, g.op("Conv", [g.quantize("x"), g.weights(4, 4, 3, 3)], "conv", pads=[1] * 4))
    (finding,) = lint(model)
    assert (finding.rule, finding.node) == ("one-sided", "conv") and "'constant2'" in finding.message
    assert mend(model).quantized_nodes == () and mend(model).unquantized.kept_float == ["conv"]


def test_a_layer_whose_weights_have_no_elements_has_nothing_to_quantize():
    """As an adapter of rank 0 beside a layer; also in what mending writes."""
    g = Pairs()
    x = g.quantize("x")
    low = g.op("Conv", [x, g.constant(np.zeros((0, 4, 1, 1), np.float32))], "down")
    adapter = g.op("Conv", [low, g.constant(np.zeros((4, 0, 1, 1), np.float32))], "up")
    model = model_of(g, g.op("Add", [g.conv(x), adapter], "sum"))
    assert lint(model) == []


@pytest.mark.parametrize(
    "rule",
    [
        *("zero-point", "type", "bias-int32", "activation-per-channel", "scalar-constant"),
        *("pair-before-activation", "one-sided", "weight-axis", "concat-scales"),
        *("kernel-shape", "scale-shape"),
    ],
)
def test_each_rule_finds_its_case(rule):
    found = rules(model_of(*build_rule(rule)))
    assert set(found) - {"steps"} == {rule}


def without_zero_points(element_type=None):
    """A convolution of an activation whose pair has no zero point."""
    g = Pairs()
    scale = g.constant(np.float32(0.1))
    attributes = {} if element_type is None else {"output_dtype": element_type}
    quantized = g.op("QuantizeLinear", ["x", scale], "q", **attributes)
    model = g.model({"x": ["N", 4, 8, 8]}, g.conv(g.op("DequantizeLinear", [quantized, scale], "dq")))
    model.opset_import[0].version, model.ir_version = 21, 10
    return load_model(model)


def test_a_quantizer_may_name_its_type_without_a_zero_point():
    model = without_zero_points(TensorProto.INT8)
    assert rules(model) == []
    mended = mend(model)
    assert mended.unquantized.restored == [] and mended.unquantized.ranges == pytest.approx({"x": 12.7})
    (message,) = {finding.message for finding in lint(without_zero_points()) if finding.rule == "type"}
    assert "uint8" in message


def test_a_quantizer_to_floats_is_not_mended():
    model = without_zero_points(TensorProto.FLOAT8E4M3FN)
    found = [(one.rule, one.node, one.mendable) for one in lint(model)]
    assert found == [("type", "q", False), ("type", "dq", False)]
    with pytest.raises(ModelError, match=r"'q'.*float8e4m3fn"):
        mend(model)


def test_one_scale_per_block_of_weights():
    model = blocks(scales=4)
    (finding,) = lint(model)
    assert (finding.rule, finding.mendable) == ("block-scales", True) and " 2 " in finding.message
    assert rules(load_model(to_proto(mend(model).graph_model))) == []


def product(weights, *, turned=None, activations=("N", 3, 4), shaped=True):
    """A MatMul of an activation and quantized weights, which may be transposed behind their pair."""
    g = Pairs()
    x, y = g.quantize("x"), weights(g)
    if turned is not None:
        y = g.op("Transpose", [y], "turn", perm=turned)
    model = g.model({"x": list(activations)}, g.op("MatMul", [x, y], "product"))
    if not shaped:
        del model.graph.value_info[:]
    return load_model(model)


def stored(*shape, axis=None):
    scales = 0.1 if axis is None else [0.1] * shape[axis]
    attributes = {} if axis is None else {"axis": axis}
    return lambda g: g.stored(np.ones(shape, np.int8), scales, **attributes)


@pytest.mark.parametrize(
    ("shape", "axis"), [((4, 5), 1), ((4, 5), -1), ((4, 5), None), ((1, 4, 5), 2), ((3, 4, 5), -1)]
)
@pytest.mark.parametrize("shaped", [True, False])
def test_weights_of_products_have_scales_along_their_last_axis(shape, axis, shaped):
    activations = ("N", 3, 4) if shape[0] != 3 else (3, 2, 4)
    assert rules(product(stored(*shape, axis=axis), activations=activations, shaped=shaped)) == []


def zero_points_per_channel():
    g = Pairs()
    stored, scales, points = (
        g.constant(values)
        for values in (np.ones((4, 4, 1, 1), np.int8), np.full(4, 0.1, np.float32), np.int8([0, 3, 0, 1]))
    )
    return model_of(
        g, g.conv(g.quantize("x"), g.op("DequantizeLinear", [stored, scales, points], "w", axis=0))
    )


def grouped_transposed():
    g = Pairs()
    weights = g.stored(np.ones((4, 2, 1, 1), np.int8), [0.1, 0.2], "w", axis=1)
    return model_of(g, g.op("ConvTranspose", [g.quantize("x"), weights], "conv", group=2))


def weights_on_the_left():
    """TensorRT for RTX runs such a product in INT8 with one scale only, as its layer lists say."""
    g = Pairs()
    weights = g.stored(np.ones((3, 4), np.int8), [0.1] * 4, axis=1)
    return load_model(g.model({"x": [4, 5]}, g.op("MatMul", [weights, g.quantize("x")], "product")))


@pytest.mark.parametrize(
    ("model", "rule", "named"),
    [
        (zero_points_per_channel(), "zero-point", " 3,"),
        (grouped_transposed(), "weight-axis", "axis 1 .*one scale"),
        (weights_on_the_left(), "weight-axis", "axis 1 .*one scale"),
        (product(stored(4, 5, axis=0), shaped=False), "weight-axis", "axis 0 .* 1:"),
        (product(stored(5, 4, axis=1), turned=[1, 0]), "weight-axis", "axis 0 .* 1:"),
    ],
    ids=["zero points", "grouped", "left operand", "product", "transposed"],
)
def test_what_tensorrt_does_not_take_is_found_once(model, rule, named):
    (finding,) = lint(model)
    assert finding.rule == rule and re.search(named, finding.message)


def with_two_scales():
    g = Pairs()
    x = g.quantize("x")
    first = g.quantize(g.conv(x, name="a"), 0.1, name="a_part")
    second = g.quantize(g.conv(x, name="b"), 0.3, name="b_part")
    return model_of(g, g.conv(g.quantize(g.op("Add", [first, second], "add"), 0.3, name="sum"), name="last"))


def convolution(scale=0.1):
    g = Pairs()
    return model_of(g, g.conv(g.quantize("x", scale=scale)))


@pytest.mark.parametrize(
    "model",
    [
        convolution(),
        model_of(*concat_of(0.1, 0.1)),
        with_two_scales(),
        product(stored(5, 4, axis=0), turned=[1, 0]),
        product(lambda g: g.quantize(g.weights(4, 5), [0.1] * 5, name="w", axis=1)),
        load_model(to_proto(mend(weights_on_the_left()).graph_model)),
    ],
    ids=["Conv", "Concat", "an Add of two scales", "transposed weights", "float weights", "mended"],
)
def test_models_as_tensorrt_wants_them(model):
    assert rules(model) == []


def test_weights_far_beyond_their_range_lie_on_no_steps():
    model = product(lambda g: g.quantize(g.weights(4, 5), [1e-42] * 5, name="w", axis=1))
    assert rules(model) == ["weight-steps"]


def test_changes_that_are_made_were_found():
    g = Pairs()
    model = model_of(g, g.conv(g.quantize("x", 0.1, np.int8(3))))
    assert set(mend(model).changes) <= set(lint(model)) and mend(model).changes
    widened = mend(model_of(*concat_of(0.1, 0.21))).changes
    assert [(one.rule, one.node) for one in widened] == [("steps", "a_part_q")]
    assert mend(model_of(*concat_of(0.1, 0.1))).changes == ()


@pytest.mark.parametrize("scale", [0.0, np.inf, np.nan])
def test_scales_that_are_none_are_not_mended(scale):
    model = convolution(scale)
    assert "scale" in rules(model)
    with pytest.raises(ModelError, match="'q"):
        mend(model)


@pytest.mark.parametrize(
    "rule",
    [
        *("zero-point", "bias-int32", "scalar-constant", "pair-before-activation", "weight-axis"),
        *("kernel-shape", "scale-shape"),
    ],
)
def test_mended_models_have_nothing_left(rule):
    mended = mend(model_of(*build_rule(rule)))
    assert mended.quantized_nodes == ("conv",) and repr(mended) == "<Mended: 1 node in INT8>"
    assert rules(load_model(to_proto(mended.graph_model))) == []


def test_what_was_float_stays_float():
    g = Pairs()
    first = g.conv(g.quantize("x"), name="first")
    second = g.op("Conv", [first, g.weights(4, 4, 1, 1)], "second")
    mended = mend(model_of(g, second))
    assert mended.quantized_nodes == ("first",)
    assert mended.unquantized.kept_float == ["second"]


def test_ranges_become_as_wide_as_their_wider_side_and_symmetric_scales_stay_exactly():
    g = Pairs()
    mended = mend(model_of(g, g.conv(g.quantize("x", scale=0.5, zero=np.int8(28)))))
    # int8 from -128 to 127 around 28: -78 to 49.5.
    assert mended.unquantized.ranges == {"x_clip": 78.0}
    assert extract_table(load_model(to_proto(mended.graph_model))).amax == pytest.approx({"x_clip": 78.0})
    symmetric = load_model(to_proto(mend(convolution(0.0123)).graph_model))
    assert extract_table(symmetric).scale("x") == np.float32(0.0123)


def test_a_relu_that_stood_in_a_quantizer_comes_back():
    g = Pairs()
    first = g.conv(g.quantize("x"), name="first")
    clamped = g.quantize(first, scale=0.1, zero=np.int8(-128), name="clamp")
    mended = mend(model_of(g, g.conv(clamped, name="second")))
    assert len(mended.unquantized.restored) == 1
    operators = [node.op_type for node in to_proto(mended.graph_model).graph.node]
    assert operators.count("Relu") == 1
    assert mended.unquantized.ranges[f"{first}_clip"] == pytest.approx(25.5)


def hard_swish(opset):
    """x * clip(x + 3, 0, 6) / 6 of a convolution, whose Clip was absorbed, before another convolution."""
    g = Pairs()
    weights = g.stored(np.eye(4, dtype=np.int8)[..., None, None], 1.0, "identity")
    x = g.quantize(g.conv(g.quantize("x", 0.05), weights, name="first"), 0.11, name="wide")
    gate = g.op("Add", [x, g.constant(np.float32(3))], "add")
    gate = g.quantize(gate, 6 / 255, np.int8(-128), name="gate")
    product = g.op("Mul", [g.op("Mul", [x, gate], "mul"), g.constant(np.float32(1 / 6))], "sixth")
    model = g.model({"x": ["N", 4, 8, 8]}, g.conv(g.quantize(product, 0.05, name="swish"), name="second"))
    model.opset_import[0].version = opset
    return model


@pytest.mark.parametrize("opset", [10, 17])
def test_a_clip_that_stood_in_a_quantizer_comes_back(opset):
    model = hard_swish(opset)
    mended = mend(load_model(model))
    assert mended.unquantized.restored == ["add_out_clip"]
    clip = next(node for node in mended.graph_model.graph if node.op_type == "Clip")
    assert [float(value.const_value.numpy()) for value in clip.inputs[1:]] == [0, 6]
    x = np.linspace(-6, 6, 256, dtype=np.float32).reshape(1, 4, 8, 8)
    wanted, found = (
        open_session(one.SerializeToString(), optimize=False).run(None, {"x": x})[0]
        for one in (model, to_proto(mended.graph_model))
    )
    # Rounding. Without the Clip results differ by up to 0.2.
    np.testing.assert_allclose(found, wanted, atol=0.02)


def test_a_quantized_tensor_that_an_identity_gives_out_keeps_its_pair():
    g = Pairs()
    relu = g.op("Relu", [g.conv(g.quantize("x", 0.05), name="first")], "relu")
    out = g.conv(g.quantize(relu, 0.1, name="mid"), name="second")
    proto = g.model({"x": ["N", 4, 8, 8]}, out)
    proto.graph.node.append(helper.make_node("Identity", [relu], ["feature"], name="identity"))
    proto.graph.output.append(helper.make_tensor_value_info("feature", TensorProto.FLOAT, None))
    mended = mend(load_model(proto))
    assert mended.quantized_nodes == ("first", "second")
    assert mended.unquantized.ranges == pytest.approx({"x": 6.35, "feature": 12.7})
    assert [value.name for value in mended.graph_model.graph.outputs] == [out, "feature"]


def test_weights_keep_their_values():
    g = Pairs()
    whole = np.arange(-127, 129, 17, dtype=np.int64)[:16].clip(-127, 127).astype(np.int8).reshape(4, 4, 1, 1)
    mended = to_proto(mend(model_of(g, g.conv(g.quantize("x"), g.stored(whole, 0.25)))).graph_model)
    values = [numpy_helper.to_array(t) for t in mended.graph.initializer if list(t.dims) == [4, 4, 1, 1]]
    assert np.array_equal(values[0], whole * np.float32(0.25))


def test_float_weights_behind_a_pair_stay_the_same_integers():
    """As quantization-aware training exports them, with scales that clip some weights."""
    g = Pairs()
    stored = g.constant(np.float32([[0.5, -8], [1, 2], [3, 4]]))
    pair = g.quantize(stored, [0.01, 0.02, 0.03], name="w", axis=0)
    turned = g.op("Transpose", [pair], "turn", perm=[1, 0])
    source = g.model({"x": ["N", 2]}, g.op("MatMul", [g.quantize("x"), turned], "product"))
    mended = to_proto(mend(load_model(source)).graph_model)
    x = np.float32([[1, 2], [3, -4]])
    np.testing.assert_array_equal(run_ort(mended, x), run_ort(source, x))


def test_weights_that_int8_cannot_hold_get_new_scales():
    g = Pairs()
    whole = np.resize(np.array([0, 100, 200, 254], np.uint8), (4, 4, 1, 1))
    mended = to_proto(mend(model_of(g, g.conv(g.quantize("x"), g.stored(whole, 0.25)))).graph_model)
    scales = [numpy_helper.to_array(t) for t in mended.graph.initializer if list(t.dims) == [4]]
    assert np.array_equal(scales[0], np.full(4, 0.5, np.float32))


def test_weights_with_few_values_beyond_int8_keep_their_steps():
    g = Pairs()
    steps = np.array([128, 64, 63, 65, 64, 63, 65, 64])  # int8 has no 128
    whole = (np.tile(steps[:, None], 4) + 127).astype(np.uint8)
    weights = g.op("DequantizeLinear", [*map(g.constant, (whole, np.float32(0.25), np.uint8(127)))], "w")
    model = model_of(g, g.op("MatMul", [g.quantize("x"), weights], "product"))
    assert {one.rule for one in lint(model)} == {"weight-steps", "zero-point", "type"}
    mended = to_proto(mend(model).graph_model)
    scales = [numpy_helper.to_array(one) for one in mended.graph.initializer if list(one.dims) == [4]]
    assert any(np.array_equal(one, np.full(4, 0.25, np.float32)) for one in scales)


def test_weights_that_are_read_along_two_axes_keep_a_pair_for_each():
    quantized = quantize(tied(), CalibrationTable({"x": 3.0, "relu_out": 9.0}))
    assert lint(load_model(quantized)) == []
    mended = to_proto(mend(load_model(quantized)).graph_model)
    x = np.random.default_rng(0).standard_normal((8, 16)).astype(np.float32)
    np.testing.assert_array_equal(run_ort(mended, x), run_ort(quantized, x))


def test_integers_of_the_caller_get_the_scale_of_their_concat():
    g = Pairs()
    given = g.op("DequantizeLinear", ["u", g.constant(np.float32(0.02)), g.constant(np.uint8(128))], "given")
    joined = g.op("Concat", [given, g.quantize("x", 0.1)], "joined", axis=1)
    proto = g.model({"x": ["N", 2, 8, 8]}, g.conv(joined))
    proto.graph.input.append(helper.make_tensor_value_info("u", TensorProto.UINT8, ["N", 2, 8, 8]))
    model = load_model(proto)
    assert [finding.node for finding in lint(model) if finding.rule == "steps"] == ["given"]
    assert set(pair_ranges(mend(model).graph_model).values()) == {127 * float(np.float32(0.1))}


def test_a_mended_concat_has_the_widest_scale():
    mended = load_model(to_proto(mend(model_of(*concat_of(0.1, 0.21))).graph_model))
    assert rules(mended) == []
    table = extract_table(mended)
    assert {table.scale(name) for name in ("a_out_clip", "b_out", "concat_out")} == {np.float32(0.21)}


def integer_operator():
    g = Pairs()
    zero = g.constant(np.uint8(0))
    whole = g.op("Cast", ["x"], "cast", to=onnx.TensorProto.UINT8)
    weights = g.constant(np.ones((4, 4, 1, 1), np.uint8))
    return g, g.op("Cast", [g.op("ConvInteger", [whole, weights, zero, zero], "conv")], "out", to=1)


def halves_that_differ():
    g = Pairs()
    scales = [g.constant(np.float32(scale)) for scale in (0.1, 0.2)]
    zero = g.constant(ZERO)
    quantized = g.op("QuantizeLinear", ["x", scales[0], zero], "q")
    return g, g.conv(g.op("DequantizeLinear", [quantized, scales[1], zero], "dq"))


def computed_on_integers():
    g = Pairs()
    scale, zero = g.constant(np.float32(0.1)), g.constant(ZERO)
    quantized = g.op("QuantizeLinear", ["x", scale, zero], "q")
    return g, g.op("DequantizeLinear", [g.op("Abs", [quantized], "abs"), scale, zero], "dq")


@pytest.mark.parametrize(
    ("build", "found", "named"),
    [
        (integer_operator, [("integer-operator", "conv")], "'conv'.*ConvInteger.*'out_out'"),
        (halves_that_differ, [("integer-data", "dq")], "'dq'.*'q'"),
        (computed_on_integers, [("integer-data", "abs"), ("integer-data", "dq")], "'abs'.*'q_out'"),
    ],
)
def test_integers_that_are_used_otherwise_are_told_and_not_mended(build, found, named):
    model = model_of(*build())
    assert [(one.rule, one.node, one.mendable) for one in lint(model)] == [(*one, False) for one in found]
    with pytest.raises(ModelError, match=named):
        mend(model)


def test_nodes_without_names_are_mended_too():
    g = Pairs()
    out = g.op("Conv", [g.conv(g.quantize("x")), g.weights(4, 4, 1, 1)], "second")
    for node in g.nodes:
        node.name = ""
    mended = mend(model_of(g, out))
    assert mended.quantized_nodes == ("Conv_conv_out",)


def run_ort(model, x):
    session = open_session(model.SerializeToString(), optimize=False)
    return session.run(None, {"x": x})[0]


def qlinear_conv(per_channel):
    g = Pairs()
    one = [g.constant(np.float32(0.05)), g.constant(np.int8(0))]
    count = (4,) if per_channel else ()
    scales = np.full(count, 0.02, np.float32)
    weights = np.random.default_rng(0).integers(-127, 128, (4, 4, 3, 3)).astype(np.int8)
    stored = [g.constant(weights), g.constant(scales), g.constant(np.zeros(count, np.int8))]
    bias = g.constant(np.array([100, -200, 300, 0], np.int32))
    out = [g.constant(np.float32(0.7)), g.constant(np.int8(0))]
    quantized = g.op("QuantizeLinear", ["x", *one], "quantize")
    conv = g.op("QLinearConv", [quantized, *one, *stored, *out, bias], "conv", pads=[1] * 4)
    return g.model({"x": ["N", 4, 8, 8]}, g.op("DequantizeLinear", [conv, *out], "dequantize"))


def qlinear_matmul():
    g = Pairs()
    one, two, out = ([g.constant(np.float32(s)), g.constant(np.int8(0))] for s in (0.05, 0.02, 0.5))
    weights = np.random.default_rng(0).integers(-127, 128, (8, 3)).astype(np.int8)
    quantized = g.op("QuantizeLinear", ["x", *one], "quantize")
    product = g.op("QLinearMatMul", [quantized, *one, g.constant(weights), *two, *out], "matmul")
    return g.model({"x": ["N", 4, 8, 8]}, g.op("DequantizeLinear", [product, *out], "dequantize"))


@pytest.mark.parametrize("source", [qlinear_conv(False), qlinear_conv(True), qlinear_matmul()])
def test_qlinear_operators_become_pairs(source):
    model = load_model(source)
    assert rules(model) == ["qlinear"]
    mended = mend(model)
    assert len(mended.quantized_nodes) == 1
    proto = to_proto(mended.graph_model)
    assert rules(load_model(proto)) == []
    x = np.random.default_rng(1).uniform(-6, 6, (2, 4, 8, 8)).astype(np.float32)
    # The mended model leaves its output unquantized, so it may differ by half a step of the old output.
    step = 0.7 if "Conv" in str(source.graph.node) else 0.5
    limit = 127 * step
    ours, theirs = (np.clip(run_ort(one, x), -limit, limit) for one in (proto, source))
    difference = np.abs(ours - theirs)
    assert difference.max() <= step * 0.5001


def test_parameters_in_constant_nodes_are_read():
    stored = qlinear_conv(True)
    made = [helper.make_node("Constant", [], [one.name], value=one) for one in stored.graph.initializer]
    source = onnx.ModelProto()
    source.CopyFrom(stored)
    del source.graph.initializer[:], source.graph.node[:], source.graph.value_info[:]
    source.graph.node.extend([*made, *stored.graph.node])
    model = load_model(source)
    assert rules(model) == ["qlinear"]
    ours, theirs = (to_proto(mend(one).graph_model) for one in (model, load_model(stored)))
    x = np.random.default_rng(1).uniform(-6, 6, (2, 4, 8, 8)).astype(np.float32)
    assert np.array_equal(run_ort(ours, x), run_ort(theirs, x))


def attention_at_the_end(output_pair):
    """A quantized attention with a pair behind it, or without one, that nothing quantized reads."""
    g = Pairs()

    def heads(name, perm):
        weights = g.stored(np.ones((32, 32), np.int8), 0.01, f"{name}_w")
        linear = g.op("MatMul", [g.quantize("x", name=f"{name}_in"), weights], f"{name}_linear")
        cut = g.op("Reshape", [linear, g.constant(np.array([0, 0, 2, 16]))], f"{name}_cut")
        return g.quantize(g.op("Transpose", [cut], f"{name}_heads", perm=perm), name=name)

    scores = g.op("MatMul", [heads("q", [0, 2, 1, 3]), heads("k", [0, 2, 3, 1])], "scores")
    softmax = g.quantize(g.op("Softmax", [scores], "softmax", axis=-1), 1 / 127, name="p")
    context = g.op("MatMul", [softmax, heads("v", [0, 2, 1, 3])], "context")
    context = g.quantize(context, name="o") if output_pair else context
    return load_model(g.model({"x": ["N", 8, 32]}, g.op("Relu", [context], "relu")))


def test_an_attention_without_a_pair_behind_it_becomes_float_whole():
    linear = {"q_linear", "k_linear", "v_linear"}
    assert set(mend(attention_at_the_end(output_pair=True)).quantized_nodes) == {*linear, "scores", "context"}
    mended = mend(attention_at_the_end(output_pair=False))
    assert set(mended.quantized_nodes) == linear
    assert {one.node for one in mended.changes} == {"q_q", "k_q", "v_q", "p_q"}


def attention_with_guard(guarded, masked, zero):
    """A quantized attention and a product; PyTorch's guard against NaN stands before the softmax's pair."""
    g = Pairs()
    q, k, v = (g.quantize(name, name=f"{name}_pair") for name in ("q", "k", "v"))
    scores = g.op("MatMul", [q, k], "scores")
    if masked:
        shown = g.op("Cast", ["mask"], "shown", to=TensorProto.BOOL)
        hidden = g.op("Where", [shown, g.constant(np.float32(0)), g.constant(np.float32(-np.inf))], "hidden")
        scores = g.op("Add", [scores, hidden], "masked")
    softmax = guard = g.op("Softmax", [scores], "p", axis=-1)
    if guarded:
        guard = g.op("Where", [g.op("IsNaN", [softmax], "nan"), g.constant(np.float32(0)), softmax], "guard")
    steps = np.iinfo(zero.dtype).max
    context = g.op("MatMul", [g.quantize(guard, 1 / steps, zero, name="weight"), v], "context")
    weights = g.stored(np.arange(-128, 128, dtype=np.int8).reshape(16, 16), 0.01)
    last = g.op("MatMul", [g.quantize(context, name="o"), weights], "last")
    shapes = {"q": [1, 2, 4, 16], "k": [1, 2, 16, 4], "v": [1, 2, 4, 16]}
    return g.model(shapes | ({"mask": [1, 1, 4, 4]} if masked else {}), last)


@pytest.mark.parametrize("zero", [np.int8(0), np.uint8(0)])
@pytest.mark.parametrize(("guarded", "masked"), [(False, False), (True, False), (True, True)])
def test_an_attention_with_a_guard_against_nan_is_mended(guarded, masked, zero):
    model = attention_with_guard(guarded, masked, zero)
    mended = mend(load_model(model))
    assert mended.quantized_nodes == ("scores", "context", "last")
    assert mended.unquantized.restored == []
    assert mended.unquantized.ranges["p_out"] == pytest.approx(1)
    assert "guard_out" not in mended.unquantized.ranges
    random = np.random.default_rng(0)
    feed = {
        name: random.standard_normal(shape).astype(np.float32)
        for name, shape in (("q", (1, 2, 4, 16)), ("k", (1, 2, 16, 4)), ("v", (1, 2, 4, 16)))
    }
    if masked:
        feed["mask"] = np.tril(np.ones((1, 1, 4, 4), np.float32), -1)  # hides the whole first row
    wanted, found = (
        open_session(one.SerializeToString(), optimize=False).run(None, feed)[0]
        for one in (model, to_proto(mended.graph_model))
    )
    assert not masked or not wanted[:, :, 0].any()
    # uint8 has smaller steps than int8.
    np.testing.assert_allclose(found, wanted, atol=1e-5 if zero.dtype == np.int8 else 0.25)


def test_weights_that_are_transposed_behind_their_pair_stay_quantized():
    g = Pairs()
    weights = g.stored(np.arange(20, dtype=np.int8).reshape(5, 4) + 108, [0.1] * 5, axis=0)
    turned = g.op("Transpose", [weights], "turn", perm=[1, 0])
    model = load_model(g.model({"x": ["N", 4]}, g.op("MatMul", [g.quantize("x"), turned], "product")))
    mended = mend(model)
    assert mended.quantized_nodes == ("product",)
    assert mended.unquantized.kept_float == []


def test_a_mended_model_says_what_it_was_made_from():
    """Where it does; of others the float model is not known."""
    model = convolution(0.5)
    assert not mend(model).graph_model.metadata_props
    made_from = {
        "trtint8.float_model": "f" * 64,
        "trtint8.calibration_data": "d" * 64,
        "trtint8.calibration_samples": "500",
    }
    model.graph_model.metadata_props.update(made_from)
    assert mend(model).graph_model.metadata_props == made_from


#: What moves a convolution's output, by operator: its further inputs and its attributes.
MOVING = {
    "Concat": ((), {"axis": 0}),
    "Identity": ((), {}),
    "MaxPool": ((), {"kernel_shape": [2, 2], "strides": [2, 2]}),
    "Pad": ((np.array([0, 0, 1, 1, 0, 0, 1, 1]),), {}),
    "Reshape": ((np.array([0, 4, 4, 16]),), {}),
    "Slice": ((np.array([0]), np.array([4]), np.array([2])), {}),
}


def moved(operator):
    """A convolution, its pair, the operator, and a convolution that reads it without a pair of its own."""
    g = Pairs()
    pair = g.quantize(g.op("Relu", [g.conv(g.quantize("x"), name="first")], "relu"), 0.2, name="mid")
    constants, attributes = MOVING[operator]
    between = g.op(operator, [pair, *map(g.constant, constants)], "between", **attributes)
    return model_of(g, g.conv(between, name="second"))


@pytest.mark.parametrize("operator", sorted(MOVING))
def test_a_pair_is_read_through_operators_that_move_values(operator):
    model = moved(operator)
    assert lint(model) == []
    assert quantized_nodes(model.graph_model) == ("first", "second")
    assert mend(model).quantized_nodes == ("first", "second")


def test_a_resize_and_stored_weights_are_not_read_through():
    g = Pairs()
    scales = g.constant(np.array([1, 1, 2, 2], np.float32))
    resized = g.op("Resize", [g.quantize("x"), "", scales], "resize", mode="nearest")
    assert rules(model_of(g, g.conv(resized))) == ["one-sided"]
    g = Pairs()
    shape = g.constant(np.array([4, 4, 1, 1]))
    weights = g.op("Reshape", [g.stored(np.ones((16, 1, 1, 1), np.int8)), shape], "reshape")
    assert "one-sided" in rules(model_of(g, g.conv(g.quantize("x"), weights)))


@pytest.mark.slow
@pytest.mark.parametrize("operator", ["MaxPool", "Reshape"])
def test_what_is_read_through_runs_in_int8_before_and_after(operator, rtx, tmp_path):
    model = moved(operator)
    mend(model).save(tmp_path / "mended.onnx")
    for number, source in enumerate((to_proto(model.graph_model), tmp_path / "mended.onnx")):
        result = build_int8_engine(
            source,
            None,
            tmp_path / f"{number}.engine",
            target="rtx",
            compute_capabilities="8.6",
            progress=False,
        )
        inputs = {
            node: layer.inputs
            for layer in result.info.layers.layers
            for node in layer.onnx_nodes
            if layer.kind in ("correlation", "conv", "gemm")
        }
        assert result.info.float_nodes == () and inputs["second"][0] == "Int8"


def half_precision(opset):
    """A convolution in FP16 between inputs and outputs in FP16, with pairs.

    Before opset 19 these pairs are in FP32, and Casts stand around them.
    """
    g = Pairs()
    half, whole = {"to": TensorProto.FLOAT16}, {"to": TensorProto.FLOAT}
    if opset < 19:
        x = g.op("Cast", [g.quantize(g.op("Cast", ["x"], "wide", **whole), 0.05)], "narrow", **half)
        weights = g.op("Cast", [g.stored(np.ones((4, 4, 1, 1), np.int8), 0.01)], "narrow_w", **half)
    else:
        scale, zero = g.constant(np.float16(0.05)), g.constant(ZERO)
        x = g.op("DequantizeLinear", [g.op("QuantizeLinear", ["x", scale, zero], "q"), scale, zero], "dq")
        stored = g.constant(np.ones((4, 4, 1, 1), np.int8))
        weights = g.op("DequantizeLinear", [stored, g.constant(np.float16(0.01)), zero], "w")
    model = g.model({"x": ["N", 4, 8, 8]}, g.conv(x, weights))
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = TensorProto.FLOAT16
    model.opset_import[0].version = opset
    del model.graph.value_info[:]  # it says FP32
    return model


@pytest.mark.parametrize("opset", [17, 19])
def test_pairs_of_models_in_fp16_are_kept(opset):
    model = half_precision(opset)
    assert quantized_nodes(load_model(model).graph_model) == ("conv",)
    mended = mend(load_model(model))
    assert mended.quantized_nodes == ("conv",) and mended.filled == {}
    assert [round(amax, 3) for amax in mended.unquantized.ranges.values()] == [pytest.approx(6.35, abs=2e-3)]
    assert [node.op_type for node in mended.graph_model.graph].count(
        "Cast"
    ) == 2  # the input's and the output's
    x = np.random.default_rng(0).standard_normal((2, 4, 8, 8)).astype(np.float16)
    wanted, found = (
        open_session(one.SerializeToString(), optimize=False).run(None, {"x": x})[0]
        for one in (model, to_proto(mended.graph_model))
    )
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
    body = """[choice] y = If (keep) <then_branch = then () => (float[N, 4] t) { t = Relu (x) },
        else_branch = other () => (float[N, 4] e) {
            q = QuantizeLinear (x, s, z) e = DequantizeLinear (q, s, z) }>"""
    constants = {"s": np.float32(0.05), "z": ZERO}
    model = parsed("float[N, 4] x, bool keep", "float[N, 4] y", body, **constants)
    with pytest.raises(ModelError, match=r"'model'.* If 'choice'"):
        verb(load_model(model))


def test_integers_that_a_branch_reads_are_told_and_not_mended():
    g = Pairs()
    parameters = [g.constant(np.float32(0.1)), g.constant(np.uint8(128))]
    integers = g.op("QuantizeLinear", ["x", *parameters], "q")
    value = [helper.make_tensor_value_info("there", TensorProto.FLOAT, None)]
    nodes = [helper.make_node("DequantizeLinear", [integers, *parameters], ["there"], name="inside")]
    branch = helper.make_graph(nodes, "branch", [], value)
    chosen = g.op("If", [g.constant(np.bool_(True))], "choice", then_branch=branch, else_branch=branch)
    output = g.op("Add", [g.conv(g.op("DequantizeLinear", [integers, *parameters], "dq")), chosen], "sum")
    model = model_of(g, output)
    assert [(one.node, one.rule) for one in lint(model) if not one.mendable] == [("choice", "integer-data")]
    with pytest.raises(ModelError, match="choice"):
        mend(model)


@pytest.mark.parametrize("zero", [np.int8(0), np.uint8(128)])
def test_what_a_resize_writes_outside_is_clipped_as_it_was(zero):
    g = Pairs()
    region = g.constant(np.float32([0, 0, -0.5, -0.5, 1, 1, 1.5, 1.5]))
    sizes = g.constant(np.array([2, 4, 8, 8]))
    crop = {"coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": 9.0}
    wider = g.op("Resize", [g.op("Sigmoid", ["x"], "s"), region, "", sizes], "r", mode="linear", **crop)
    proto = g.model({"x": [2, 4, 6, 6]}, g.conv(g.quantize(wider, 0.02, zero=zero)))
    x = np.random.default_rng(0).normal(size=(2, 4, 6, 6)).astype(np.float32)
    stays(proto, inputs=[x])


def test_the_kernel_shape_of_computed_weights_is_no_finding():
    g = Pairs()
    weights = g.quantize(g.op("Reshape", ["x", g.constant(np.array([4, 4, 1, 1]))], "kernel"), name="w")
    image = g.constant(np.ones((1, 4, 5, 5), np.float32))
    expanded = g.quantize(g.op("Expand", [image, g.constant(np.array([1, 4, 5, 5]))], "e"))
    output = g.op("Conv", [expanded, weights], "conv", kernel_shape=None)
    assert "kernel-shape" not in rules(load_model(g.model({"x": [1, 16]}, output)))


@pytest.mark.parametrize(("dtype", "zero"), [(np.int8, 0), (np.int8, 9), (np.uint8, 128), (np.uint8, 0)])
def test_integers_that_the_caller_gives_may_be_moved_first(dtype, zero):
    g = Pairs()
    turned = g.op("Transpose", ["x"], "nchw", perm=[0, 3, 1, 2])
    x = g.op("DequantizeLinear", [turned, g.constant(np.float32(0.02)), g.constant(dtype(zero))], "in")
    weights = g.quantize(g.weights(4, 4, 1, 1), [0.01] * 4, name="w", axis=0)
    proto = g.model({"x": ["N", 5, 5, 4]}, g.conv(x, weights))
    del proto.graph.value_info[:]
    proto.graph.input[0].type.tensor_type.elem_type = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    ends = np.iinfo(dtype)
    given = np.random.default_rng(0).integers(ends.min, ends.max + 1, (2, 5, 5, 4)).astype(dtype)
    found = {finding.rule for finding in lint(load_model(proto))}
    assert "integer-data" in found and found <= {
        "integer-data",
        "type",
        "zero-point",
        "steps",
        "kernel-shape",
    }
    mended = mend(load_model(proto))
    assert mended.quantized_nodes == ("conv",)
    assert [value.dtype.numpy() for value in mended.graph_model.graph.inputs] == [dtype]
    if "steps" not in found:
        assert sqnr(run_ort(proto, given), run_ort(to_proto(mended.graph_model), given)) > 100


WEIGHTS = np.random.default_rng(1).integers(-127, 128, (16, 16)).astype(np.int8)
INSIDE, OUTSIDE = (np.random.default_rng(2).normal(0, size, (32, 16)).astype(np.float32) for size in (0.3, 9))


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
        assert sqnr(run_ort(proto, x), run_ort(made, x)) > 100
    assert mended.changes == () and lint(load_model(made)) == []
    return made


def mend_product(g, x, weights=None, **attributes):
    weights = weights or g.stored(WEIGHTS, 0.01, name="w")
    return g.op("Gemm", [x, weights], "product", **attributes)


def proto_of(g, output, opset=17):
    model = g.model({"x": ["N", 16]}, output)
    model.opset_import[0].version, model.ir_version = opset, 10
    return model


def with_clip(g, x, scale, zero, low, high):
    """A pair with a Clip of its integers, as Brevitas and torch.fake_quantize are exported."""
    parameters = [g.constant(np.float32(scale)), g.constant(zero)]
    ends = [g.constant(zero.dtype.type(end)) for end in (low, high)]
    clipped = g.op("Clip", [g.op("QuantizeLinear", [x, *parameters], "cq"), *ends], "ints")
    return g.op("DequantizeLinear", [clipped, *parameters], "cdq")


@pytest.mark.parametrize(("first", "second"), [(0.02, 0.005), (0.005, 0.02), (0.02, 0.015), (0.02, 0.02)])
def test_pairs_behind_one_another_compute_what_they_did(first, second):
    g = Pairs()
    x = g.quantize(g.quantize("x", first, name="one"), second, name="two")
    made = stays(proto_of(g, mend_product(g, x)))
    # Of two pairs with the same steps one is enough.
    assert [node.op_type for node in made.graph.node].count("QuantizeLinear") == (2 if first == second else 3)


def test_pairs_side_by_side_keep_their_ranges():
    g = Pairs()
    parts = [g.quantize("x", scale, name=f"at{scale}") for scale in (0.02, 0.005)]
    layers = [g.op("Gemm", [x, g.stored(WEIGHTS, 0.01, name=f"w{x}")], f"of_{x}") for x in parts]
    stays(proto_of(g, g.op("Add", layers, "sum")), int8=2)


@pytest.mark.parametrize("zero", [np.int8(0), np.uint8(128)])
def test_constants_that_are_joined_with_activations_keep_their_pair(zero):
    g = Pairs()
    token = g.constant(np.random.default_rng(3).normal(size=(8, 16)).astype(np.float32))
    parts = [g.quantize("x", 0.02, zero=zero), g.quantize(token, 0.02, zero=zero, name="token")]
    proto = proto_of(g, mend_product(g, g.op("Concat", parts, "joined", axis=0)))
    stays(proto)


def joined(moved):
    """A layer that reads two pairs of other scales, joined."""
    g = Pairs()
    second = g.quantize(g.op("Neg", ["x"], "negative"), 0.05, name="second")
    second = (
        g.op("Identity", [g.op("Reshape", [second, g.constant([-1, 16])], "same")], "it") if moved else second
    )
    return proto_of(g, mend_product(g, g.op("Concat", [g.quantize("x", 0.02), second], "joined", axis=0)))


@pytest.mark.parametrize("moved", [False, True])
def test_joined_pairs_before_a_layer_get_one_scale_and_are_named(moved):
    proto = joined(moved)
    assert {(finding.rule, finding.node) for finding in lint(load_model(proto))} == {
        ("concat-scales", "joined"),
        ("steps", "q_q"),
    }
    made = mend(load_model(proto))
    assert made.quantized_nodes == ("product",)
    assert lint(load_model(to_proto(made.graph_model))) == []


def test_a_pair_that_is_placed_anew_gets_the_scale_of_the_one_beside_it():
    g = Pairs()
    fine = g.quantize("x", 1.6e-5, zero=np.int16(0), name="fine")  # its Clip is what both pairs read
    finest = g.quantize(g.op("Relu", [fine], "relu"), 2e-6, zero=np.int16(0), name="finest")
    joined = g.op("Concat", [g.quantize(fine, 0.02, name="coarse"), finest], "joined", axis=0)
    proto = proto_of(g, mend_product(g, joined), opset=21)
    assert {finding.rule for finding in lint(load_model(proto))} >= {"steps", "concat-scales"}
    mended = mend(load_model(proto))
    assert mended.quantized_nodes == ("product",)
    assert lint(load_model(to_proto(mended.graph_model))) == []


@pytest.mark.slow
def test_joined_pairs_run_in_int8_once_they_have_one_scale(rtx, tmp_path):
    del rtx
    given = joined(False)
    for source, count in ((given, 0), (to_proto(mend(load_model(given)).graph_model), 1)):
        result = build_int8_engine(source, None, tmp_path / "m.engine", target="rtx", progress=False)
        assert result.info.int8_layers == (count, 1)


def test_joining_a_tensor_with_itself_again_and_again_takes_no_time():
    g = Pairs()
    x = g.quantize("x")
    for number in range(40):
        twice = g.op("Concat", [x, x], f"twice{number}", axis=1)
        ends = [g.constant(np.array([end])) for end in (0, 16, 1)]
        x = g.op("Slice", [twice, *ends], f"half{number}")
    stays(proto_of(g, mend_product(g, x)))


@pytest.mark.parametrize("stored", [False, True])
def test_mending_again_changes_no_name(stored):
    g = Pairs()
    floats = g.constant(np.random.default_rng(4).normal(size=(16, 16)).astype(np.float32))
    weights = None if stored else g.quantize(floats, 0.03, name="w")
    once = mend(load_model(proto_of(g, mend_product(g, g.quantize("x", 0.02), weights)))).graph_model
    again = mend(load_model(to_proto(once))).graph_model
    assert to_proto(again) == to_proto(once)


def test_what_else_reads_a_pair_reads_it_still():
    g = Pairs()
    x = g.quantize("x", 0.02)
    stays(proto_of(g, g.op("Add", [mend_product(g, x), x], "sum")))


def test_a_pair_at_the_output_stays():
    g = Pairs()
    stays(proto_of(g, g.quantize(mend_product(g, g.quantize("x", 0.02)), 0.05, name="end")))


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
    g = Pairs()
    made = stays(proto_of(g, mend_product(g, with_clip(g, "x", 0.02, zero, low, high))))
    assert [node.op_type for node in made.graph.node][:3] == ["Clip", "QuantizeLinear", "DequantizeLinear"]


MANY = np.linspace(0.005, 0.02, 16, dtype=np.float32)

#: What may stand between the pair of weights and their layer: constant inputs and attributes.
MOVED_WEIGHTS = {
    "Identity": ((), {}),
    "Reshape": ((np.array([16, 16]),), {}),
    "Slice": ((np.array([0]), np.array([16]), np.array([0])), {}),
    "Gather": ((np.random.default_rng(0).permutation(16),), {"axis": 0}),
    "Mul": ((np.linspace(0.5, 2, 16, dtype=np.float32).reshape(16, 1),), {}),
    "Transpose": ((), {"perm": [0, 1]}),
    "Div": ((np.float32(3),), {}),
}


@pytest.mark.parametrize("operator", sorted(MOVED_WEIGHTS))
@pytest.mark.parametrize("form", ["stored", "float"])
def test_weights_are_moved_with_their_pair(operator, form):
    g = Pairs()
    if form == "stored":
        pair = g.stored(WEIGHTS, MANY, axis=0)
    else:
        values = (WEIGHTS * MANY[:, None] * 1.2).astype(np.float32)
        pair = g.quantize(g.constant(values), MANY, name="w", axis=0)
    constants, attributes = MOVED_WEIGHTS[operator]
    moved = g.op(operator, [pair, *map(g.constant, constants)], "between", **attributes)
    stays(proto_of(g, mend_product(g, g.quantize("x", 0.02), moved, transB=1)))


#: What makes the integers of weights: constant inputs and attributes.
MADE_WEIGHTS = {
    "Reshape": ((WEIGHTS.reshape(-1), np.array([16, 16])), {}),
    "Transpose": ((WEIGHTS,), {"perm": [1, 0]}),
    "Clip": ((WEIGHTS, np.int8(-127), np.int8(127)), {}),
    "Cast": ((WEIGHTS.astype(np.int64),), {"to": TensorProto.INT8}),
}


@pytest.mark.parametrize("operator", MADE_WEIGHTS)
def test_integers_that_nodes_make_of_constants_are_constants(operator):
    g = Pairs()
    constants, attributes = MADE_WEIGHTS[operator]
    whole = g.op(operator, [*map(g.constant, constants)], "make", **attributes)
    weights = g.op("DequantizeLinear", [whole, g.constant(np.float32(0.01)), g.constant(ZERO)], "w")
    proto = proto_of(g, mend_product(g, g.quantize("x", 0.02), weights))
    assert [(one.rule, one.node) for one in lint(load_model(proto))] == [("computed-constant", "make")]
    stays(proto)


def test_scales_and_zero_points_that_nodes_make_of_constants_are_constants():
    g = Pairs()
    values = np.random.default_rng(0).normal(size=(16, 16)).astype(np.float32)
    stored = g.constant(values)
    largest = g.op("ReduceMax", [g.op("Abs", [stored], "abs")], "largest", axes=[0], keepdims=0)
    scale = g.op("Div", [largest, g.constant(np.float32(127))], "div")
    zero = g.op("Cast", [g.constant(np.zeros(16))], "zero", to=TensorProto.INT8)
    quantized = g.op("QuantizeLinear", [stored, scale, zero], "wq", axis=1)
    weights = g.op("DequantizeLinear", [quantized, scale, zero], "wdq", axis=1)
    one = g.op("Squeeze", [g.constant(np.float32([0.02])), g.constant(np.array([0]))], "one")
    point = g.constant(ZERO)
    x = g.op("QuantizeLinear", ["x", one, point], "xq")
    proto = proto_of(g, mend_product(g, g.op("DequantizeLinear", [x, one, point], "xdq"), weights))
    found = lint(load_model(proto))
    assert {(finding.rule, finding.node) for finding in found} == {
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
    g = Pairs()
    values = np.random.default_rng(0).normal(size=(16, 16)).astype(np.float32)
    weights = g.quantize(g.constant(values), scale, zero, name="w")
    stays(proto_of(g, mend_product(g, g.quantize("x", 0.02), weights), opset))


@pytest.mark.parametrize("many", [False, True])
def test_weights_that_are_integers_already(many):
    """As TensorRT's documentation has them: floats that hold integers, and a QuantizeLinear with scale 1."""
    g = Pairs()
    scale = MANY if many else np.float32(0.01)
    attributes = {"axis": 1} if many else {}
    zero = g.constant(np.zeros(scale.shape, np.int8))
    whole = g.constant(WEIGHTS.astype(np.float32))
    quantized = g.op("QuantizeLinear", [whole, g.constant(np.ones_like(scale)), zero], "wq", **attributes)
    weights = g.op("DequantizeLinear", [quantized, g.constant(scale), zero], "wdq", **attributes)
    proto = proto_of(g, mend_product(g, g.quantize("x", 0.02), weights))
    assert lint(load_model(proto)) == []
    stays(proto)


@pytest.mark.parametrize("scale", [MANY, MANY[:1]])
def test_float_weights_that_lie_on_steps_are_quantized_again(scale):
    """As tf2onnx leaves them: it computes the pairs of weights."""
    g = Pairs()
    weights = g.constant((WEIGHTS * scale).astype(np.float32))
    proto = proto_of(g, mend_product(g, g.quantize("x", 0.02), weights))
    assert rules(load_model(proto)) == ["one-sided"]
    stays(proto)


def test_a_scale_for_the_whole_tensor_stays_one():
    g = Pairs()
    shape = g.constant(np.array([16, 16]))
    stored = g.stored(WEIGHTS.reshape(1, 256), 0.01, name="w")
    made = stays(
        proto_of(g, mend_product(g, g.quantize("x", 0.02), g.op("Reshape", [stored, shape], "turn")))
    )
    scales = [numpy_helper.to_array(one) for one in made.graph.initializer if list(one.dims) == [16]]
    assert (scales[0] == np.float32(0.01)).all()


def test_layers_in_the_models_own_functions_are_mended():
    body = """q = QuantizeLinear (x, step, zero) d = DequantizeLinear (q, step, zero)
        v = DequantizeLinear (w, scale, zero) y = Gemm (d, v)"""
    layer = function("layer", "x, step, zero, w, scale", "y", body)
    constants = {"step": np.float32(0.02), "zero": ZERO, "w": WEIGHTS, "scale": np.float32(0.01)}
    call = "[call] y = own.layer (x, step, zero, w, scale)"
    proto = parsed("float[N, 16] x", "float[N, 16] y", call, layer, domains=["own"], **constants)
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
    g = Pairs()
    pair = g.quantize("x", scale, zero, name="pair")
    identity = g.stored(np.eye(16, dtype=np.int8), 1.0, name="eye")
    proto = proto_of(g, mend_product(g, pair, identity) if layer else g.op("Neg", [pair], "negative"))
    mended = mend(load_model(proto))
    assert [(one.rule, one.node) for one in mended.changes] == [("steps", "pair_q")]
    assert ("steps", "pair_q") in [(one.rule, one.node) for one in lint(load_model(proto))]
    x = np.linspace(-9, 9, 32 * 16, dtype=np.float32).reshape(32, 16)
    wanted, found = (run_ort(model, x) for model in (proto, to_proto(mended.graph_model)))
    assert np.ptp(wanted) == pytest.approx(high - low, rel=1e-3)
    # Half a step of the pair that was, and where a layer reads it half a step of the new one.
    assert np.abs(wanted - found).max() <= 0.005 + (0.0101 if layer else 0)
    outside = (x < low - 0.1) | (x > high + 0.1)
    assert np.abs(wanted - found)[outside].max() <= (0.0101 if layer else 1e-6)


def test_weights_along_another_axis_are_rounded_again_and_named():
    g = Pairs()
    weights = g.stored(WEIGHTS, MANY, axis=0)
    mended = mend(load_model(proto_of(g, mend_product(g, g.quantize("x", 0.02), weights))))
    assert mended.quantized_nodes == ("product",)
    assert [(one.rule, one.node) for one in mended.changes] == [("weight-steps", "product")]
