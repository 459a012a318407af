"""Small networks whose ranges are chosen, and data for them."""

from contextlib import contextmanager

import numpy as np
import onnx

from calibrators.histograms.histogram import Histogram
from tests.trtint8.onnx_models import Shaped
from trtint8.models.model import load_model, prepare
from trtint8.quantization.placement import place
from trtint8.range_choice.trial_network import TrialNetwork

IMAGES = {"x": ["N", 4, 8, 8]}


def conv(g, source, name, channels=4):
    return g.op("Conv", [source, g.weights(4, channels, 3, 3), g.weights(4)], name, pads=[1] * 4)


def convolutions(inputs=None):
    """Two convolutions."""
    g = Shaped()
    return g.model(inputs or IMAGES, conv(g, g.op("Relu", [conv(g, "x", "first")], "relu"), "second"))


def branches():
    """A Concat, whose tensors share one scale, and a product of two activations."""
    g = Shaped()
    joined = g.op("Concat", [conv(g, "x", "left"), g.op("Relu", ["x"], "relu")], "concat", axis=1)
    return g.model(IMAGES, g.op("MatMul", [conv(g, joined, "joined", 8), "x"], "product"))


def two_inputs_and_outputs():
    """Two convolutions of two inputs, each with an output of its own."""
    g = Shaped()
    total = g.op("Add", [conv(g, "x", "first"), conv(g, "z", "second")], "sum")
    model = g.model(IMAGES | {"z": ["N", 4, 8, 8]}, total)
    model.graph.output.append(onnx.helper.make_tensor_value_info("first_out", 1, ["N", 4, 8, 8]))
    return model


def one_convolution():
    """A convolution alone."""
    g = Shaped()
    return g.model(IMAGES, conv(g, "x", "first"))


def class_numbers():
    """A convolution and the number of its largest channel: the only output is of integers."""
    return _of_integers("ArgMax", axis=1)


def whole_numbers():
    """A convolution that is rounded to whole numbers: the only output is of integers."""
    return _of_integers("Cast", to=onnx.TensorProto.INT64)


def _of_integers(operator, **attributes):
    g = Shaped()
    model = g.model(IMAGES, g.op(operator, [conv(g, "x", "first")], "numbers", **attributes))
    model.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.INT64
    return model


def one_row():
    """A convolution whose output is one row: samples cannot be run together."""
    g = Shaped()
    return g.model(IMAGES, g.op("Reshape", [conv(g, "x", "first"), g.constant(np.int64([1, 256]))], "row"))


def without_weights():
    """A Relu alone: nothing is quantized."""
    g = Shaped()
    return g.model(IMAGES, g.op("Relu", ["x"], "relu"))


def one_channel_weighs(factor):
    """A convolution whose weights of the last input channel are multiplied by ``factor``."""
    g = Shaped()
    weights = np.random.default_rng(0).standard_normal((4, 4, 1, 1)).astype(np.float32)
    weights[:, 3] *= factor
    return g.model({"x": ["N", 4, 32, 32]}, g.op("Conv", ["x", g.constant(weights)], "conv"))


def normal(count, *shape, seed=0):
    return np.random.default_rng(seed).standard_normal((count, *(shape or (4, 8, 8)))).astype(np.float32)


@contextmanager
def trial_network(model, *, threads=None, return_memory=False, one_at_a_time=False):
    """The prepared model, its placement, and the network that ranges are tried on."""
    graph_model = prepare(load_model(model)).graph_model
    placement = place(graph_model)
    with TrialNetwork(
        graph_model,
        placement,
        threads=threads,
        device="cpu",
        return_memory=return_memory,
        one_at_a_time=one_at_a_time,
    ) as network:
        yield graph_model, placement, network


def histograms_of(tensors):
    """Tensor name to the histogram of its values."""
    found = {}
    for name, values in tensors.items():
        found[name] = Histogram()
        found[name].observe(values)
    return found
