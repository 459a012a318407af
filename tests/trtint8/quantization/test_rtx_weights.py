"""Weights that are dequantized by one scale: the same numbers, which TensorRT for RTX stores as FP16."""

import itertools

import numpy as np
import onnx
import pytest

from calibrators.host.session import open_session
from calibrators.tables.table import CalibrationTable
from tests.sampling import sample
from tests.trtint8.onnx_models import Shaped
from trtint8.builder.build import Build
from trtint8.models.model import load_model, prepare
from trtint8.models.serialization import to_proto
from trtint8.quantization.float16 import to_float16
from trtint8.quantization.placement import placed_tensors
from trtint8.quantization.quantize import (
    QuantizeOptions,
    dequantize_by_one_scale,
    one_scale,
    quantize_graph,
    with_float16,
)
from trtint8.quantization.targets import TARGETS

LARGEST = 65504.0

#: The shape of a convolution's weights and its groups.
CONVOLUTIONS = {
    "plain": ((32, 32, 3, 3), 1),
    "grouped": ((32, 8, 3, 3), 4),
    "depthwise": ((32, 1, 3, 3), 32),
    "one output": ((1, 32, 3, 3), 1),
    "1-D": ((32, 32, 3), 1),
    "3-D": ((32, 32, 3, 3, 3), 1),
}
BUILDS = list(itertools.product(CONVOLUTIONS, ["8.0", "8.6", "8.9", "12.0"]))


@pytest.mark.parametrize("input_scale", [1e-3, 0.02, 0.5])
@pytest.mark.parametrize("shape", [(8, 3, 3, 3), (4, 512, 3, 3), (16, 1, 5, 5)])
def test_no_sum_can_leave_the_range_and_the_smallest_is_normal(shape, input_scale):
    random = np.random.default_rng(0)
    integers = random.integers(-127, 128, shape).astype(np.int8)
    scales = random.uniform(1e-4, 1e-2, shape[0]).astype(np.float16)
    scale = one_scale(integers, scales, input_scale)
    largest = np.abs(integers.astype(int)).reshape(shape[0], -1).sum(axis=1).max() * 128
    assert scale == 2.0 ** round(np.log2(scale)) <= 1
    assert scale * input_scale * largest <= LARGEST < 2 * scale * input_scale * largest or scale == 1
    assert scale * input_scale >= np.finfo(np.float16).smallest_normal
    assert ((scales / np.float64(scale)).astype(np.float16) * np.float64(scale) == scales).all()


@pytest.mark.parametrize(
    ("integers", "scales", "input_scale"),
    [
        (np.zeros((2, 3), np.int8), [1, 1], 0.1),
        (np.ones((2, 3), np.int8), [0.1, 0.1], 1e-6),
        (np.full((2, 3), 127, np.int8), [6e4, 1], 1e4),
    ],
)
def test_weights_for_which_there_is_none(integers, scales, input_scale):
    assert one_scale(integers, np.array(scales, np.float16), input_scale) is None


def convolutions(bias=True, **attributes):
    """Conv, Relu, Conv; the last one's output is the model's."""
    g = Shaped()
    extra = [g.weights(8)] if bias else []
    spread = g.constant(
        g.random.standard_normal((8, 4, 3, 3)).astype(np.float32)
        * np.logspace(-3, 0, 8)[:, None, None, None].astype(np.float32)
    )
    x = g.Relu("relu", g.Conv("first", "x", spread, *extra, **attributes))
    return g.model({"x": ["N", 4, 8, 8]}, g.Conv("second", x, g.weights(8, 8, 3, 3), *extra))


def quantized(model, target="rtx", amax=3.0, float32_io=True, peaks=None):
    """The model in INT8 and FP16, for a target."""
    prepared = prepare(load_model(model))
    table = CalibrationTable(dict.fromkeys(placed_tensors(prepared.graph_model), amax))
    graph_model, _ = quantize_graph(prepared, table, QuantizeOptions(target=TARGETS[target]))
    typed, _ = with_float16(
        graph_model, TARGETS[target], float32_io=float32_io, peaks=peaks or {}, name="model"
    )
    return typed


def operators(graph_model):
    return [node.op_type for node in graph_model.graph if "Linear" not in node.op_type]


def test_the_form():
    graph_model = quantized(convolutions())
    assert operators(graph_model) == ["Conv", "Mul", "Add", "Relu", "Conv", "Mul", "Add", "Cast"]
    (conv, *_) = (node for node in graph_model.graph if node.name == "first")
    assert len(conv.inputs) == 2
    weights = conv.inputs[1].producer()
    assert (weights.op_type, weights.inputs[0].dtype.name, weights.inputs[1].shape) == (
        "DequantizeLinear",
        "INT8",
        (),
    )
    onnx.checker.check_model(to_proto(graph_model), full_check=True)


