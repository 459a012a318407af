"""ConvInteger and MatMulInteger with computed scales, beside the float operators that they become."""

import numpy as np
import onnx_ir as ir
import pytest
from onnx import helper, numpy_helper

from tests.trtint8.integer_models import Integers, applied, operators, run
from trtint8.interop.expand_dynamic import ExpandDynamicPass
from trtint8.interop.integer_product import integer_product

IMAGES = {"x": ["N", 4, 8, 8]}
X = np.random.default_rng(1).uniform(-5, 3, (3, 4, 8, 8)).astype(np.float32)


class Dynamic(Integers):
    def quantize_dynamic(self, tensor, name="dynamic"):
        outputs = [f"{name}_q", f"{name}_s", f"{name}_z"]
        self.nodes.append(helper.make_node("DynamicQuantizeLinear", [tensor], outputs, name=name))
        return outputs

    def scaled(self, whole, scales, swapped=False):
        cast = self.op("Cast", [whole], "cast", to=1)
        product = scales[0] if len(scales) == 1 else self.op("Mul", scales, "scales")
        return self.op("Mul", [product, cast] if swapped else [cast, product], "scaled")


def conv(swapped=False, per_channel=False, bias=True, static=False, folded=False):
    """The pattern around one ConvInteger, and the float weights that it stands for."""
    g = Dynamic()
    data, scale, zero = g.quantize("x", 0.05) if static else g.quantize_dynamic("x")
    whole = g.random.integers(0, 256, (5, 4, 3, 3)).astype(np.uint8)
    scales = np.linspace(0.01, 0.03, 5, dtype=np.float32) if per_channel else np.full(1, 0.02, np.float32)
    along = scales.reshape(-1, 1, 1)
    weights = [g.constant(whole), zero, g.constant(np.uint8(131))]
    y = g.op("ConvInteger", [data, *weights], "node", pads=[1] * 4, strides=[2, 2])
    factors = [scale, g.constant(along)]
    if folded:
        factors = [g.constant(np.float32(0.05) * along)]
    y = g.scaled(y, factors[::-1] if swapped else factors, swapped)
    if bias:
        values = g.op("Reshape", [g.weights(5), g.constant(np.array([1, -1, 1, 1]))], "reshape")
        y = g.op("Add", [values, y] if swapped else [y, values], "bias")
    expected = (whole.astype(np.float32) - 131) * scales.reshape(-1, 1, 1, 1)
    return g.proto(IMAGES, g.op("Relu", [y], "relu"), 4), expected


def matmul(per_channel, constant_first=False, zeros=None):
    g = Dynamic()
    data, scale, zero = g.quantize_dynamic("x")
    whole = g.random.integers(-128, 128, (8, 8)).astype(np.int8)
    scales = np.linspace(0.01, 0.03, 8, dtype=np.float32) if per_channel else np.float32(0.02)
    points = np.int8(3) if zeros is None else zeros
    first, second = [data, g.constant(whole)], [zero, g.constant(points)]
    if constant_first:
        first, second = first[::-1], second[::-1]
    y = g.op("MatMulInteger", [*first, *second], "node")
    y = g.scaled(y, [scale, g.constant(scales)])
    return g.proto(IMAGES, y, 4), (whole.astype(np.float32) - points) * scales


def dequantized_weights(model, shape):
    """What the DequantizeLinear of stored weights gives."""
    for node in model.graph.node:
        stored = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
        if node.op_type == "DequantizeLinear" and node.input[0] in stored:
            whole, scale, zero = (stored[name] for name in node.input)
            axis = next((a.i for a in node.attribute if a.name == "axis"), None)
            along = [-1 if index == axis else 1 for index in range(whole.ndim)]
            assert whole.shape == shape
            return (whole.astype(np.float32) - zero.reshape(along)) * scale.reshape(along)
    raise AssertionError("no stored weights")


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_a_dynamic_conv_becomes_the_float_conv_of_its_weights(swapped, per_channel, bias):
    model, weights = conv(swapped, per_channel, bias)
    expanded, modified = applied(ExpandDynamicPass(), model)
    made = [name for name in operators(expanded) if name != "Reshape"]
    assert modified and made == ["DequantizeLinear", "Conv", "Relu"]
    assert np.array_equal(dequantized_weights(expanded, (5, 4, 3, 3)), weights)
    conv_node = next(node for node in expanded.graph.node if node.op_type == "Conv")
    assert conv_node.input[0] == "x" and len(conv_node.input) == (3 if bias else 2)
    # They differ by the rounding of x to 8 bits: at most half a step for each weight.
    step = (X.max() - X.min()) / 255
    bound = np.abs(weights).sum((1, 2, 3)).reshape(-1, 1, 1) * step / 2
    difference = np.abs(run(expanded, x=X) - run(model, x=X))
    assert (difference <= bound * 1.01).all()
    assert difference.max() > 0


