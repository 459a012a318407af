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
from tests.trtint8.interop.pairs_by_hand import CONV, LAYER, model_of, proto_of
from trtint8 import calibrate, quantize
from trtint8.data import DEMO_MODEL
from trtint8.interop.unquantize import (
    OPEN,
    Bounds,
    as_float_model,
    extract_table,
    move_behind_activations,
    unquantize,
)
from trtint8.models.model import load_model, prepare
from trtint8.models.serialization import to_proto
from trtint8.quantization.quantize import QuantizeOptions, quantized_model
from trtint8.quantization.targets import TARGETS


def unquantized(source):
    """A model whose pairs are in TensorRT's form, and what became of them."""
    model = load_model(source).graph_model.clone()
    said = unquantize(model)
    made = to_proto(model)
    onnx.checker.check_model(made, full_check=True)
    return made, said


def test_names_that_the_model_has_already_are_not_given_again():
    proto = proto_of(CONV + " y = Pair (conv, t)", t=6 / 255, y_z=np.uint8(0))
    for taken in ("v_float", "conv_clip", "conv_clip_1_low"):
        proto.graph.initializer.append(helper.make_tensor(taken, TensorProto.FLOAT, [1], [0.0]))
        output = f"{taken}_read"
        proto.graph.node.append(helper.make_node("Neg", [taken], [output], name=output))
        proto.graph.output.append(helper.make_tensor_value_info(output, TensorProto.FLOAT, [1]))
    nodes = {node.op_type: node for node in unquantized(proto)[0].graph.node}
    assert nodes["Conv"].input[1] == "v_float_1"
    assert list(nodes["Clip"].input[1:]) == ["conv_clip_1_low_1", "conv_clip_1_high"]


def names(values):
    return [value.name for value in values]


def test_integers_that_no_quantizer_makes():
    model = proto_of("c = Cast <to = 3> (x) d = DequantizeLinear (c, s, z)" + LAYER, z=np.int8(0))
    with pytest.raises(ModelError, match="node 'd' dequantizes 'c', which no QuantizeLinear makes"):
        unquantized(model)


PAIR = ["QuantizeLinear", "DequantizeLinear"]


