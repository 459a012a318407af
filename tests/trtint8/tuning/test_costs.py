"""What layers in float cost."""

import pytest

from calibrators.data.samples import SampleSizes
from tests.trtint8.onnx_models import Shaped
from trtint8.models.model import load_model, prepare
from trtint8.tuning.costs import cost_shares, float_cost


def test_shares_of_the_arithmetic_by_hand():
    g = Shaped(quantized=False)
    conv = g.op("Conv", ["x", g.weights(8, 4, 3, 3)], "conv", pads=[1] * 4)  # 8*6*6 outputs of 4*9: 10,368
    depthwise = g.op("Conv", [conv, g.weights(8, 1, 3, 3)], "deep", group=8)  # 8*4*4 outputs of 9: 1,152
    pooled = g.op("GlobalAveragePool", [depthwise], "pool")  # 8 outputs
    flat = g.op("Flatten", [pooled], "flat")  # 8
    model = g.model({"x": ["N", 4, 6, 6]}, g.op("Gemm", [flat, g.weights(8, 10)], "head"))  # 80
    graph_model = prepare(load_model(model)).graph_model
    total = 10_368 + 1_152 + 8 + 8 + 80
    assert float_cost(graph_model, ["conv"], {}) == pytest.approx(10_368 / total)
    assert float_cost(graph_model, ["deep", "head"], {}) == pytest.approx(1_232 / total)
    assert float_cost(graph_model, [], {}) == 0
    assert float_cost(graph_model, [node.name for node in graph_model.graph], {}) == pytest.approx(1)


def test_a_transposed_convolution():
    g = Shaped(quantized=False)
    up = g.op("ConvTranspose", ["x", g.weights(4, 2, 2, 2)], "up", strides=[2, 2])  # 4*5*5 inputs of 2*4: 800
    model = g.model({"x": ["N", 4, 5, 5]}, g.op("Relu", [up], "relu"))  # 2*10*10: 200
    assert float_cost(prepare(load_model(model)).graph_model, ["up"], {}) == pytest.approx(0.8)


def test_sizes_that_are_open_are_those_of_the_samples():
    shares = []
    for size in (6, "size"):
        g = Shaped(quantized=False)
        conv = g.op("Conv", ["x", g.weights(8, 4, 3, 3)], "conv", pads=[1] * 4)
        pooled = g.op("GlobalAveragePool", [conv], "pool")
        flat = g.op("Flatten", [pooled], "flat")
        model = g.model({"x": ["N", 4, size, size]}, g.op("Gemm", [flat, g.weights(8, 10)], "head"))
        sizes = {"x": SampleSizes((4, 3, 5), (4, 6, 6))}
        shares.append(cost_shares(prepare(load_model(model)).graph_model, sizes))
    assert shares[0] == shares[1]
    assert shares[1]["conv"] == pytest.approx(10_368 / (10_368 + 8 + 8 + 80))


def test_recurrent_layers_multiply_at_every_step():
    g = Shaped(quantized=False)
    lstm = g.op("LSTM", ["x", g.weights(1, 64, 8), g.weights(1, 64, 16)], "lstm", hidden_size=16)
    model = g.model({"x": [10, 1, 8]}, g.op("MatMul", [lstm, g.weights(16, 4)], "head"))
    # 10 steps of 64 (8 + 16): 15,360; 10 outputs of 16*4: 640.
    assert float_cost(prepare(load_model(model)).graph_model, ["head"], {}) == pytest.approx(0.04)


def test_a_product_whose_first_operand_is_transposed():
    g = Shaped(quantized=False)
    gemm = g.op("Gemm", ["x", g.weights(9, 4)], "gemm", transA=1)  # 5*4 outputs of 9: 180
    model = g.model({"x": [9, 5]}, g.op("Relu", [gemm], "relu"))  # 20
    assert float_cost(prepare(load_model(model)).graph_model, ["gemm"], {}) == pytest.approx(0.9)
