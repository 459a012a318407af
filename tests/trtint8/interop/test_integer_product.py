"""What around a ConvInteger or MatMulInteger does not fit, in words; such a model stays as it is."""

import numpy as np
import onnx_ir as ir

from tests.trtint8.integer_models import operators
from tests.trtint8.interop.dynamic_models import IMAGES, Dynamic
from trtint8.interop.integer_models import FloatOperatorsPass, expand_dynamic


def mismatch(g, output, rank=4):
    model = g.proto(IMAGES, output, rank)
    graph_model = ir.from_proto(model)
    expansion = FloatOperatorsPass(expand_dynamic)
    result = expansion(graph_model)
    assert not result.modified and [n.op_type for n in graph_model.graph] == operators(model)
    return expansion.obstacles["node"]


def start(weights=None):
    g = Dynamic()
    data, scale, zero = g.quantize_dynamic("x")
    stored = g.constant(np.ones((8, 8), np.int8) if weights is None else weights)
    return g, g.op("MatMulInteger", [data, stored, zero], "node"), scale


def test_a_missing_cast_is_told():
    g, y, _ = start()
    other = g.op("Cast", [y], "other", to=11)
    message = mismatch(g, g.op("Cast", [g.op("Abs", [other], "abs")], "back", to=1))
    assert message == "'other' casts to something else than float32"
    g, y, _ = start()
    assert mismatch(g, g.op("Cast", [g.op("Abs", [y], "abs")], "cast", to=1)) == (
        "'node_out' is read by Abs, and not by one Cast alone"
    )


def test_a_second_reader_is_told():
    g, y, scale = start()
    scaled = g.scaled(y, [scale, g.constant(np.float32(0.1))])
    message = mismatch(g, g.op("Add", [scaled, "cast_out"], "add"))
    assert message == "'cast_out' is read by Mul, Add, and not by one Mul alone"


def test_a_missing_scale_is_told():
    g, y, _ = start()
    message = mismatch(g, g.scaled(y, [g.constant(np.float32(0.1))]))
    assert message.startswith("the scale of 'dynamic_q' is not in the product 'constant1'")


def test_a_factor_at_run_time_is_told():
    g, y, scale = start()
    other = g.op("ReduceMax", ["x"], "max", keepdims=0)
    message = mismatch(g, g.scaled(y, [scale, other]))
    assert message == "its output is multiplied with 'max_out', which is no operand's scale"


def test_an_input_without_a_quantizer_is_told():
    g = Dynamic()
    data = g.op("Cast", ["x"], "whole", to=2)
    y = g.op("MatMulInteger", [data, g.constant(np.ones((8, 8), np.uint8))], "node")
    message = mismatch(g, g.scaled(y, [g.constant(np.float32(0.1))]))
    assert message == "'whole_out' comes from the Cast 'whole', and not from a quantizer"


def test_another_zero_point_is_told():
    g = Dynamic()
    data, scale, _ = g.quantize_dynamic("x")
    zero = g.constant(np.uint8(0))
    y = g.op("MatMulInteger", [data, g.constant(np.ones((8, 8), np.uint8)), zero], "node")
    message = mismatch(g, g.scaled(y, [scale, g.constant(np.float32(0.1))]))
    assert message == "its zero point for 'dynamic_q' is not that of 'dynamic'"


def test_scales_that_are_not_one_an_output_channel_are_told():
    g, y, scale = start()
    message = mismatch(g, g.scaled(y, [scale, g.constant(np.full((8, 1), 0.1, np.float32))]))
    assert message == (
        "the scales or zero points of 'constant0' have shape (8, 1), and not one number per output channel"
    )


def test_scales_that_are_none_are_told():
    g, y, scale = start()
    message = mismatch(g, g.scaled(y, [scale, g.constant(np.float32(0))]))
    assert message == "a scale of 'constant0' is not positive and finite"
