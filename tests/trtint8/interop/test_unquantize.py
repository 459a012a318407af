"""Q/DQ pairs in TensorRT's form: what stays, what is taken out, and which ends are kept."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from calibrators.errors import ModelError
from tests.trtint8.integer_models import operators, run
from tests.trtint8.interop.pairs_by_hand import Pairs, model_of
from trtint8.interop.unquantize import move_behind_activations, quantized_nodes, unquantize
from trtint8.models.model import load_model
from trtint8.models.serialization import to_proto


def unquantized(g, output):
    """A model whose pairs are in TensorRT's form, and what became of them."""
    model = model_of(g, output).graph_model.clone()
    said = unquantize(model)
    made = to_proto(model)
    onnx.checker.check_model(made)
    return made, said


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


def names(values):
    return [value.name for value in values]


def unquantized_of(g, first, second):
    proto = g.model({"x": ["N", 4, 8, 8]}, first)
    proto.graph.output.append(helper.make_tensor_value_info(second, TensorProto.FLOAT, None))
    model = load_model(proto).graph_model.clone()
    said = unquantize(model)
    onnx.checker.check_model(to_proto(model))
    return to_proto(model), said


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


PAIR = ["QuantizeLinear", "DequantizeLinear"]


def constants(model):
    return {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


def test_a_pair_in_tensorrts_form_stays_as_it_is_and_weights_become_their_values():
    g = Pairs()
    weights = g.stored(np.full((4, 4, 1, 1), 3, np.int8), 0.25, name="w")
    model, said = unquantized(g, g.conv(g.quantize("x", 0.5), weights))
    assert operators(model) == [*PAIR, "Conv"]
    conv = model.graph.node[-1]
    assert list(conv.input) == ["q_dq_out", "w_out_float"]
    assert (constants(model)["w_out_float"] == 0.75).all()
    assert said.ranges == said.lost == {} and said.restored == []


def weights_of(**pair):
    g = Pairs()
    weights = g.quantize(g.constant(np.float32([[-2, -0.6, 0.26], [0.6, 1, 3]])), name="w", **pair)
    product = g.op("MatMul", [g.quantize("x"), weights], "product")
    graph_model = load_model(g.model({"x": ["N", 2]}, product)).graph_model.clone()
    unquantize(graph_model)
    return constants(to_proto(graph_model))["w_dq_out_float"].tolist()


@pytest.mark.parametrize(
    ("scale", "zero", "wanted"),
    [
        (0.5, np.int8(0), [[-2, -0.5, 0.5], [0.5, 1, 3]]),
        (0.01, np.int8(0), [[-1.28, -0.6, 0.26], [0.6, 1, 1.27]]),
        (0.01, np.uint8(128), [[-1.28, -0.6, 0.26], [0.6, 1, 1.27]]),
        (0.01, np.int8(27), [[-1.55, -0.6, 0.26], [0.6, 1, 1]]),
        (0.25, np.uint8(0), [[0, 0, 0.25], [0.5, 1, 3]]),
        ([1, 0.1, 2], np.int8(0), [[-2, -0.6, 0], [1, 1, 4]]),
    ],
)
def test_float_weights_become_what_their_pair_represents(scale, zero, wanted):
    found = weights_of(scale=scale, zero=zero, axis=1)
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_a_pruned_channel_may_have_any_scale():
    g = Pairs()
    values = np.float32([[1, 0], [2, 0]])
    weights = g.quantize(g.constant(values), [1, 0], name="w", axis=1)
    model = load_model(g.model({"x": ["N", 2]}, g.op("MatMul", [g.quantize("x"), weights], "p")))
    graph_model = model.graph_model.clone()
    unquantize(graph_model)
    stored = constants(to_proto(graph_model))
    (weights,) = (stored[name] for name in to_proto(graph_model).graph.node[-1].input if name in stored)
    assert (weights == values).all()


def test_a_weighted_node_without_pairs_was_float():
    g = Pairs()
    first = g.conv(g.quantize("x"), name="first")
    out = g.op("Conv", [first, g.weights(4, 4, 1, 1)], "second")
    assert quantized_nodes(model_of(g, out).graph_model) == ("first",)


def pair_of(scale, zero, before=None, after=None):
    """A pair behind a convolution, or behind what follows one, and a Sigmoid, which reads it in float."""
    g = Pairs()
    x = g.conv(g.quantize("x"), name="first")
    x = g.op(before, [x], "before") if before else x
    model, said = unquantized(g, g.op("Sigmoid", [g.quantize(x, scale, zero, name="y")], "last"))
    found = [node for node in model.graph.node if node.op_type in ("Clip", "Relu") and node.name != "before"]
    ends = [float(constants(model)[name]) for node in found for name in node.input[1:] if name]
    pairs = operators(model).count("QuantizeLinear") - 1
    return [node.op_type for node in found], ends, pairs, said


@pytest.mark.parametrize(
    ("scale", "zero", "before", "restored", "ends", "pairs"),
    [
        (0.1, np.int8(0), None, [], [], 1),
        (0.1, np.uint8(128), None, [], [], 1),  # the same steps
        (0.1, np.uint8(0), None, ["Clip"], [0, 25.5], 0),
        (0.1, np.int8(-128), "Relu", ["Clip"], [25.5], 0),
        (0.1, np.uint8(100), None, ["Clip"], [-10, 15.5], 0),
        (0.1, np.int8(28), None, ["Clip"], [-15.6, 9.9], 0),
        (0.1, np.int16(0), "Tanh", [], [], 1),  # of 65536 steps those of a Tanh are enough
        (1 / 255, np.uint8(0), "Sigmoid", [], [], 0),
        (1 / 127, np.uint8(0), "Sigmoid", [], [], 1),
        (-0.1, np.int8(0), None, ["Clip"], [-12.7, 12.8], 0),
    ],
)
def test_what_becomes_of_a_pair(scale, zero, before, restored, ends, pairs):
    found = pair_of(scale, zero, before)
    assert found[0] == restored and found[2] == pairs
    assert found[1] == pytest.approx(ends, rel=1e-6)
    assert list(found[3].lost) == (["y_q"] if not pairs else [])


def clipped(low, high, before=None):
    """A pair with a Clip of its integers, as float movement leaves it: pairs on either side of a Clip."""
    g = Pairs()
    x = g.conv(g.quantize("x"), name="first")
    x = g.op(before, [x], "before") if before else x
    x = g.quantize(x, 0.1, name="one")
    ends = [g.constant(np.float32(end)) for end in (low, high)]
    x = g.quantize(g.op("Clip", [x, *ends], "clip"), 0.1, name="two")
    return operators(unquantized(g, g.conv(x, name="second"))[0])


def test_a_pair_whose_steps_are_repeated_behind_a_clip_is_left_out():
    assert clipped(-1, 2) == [*PAIR, "Conv", "Clip", *PAIR, "Conv"]
    # The Clip would give out what is between two steps.
    assert clipped(-1, 2.03) == [*PAIR, "Conv", *PAIR, "Clip", *PAIR, "Conv"]


def test_ends_of_one_scale_per_channel_are_kept():
    g = Pairs()
    pair = g.quantize("x", [0.1, 0.2, 0.3, 0.4], name="many", axis=1)
    model, said = unquantized(g, g.op("Sigmoid", [pair], "last"))
    assert operators(model) == ["Max", "Min", "Sigmoid"]
    low, high = (constants(model)[node.input[1]] for node in model.graph.node[:2])
    np.testing.assert_allclose(low.reshape(-1), [-12.8, -25.6, -38.4, -51.2], rtol=1e-6)
    np.testing.assert_allclose(high.reshape(-1), [12.7, 25.4, 38.1, 50.8], rtol=1e-6)
    assert low.shape == high.shape == (1, 4, 1, 1) and list(said.lost) == ["many_q"]


def test_a_pair_moves_behind_the_relu_that_reads_it():
    g = Pairs()
    x = g.quantize(g.conv(g.quantize("x"), name="first"), 0.2, name="mid")
    model = model_of(g, g.conv(g.op("Relu", [x], "relu"), name="second")).graph_model.clone()
    move_behind_activations(model)
    made = to_proto(model)
    onnx.checker.check_model(made)
    assert [node.name for node in made.graph.node if node.op_type not in ("DequantizeLinear",)] == [
        "q_q",
        "first",
        "relu",
        "mid_q",
        "second",
    ]


def edges(zero, scale=0.05):
    """A convolution between integers that the caller gives and gets."""
    g = Pairs()
    point = g.constant(zero)
    x = g.op("DequantizeLinear", ["x", g.constant(np.float32(scale)), point], "in")
    out = g.op("QuantizeLinear", [g.conv(x), g.constant(np.float32(0.3)), point], "out")
    proto = g.model({"x": ["N", 4, 8, 8]}, out)
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.elem_type = helper.np_dtype_to_tensor_dtype(zero.dtype)
    return proto


@pytest.mark.parametrize(
    ("zero", "lost"), [(np.int8(0), False), (np.uint8(128), False), (np.int8(3), True), (np.uint8(0), True)]
)
def test_integers_at_the_edges_of_the_model_stay(zero, lost):
    proto = edges(zero)
    model = load_model(proto).graph_model.clone()
    said = unquantize(model)
    made = to_proto(model)
    onnx.checker.check_model(made, full_check=True)
    if zero.dtype == np.int8 and not zero:
        assert operators(made) == ["DequantizeLinear", "Conv", "QuantizeLinear"]
    else:
        assert operators(made)[:3] == ["Cast", "Sub", "Mul"] and operators(made)[-1] == "Cast"
    assert bool(said.lost) is lost
    info = np.iinfo(zero.dtype)
    x = np.random.default_rng(0).integers(info.min, info.max + 1, (2, 4, 8, 8)).astype(zero.dtype)
    wanted, found = (run(one, x=x) for one in (proto, made))
    assert found.dtype == zero.dtype and np.array_equal(wanted, found)


def test_outputs_keep_their_names():
    g = Pairs()
    x = g.quantize("x", 0.5)
    model, _ = unquantized_of(g, g.conv(x), x)
    assert names(model.graph.input) == ["x"]
    assert names(model.graph.output) == ["conv_out", "q_dq_out"]
    g = Pairs()
    out = g.conv(g.quantize("x"))
    model, _ = unquantized_of(g, out, g.quantize(out, 0.5, np.uint8(7), name="last"))
    assert names(model.graph.output) == ["conv_out", "last_dq_out"]
    g = Pairs()
    model, said = unquantized(g, g.quantize(g.conv(g.quantize("x")), 0.5, np.uint8(7), name="last"))
    assert names(model.graph.output) == ["last_dq_out"]
    assert said.ranges == {"last_dq_out": 124}