def constants(model):
    return {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


def test_a_pair_in_tensorrts_form_stays_as_it_is_and_weights_become_their_values():
    model, said = unquantized(proto_of(CONV, w=np.full((4, 4, 1, 1), 3, np.int8), s=0.25))
    assert operators(model) == [*PAIR, "Conv"]
    assert list(model.graph.node[-1].input) == ["d", "v_float"]
    assert (constants(model)["v_float"] == 0.75).all()
    assert said.ranges == said.lost == {} and said.restored == []


FLOATS = [[-2, -0.6, 0.26], [0.6, 1, 3]]


@pytest.mark.parametrize(
    ("floats", "scale", "zero", "wanted"),
    [
        (FLOATS, 0.5, np.int8(0), [[-2, -0.5, 0.5], [0.5, 1, 3]]),
        (FLOATS, 0.01, np.int8(0), [[-1.28, -0.6, 0.26], [0.6, 1, 1.27]]),
        (FLOATS, 0.01, np.uint8(128), [[-1.28, -0.6, 0.26], [0.6, 1, 1.27]]),
        (FLOATS, 0.01, np.int8(27), [[-1.55, -0.6, 0.26], [0.6, 1, 1]]),
        (FLOATS, 0.25, np.uint8(0), [[0, 0, 0.25], [0.5, 1, 3]]),
        (FLOATS, [1, 0.1, 2], np.int8(0), [[-2, -0.6, 0], [1, 1, 4]]),
        ([[1, 0], [2, 0]], [1, 0], np.int8(0), [[1, 0], [2, 0]]),  # a pruned channel may have any scale
    ],
)
def test_float_weights_become_what_their_pair_represents(floats, scale, zero, wanted):
    body = "d = Pair (x, s) v = Pair <axis = 1> (f, t) product = MatMul (d, v)"
    model, _ = unquantized(proto_of(body, "float[N, 2] x", f=floats, t=scale, v_z=zero))
    found = constants(model)[model.graph.node[-1].input[1]]
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


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
    """Behind a convolution, or behind what follows one, and before a Sigmoid, which reads it in float."""
    body = f"before = {before} (conv) y = Pair (before, t)" if before else "y = Pair (conv, t)"
    model, said = unquantized(proto_of(f"{CONV} {body} last = Sigmoid (y)", opset=21, t=scale, y_z=zero))
    found = [node for node in model.graph.node if node.op_type in ("Clip", "Relu") and node.name != "before"]
    assert [node.op_type for node in found] == restored
    kept = [float(constants(model)[name]) for node in found for name in node.input[1:] if name]
    assert kept == pytest.approx(ends, rel=1e-6)
    assert operators(model).count("QuantizeLinear") - 1 == pairs
    assert list(said.lost) == (["y_q"] if not pairs else [])


def test_a_pair_whose_steps_are_repeated_behind_a_clip_is_left_out():
    """As float movement leaves it: pairs on either side of a Clip."""
    body = f"""{CONV} one = Pair (conv, s) clip = Clip (one, low, high) two = Pair (clip, s) u = Stored (w, s)
        second = Conv <kernel_shape = [1, 1]> (two, u)"""
    left_out, kept = (operators(unquantized(proto_of(body, low=-1.0, high=one))[0]) for one in (2.0, 2.03))
    assert left_out == [*PAIR, "Conv", "Clip", *PAIR, "Conv"]
    # The Clip would give out what is between two steps.
    assert kept == [*PAIR, "Conv", *PAIR, "Clip", *PAIR, "Conv"]


def test_ends_of_one_scale_per_channel_are_kept():
    body = "many = Pair <axis = 1> (x, p) last = Sigmoid (many)"
    model, said = unquantized(proto_of(body, p=[0.1, 0.2, 0.3, 0.4]))
    assert operators(model) == ["Max", "Min", "Sigmoid"]
    low, high = (constants(model)[node.input[1]] for node in model.graph.node[:2])
    np.testing.assert_allclose(low.reshape(-1), [-12.8, -25.6, -38.4, -51.2], rtol=1e-6)
    np.testing.assert_allclose(high.reshape(-1), [12.7, 25.4, 38.1, 50.8], rtol=1e-6)
    assert low.shape == high.shape == (1, 4, 1, 1) and list(said.lost) == ["many_q"]


def test_a_pair_moves_behind_the_relu_that_reads_it():
    body = f"""{CONV} mid = Pair (conv, s) relu = Relu (mid) u = Stored (w, s)
        second = Conv <kernel_shape = [1, 1]> (relu, u)"""
    model = model_of(body).graph_model.clone()
    move_behind_activations(model)
    made = to_proto(model)
    onnx.checker.check_model(made)
    left = [node.name for node in made.graph.node if node.op_type != "DequantizeLinear"]
    assert left == ["d_q", "conv", "relu", "mid_q", "second"]


@pytest.mark.parametrize(
    ("zero", "lost"), [(np.int8(0), False), (np.uint8(128), False), (np.int8(3), True), (np.uint8(0), True)]
)
def test_integers_at_the_edges_of_the_model_stay(zero, lost):
    body = f"d = DequantizeLinear (x, t, z) {LAYER} out = QuantizeLinear (conv, u, z)"
    proto = proto_of(body, f"{zero.dtype}[N, 4, 8, 8] x", t=0.05, u=0.3, z=zero)
    proto.graph.output[0].type.tensor_type.elem_type = helper.np_dtype_to_tensor_dtype(zero.dtype)
    made, said = unquantized(proto)
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
    last = CONV + " last = Pair (conv, t)"
    options = {"t": 0.5, "last_z": np.uint8(7)}
    model, _ = unquantized(proto_of(CONV, outputs=["d"]))
    assert names(model.graph.input) == ["x"]
    assert names(model.graph.output) == ["conv", "d"]
    model, _ = unquantized(proto_of(last, outputs=["conv"], **options))
    assert names(model.graph.output) == ["last", "conv"]
    model, said = unquantized(proto_of(last, **options))
    assert names(model.graph.output) == ["last"]
    assert said.ranges == {"last": 124}


def test_every_scale_makes_the_round_trip(cache):
    table = CalibrationTable.load(cache)
    back = extract_table(load_model(quantize(DEMO_MODEL, table)))
    assert set(back.amax) <= set(table.amax)
    assert len(back.amax) == 9
    for name in back.amax:
        assert back.scale(name) == table.scale(name)


def test_scales_of_activations_in_the_graphs_order():
    body = (
        "d = Pair (x, t) v = Stored (w, s) first = Conv <kernel_shape = [1, 1]> (d, v) mid = Pair (first, u)"
    )
    table = extract_table(model_of(body, t=0.5, u=0.25))
    assert list(table.amax.items()) == [("x", 63.5), ("first", 31.75)]
    assert table.scale("x") == np.float32(0.5)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("d = Pair <axis = 1> (x, p)", "tensor 'x' has 4 scales"),
        ("d = Pair (x, negative)", "one positive scale"),
        ("d = Pair (x, infinite)", "one positive scale"),
        (
            "m = ReduceMax <keepdims = 0> (x) d = Pair (x, m, z)",
            "the scale of tensor 'x' is computed at run ",
        ),
        (
            "d = Pair (x, s) e = Pair (x, t) sum = Add (d, e)",
            "'x' of 'model' .* two ranges, up to 12\\.7 and",
        ),
    ],
)
def test_a_scale_that_a_table_cannot_hold(body, words):
    scales = {"p": [0.1, 0.2, 0.3, 0.4], "negative": -0.5, "infinite": np.inf, "t": 0.2}
    with pytest.raises(ModelError, match=words):
        extract_table(model_of(body, z=np.int8(0), **scales))


