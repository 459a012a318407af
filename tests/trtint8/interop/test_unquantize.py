"""Q/DQ pairs taken out of a model, and what they said."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from calibrators.errors import ModelError
from tests.trtint8.integer_models import operators
from tests.trtint8.interop.pairs_by_hand import Pairs, model_of
from trtint8.interop.grids import parameters
from trtint8.interop.mend import mend
from trtint8.interop.unquantize import quantized_nodes, unquantize
from trtint8.models.model import load_model
from trtint8.models.serialization import to_proto


def unquantized(g, output):
    model = model_of(g, output).graph_model.clone()
    said = unquantize(model)
    return to_proto(model), said


def test_a_float_model_and_what_its_pairs_said():
    g = Pairs()
    weights = g.stored(np.full((4, 4, 1, 1), 3, np.int8), 0.25, name="w")
    model, said = unquantized(g, g.conv(g.quantize("x", 0.5), weights))
    assert operators(model) == ["Conv"]
    assert list(model.graph.node[0].input) == ["x", "w_out_float"]
    assert said.ranges == {"x": 63.5}
    scales, axis = said.weight_scales["w_out_float"]
    assert (scales.tolist(), axis) == ([0.25], None)
    assert said.kept_float == said.restored == []


def test_weights_along_an_axis_keep_their_scales():
    g = Pairs()
    scales = [0.1, 0.2, 0.3, 0.4]
    weights = g.stored(np.ones((4, 4, 1, 1), np.int8), scales, name="w", axis=0)
    _, said = unquantized(g, g.conv(g.quantize("x"), weights))
    found, axis = said.weight_scales["w_out_float"]
    assert (found.tolist(), axis) == (np.float32(scales).tolist(), 0)


def float_weights(scales, zero, axis):
    """A product of an input with weights of shape (2, 3), which are float before their pair."""
    g = Pairs()
    stored = g.constant(np.float32([[1, 2, 3], [4, 5, 6]]))
    weights = g.quantize(stored, scales, zero, name="w", axis=axis)
    model = load_model(g.model({"x": ["N", 2]}, g.op("MatMul", [g.quantize("x"), weights], "product")))
    return stored, unquantize(model.graph_model.clone())


@pytest.mark.parametrize("axis", [1, -1])
def test_float_weights_behind_a_pair_keep_its_scales(axis):
    stored, said = float_weights([0.01, 0.02, 0.03], np.int8(0), axis)
    scales, found = said.weight_scales[stored]
    assert (scales.tolist(), found) == (np.float32([0.01, 0.02, 0.03]).tolist(), 1)


def test_names_that_the_model_has_already_are_not_given_again():
    g = Pairs()
    conv = g.conv(g.quantize("x"))
    bounds = g.quantize(conv, 6 / 255, np.uint8(0), name="y")
    proto = g.model({"x": ["N", 4, 8, 8]}, bounds)
    for taken in ("conv_w_out_float", "conv_out_clip", "conv_out_clip_1_low"):
        proto.graph.initializer.append(helper.make_tensor(taken, TensorProto.FLOAT, [1], [0.0]))
        output = f"{taken}_read"
        proto.graph.node.append(helper.make_node("Neg", [taken], [output], name=output))
        proto.graph.output.append(helper.make_tensor_value_info(output, TensorProto.FLOAT, [1]))
    model = load_model(proto).graph_model.clone()
    unquantize(model)
    made = to_proto(model)
    onnx.checker.check_model(made)
    (conv,) = (node for node in made.graph.node if node.op_type == "Conv")
    (clip,) = (node for node in made.graph.node if node.op_type == "Clip")
    assert conv.input[1] == "conv_w_out_float_1"
    assert list(clip.input[1:]) == ["conv_out_clip_1_low_1", "conv_out_clip_1_high"]


def test_float_weights_behind_pairs_of_different_axes_keep_the_scales_of_both():
    """As of an encoder and a decoder that share their weights."""
    g = Pairs()
    stored = g.constant(np.arange(16, dtype=np.float32).reshape(4, 4) / 8)
    along = [[0.1, 0.2, 0.3, 0.4], [0.5, 0.6, 0.7, 0.8]]
    pairs = [
        g.quantize(stored, along[0], name="one", axis=1),
        g.quantize(stored, along[0], name="same", axis=1),
        g.quantize(stored, along[1], name="other", axis=0),
    ]
    x = g.quantize("x")
    for number, weights in enumerate(pairs[:2]):
        x = g.quantize(g.op("Gemm", [x, weights], f"gemm{number}"), name=f"q{number}")
    proto = g.model({"x": ["N", 4]}, g.op("Gemm", [x, pairs[2]], "last", transB=1))
    model = load_model(proto).graph_model.clone()
    said = unquantize(model)
    read = [node.inputs[1] for node in model.graph]
    assert [value.name for value in read] == [stored, stored, "other_dq_out_float"]
    assert np.array_equal(read[0].const_value.numpy(), read[2].const_value.numpy())
    found = {name: (scales.tolist(), axis) for name, (scales, axis) in said.weight_scales.items()}
    assert found == {
        stored: (np.float32(along[0]).tolist(), 1),
        "other_dq_out_float": (np.float32(along[1]).tolist(), 0),
    }
    mended = mend(load_model(proto))
    constants = {name: value.const_value for name, value in mended.graph_model.graph.initializers.items()}
    kept = [
        constants[node.inputs[1].name].numpy()
        for node in mended.graph_model.graph
        if node.op_type == "QuantizeLinear" and node.inputs[0].is_initializer()
    ]
    assert [scales.tolist() for scales in kept] == np.float32(along).tolist()


@pytest.mark.parametrize("zero", [np.int8(1), np.uint8(0)])
def test_float_weights_behind_a_pair_that_is_not_symmetric_int8_get_new_scales(zero):
    assert float_weights([0.01, 0.02, 0.03], zero, 1)[1].weight_scales == {}


def test_scales_that_do_not_fit_float_weights_are_refused():
    with pytest.raises(ModelError, match=r"3 scales along axis 0, .* of shape \[2, 3\]"):
        float_weights([0.01, 0.02, 0.03], np.int8(0), 0)


@pytest.mark.parametrize(
    ("scales", "perm", "wanted"),
    [([0.1] * 5, {"perm": [1, 0]}, 1), (0.1, {"perm": [1, 0]}, None), (0.1, {}, None)],
)
def test_scales_move_with_the_axes_of_what_is_transposed(scales, perm, wanted):
    g = Pairs()
    turned = g.op("Transpose", [g.stored(np.ones((5, 4), np.int8), scales, axis=0)], "turn", **perm)
    model = load_model(g.model({"x": ["N", 4]}, g.op("MatMul", [g.quantize("x"), turned], "product")))
    found, axis = unquantize(model.graph_model.clone()).weight_scales[turned]
    assert (found.tolist(), axis) == (np.float32(scales).reshape(-1).tolist(), wanted)


@pytest.mark.parametrize(
    ("whole", "kept"),
    [
        (np.array([-128, 127], np.int8), True),
        (np.array([0, 127], np.uint8), True),
        (np.array([0, 128], np.uint8), False),
        (np.array([-128, 127], np.int16), True),
        (np.array([-129, 0], np.int16), False),
    ],
)
def test_scales_are_kept_only_where_int8_holds_the_integers(whole, kept):
    g = Pairs()
    weights = g.stored(np.resize(whole, (4, 4, 1, 1)), 0.25, name="w")
    _, said = unquantized(g, g.conv(g.quantize("x"), weights))
    assert list(said.weight_scales) == ["w_out_float"] * kept


def test_a_weighted_node_without_pairs_was_float():
    g = Pairs()
    first = g.conv(g.quantize("x"), name="first")
    out = g.op("Conv", [first, g.weights(4, 4, 1, 1)], "second")
    model = model_of(g, out).graph_model
    assert quantized_nodes(model) == ("first",)
    assert unquantize(model.clone()).kept_float == ["second"]


@pytest.mark.parametrize(
    ("zero", "wanted"),
    [
        (np.int8(0), (-63.5, 63.5)),  # symmetric
        (np.int8(28), (-78.0, 49.5)),
        (np.int8(-128), (0.0, 127.5)),
        (np.uint8(0), (0.0, 127.5)),
        (np.uint8(128), (-64.0, 63.5)),
    ],
)
def test_what_a_quantizer_lets_through(zero, wanted):
    g = Pairs()
    model = model_of(g, g.conv(g.quantize("x", 0.5, zero)))
    quantize = next(node for node in model.graph_model.graph if node.op_type == "QuantizeLinear")
    assert quantizer_range(quantize) == wanted
    scale, point = parameters(quantize)
    assert (scale.tolist(), point.tolist()) == ([0.5], [int(zero)])


@pytest.mark.parametrize(
    ("attributes", "wanted"),
    [
        ({}, (0.0, 127.5)),
        ({"output_dtype": TensorProto.UINT8}, (0.0, 127.5)),
        ({"output_dtype": TensorProto.INT8}, (-63.5, 63.5)),
        ({"output_dtype": TensorProto.INT4}, (-4.0, 3.5)),
        ({"output_dtype": TensorProto.UINT16}, (0.0, 32767.5)),
    ],
)
def test_a_quantizer_without_a_zero_point_has_the_type_of_its_attribute(attributes, wanted):
    assert quantizer_range(quantizer_without_zero_point(**attributes)) == wanted


def test_a_quantizer_without_a_zero_point_to_floats_is_refused():
    with pytest.raises(ModelError, match="'q' quantizes to FLOAT8E4M3FN, which is no integer type"):
        quantizer_range(quantizer_without_zero_point(output_dtype=TensorProto.FLOAT8E4M3FN))


def quantizer_without_zero_point(**attributes):
    scale = ir.Value(name="s", const_value=ir.tensor(np.float32(0.5), name="s"))
    given = [ir.AttrInt64(name, value) for name, value in attributes.items()]
    return ir.Node("", "QuantizeLinear", [ir.Value(name="x"), scale], given, name="q")


def test_where_nothing_is_below_zero_anyway_no_relu_comes_back():
    g = Pairs()
    relu = g.op("Relu", [g.conv(g.quantize("x"), name="first")], "relu")
    pooled = g.op("GlobalAveragePool", [relu], "pool")
    clamped = g.quantize(pooled, 0.1, np.int8(-128), name="clamp")
    model, said = unquantized(g, g.conv(clamped, name="second"))
    assert operators(model).count("Relu") == 1
    assert said.restored == []
    assert said.ranges["pool_out"] == pytest.approx(25.5)


def test_an_output_keeps_its_name():
    g = Pairs()
    model, said = unquantized(g, g.quantize(g.conv(g.quantize("x")), 0.5, name="last"))
    assert [value.name for value in model.graph.output] == ["last_dq_out"]
    assert said.ranges["last_dq_out"] == 63.5


def names(values):
    return [value.name for value in values]


def test_an_output_that_is_a_dequantized_input_keeps_the_names_of_both():
    g = Pairs()
    x = g.quantize("x", 0.5)
    model, said = unquantized_of(g, g.conv(x), x)
    assert names(model.graph.input) == ["x"]
    assert names(model.graph.output) == ["conv_out", "q_dq_out"]
    assert said.ranges == {"x": 63.5}


def test_an_output_and_its_dequantized_form_are_two_outputs():
    g = Pairs()
    out = g.conv(g.quantize("x"))
    model, said = unquantized_of(g, out, g.quantize(out, 0.5, name="last"))
    assert names(model.graph.output) == ["conv_out", "last_dq_out"]
    assert operators(model) == ["Conv", "Identity"]
    assert said.ranges["conv_out"] == 63.5


def unquantized_of(g, first, second):
    proto = g.model({"x": ["N", 4, 8, 8]}, first)
    proto.graph.output.append(helper.make_tensor_value_info(second, TensorProto.FLOAT, None))
    model = load_model(proto).graph_model.clone()
    said = unquantize(model)
    onnx.checker.check_model(to_proto(model))
    return to_proto(model), said


def test_scales_of_blocks_are_not_kept():
    g = Pairs()
    blocks = g.stored(np.ones((4, 4, 1, 1), np.int8), np.ones((2, 4, 1, 1)), name="w", axis=0, block_size=2)
    proto = g.model({"x": ["N", 4, 8, 8]}, g.conv(g.quantize("x"), blocks))
    proto.opset_import[0].version, proto.ir_version = 21, 10
    assert unquantize(load_model(proto).graph_model.clone()).weight_scales == {}


def test_integers_that_no_quantizer_makes():
    g = Pairs()
    whole = g.op("Cast", ["x"], "cast", to=3)
    scale, zero = g.constant(np.float32(0.1)), g.constant(np.int8(0))
    with pytest.raises(ModelError, match="node 'dq' dequantizes 'cast_out', which no QuantizeLinear makes"):
        unquantized(g, g.op("DequantizeLinear", [whole, scale, zero], "dq"))


@pytest.mark.parametrize("axis", [9, -9, 1])
def test_scales_that_do_not_fit_the_axis_are_refused_by_the_name_of_the_tensor(axis):
    g = Pairs()
    weights = g.stored(np.ones((4, 3, 1, 1), np.int8), [0.1, 0.2, 0.3, 0.4], name="w", axis=axis)
    model = model_of(g, g.conv(g.quantize("x"), weights)).graph_model.clone()
    with pytest.raises(
        ModelError, match=rf"4 scales along axis {axis}, .* tensor '\w+' of shape \[4, 3, 1, 1\]"
    ):
        unquantize(model)


def dequantize_of(scales, zero_points):
    names = ("q", "s", "z")
    tensors = (np.zeros(1, np.int8), np.asarray(scales, np.float32), np.asarray(zero_points, np.int8))
    values = [
        ir.Value(name=name, const_value=ir.tensor(array, name=name))
        for name, array in zip(names, tensors, strict=True)
    ]
    return ir.Node("", "DequantizeLinear", values, name="d")


@pytest.mark.parametrize(("scales", "zeros"), [([0.1] * 4, [0] * 3), ([], []), ([0.1], [0, 0])])
def test_scales_and_zero_points_of_different_numbers(scales, zeros):
    with pytest.raises(
        ModelError, match=f"'d' has {len(scales)} scales in .* 's' and {len(zeros)} zero points"
    ):
        parameters(dequantize_of(scales, zeros))


def test_a_quantizer_to_floats_is_refused():
    values = [ir.Value(name="x")] + [
        ir.Value(name=name, type=ir.TensorType(ir.DataType.FLOAT), const_value=ir.tensor(array, name=name))
        for name, array in (("s", np.float32([0.1])), ("z", np.float32([0])))
    ]
    with pytest.raises(ModelError, match="'q' quantizes to FLOAT, which is no integer type"):
        quantizer_range(ir.Node("", "QuantizeLinear", values, name="q"))


def between(scale, zero, operator=None):
    """Two convolutions with a pair between, behind an operator or right behind the first convolution."""
    g = Pairs()
    x = g.conv(g.quantize("x", 0.11), name="first")
    x = g.op(operator, [x], "middle") if operator else x
    return unquantized(g, g.conv(g.quantize(x, scale, zero, name="pair"), name="second"))


@pytest.mark.parametrize(
    ("scale", "zero", "operator", "bounds"),
    [
        (6 / 255, np.int8(-128), "Clip", [0, 6]),
        (6 / 255, np.uint8(0), "Clip", [0, 6]),
        (2 / 255, np.uint8(128), "Clip", [-256 / 255, 254 / 255]),
        (2 / 255, np.int8(0), "Clip", [-254 / 255, 254 / 255]),
        (0.0253, np.int8(-128), "Relu", []),
        (0.0253, np.int8(0), None, []),
        (0.0253, np.uint8(100), None, []),
        (3 / 255, np.uint8(85), "Clip", [-1, 2]),
        (18 / 255, np.uint8(177), None, []),  # from -12.49
        (6.00001 / 255, np.uint8(0), "Relu", []),
    ],
)
def test_a_clip_comes_back_where_the_range_is_that_of_a_clip(scale, zero, operator, bounds):
    model, said = between(scale, zero)
    assert said.restored == ([] if operator is None else [f"first_out_{operator}"])
    assert operators(model) == ["Conv", *([operator] if operator else []), "Conv"]
    if operator:
        stored = {one.name: onnx.numpy_helper.to_array(one) for one in model.graph.initializer}
        found = [float(stored[name]) for name in model.graph.node[1].input[1:]]
        assert found == pytest.approx(bounds, rel=1e-6)


def test_no_clip_comes_back_where_bounds_are_given_already():
    assert between(2 / 255, np.uint8(128), "Tanh")[1].restored == []
    assert between(6 / 255, np.uint8(0), "Sigmoid")[1].restored == []
    # Images in [-1, 1].
    g = Pairs()
    assert unquantized(g, g.conv(g.quantize("x", 2 / 255, np.uint8(128))))[1].restored == []


def test_a_clip_comes_back_behind_what_is_never_negative():
    model, said = between(6 / 255, np.uint8(0), "Relu")
    assert operators(model) == ["Conv", "Relu", "Clip", "Conv"]
    assert said.restored == ["middle_out_Clip"]


@pytest.mark.parametrize(("scale", "zero"), [(6 / 255, np.uint8(0)), (2 / 255, np.uint8(128))])
def test_one_clip_comes_back_for_what_is_moved_between_pairs(scale, zero):
    g = Pairs()
    first = g.quantize(g.conv(g.quantize("x", 0.11), name="first"), scale, zero, name="before")
    pooled = g.op("MaxPool", [first], "pool", kernel_shape=[2, 2])
    _, said = unquantized(g, g.conv(g.quantize(pooled, scale, zero, name="behind"), name="second"))
    assert said.restored == ["first_out_Clip"]
