"""Networks to tune, and what they compute."""

import numpy as np

from calibrators.host.session import open_session
from tests.trtint8.onnx_models import Shaped
from tests.trtint8.simulation.opened import parsed
from trtint8.models.model import load_model, prepare
from trtint8.models.serialization import to_proto
from trtint8.simulation.segments import cut


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
    text = (
        "plain = Conv <pads = [1, 0, 1, 1], strides = [2, 1]> (x, w1, b1) relu = Relu (plain) "
        'grouped = Conv <group = 2, auto_pad = "SAME_LOWER", strides = [1, 2]> (relu, w2) '
        "depthwise = Conv <group = 8, pads = [1, 1, 1, 1]> (grouped, w3, b3) "
        "up = ConvTranspose <strides = [2, 1], pads = [1, 0, 0, 1]> (depthwise, w4, b4) "
        "up_grouped = ConvTranspose <group = 2, strides = [1, 2], dilations = [2, 1], "
        "output_padding = [0, 1], pads = [3, 0, 0, 0]> (up, w5) "
        "pool = GlobalAveragePool (up_grouped) flat = Flatten (pool) "
        "gemm = Gemm <transB = 1, alpha = 0.5, beta = 2.0> (flat, w6, b6) gemm_plain = Gemm (gemm, w7) "
        "matmul = MatMul (gemm_plain, w8) where float[8, 4, 3, 2] w1, float[8] b1, float[8, 4, 3, 3] w2, "
        "float[8, 1, 3, 3] w3, float[8] b3, float[8, 6, 3, 2] w4, float[6] b4, float[6, 2, 2, 3] w5, "
        "float[5, 4] w6, float[5] b6, float[5, 6] w7, float[6, 3] w8"
    )
    return parsed("float[N, 4, 9, 8] x", text, "float[] matmul", scale=0.1)


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
    text = (
        "first = Gemm (x, eye) largest = ReduceMax <axes = [1], keepdims = 0> (first) "
        "picked = Greater (largest, zero) rows = Compress <axis = 0> (first, picked) "
        "second = Gemm (rows, w, b) where float[4, 4] eye = {1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, "
        "1}, float zero = {0}, "
        "float[4, 3] w, float[3] b"
    )
    return parsed("float[N, 4] x", text, "float[] second", scale=0.1)


OPERATORS = ("plain", "grouped", "depthwise", "up", "up_grouped", "gemm", "gemm_plain", "matmul")


def differences(model, other, quantizer, feeds, form, other_form):
    """What the layers of another model give more than a model's, all on this one's float tensors.

    Returns:
        Name of each layer to float64 of shape (places, channels).
    """
    network, changed = (cut(one, quantizer) for one in (model, other))
    segments = {segment.layer.name: segment for segment in changed.segments if segment.layer}
    found = {}
    for feed in feeds:
        for segment, layer, tensors in network.float_layers(feed):
            own = segment.run_layer(form, tensors).astype(np.float64)
            more = segments[layer.name].run_layer(other_form, tensors) - own
            rows = np.moveaxis(more, 1, -1).reshape(-1, more.shape[1])
            found.setdefault(layer.name, []).append(rows)
    return {name: np.concatenate(parts) for name, parts in found.items()}
