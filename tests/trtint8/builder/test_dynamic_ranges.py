import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from calibrators.tensorrt.messages import shared_logger
from trtint8.builder.dynamic_ranges import (
    MissingRange,
    NetworkLayer,
    input_names,
    missing_ranges,
    propagate,
    read_layers,
    unknown_names,
)
from trtint8.data import DEMO_MODEL
from trtint8.models.model import load_model, prepare
from trtint8.models.serialization import runnable
from trtint8.quantization.quantize import tensor_names


def layer(kind, inputs, outputs, name=None, constant=None):
    return NetworkLayer(name or kind, kind, tuple(inputs), tuple(outputs), constant)


@pytest.mark.parametrize("kind", ["SHUFFLE", "SLICE", "GATHER", "POOLING", "IDENTITY", "SQUEEZE", "RELU"])
def test_ranges_pass_forward(kind):
    assert propagate([layer(kind, "a", "b")], {"a": 2.0}) == {"a": 2.0, "b": 2.0}


@pytest.mark.parametrize("kind", ["SHUFFLE", "IDENTITY", "UNSQUEEZE", "RELU"])
def test_some_pass_backward(kind):
    assert propagate([layer(kind, "a", "b")], {"b": 2.0}) == {"a": 2.0, "b": 2.0}


@pytest.mark.parametrize("kind", ["SLICE", "POOLING", "CONCATENATION", "CONVOLUTION", "SIGMOID"])
def test_others_do_not(kind):
    assert "a" not in propagate([layer(kind, "a", "b")], {"b": 2.0})


def test_concatenation_takes_the_widest():
    concatenation = layer("CONCATENATION", "ab", "c")
    assert propagate([concatenation], {"a": 1.0, "b": 3.0})["c"] == 3.0
    assert "c" not in propagate([concatenation], {"a": 1.0})


def test_bounded_functions_and_constants():
    layers = [layer("SOFTMAX", "a", "b"), layer("CONSTANT", "", "c", constant=7.0)]
    assert propagate(layers, {}) == {"b": 1.0, "c": 7.0}


def test_known_ranges_are_never_changed():
    layers = [layer("SHUFFLE", "a", "b"), layer("SOFTMAX", "b", "c")]
    assert propagate(layers, {"a": 5.0, "b": 2.0, "c": 0.5}) == {"a": 5.0, "b": 2.0, "c": 0.5}


def test_chains_in_any_order():
    layers = [layer("SHUFFLE", "c", "d"), layer("SHUFFLE", "b", "c"), layer("SHUFFLE", "a", "b")]
    assert propagate(layers, {"d": 4.0}) == dict.fromkeys("abcd", 4.0)
    assert propagate(layers, {"a": 4.0}) == dict.fromkeys("abcd", 4.0)


def test_a_product_before_its_bias():
    product, constant = layer("MATRIX_MULTIPLY", "ab", "p"), layer("CONSTANT", "", "c", constant=0.5)
    for inputs in ("pc", "cp"):
        layers = [product, constant, layer("SUM", inputs, "y")]
        assert propagate(layers, {"y": 4.0}) == {"y": 4.0, "c": 0.5, "p": 4.5}
        assert propagate(layers, {"y": 4.0, "p": 3.0})["p"] == 3.0
    # Neither of a difference, nor of what no product has made.
    assert "p" not in propagate([product, constant, layer("SUB", "pc", "y")], {"y": 4.0})
    assert "a" not in propagate([constant, layer("SUM", "ac", "y")], {"y": 4.0})


def test_every_layer_of_the_demo_model_has_its_ranges(rtx):
    """Its last layer is a Gemm, which TensorRT parses into a product, unnamed in the model, and a sum."""
    trt = rtx.module
    builder = trt.Builder(shared_logger(trt))
    network = builder.create_network(0)
    parser = trt.OnnxParser(network, shared_logger(trt))
    prepared = prepare(load_model(DEMO_MODEL))
    with runnable(prepared.graph_model) as serialized:
        assert parser.parse(serialized)
    layers = read_layers(trt, network)
    known = propagate(layers, dict.fromkeys(tensor_names(prepared.graph_model), 2.0))
    assert missing_ranges(layers, input_names(trt, network), known) == ()
    bias = onnx.numpy_helper.to_array(
        next(value for value in onnx.load(DEMO_MODEL).graph.initializer if value.name == "fc.bias")
    )
    assert max(known.values()) == pytest.approx(2 + np.abs(bias).max())


def test_missing_ranges_name_their_makers():
    layers = [layer("CONVOLUTION", "a", "b", "conv1"), layer("RELU", "b", "c", "relu1")]
    assert missing_ranges(layers, ["a"], {"b": 1.0}) == (
        MissingRange("a", "input"),
        MissingRange("c", "relu1"),
    )
    assert unknown_names(layers, ["a"], ["a", "b", "x"]) == ["x"]


def test_reading_a_real_network(rtx):
    """TensorRT for RTX parses without a GPU; its network has everything but the ranges themselves."""
    weights = numpy_helper.from_array(np.full((4, 3, 1, 1), -0.5, np.float32), "w")
    shape = numpy_helper.from_array(np.array([0, -1]), "shape")
    offset = numpy_helper.from_array(np.array([[1.0, -3.0] * 32], np.float32), "offset")
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["x", "w"], ["c"], "conv"),
            helper.make_node("Relu", ["c"], ["r"], "relu"),
            helper.make_node("Reshape", ["r", "shape"], ["f"], "flatten"),
            helper.make_node("Add", ["f", "offset"], ["y"], "add"),
        ],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 4, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 64])],
        [weights, shape, offset],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model)
    trt = rtx.module
    logger = shared_logger(trt)
    builder = trt.Builder(logger)
    network = builder.create_network(0)
    parser = trt.OnnxParser(network, logger)
    assert parser.parse(model.SerializeToString())
    layers = read_layers(trt, network)
    assert input_names(trt, network) == ("x",)
    assert {"CONVOLUTION", "RELU", "SHUFFLE", "CONSTANT", "SUM"} <= {found.kind for found in layers}
    known = propagate(layers, {"x": 1.0, "r": 2.0, "y": 5.0})
    assert known["c"] == known["f"] == 2.0
    assert 3.0 in known.values()  # the constant
    assert missing_ranges(layers, ["x"], known) == ()
    assert [m.tensor for m in missing_ranges(layers, ["x"], {"x": 1.0})][:2] == ["c", "r"]
