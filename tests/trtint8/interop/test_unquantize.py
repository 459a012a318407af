"""Q/DQ pairs in TensorRT's form: what stays, what is taken out, and which ends are kept."""

import math

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from calibrators.errors import ModelError
from calibrators.tables.table import CalibrationTable
from tests.behaviour.models import CASES
from tests.trtint8.integer_models import operators, run
from tests.trtint8.interop.pairs_by_hand import Pairs, model_of
from tests.trtint8.onnx_models import Graph, Shaped
from trtint8 import calibrate, quantize
from trtint8.data import DEMO_MODEL
from trtint8.interop.unquantize import (
    OPEN,
    Bounds,
    as_float_model,
    extract_table,
    move_behind_activations,
    quantized_nodes,
    unquantize,
)
from trtint8.models.model import load_model, prepare
from trtint8.models.serialization import to_proto
from trtint8.quantization.quantize import QuantizeOptions, quantized_model
from trtint8.quantization.targets import TARGETS


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


def test_every_scale_makes_the_round_trip(cache):
    table = CalibrationTable.load(cache)
    back = extract_table(load_model(quantize(DEMO_MODEL, table)))
    assert set(back.amax) <= set(table.amax)
    assert len(back.amax) == 9
    for name in back.amax:
        assert back.scale(name) == table.scale(name)


def test_a_model_with_two_ranges_for_one_tensor():
    g = Shaped()
    outs = []
    for index, scale in enumerate((0.1, 0.2)):
        pair = [g.constant(np.float32(scale)), g.constant(np.int8(0))]
        quantized = g.op("QuantizeLinear", ["x", *pair], f"q{index}")
        outs.append(g.op("DequantizeLinear", [quantized, *pair], f"d{index}"))
    model = g.model({"x": ["N", 4]}, g.op("Add", outs, "add"))
    with pytest.raises(
        ModelError, match=r"tensor 'x' of 'model' is quantized with two ranges, up to 12\.7 and"
    ):
        extract_table(load_model(model))


def test_scales_of_activations_in_the_graphs_order():
    g = Pairs()
    first = g.conv(g.quantize("x", 0.5), name="first")
    model = model_of(g, g.conv(g.quantize(first, 0.25, name="mid"), name="second"))
    table = extract_table(model)
    assert list(table.amax.items()) == [("x", 63.5), (first, 31.75)]
    assert table.scale("x") == np.float32(0.5)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"scale": [0.1, 0.2, 0.3, 0.4], "axis": 1}, "tensor 'x' has 4 scales"),
        ({"scale": -0.5}, "one positive scale"),
        ({"scale": np.inf}, "one positive scale"),
    ],
)
def test_a_scale_that_a_table_cannot_hold(options, words):
    g = Pairs()
    with pytest.raises(ModelError, match=words):
        extract_table(model_of(g, g.conv(g.quantize("x", **options))))


@pytest.mark.parametrize(
    ("zero", "wanted"), [(np.uint8(0), 127.5), (np.uint8(128), 63.5), (np.int8(28), 78.0)]
)
def test_the_range_of_an_activation_with_a_zero_point(zero, wanted):
    g = Pairs()
    assert extract_table(model_of(g, g.conv(g.quantize("x", 0.5, zero)))).amax == {"x": wanted}


def test_a_scale_that_nodes_make_of_constants():
    g = Pairs()
    scale = g.op("Div", [g.constant(np.float32(63.5)), g.constant(np.float32(127))], "div")
    zero = g.constant(np.int8(0))
    quantized = g.op("QuantizeLinear", ["x", scale, zero], "q")
    out = g.conv(g.op("DequantizeLinear", [quantized, scale, zero], "dq"))
    assert extract_table(model_of(g, out)).amax == {"x": 63.5}


def test_a_scale_that_is_computed_at_run_time():
    g = Pairs()
    scale = g.op("ReduceMax", ["x"], "max", keepdims=0)
    quantized = g.op("QuantizeLinear", ["x", scale, g.constant(np.int8(0))], "q")
    out = g.op("DequantizeLinear", [quantized, scale, g.constant(np.int8(0))], "dq")
    with pytest.raises(ModelError, match="the scale of tensor 'x' is computed at run time; a table needs a"):
        extract_table(model_of(g, out))


INFINITY = math.inf


def ends(g, output, **inputs):
    graph = load_model(g.model(inputs or {"x": ["N", 4, 8, 8]}, output)).graph_model.graph
    bounds = Bounds()
    for node in graph:
        bounds.follow(node)
    return bounds[graph.outputs[0]]


@pytest.mark.parametrize(
    ("operator", "wanted"),
    [
        ("Relu", (0, INFINITY)),
        ("Sigmoid", (0, 1)),
        ("Softmax", (0, 1)),
        ("Tanh", (-1, 1)),
        ("Hardmax", (0, 1)),
        ("Atan", (-math.pi / 2, math.pi / 2)),
        ("LogSoftmax", (-INFINITY, 0)),
        ("GlobalLpPool", (0, INFINITY)),
        ("Dropout", OPEN),
        ("Exp", (0, INFINITY)),
        ("Neg", OPEN),
        ("Selu", OPEN),
    ],
)
def test_functions_have_ends(operator, wanted):
    g = Graph()
    assert ends(g, g.op(operator, ["x"], "y")) == wanted


def clip(g, source, low, high, name="clip"):
    return g.op("Clip", [source, g.constant(np.float32(low)), g.constant(np.float32(high))], name)


def test_ends_go_through_what_moves_values():
    g = Graph()
    x = clip(g, "x", -1, 3)
    x = g.op("MaxPool", [x], "pool", kernel_shape=[2, 2])
    x = g.op("Concat", [x, g.op("Relu", [x], "relu"), clip(g, x, 2, 9, "narrow")], "concat", axis=1)
    x = g.op("Pad", [x, g.constant(np.array([0, 0, 1, 1, 0, 0, 1, 1]))], "pad")
    assert ends(g, g.op("GlobalAveragePool", [x], "average")) == (-1, 3)


