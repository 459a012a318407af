"""Models that cannot be read, and nodes that the parser refuses."""

import os

import numpy as np
import pytest

from calibrators.errors import BuildError, ModelError
from tests.trtint8.builder.building import build
from tests.trtint8.onnx_models import Graph, conv_relu_conv, save_external, specs
from trtint8.builder.build import build_engine


@pytest.mark.parametrize("damage", ["missing", "short"])
def test_external_data_that_is_not_there(rtx, tmp_path, damage):
    path = save_external(conv_relu_conv(), tmp_path)
    weights = tmp_path / "weights.bin"
    weights.unlink() if damage == "missing" else os.truncate(weights, 10)
    with pytest.raises(ModelError) as caught:
        build_engine(path, specs(conv_relu_conv()), flavor=rtx)
    assert str(caught.value) == (
        f"'{path}' keeps weights in '{weights}', which is missing or too short; put the whole file beside "
        f"the model, and give the model's path"
    )


def test_external_data_needs_a_path(rtx, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    path = save_external(conv_relu_conv(), tmp_path / "elsewhere")
    with pytest.raises(
        ModelError, match=r"^the model keeps weights in 'weights\.bin', .* give the model's path$"
    ):
        build_engine(path.read_bytes(), specs(conv_relu_conv()), flavor=rtx)


def test_empty_and_garbage_models(rtx, tmp_path):
    with pytest.raises(ModelError, match=r"^the model holds no nodes; give"):
        build_engine(b"", [], flavor=rtx)
    path = tmp_path / "empty.onnx"
    path.touch()
    with pytest.raises(ModelError, match=r"empty\.onnx' holds no nodes; give"):
        build_engine(path, [], flavor=rtx)
    with pytest.raises(
        ModelError, match=r"cannot read the model as an ONNX model: Failed to parse the ONNX model$"
    ):
        build_engine(b"garbage" * 100, [], flavor=rtx)


def unsupported(g):
    return {"x": ["N", 8]}, g.op("Foo", ["x"], "custom")


def qlinear(g):
    return {"x": ["N", 3, 8, 8]}, g.op("QLinearConv", ["x"] * 8, "integer")


def zero_point(g):
    return {"x": ["N", 8]}, g.op("Relu", [g.qdq("x", zero_point=3)], "relu")


def int32_bias(g):
    bias = [g.constant(np.zeros(16, np.int32)), g.constant(np.full(16, 0.1, np.float32))]
    bias = g.op("DequantizeLinear", bias, "bias_dq", axis=0)
    return {"x": ["N", 3, 8, 8]}, g.op("Conv", ["x", g.weights(16, 3, 3, 3), bias], "conv")


def shapes(g):
    return {"x": ["N", 8], "y": ["N", 9]}, g.op("Add", ["x", "y"], "sum")


NO_OPERATOR = "TensorRT does not support this operator; replace the node by operators that TensorRT has"


NO_INT32 = (
    "bias_dq: input has type Int32 but must have type FP8, FP4, Int4, Int8, or UInt8; leave the bias in float"
)


NO_ZERO_POINT = "Non-zero zero point is not supported; quantize symmetrically, with zero point 0"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (unsupported, f"node 'custom' (Foo) of the model: {NO_OPERATOR}"),
        (qlinear, f"node 'integer' (QLinearConv) of the model: {NO_OPERATOR}"),
        (zero_point, f"node 'x_0_q' (QuantizeLinear) of the model: {NO_ZERO_POINT}"),
        (int32_bias, f"node 'bias_dq' (DequantizeLinear) of the model: {NO_INT32}"),
        (shapes, "node 'sum' (Add) of the model: broadcast dimensions must be conformable"),
    ],
)
def test_refused_nodes(rtx, make, message):
    g = Graph()
    with pytest.raises(BuildError) as caught:
        build(g.model(*make(g)), rtx)
    assert str(caught.value) == f"{rtx} cannot take {message}"
