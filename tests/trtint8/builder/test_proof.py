"""Layers that run in INT8, counted in a build."""

from tests.trtint8.onnx_models import Shaped
from trtint8.builder.proof import count_int8_layers
from trtint8.models.model import load_model


def test_layers_are_counted(rtx):
    g = Shaped()
    first = g.op("MatMul", [g.qdq("x"), g.qdq(g.weights(64, 64), 1, 64)], "first")
    model = load_model(g.model({"x": [4, 64]}, g.op("MatMul", [first, g.weights(64, 32)], "second")))
    assert count_int8_layers(model.graph_model, model.inputs, ["first"]) == 1
    assert count_int8_layers(model.graph_model, model.inputs, ["first", "second"]) == 1