def test_what_is_looked_up_outside_is_zero_and_means_of_all_have_no_zeros():
    grid = {"x": ["N", 4, 8, 8], "grid": ["N", 5, 5, 2]}
    for attributes, wanted in (({}, (0, 3)), ({"mode": "bicubic"}, OPEN)):
        g = Graph()
        sampled = g.op("GridSample", [clip(g, "x", 2, 3), "grid"], "sample", **attributes)
        assert ends(g, sampled, **grid) == wanted
    g = Graph()
    assert ends(g, g.op("ReduceMean", [clip(g, "x", 2, 3)], "mean")) == (2, 3)


def test_places_of_the_largest_values_have_no_ends_of_values():
    g = Graph()
    x = clip(g, "x", -1, 3)
    g.nodes.append(helper.make_node("TopK", [x, g.constant(np.array([2]))], ["values", "places"]))
    assert ends(g, "values") == (-1, 3)
    g = Graph()
    x = clip(g, "x", -1, 3)
    g.nodes.append(helper.make_node("TopK", [x, g.constant(np.array([2]))], ["values", "places"]))
    assert ends(g, g.op("Cast", ["places"], "y", to=TensorProto.FLOAT)) == OPEN


def test_paddings_are_zeros():
    g = Graph()
    x = clip(g, "x", 2, 3)
    assert ends(g, g.op("Pad", [x, g.constant(np.array([0, 0, 1, 1, 0, 0, 1, 1]))], "pad")) == (0, 3)
    g = Graph()
    pooled = g.op("AveragePool", [clip(g, "x", -3, -2)], "pool", kernel_shape=[2, 2], pads=[1] * 4)
    assert ends(g, pooled) == (-3, 0)


def test_sums_and_products():
    g = Graph()
    x = g.op("Sigmoid", ["x"], "gate")
    y = g.op("Add", [x, g.constant(np.float32([1, 3]).reshape(2, 1, 1, 1))], "add")
    assert ends(g, y) == (1, 4)
    g = Graph()
    x = g.op("Relu", ["x"], "relu")
    assert ends(g, g.op("Mul", [x, x], "mul")) == (0, INFINITY)
    g = Graph()
    assert ends(g, g.op("Mul", [g.op("Relu", ["x"], "relu"), "x"], "mul")) == OPEN


def test_a_cubic_resize_overshoots():
    for mode, wanted in (("linear", (0, 1)), ("cubic", OPEN)):
        g = Graph()
        scales = g.constant(np.float32([1, 1, 2, 2]))
        assert ends(g, g.op("Resize", [g.op("Sigmoid", ["x"], "s"), "", scales], "r", mode=mode)) == wanted


def test_a_resize_may_write_a_number_of_its_own_outside():
    g = Graph()
    region = g.constant(np.float32([0, 0, -0.5, -0.5, 1, 1, 1.5, 1.5]))
    sizes = g.constant(np.array([1, 2, 8, 8]))
    crop = {"coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": 9.0}
    assert ends(g, g.op("Resize", [g.op("Sigmoid", ["x"], "s"), region, "", sizes], "r", **crop)) == OPEN


def test_places_are_no_values():
    g = Graph()
    place = g.op("ArgMax", [g.op("Sigmoid", ["x"], "s")], "arg", axis=1)
    assert ends(g, g.op("Cast", [place], "cast", to=TensorProto.FLOAT)) == OPEN


def test_a_pair_has_ends():
    g = Graph()
    parameters = [g.constant(np.float32(0.5)), g.constant(np.uint8(10))]
    q = g.op("QuantizeLinear", ["x", *parameters], "q")
    assert ends(g, g.op("DequantizeLinear", [q, *parameters], "d")) == (-5, 122.5)


def test_constants_and_what_is_left_out():
    bounds = Bounds()
    assert bounds[None] == OPEN


@pytest.mark.parametrize("target", ["rtx", "tensorrt-10", "tensorrt-11"])
@pytest.mark.parametrize(
    "name", ["resnet", "squeeze_excite", "attention", "lstm", "half", "transposed", "loop"]
)
def test_the_float_model_behind_one_that_trtint8_quantized(name, target):
    case = CASES[name]
    model = case.network()
    table = calibrate(model, case.samples(), method="minmax", progress=False)
    prepared = prepare(load_model(model.SerializeToString()))
    typed = target != "tensorrt-10"
    everything = ("*",) if target == "rtx" else ()
    made = quantized_model(
        prepared, table, QuantizeOptions((), everything, TARGETS[target], typed, float32_io=typed)
    )
    found = as_float_model(load_model(to_proto(made.graph_model)))
    assert found.fingerprint == prepared.fingerprint
    for one, other in zip(found.graph_model.graph, prepared.graph_model.graph, strict=True):
        assert (one.op_type, [value.name for value in one.outputs]) == (
            other.op_type,
            [value.name for value in other.outputs],
        )
    again, direct = (quantized_model(one, table, QuantizeOptions()).placement for one in (found, prepared))
    assert again.quantized_nodes == direct.quantized_nodes
    assert again.tensors == direct.tensors
    feeds = {name: np.asarray(array)[:1] for name, array in case.samples().items()}
    exact, restored = (
        onnxruntime.InferenceSession(to_proto(one.graph_model).SerializeToString()).run(None, feeds)
        for one in (prepared, found)
    )
    for wanted, output in zip(exact, restored, strict=True):
        assert np.abs(output - wanted).max() <= 0.05 * np.abs(wanted).max()
