"""A model of two products of the same weights."""

from types import SimpleNamespace

import numpy as np

from tests.trtint8.onnx_models import Shaped
from trtint8.models.model import load_model, prepare
from trtint8.quantization.placement import place
from trtint8.simulation.networks import Quantizer
from trtint8.simulation.segments import cut

X = np.array([[1.0, 0.3], [-0.2, 0.7]], np.float32)
WEIGHTS = np.array([[1.0, 0.1], [0.2, 0.5]], np.float32)
RANGES = {"x": 1.0, "first_out": 1.5}


def opened_products():
    """The prepared model, its quantizer, and the model cut at its layers."""
    g = Shaped(quantized=False)
    weights = g.constant(WEIGHTS)
    first = g.op("MatMul", ["x", weights], "first")
    model = prepare(
        load_model(g.model({"x": ["N", 2]}, g.op("MatMul", [first, weights], "second")))
    ).graph_model
    quantizer = Quantizer.of(place(model), RANGES)
    return SimpleNamespace(model=model, quantizer=quantizer, network=cut(model, quantizer))