def test_a_scale_that_nodes_make_of_constants():
    model = model_of("t = Div (a, b) d = Pair (x, t, z)" + LAYER, a=63.5, b=127.0, z=np.int8(0))
    assert extract_table(model).amax == {"x": 63.5}


INFINITY = math.inf

#: What stands between clipped values and the output, to the ends of the output. Pads write zeros; of what is
#: looked up outside some is zero, and means of all have no zeros.
BETWEEN = {
    """p = MaxPool <kernel_shape = [2, 2]> (c) r = Relu (p) n = Clip (p, two, nine)
    j = Concat <axis = 1> (p, r, n) k = Pad (j, pads) y = GlobalAveragePool (k)""": (-1, 3),
    "p = Clip (x, two, three) y = GridSample (p, grid)": (0, 3),
    """p = Clip (x, two, three) y = GridSample <mode = "bicubic"> (p, grid)""": OPEN,
    "p = Clip (x, two, three) y = ReduceMean (p)": (2, 3),
    "p = Clip (x, two, three) y = Pad (p, pads)": (0, 3),
    "p = Clip (x, low, minus) y = AveragePool <kernel_shape = [2, 2], pads = [1, 1, 1, 1]> (p)": (-3, 0),
    "values, places = TopK (c, number) y = Identity (values)": (-1, 3),
    "values, places = TopK (c, number) y = Cast <to = 1> (places)": OPEN,
    "p = ArgMax <axis = 1> (c) y = Cast <to = 1> (p)": OPEN,
    "g = Sigmoid (x) y = Add (g, several)": (1, 4),
    "r = Relu (x) y = Mul (r, r)": (0, INFINITY),
    "r = Relu (x) y = Mul (r, x)": OPEN,
    """g = Sigmoid (x) y = Resize <mode = "linear"> (g, "", scales)""": (0, 1),
    """g = Sigmoid (x) y = Resize <mode = "cubic"> (g, "", scales)""": OPEN,
    """g = Sigmoid (x) y = Resize <extrapolation_value = 9.0,
    coordinate_transformation_mode = "tf_crop_and_resize"> (g, region, "", sizes)""": OPEN,
    "y = Pair (x, half, ten)": (-5, 122.5),
    **{
        f"y = {operator} (x)": ends
        for operator, ends in {
            "Relu": (0, INFINITY),
            "Sigmoid": (0, 1),
            "Softmax": (0, 1),
            "Tanh": (-1, 1),
            "Hardmax": (0, 1),
            "Atan": (-math.pi / 2, math.pi / 2),
            "LogSoftmax": (-INFINITY, 0),
            "GlobalLpPool": (0, INFINITY),
            "Dropout": OPEN,
            "Exp": (0, INFINITY),
            "Neg": OPEN,
            "Selu": OPEN,
        }.items()
    },
}


@pytest.mark.parametrize("body", BETWEEN)
def test_values_have_ends(body):
    numbers = {"minus": -1.0, "two": 2.0, "three": 3.0, "nine": 9.0, "low": -3.0, "half": 0.5}
    arrays = {"scales": [1.0, 1, 2, 2], "region": [0.0, 0, -0.5, -0.5, 1, 1, 1.5, 1.5], "ten": np.uint8(10)}
    sizes = {"pads": [0, 0, 1, 1, 0, 0, 1, 1], "number": [2], "sizes": [1, 2, 8, 8]}
    arrays |= {name: np.array(value) for name, value in sizes.items()}
    arrays["several"] = np.float32([1, 3]).reshape(2, 1, 1, 1)
    clip = "c = Clip (x, minus, three) "
    inputs = "float[N, 4, 8, 8] x" + (", float[N, 5, 5, 2] grid" if "grid" in body else "")
    graph = model_of(clip + body, inputs, **numbers, **arrays).graph_model.graph
    bounds = Bounds()
    for node in graph:
        bounds.follow(node)
    assert bounds[graph.outputs[0]] == BETWEEN[body]
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
