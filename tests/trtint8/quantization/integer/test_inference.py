"""Integer inference: by hand, against plain loops, and against fake quantization in ONNX Runtime."""

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

from calibrators.data.batches import open_batches
from calibrators.data.preprocessing import Preprocessing
from calibrators.errors import ModelError
from calibrators.host.onnx_session import open_session
from tests.trtint8.onnx_models import Shaped
from trtint8 import calibrate, model_inputs, quantize
from trtint8.data import DEMO_MODEL, load_digits_split
from trtint8.quantization.integer.inference import compare_quantized, run_integer
from trtint8.quantization.integer.products import Window, convolve, convolve_transposed
from trtint8.quantization.integer.rounding import Rounding

RNG = np.random.default_rng(0)
NORMALIZED = Preprocessing(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))


def random_integers(*shape):
    return RNG.integers(-128, 128, shape)


# Sums of products, against ONNX Runtime in float64-exact small numbers.


def onnx_conv(operator, values, weights, **attributes):
    node = helper.make_node(operator, ["x", "w"], ["y"], **attributes)
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info(n, 1, a.shape) for n, a in (("x", values), ("w", weights))],
        [helper.make_empty_tensor_value_info("y")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    session = open_session(model.SerializeToString(), optimize=False)
    feeds = {"x": values.astype(np.float32), "w": weights.astype(np.float32)}
    return session.run(None, feeds)[0]


geometry = st.tuples(
    st.integers(1, 3), st.integers(1, 3), st.integers(1, 2), st.integers(0, 2), st.integers(0, 2)
)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(geometry, min_size=1, max_size=2), st.sampled_from([(1, 4, 6), (2, 4, 6), (4, 4, 8), (4, 4, 4)])
)
def test_convolutions_are_exact(axes, channels):
    groups, inputs, outputs = channels
    kernel, strides, dilations, before, after = zip(*axes, strict=True)
    values, weights = (
        random_integers(2, inputs, *[9] * len(axes)),
        random_integers(outputs, inputs // groups, *kernel),
    )
    window = Window(strides, dilations, (*before, *after))
    wanted = onnx_conv(
        "Conv", values, weights, strides=strides, dilations=dilations, pads=window.pads, group=groups
    )
    # Sums stay below 2^24, so ONNX Runtime's float32 is exact as well.
    assert np.array_equal(convolve(values, weights, window, groups), wanted)


@settings(max_examples=40, deadline=None)
@given(st.lists(geometry, min_size=1, max_size=2), st.sampled_from([(1, 4, 6), (2, 4, 6)]), st.booleans())
def test_transposed_convolutions_are_exact(axes, channels, more):
    groups, inputs, outputs = channels
    kernel, strides, dilations, before, after = zip(*axes, strict=True)
    extent = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    before = tuple(min(b, e - 1) for b, e in zip(before, extent, strict=True))
    after = tuple(min(a, e - 1) for a, e in zip(after, extent, strict=True))
    output_padding = tuple(int(more and s > 1) for s in strides)
    values, weights = (
        random_integers(2, inputs, *[5] * len(axes)),
        random_integers(inputs, outputs // groups, *kernel),
    )
    window = Window(strides, dilations, (*before, *after))
    wanted = onnx_conv(
        "ConvTranspose",
        values,
        weights,
        strides=strides,
        dilations=dilations,
        pads=window.pads,
        group=groups,
        output_padding=output_padding,
    )
    assert np.array_equal(convolve_transposed(values, weights, window, groups, output_padding), wanted)


def test_a_convolution_by_hand():
    values = np.array([[[1, 2, 3, -4]]])
    weights = np.array([[[1, 10]]])
    assert convolve(values, weights, Window((1,), (1,), (0, 0)), 1).tolist() == [[[21, 32, -37]]]
    assert convolve(values, weights, Window((2,), (1,), (1, 0)), 1).tolist() == [[[10, 32]]]
    assert convolve(values, weights, Window((1,), (2,), (0, 0)), 1).tolist() == [[[31, -38]]]


# Nodes, by hand.


def pair(g, tensor, scale, axis=None):
    scale = np.asarray(scale, np.float32)
    parameters = [g.constant(scale), g.constant(np.zeros(scale.shape, np.int8))]
    attributes = {} if axis is None else {"axis": axis}
    name = f"{tensor}_pair"
    quantized = g.op("QuantizeLinear", [tensor, *parameters], f"{name}_q", **attributes)
    return g.op("DequantizeLinear", [quantized, *parameters], f"{name}_dq", **attributes)


def linear(weights, bias, scale=0.5, weight_scale=0.25, rounding=Rounding.HALF_EVEN, x=((1.0, -2.0),)):
    g = Shaped()
    weight = g.constant(np.asarray(weights, np.float32))
    inputs = [
        pair(g, "x", scale),
        pair(g, weight, weight_scale, axis=None if np.ndim(weight_scale) == 0 else 0),
    ]
    inputs += [g.constant(np.asarray(bias, np.float32))] if bias is not None else []
    model = g.model({"x": ["N", 2]}, g.op("Gemm", inputs, "gemm", transB=1))
    return run_integer(model, {"x": np.asarray(x, np.float32)}, rounding=rounding)


def test_the_bias_is_added_after_dequantization():
    # x = [2, -4] * 0.5, w = [[4, 8], [-8, 0]] * 0.25; sums [-24, -16]; * 0.125 = [-3, -2]; + bias.
    run = linear([[1.0, 2.0], [-2.0, 0.0]], [0.1, 10.0])
    assert run.outputs["gemm_out"].tolist() == [[np.float32(-2.9), 8.0]]
    assert run.largest_sums == {"gemm": 24}
    assert run.quantized["x_pair_q_out"].tolist() == [[2, -4]]


def test_every_output_channel_has_its_own_scale():
    # w = [[4, 8] * 0.25, [-4, 0] * 0.5]; sums [-24, -8]; * [0.125, 0.25].
    run = linear([[1.0, 2.0], [-2.0, 0.0]], None, weight_scale=[0.25, 0.5])
    assert run.outputs["gemm_out"].tolist() == [[-3.0, -2.0]]


@pytest.mark.parametrize(
    ("rounding", "wanted"), [(Rounding.HALF_EVEN, [[2, -2]]), (Rounding.HALF_AWAY_FROM_ZERO, [[3, -3]])]
)
def test_ties_go_as_the_target_rounds(rounding, wanted):
    run = linear([[1.0, 2.0]], None, rounding=rounding, x=((1.25, -1.25),))
    assert run.quantized["x_pair_q_out"].tolist() == wanted


def test_overflow_of_the_accumulator():
    g = Shaped()
    count = 140_000  # 127 * 127 * 140,000 is above 2^31
    weights = g.constant(np.full((1, count), 127, np.float32))
    inputs = [pair(g, "x", 1.0), pair(g, weights, 1.0)]
    model = g.model({"x": ["N", count]}, g.op("Gemm", inputs, "wide", transB=1))
    with pytest.raises(ModelError, match="a sum in node 'wide' reaches 2258060000, which an accumulator"):
        run_integer(model, {"x": np.full((1, count), 127, np.float32)})


def test_matmul_of_two_activations_and_pooling_in_between():
    g = Shaped()
    pooled = g.op("MaxPool", [pair(g, "x", 0.5)], "pool", kernel_shape=[2, 2], strides=[2, 2])
    turned = g.op("Transpose", [pooled], "turn", perm=[0, 1, 3, 2])
    model = g.model(
        {"x": [1, 1, 4, 4]}, g.op("MatMul", [pair(g, pooled, 0.5), pair(g, turned, 0.5)], "matmul")
    )
    x = np.arange(16, dtype=np.float32).reshape(1, 1, 4, 4)
    run = run_integer(model, {"x": x})
    assert run.outputs["matmul_out"].tolist() == [[[[74.0, 170.0], [170.0, 394.0]]]]
    assert run.largest_sums == {"matmul": 4 * 394}


PLANE = np.array([[[[1.0, -2.0], [0.5, 0.3]]]], np.float32)  # [2, -4, 1, 1] * 0.5


@pytest.mark.parametrize(
    ("operator", "attributes", "wanted"),
    [
        ("GlobalAveragePool", {}, [[[[0.0]]]]),
        ("AveragePool", {"kernel_shape": [1, 2]}, [[[[-0.5], [0.5]]]]),
        ("MaxPool", {"kernel_shape": [2, 1]}, [[[[1.0, 0.5]]]]),
        ("Relu", {}, [[[[1.0, 0.0], [0.5, 0.5]]]]),
        ("Flatten", {}, [[1.0, -2.0, 0.5, 0.5]]),
    ],
)
def test_operators_on_integers(operator, attributes, wanted):
    g = Shaped()
    model = g.model({"x": [1, 1, 2, 2]}, g.op(operator, [pair(g, "x", 0.5)], "node", **attributes))
    assert run_integer(model, {"x": PLANE}).outputs["node_out"].tolist() == wanted


@pytest.mark.parametrize("second", [0.5, 0.25])
def test_sums_and_concatenations_of_one_scale_and_of_two(second):
    """At 0.5, 1.6 is 3 steps (1.5); at 0.25 it is 6 steps (1.5): the sums are the same, exactly."""
    for operator, wanted in (("Add", [[2.5, -0.5]]), ("Concat", [[1.0, -2.0, 1.5, 1.5]])):
        g = Shaped()
        inputs = [pair(g, "x", 0.5), pair(g, "z", second)]
        attributes = {"axis": 1} if operator == "Concat" else {}
        model = g.model({"x": ["N", 2], "z": ["N", 2]}, g.op(operator, inputs, "node", **attributes))
        feeds = {"x": np.array([[1.0, -2.0]], np.float32), "z": np.array([[1.6, 1.4]], np.float32)}
        assert run_integer(model, feeds).outputs["node_out"].tolist() == wanted


def test_an_average_of_integers_is_rounded_once():
    """Three values of 0.1 steps: the sum of 100 + 100 + 101 is exact before the scale touches it."""
    g = Shaped()
    model = g.model({"x": [1, 1, 3]}, g.op("GlobalAveragePool", [pair(g, "x", 0.1)], "node"))
    run = run_integer(model, {"x": np.array([[[10.0, 10.0, 10.1]]], np.float32)})
    assert run.outputs["node_out"].item() == np.float32(np.float64(301 / 3) * np.float32(0.1))


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER", "VALID"])
def test_automatic_pads(auto_pad):
    values, weights = random_integers(1, 2, 7, 8), random_integers(3, 2, 4, 3)
    wanted = onnx_conv("Conv", values, weights, auto_pad=auto_pad, strides=[2, 3])
    g = Shaped()
    weight = g.constant(weights.astype(np.float32))
    conv = g.op("Conv", [pair(g, "x", 1.0), pair(g, weight, 1.0)], "conv", auto_pad=auto_pad, strides=[2, 3])
    run = run_integer(g.model({"x": [1, 2, 7, 8]}, conv), {"x": values.astype(np.float32)})
    assert np.array_equal(run.outputs["conv_out"], wanted)


def test_agreement_is_measured():
    first = {
        "a": np.array([1, 2, 3, 4], np.int8),
        "b": np.array([0], np.int8),
        "only": np.array([1], np.int8),
    }
    second = {"a": np.array([1, 2, 4, 2], np.int8), "b": np.array([0], np.int8)}
    found = compare_quantized(first, second)
    assert [(a.tensor, a.largest, a.share) for a in found] == [("a", 2, 0.5), ("b", 0, 0.0)]


# Against fake quantization.


def simulated(model, feeds):
    """Every quantized tensor as ONNX Runtime computes it, without integer fusions."""
    watched = onnx.ModelProto()
    watched.CopyFrom(model)
    names = [node.output[0] for node in model.graph.node if node.op_type == "QuantizeLinear"]
    watched.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in names)
    session = open_session(watched.SerializeToString(), optimize=False)
    return dict(zip(names, session.run(names, feeds), strict=True))


def agreements(model, feeds):
    """Tensor by tensor with the simulation's own inputs, and with the differences that add up."""
    wanted = simulated(model, feeds)
    own = run_integer(model, feeds, follow=wanted)
    assert max(own.largest_sums.values()) < 2**31
    free = run_integer(model, feeds)
    return compare_quantized(own.quantized, wanted), compare_quantized(free.quantized, wanted)


def test_the_digits_model_agrees_to_one_step():
    images = load_digits_split().heldout_images[:100]
    table = calibrate(DEMO_MODEL, images, progress=False)
    own, free = agreements(quantize(DEMO_MODEL, table), {"images": images})
    assert len(own) == 18  # nine activations, nine weights
    assert own[0].largest <= 1
    # Only values within a rounding error of a tie can differ.
    assert max(one.share for one in own) < 1e-4
    assert free[0].largest <= 2


def test_resnet20_agrees_to_one_step():
    folder = Path(os.environ.get("TRTINT8_CIFAR10", "missing"))
    if not (folder / "resnet20.onnx").is_file():
        pytest.skip("the environment variable TRTINT8_CIFAR10 names no folder with resnet20.onnx")
    model, options = folder / "resnet20.onnx", {"preprocessing": NORMALIZED}
    table = calibrate(model, folder / "calibration.npz", limit=100, progress=False, **options)
    batches = open_batches(folder / "heldout.npz", model_inputs(model), batch_size=100, **options)
    own, _ = agreements(quantize(model, table), next(iter(batches)))
    assert own[0].largest <= 1
    assert max(one.share for one in own) < 1e-4
