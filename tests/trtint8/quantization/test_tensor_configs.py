"""The config of every tensor, as a placement decides it."""

import numpy as np

from tests.trtint8.onnx_models import Shaped
from trtint8.models.model import load_model, prepare
from trtint8.quantization.arithmetics import DLA
from trtint8.quantization.config import State
from trtint8.quantization.placement import place
from trtint8.quantization.targets import target_named


def configs_of(model, **options):
    return place(prepare(load_model(model)).graph_model, **options).configs


def conv(g, source, name, channels=4):
    return g.op("Conv", [source, g.weights(4, channels, 3, 3), g.weights(4)], name, pads=[1] * 4)


def test_a_convolution_and_its_relu():
    g = Shaped()
    first = conv(g, "x", "first")
    relu = g.op("Relu", [first], "relu")
    configs = configs_of(g.model({"x": ["N", 4, 8, 8]}, conv(g, relu, "second")))
    assert configs["x"].state is State.INITIAL
    assert configs[relu].state is State.INITIAL
    assert (configs[first].state, configs.dominator(first)) == (State.OVERLAPPED, relu)
    weights = [name for name in configs if configs[name].axis == 0]
    assert len(weights) == 2
    assert all(configs[name].state is State.INITIAL for name in weights)


def test_an_output_that_nothing_quantizes_is_float():
    g = Shaped()
    last = conv(g, "x", "only")
    assert configs_of(g.model({"x": ["N", 4, 8, 8]}, last))[last].state is State.FLOAT


def test_a_residual_block():
    g = Shaped()
    trunk = g.op("Relu", [conv(g, "x", "a")], "trunk")
    inner = g.op("Relu", [conv(g, trunk, "b")], "inner")
    branch = conv(g, inner, "c")
    added = g.op("Add", [branch, trunk], "add")
    out = g.op("Relu", [added], "out")
    configs = configs_of(g.model({"x": ["N", 4, 8, 8]}, conv(g, out, "d")))
    assert configs.dominator(branch) == configs.dominator(added) == out
    assert configs[branch].state is configs[added].state is State.OVERLAPPED
    assert configs[trunk].state is State.INITIAL
    assert configs.dominator(trunk) == trunk


def test_a_tensor_that_others_read_is_not_fused_away():
    g = Shaped()
    first = conv(g, "x", "first")
    relu = g.op("Relu", [first], "relu")
    both = g.op("Mul", [conv(g, relu, "second"), first], "mul")
    configs = configs_of(g.model({"x": ["N", 4, 8, 8]}, both))
    assert configs[first].state is State.FLOAT


def test_shapes_are_not_quantized():
    g = Shaped()
    flat = g.op("Reshape", ["x", g.op("Shape", ["x"], "shape")], "reshape")
    configs = configs_of(g.model({"x": ["N", 4, 8, 8]}, conv(g, flat, "only")))
    assert configs["shape_out"].state is State.SHAPE_OR_INDEX


def test_the_target_decides_the_configs():
    g = Shaped()
    model = g.model({"x": ["N", 4, 8, 8]}, conv(g, "x", "only"))
    configs = configs_of(model, target=target_named("dla"))
    assert configs["x"] == DLA.activations
    np.testing.assert_equal({configs[name].quant_min for name in configs if configs[name].axis == 0}, {-127})


def test_what_is_kept_in_float_is_dequantized():
    """The second convolution's input would have a pair; the first's has one, and stays as it is."""
    g = Shaped()
    relu = g.op("Relu", [conv(g, "x", "first")], "relu")
    configs = configs_of(g.model({"x": ["N", 4, 8, 8]}, conv(g, relu, "second")), keep_float=["second"])
    weights = [name for name in configs if configs[name].axis == 0]
    assert (configs["x"].state, configs[relu].state) == (State.INITIAL, State.DEQUANTIZED)
    assert len(weights) == 1
