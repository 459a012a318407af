"""Networks to tune, and what they compute."""

import numpy as np

from calibrators.host.session import open_session
from tests.trtint8.onnx_models import Shaped
from trtint8.models.model import load_model, prepare
from trtint8.models.serialization import to_proto


def prepared(model):
    return prepare(load_model(model)).graph_model


def run(graph_model, feed, names=None):
    session = open_session(to_proto(graph_model).SerializeToString(), optimize=False)
    return session.run(names, feed)


def array(graph_model, node, index):
    """The constant that a node reads."""
    found = next(one for one in graph_model.graph if one.name == node)
    return found.inputs[index].const_value.numpy()


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def every_operator():
    """All weighted operators, with and without groups, strides, dilations and biases."""
    g = Shaped(quantized=False)
    x = g.op("Conv", ["x", g.weights(8, 4, 3, 2), g.weights(8)], "plain", pads=[1, 0, 1, 1], strides=[2, 1])
    x = g.op("Relu", [x], "relu")
    x = g.op("Conv", [x, g.weights(8, 4, 3, 3)], "grouped", group=2, auto_pad="SAME_LOWER", strides=[1, 2])
    x = g.op("Conv", [x, g.weights(8, 1, 3, 3), g.weights(8)], "depthwise", group=8, pads=[1] * 4)
    x = g.op(
        "ConvTranspose", [x, g.weights(8, 6, 3, 2), g.weights(6)], "up", strides=[2, 1], pads=[1, 0, 0, 1]
    )
    x = g.op(
        "ConvTranspose",
        [x, g.weights(6, 2, 2, 3)],
        "up_grouped",
        group=2,
        strides=[1, 2],
        dilations=[2, 1],
        output_padding=[0, 1],
        pads=[3, 0, 0, 0],
    )
    pooled = g.op("Flatten", [g.op("GlobalAveragePool", [x], "pool")], "flat")
    x = g.op("Gemm", [pooled, g.weights(5, 4), g.weights(5)], "gemm", transB=1, alpha=0.5, beta=2.0)
    x = g.op("Gemm", [x, g.weights(5, 6)], "gemm_plain")
    return g.model({"x": ["N", 4, 9, 8]}, g.op("MatMul", [x, g.weights(6, 3)], "matmul"))


def uneven():
    """Depthwise convolutions whose channels differ a thousandfold, which the next layer takes back."""
    random = np.random.default_rng(7)
    spread = np.geomspace(0.01, 10, 8).astype(np.float32)
    g = Shaped(quantized=False)

    def weights(*shape):
        return random.standard_normal(shape).astype(np.float32)

    x = g.op("Relu", [g.op("Conv", ["x", g.constant(weights(8, 3, 1, 1))], "first")], "relu0")
    deep = g.constant(weights(8, 1, 3, 3) * spread[:, None, None, None])
    x = g.op("Relu", [g.op("Conv", [x, deep], "deep", group=8, pads=[1] * 4)], "relu1")
    mixed = g.constant(weights(6, 8, 1, 1) / spread[None, :, None, None])
    x = g.op("Flatten", [g.op("GlobalAveragePool", [g.op("Conv", [x, mixed], "mixed")], "pool")], "flat")
    return g.model({"x": ["N", 3, 6, 6]}, x)


def picking():
    """A network whose second layer reads the samples whose largest value is positive: sometimes none."""
    g = Shaped(quantized=False)
    first = g.op("Gemm", ["x", g.constant(np.eye(4, dtype=np.float32))], "first")
    largest = g.op("ReduceMax", [first], "largest", axes=[1], keepdims=0)
    picked = g.op("Greater", [largest, g.constant(np.float32(0))], "picked")
    rows = g.op("Compress", [first, picked], "rows", axis=0)
    return g.model({"x": ["N", 4]}, g.op("Gemm", [rows, g.weights(4, 3), g.weights(3)], "second"))


OPERATORS = ("plain", "grouped", "depthwise", "up", "up_grouped", "gemm", "gemm_plain", "matmul")