@pytest.mark.parametrize("zeros", [None, np.arange(8, dtype=np.int8)])
@pytest.mark.parametrize("per_channel", [False, True])
def test_a_dynamic_matmul_becomes_the_float_matmul(per_channel, zeros):
    model, weights = matmul(per_channel, zeros=zeros)
    expanded, _ = applied(ExpandDynamicPass(), model)
    assert operators(expanded) == ["DequantizeLinear", "MatMul"]
    np.testing.assert_allclose(dequantized_weights(expanded, (8, 8)), weights, rtol=1e-7)
    step = (X.max() - X.min()) / 255
    difference = np.abs(run(expanded, x=X) - run(model, x=X))
    assert (difference <= np.abs(weights).sum(0) * step * 0.505).all()


def test_stored_weights_may_come_first():
    model, _ = matmul(False, constant_first=True)
    expanded, _ = applied(ExpandDynamicPass(), model)
    assert operators(expanded) == ["DequantizeLinear", "MatMul"]
    assert expanded.graph.node[1].input[1] == "x"


def test_two_activations_become_floats_both():
    g = Dynamic()
    first = g.quantize_dynamic("x", "one")
    second = g.quantize_dynamic(g.op("Transpose", ["x"], "turned", perm=[0, 1, 3, 2]), "two")
    y = g.op("MatMulInteger", [first[0], second[0], first[2], second[2]], "node")
    model = g.proto(IMAGES, g.scaled(y, [second[1], first[1]]), 4)
    expanded, _ = applied(ExpandDynamicPass(), model)
    assert operators(expanded) == ["Transpose", "MatMul"]
    np.testing.assert_allclose(run(expanded, x=X), run(model, x=X), atol=1.3)


@pytest.mark.parametrize("folded", [False, True])
@pytest.mark.parametrize("per_channel", [False, True])
def test_a_constant_scale_gives_a_pair(folded, per_channel):
    model, weights = conv(per_channel=per_channel, static=True, folded=folded)
    expanded, _ = applied(ExpandDynamicPass(), model)
    made = operators(expanded)
    assert made.count("QuantizeLinear") == 1 and made.count("DequantizeLinear") == 2
    # A scale that was multiplied into the other is divided out again, which may cost a rounding.
    rtol = 2e-7 if folded else 0
    np.testing.assert_allclose(dequantized_weights(expanded, (5, 4, 3, 3)), weights, rtol=rtol)
    np.testing.assert_allclose(run(expanded, x=X), run(model, x=X), rtol=1e-4, atol=1e-4)


def mismatch(g, output, rank=4):
    model = g.proto(IMAGES, output, rank)
    graph_model = ir.from_proto(model)
    result = ExpandDynamicPass()(graph_model)
    assert not result.modified and [n.op_type for n in graph_model.graph] == operators(model)
    found = integer_product(next(node for node in graph_model.graph if node.name == "node"))
    assert isinstance(found, str)
    return found


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


def test_a_bias_that_is_no_bias_stays_an_add():
    g = Dynamic()
    data, scale, zero = g.quantize_dynamic("x")
    y = g.op("ConvInteger", [data, g.random_integers(4, 4, 1, 1, dtype=np.uint8), zero], "node")
    y = g.scaled(y, [scale, g.constant(np.float32(0.1))])
    model = g.proto(IMAGES, g.op("Add", [y, g.weights(8)], "add"), 4)
    expanded, _ = applied(ExpandDynamicPass(), model)
    assert operators(expanded) == ["DequantizeLinear", "Conv", "Add"]
