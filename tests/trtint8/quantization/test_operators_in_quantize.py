"""Operators that once had no row, through the public calls."""

import pytest

import trtint8
from tests.trtint8.onnx_models import Shaped, normal
from tests.trtint8.quantization.float16.half_models import FLOAT, HALF, types

IMAGES = normal(8, 4, 8, 8)


def network(between):
    """Two convolutions, and what stands between them."""
    g = Shaped(quantized=False)
    x = g.Relu("relu", g.Conv("first", "x", g.weights(16, 4, 3, 3), pads=[1] * 4))
    return g.model({"x": ["N", 4, 8, 8]}, g.Conv("last", between(g, x), g.weights(16, 16, 1, 1)))


def grid_sample(g, x):
    flow = g.Tanh("tanh", g.Conv("flow", "x", g.weights(2, 4, 1, 1)))
    return g.GridSample("between", x, g.Transpose("grid", flow, perm=[0, 2, 3, 1]))


def lrn(g, x):
    return g.LRN("between", x, size=5)


def quantized(model, **options):
    table = trtint8.calibrate(model, IMAGES, tensors="all")
    return trtint8.quantize(model, table, target="tensorrt-10", **options)


@pytest.mark.parametrize("between", [grid_sample, lrn])
def test_with_float16_it_reads_and_writes_fp32(between):
    made = quantized(network(between), float16=True)
    found = types(made)
    (node,) = (node for node in made.graph.node if node.name == "between")
    assert {found[name] for name in (*node.input, *node.output)} == {FLOAT}
    assert HALF in found.values()


@pytest.mark.parametrize("between", [grid_sample, lrn])
def test_layers_around_it_are_quantized_and_their_results_kept(between):
    model = network(between)
    made = quantized(model)
    read = [node.input[0] for node in made.graph.node if node.op_type == "DequantizeLinear"]
    assert len(read) > 3
    (result,) = trtint8.validate(made, IMAGES, reference=model).outputs
    assert result.sqnr_db > 20


@pytest.mark.parametrize("between", [grid_sample, lrn])
def test_ranges_do_not_depend_on_the_batch_that_the_model_declares(between):
    fixed = network(between)
    for value in fixed.graph.input:
        value.type.tensor_type.shape.dim[0].dim_value = 4
    tables = (trtint8.calibrate(model, IMAGES) for model in (network(between), fixed))
    first, second = (table.amax for table in tables)
    assert first == pytest.approx(second, rel=1e-5)
