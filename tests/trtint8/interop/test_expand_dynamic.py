"""ConvInteger and MatMulInteger with computed scales, beside the float operators that they become."""

import numpy as np
import pytest
from onnx import numpy_helper

from tests.trtint8.integer_models import applied, operators, run
from tests.trtint8.interop.dynamic_models import SCALED, conv, dynamic_model
from tests.trtint8.onnx_models import normal
from trtint8.interop.integer_models import FloatOperatorsPass, expand_dynamic

THREE = np.int8(3)
X = np.random.default_rng(1).uniform(-5, 3, (3, 4, 8, 8)).astype(np.float32)


def matmul(per_channel, zeros=THREE, given="q, w, z, o"):
    whole = np.random.default_rng(0).integers(-128, 128, (8, 8)).astype(np.int8)
    scales = np.linspace(0.01, 0.03, 8, dtype=np.float32) if per_channel else np.float32(0.02)
    body = f"node = MatMulInteger ({given}) {SCALED.replace('scaled =', 'y =')}"
    return dynamic_model(body, w=whole, o=zeros, k=scales), (whole.astype(np.float32) - zeros) * scales


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
    expanded, modified = applied(FloatOperatorsPass(expand_dynamic), model)
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


@pytest.mark.parametrize("zeros", [THREE, np.arange(8, dtype=np.int8)])
@pytest.mark.parametrize("per_channel", [False, True])
def test_a_dynamic_matmul_becomes_the_float_matmul(per_channel, zeros):
    model, weights = matmul(per_channel, zeros=zeros)
    expanded, _ = applied(FloatOperatorsPass(expand_dynamic), model)
    assert operators(expanded) == ["DequantizeLinear", "MatMul"]
    np.testing.assert_allclose(dequantized_weights(expanded, (8, 8)), weights, rtol=1e-7)
    step = (X.max() - X.min()) / 255
    difference = np.abs(run(expanded, x=X) - run(model, x=X))
    assert (difference <= np.abs(weights).sum(0) * step * 0.505).all()


def test_stored_weights_may_come_first():
    model, _ = matmul(False, given="w, q, o, z")
    expanded, _ = applied(FloatOperatorsPass(expand_dynamic), model)
    assert operators(expanded) == ["DequantizeLinear", "MatMul"]
    assert expanded.graph.node[1].input[1] == "x"


def test_two_activations_become_floats_both():
    body = """turned = Transpose <perm = [0, 1, 3, 2]> (x) r, k, o = DynamicQuantizeLinear (turned)
        node = MatMulInteger (q, r, z, o)"""
    model = dynamic_model(body + SCALED.replace("c, k", "k, c").replace("scaled =", "y ="))
    expanded, _ = applied(FloatOperatorsPass(expand_dynamic), model)
    assert operators(expanded) == ["Transpose", "MatMul"]
    np.testing.assert_allclose(run(expanded, x=X), run(model, x=X), atol=1.3)


@pytest.mark.parametrize("folded", [False, True])
@pytest.mark.parametrize("per_channel", [False, True])
def test_a_constant_scale_gives_a_pair(folded, per_channel):
    model, weights = conv(per_channel=per_channel, static=True, folded=folded)
    expanded, _ = applied(FloatOperatorsPass(expand_dynamic), model)
    made = operators(expanded)
    assert made.count("QuantizeLinear") == 1 and made.count("DequantizeLinear") == 2
    # A scale that was multiplied into the other is divided out again, which may cost a rounding.
    rtol = 2e-7 if folded else 0
    np.testing.assert_allclose(dequantized_weights(expanded, (5, 4, 3, 3)), weights, rtol=rtol)
    np.testing.assert_allclose(run(expanded, x=X), run(model, x=X), rtol=1e-4, atol=1e-4)


def test_a_bias_that_is_no_bias_stays_an_add():
    weights = np.random.default_rng(0).integers(0, 256, (4, 4, 1, 1)).astype(np.uint8)
    body = f"node = ConvInteger (q, w, z) {SCALED} y = Add (scaled, b)"
    model = dynamic_model(body, w=weights, k=np.float32(0.1), b=normal(8))
    expanded, _ = applied(FloatOperatorsPass(expand_dynamic), model)
    assert operators(expanded) == ["DequantizeLinear", "Conv", "Add"]
