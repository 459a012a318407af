"""What is found in quantized models made elsewhere, and that mending agrees with it."""

import numpy as np
import pytest

from calibrators.errors import ModelError
from tests.trtint8.interop.pairs_by_hand import Pairs, model_of
from trtint8.interop.lint import lint
from trtint8.interop.mend import mend
from trtint8.models.model import load_model


def computed(which):
    """A convolution behind a pair whose scale or zero point is computed from the input."""
    g = Pairs()
    mean = g.op("ReduceMax", ["x"], "largest", keepdims=0)
    scale, zero = g.constant(np.float32(0.1)), g.constant(np.int8(0))
    if which == "scale":
        scale = mean
    else:
        zero = g.op("Cast", [mean], "cast", to=3)
    quantized = g.op("QuantizeLinear", ["x", scale, zero], "q")
    return model_of(g, g.conv(g.op("DequantizeLinear", [quantized, scale, zero], "dq")))


def misfit():
    g = Pairs()
    weights = g.stored(np.ones((8, 4, 1, 1), np.int8), [0.1] * 8, name="w")  # along axis 1, the default
    return model_of(g, g.conv(g.quantize("x"), weights))


def blocks():
    g = Pairs()
    weights = g.stored(np.ones((8, 2), np.int8), np.ones((3, 2)), axis=0, block_size=2)
    proto = g.model({"x": ["N", 8]}, g.op("MatMul", [g.quantize("x"), weights], "product"))
    proto.opset_import[0].version, proto.ir_version = 21, 10
    return load_model(proto)


@pytest.mark.parametrize(
    ("model", "rule"),
    [
        (computed("scale"), "scale-computed"),
        (computed("zero point"), "scale-computed"),
        (misfit(), "axis"),
        (blocks(), "unmendable"),
    ],
)
def test_what_cannot_be_mended_is_found(model, rule):
    found = [finding for finding in lint(model) if not finding.mendable]
    assert {finding.rule for finding in found} == {rule}
    with pytest.raises(ModelError):
        mend(model)


def test_what_mending_changes_is_found():
    g = Pairs()
    model = model_of(g, g.conv(g.quantize("x", 0.1, np.int8(3))))
    assert set(mend(model).changes) <= set(lint(model)) and mend(model).changes


def test_layers_whose_weights_lie_on_no_steps_stay_in_float():
    g = Pairs()
    model = model_of(g, g.op("Conv", [g.quantize("x"), g.weights(4, 4, 3, 3)], "conv", pads=[1] * 4))
    (finding,) = lint(model)
    assert (finding.rule, finding.node) == ("one-sided", "conv") and "'constant2'" in finding.message
    assert mend(model).quantized_nodes == () and mend(model).unquantized.kept_float == ["conv"]


def test_a_layer_whose_weights_have_no_elements_has_nothing_to_quantize():
    """As an adapter of rank 0 beside a layer; also in what mending writes."""
    g = Pairs()
    x = g.quantize("x")
    low = g.op("Conv", [x, g.constant(np.zeros((0, 4, 1, 1), np.float32))], "down")
    adapter = g.op("Conv", [low, g.constant(np.zeros((4, 0, 1, 1), np.float32))], "up")
    model = model_of(g, g.op("Add", [g.conv(x), adapter], "sum"))
    assert lint(model) == []
