"""The float network, layer by layer."""

import numpy as np

from tests.trtint8.onnx_models import Shaped
from tests.trtint8.tuning.networks import normal, prepared
from trtint8.quantization.placement import place
from trtint8.sensitivity.segments import Form, Quantizer, cut
from trtint8.tuning.remedies.layer_runs import float_layers


def test_every_layer_reads_what_the_float_model_computes():
    g = Shaped(quantized=False)
    weights = [g.random.standard_normal((4, 4)).astype(np.float32) for _ in range(3)]
    first = g.op("Relu", [g.op("MatMul", ["x", g.constant(weights[0])], "first")], "relu")
    second = g.op("MatMul", [first, g.constant(weights[1])], "second")
    third = g.op("MatMul", [second, g.constant(weights[2])], "third")
    model = prepared(g.model({"x": ["N", 4]}, g.op("Add", [third, first], "add")))
    placement = place(model)
    network = cut(model, Quantizer.of(placement, dict.fromkeys(placement.tensors, 1.0)))
    x = normal(3, 4)
    relu = np.maximum(x @ weights[0], 0)
    wanted = {"x": x, "relu_out": relu, "second_out": relu @ weights[1]}
    seen = []
    for segment, layer, tensors in float_layers(network, {"x": x}):
        seen.append(layer.name)
        for edge in layer.activations:
            np.testing.assert_allclose(tensors[edge.tensor], wanted[edge.tensor], rtol=1e-5, atol=1e-5)
        # What nothing reads any more is dropped.
        assert ("x" in tensors) == (layer.name == "first")
        assert segment.run_layer(Form.FLOAT, tensors).shape == (3, 4)
    assert [name for name in seen if name != "add"] == ["first", "second", "third"]
