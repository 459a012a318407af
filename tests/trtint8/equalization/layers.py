"""Networks of one layer or two."""

import numpy as np

from tests.trtint8.onnx_models import Shaped


def two_layers(uneven=100.0):
    """Two layers; of the first one's channels one is a hundred times larger, and little is read of it."""
    g = Shaped(quantized=False)
    scales = np.ones(8, np.float32)
    scales[3] = uneven
    first = g.constant(g.random.standard_normal((6, 8)).astype(np.float32) * scales)
    second = g.constant(g.random.standard_normal((8, 5)).astype(np.float32) / scales[:, None])
    x = g.op("Relu", [g.op("Gemm", ["x", first, g.weights(8)], "first")], "relu")
    return g.model({"x": ["N", 6]}, g.op("Gemm", [x, second], "second"))


def even():
    """Two layers whose channels are alike."""
    g = Shaped(quantized=False)
    first = np.tile(np.eye(6, dtype=np.float32), 10)
    second = g.random.choice([-1.0, -0.7, 0.7, 1.0], (60, 40)).astype(np.float32)
    x = g.op("MatMul", ["x", g.constant(first)], "first")
    return g.model({"x": ["N", 6]}, g.op("MatMul", [x, g.constant(second)], "second"))


def only_one_layer():
    g = Shaped(quantized=False)
    return g.model({"x": ["N", 6]}, g.op("MatMul", ["x", g.weights(6, 5)], "only"))
