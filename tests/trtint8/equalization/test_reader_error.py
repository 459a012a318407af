"""The error of one layer with quantized operands."""

import numpy as np
import pytest

from tests.trtint8.onnx_models import Shaped, tied
from tests.trtint8.tuning.networks import normal, prepared
from trtint8.equalization.reader_error import ReaderError
from trtint8.models.graph_constants import constant_input
from trtint8.quantization.placement import place
from trtint8.simulation.layers import find_layers


def layer(operator, weights, shape, **attributes):
    g = Shaped(quantized=False)
    bias = [] if operator == "MatMul" else [g.weights(2)]
    g.op(operator, [g.op("Relu", ["x"], "relu"), g.constant(weights), *bias], "layer", **attributes)
    model = prepared(g.model({"x": shape}, "layer_out"))
    return reader(model, "layer")


def reader(model, name):
    placement = place(model)
    layers = {layer.name: layer for layer in find_layers(model.graph, placement)}
    return ReaderError(model, layers[name], placement, "minmax")


def test_values_on_the_grid_have_no_error():
    weights = np.float32([[127, 3], [-5, 127], [8, 1]])
    values = np.float32([[127, 1, -2], [4, 5, 6]])
    alone = layer("MatMul", weights, ["N", 3])
    assert alone.threshold(values) == 127
    assert alone.relative_error(values, weights, values @ weights, 127.0) == 0


def test_the_error_by_hand():
    """A scale of 1 for the input rounds 0.5 to 0: the output 63.5 is computed as 63 and 0."""
    weights = np.float32([[1, 0], [0, 1]])
    values = np.float32([[127, 0.5]])
    found = layer("Gemm", weights, ["N", 2]).relative_error(values, weights, values @ weights, 127.0)
    assert found == pytest.approx(0.25 / (127**2 + 0.25))


@pytest.mark.parametrize("size", [1e-30, 1e18])
def test_the_error_of_outputs_whose_squares_are_no_float32_numbers(size):
    weights = np.float32([[size, 0], [0, size]])
    values = np.float32([[127, 0.5]])
    found = layer("MatMul", weights, ["N", 2]).relative_error(values, weights, values @ weights, 127.0)
    assert found == pytest.approx(0.25 / (127**2 + 0.25))


def test_weights_that_are_read_along_two_axes():
    model = prepared(tied())
    weights = constant_input(next(node for node in model.graph if node.name == "encoder"), 1)
    for node in (one for one in model.graph if one.op_type == "Gemm"):
        alone = reader(model, node.name)
        values = normal(16, 16 if node.name == "encoder" else 8)
        amax, exact = alone.threshold(values), alone.run(values, weights)
        assert 0 < alone.relative_error(values, weights, exact, amax) < 1e-3