def test_a_convolution_without_bias_gets_no_add():
    assert operators(quantized(convolutions(bias=False))) == ["Conv", "Mul", "Relu", "Conv", "Mul", "Cast"]


def test_other_targets_keep_one_scale_per_channel():
    assert operators(quantized(convolutions(), "tensorrt-11")) == ["Conv", "Relu", "Conv", "Cast"]


@pytest.mark.parametrize("float32_io", [True, False])
def test_names_of_tensors_stay(float32_io):
    graph_model = quantized(convolutions(), float32_io=float32_io)
    (output,) = graph_model.graph.outputs
    assert output.name == "second_out"
    assert output.dtype.name == ("FLOAT" if float32_io else "FLOAT16")
    made = {value.name: node.op_type for node in graph_model.graph for value in node.outputs}
    assert made["first_out"] == "Add" and made["first_out_unscaled"] == "Conv"


def run(graph_model, x):
    session = open_session(to_proto(graph_model).SerializeToString(), optimize=False)
    return session.run(None, {"x": x})[0]


def test_it_computes_the_same():
    random = np.random.default_rng(0)
    x = random.standard_normal((4, 4, 8, 8)).astype(np.float32)
    model = convolutions()
    per_channel, by_one = (run(quantized(model, target), x) for target in ("tensorrt", "rtx"))
    error = np.abs(per_channel - by_one).max()
    assert 0 < error < 0.004 * np.abs(per_channel).max()


def test_the_largest_input_does_not_overflow():
    model = convolutions()
    weights = onnx.numpy_helper.to_array(model.graph.initializer[1])
    # Every product of one channel has the same sign, and the input saturates.
    x = np.zeros((1, 4, 8, 8), np.float32)
    x[0, :, 1:4, 1:4] = 100 * np.sign(weights[7])
    assert np.isfinite(run(quantized(model, amax=100.0), x)).all()


def test_a_tensor_near_the_end_of_fp16_stays_as_it_was():
    assert operators(quantized(convolutions(), peaks={"first_out": 4e4}))[:2] == ["Conv", "Relu"]


def test_shared_weights_are_stored_once():
    g = Shaped()
    weights = g.weights(4, 4, 3, 3)
    x = g.Relu("relu", g.Conv("first", "x", weights, pads=[1] * 4))
    graph_model = quantized(g.model({"x": ["N", 4, 8, 8]}, g.Conv("second", x, weights, pads=[1] * 4)))
    sources = {node.inputs[1].producer().name for node in graph_model.graph if node.op_type == "Conv"}
    assert len(sources) == 1
    assert len({node.name for node in graph_model.graph}) == len(graph_model.graph)


def test_what_is_no_int8_convolution_is_left():
    g = Shaped()
    kept = g.Conv("kept", "x", g.weights(4, 4, 3, 3))
    y = g.Conv("computed", kept, g.weights(4, 4, 3, 3), g.ReduceMean("mean", "x", axes=[0, 2, 3], keepdims=0))
    prepared = prepare(load_model(g.model({"x": [2, 4, 8, 8]}, y)))
    table = CalibrationTable({"x": 1.0, "kept_out": 1.0})
    graph_model, _ = quantize_graph(prepared, table, QuantizeOptions(["kept"]))
    typed, _ = to_float16(graph_model, float32_io=True, peaks=None, name="model")
    assert dequantize_by_one_scale(typed, {}) == ()
    assert dequantize_by_one_scale(graph_model, {}) == ()  # all of it is float32


@pytest.mark.slow
@pytest.mark.parametrize(("form", "capability"), sample(BUILDS, BUILDS[::5]))
def test_tensorrt_for_rtx_writes_fp16(rtx, form, capability):
    shape, groups = CONVOLUTIONS[form]
    g = Shaped()
    y = g.Relu("relu", g.Conv("conv", "x", g.weights(*shape), g.weights(shape[0]), group=groups))
    model = g.model({"x": [1, shape[1] * groups, *[8] * (len(shape) - 2)]}, y)
    outputs = {}
    for target in ("tensorrt", "rtx"):
        build = Build(rtx, load_model(model).inputs, compute_capabilities=[capability])
        built = build.run(to_proto(quantized(model, target)).SerializeToString(), int8=True)
        (layer,) = (layer for layer in built.report.layers if layer.kind == "correlation")
        assert (layer.inputs, layer.constants[:1]) == (("Int8",), ("Int8",))
        outputs[target] = layer.outputs
    assert outputs == {"tensorrt": ("Float",), "rtx": ("Half",)}
