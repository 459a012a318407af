"""Each operator on integers beside its Q/DQ form, both in ONNX Runtime."""

import numpy as np
import onnx_ir as ir
import pytest
from onnx import helper

from tests.trtint8.integer_models import MICROSOFT, Integers, applied, operators, run
from trtint8.interop.integer_models import QLINEAR, FloatOperatorsPass, expand_qlinear

IMAGES = {"x": ["N", 4, 8, 8]}
ROWS = {"x": ["N", 8]}

#: The one operator of a model: after quantized inputs, its own further ones and attributes.
UNARY = {
    "QLinearAveragePool": {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1] * 4},
    "QLinearGlobalAveragePool": {"channels_last": 0},
    "QLinearLeakyRelu": {"alpha": 0.3},
    "QLinearSigmoid": {},
    "QLinearSoftmax": {"opset": 17, "axis": 1},
}


def unary(operator, scale, zero, **attributes):
    g = Integers()
    result = g.parameters(scale, zero)
    y = g.op(operator, [*g.quantize("x", 0.05, zero), *result], "node", **attributes, **MICROSOFT)
    return g.proto(IMAGES, g.dequantize(y, result), 4)


def binary(operator, scale=0.4):
    g = Integers()
    first, second = (
        g.quantize("x"),
        g.quantize(g.op("Transpose", ["x"], "turned", perm=[0, 1, 3, 2]), 0.03, np.uint8(100)),
    )
    result = g.parameters(scale, np.uint8(90))
    y = g.op(operator, [*first, *second, *result], "node", **MICROSOFT)
    return g.proto(IMAGES, g.dequantize(y, result), 4)


def where():
    g = Integers()
    positive = g.op("Greater", ["x", g.constant(np.float32(0))], "greater")
    first, second = (
        g.quantize("x"),
        g.quantize(g.op("Transpose", ["x"], "turned", perm=[0, 1, 3, 2]), 0.03, np.uint8(100)),
    )
    result = g.parameters(0.4, np.uint8(90))
    y = g.op("QLinearWhere", [positive, *first, *second, *result], "node", **MICROSOFT)
    return g.proto(IMAGES, g.dequantize(y, result), 4)


def concat():
    g = Integers()
    result = g.parameters(0.06, np.uint8(110))
    parts = [
        *g.quantize("x"),
        *g.quantize(g.op("Transpose", ["x"], "turned", perm=[0, 1, 3, 2]), 0.03, np.uint8(100)),
    ]
    y = g.op("QLinearConcat", [*result, *parts, *g.quantize("x", 0.07)], "node", axis=1, **MICROSOFT)
    return g.proto(IMAGES, g.dequantize(y, result), 4)


def gemm(per_channel, transposed, result=True, alpha=1.0):
    g = Integers()
    scales = np.linspace(0.01, 0.03, 3) if per_channel else np.float32(0.02)
    weights = [
        g.random_integers(*((3, 8) if transposed else (8, 3))),
        *g.parameters(scales, np.zeros(np.shape(scales), np.int8)),
    ]
    inputs = [*g.quantize("x"), *weights, g.constant(np.array([90, -800, 300], np.int32))]
    output = g.parameters(0.7, np.uint8(128))
    attributes = {"transB": int(transposed), "alpha": alpha}
    y = g.op("QGemm", [*inputs, *(output if result else [])], "node", **attributes, **MICROSOFT)
    return g.proto(ROWS, g.dequantize(y, output) if result else y, 2)


def conv(per_channel, dtype):
    g = Integers()
    scales = np.linspace(0.01, 0.03, 5) if per_channel else np.float32(0.02)
    zero = np.full(np.shape(scales), 0 if dtype == np.int8 else 131, dtype)
    weights = [g.random_integers(5, 4, 3, 3, dtype=dtype), *g.parameters(scales, zero)]
    output = g.parameters(1.9, np.uint8(128))
    bias = g.constant(np.array([90, -800, 300, 0, 5000], np.int32))
    y = g.op("QLinearConv", [*g.quantize("x"), *weights, *output, bias], "node", pads=[1] * 4)
    return g.proto(IMAGES, g.dequantize(y, output), 4)


def matmul(per_channel):
    g = Integers()
    scales = np.linspace(0.01, 0.03, 5) if per_channel else np.float32(0.02)
    weights = [g.random_integers(8, 5), *g.parameters(scales, np.zeros(np.shape(scales), np.int8))]
    output = g.parameters(0.9, np.uint8(128))
    y = g.op("QLinearMatMul", [*g.quantize("x"), *weights, *output], "node")
    return g.proto(IMAGES, g.dequantize(y, output), 4)


CASES = {
    **{
        f"{operator}, {zero.dtype}": (unary(operator, scale, zero, **attributes), scale)
        for operator, attributes in UNARY.items()
        for scale, zero in [(1 / 128, np.uint8(3)), (1 / 64, np.int8(-20))]
    },
    "QLinearAdd": (binary("QLinearAdd", 0.043), 0.043),
    "QLinearMul": (binary("QLinearMul", 0.4), 0.4),
    "QLinearWhere": (where(), 0.4),
    "QLinearConcat": (concat(), 0.06),
    **{
        f"QGemm {per_channel} {transposed} {alpha}": (gemm(per_channel, transposed, alpha=alpha), 0.7)
        for per_channel in (False, True)
        for transposed in (False, True)
        for alpha in (1.0, 0.5)
    },
    **{
        f"QLinearConv {per_channel} {dtype.__name__}": (conv(per_channel, dtype), 1.9)
        for per_channel, dtype in [(False, np.int8), (True, np.int8), (False, np.uint8)]
    },
    "QLinearMatMul": (matmul(False), 0.9),
    "QLinearMatMul per channel": (matmul(True), 0.9),
}


def samples(model, seed=1):
    shape = [dim.dim_value or 3 for dim in model.graph.input[0].type.tensor_type.shape.dim]
    random = np.random.default_rng(seed)
    means = random.uniform(-3, 3, (*shape[:2], *[1] * (len(shape) - 2)))
    return (means + random.uniform(-3, 3, shape)).astype(np.float32)


@pytest.mark.parametrize("case", CASES)
def test_the_same_comes_out(case):
    model, step = CASES[case]
    expanded, modified = applied(FloatOperatorsPass(expand_qlinear), model)
    assert modified and not set(operators(expanded)) & set(QLINEAR)
    assert "node" in [node.name for node in expanded.graph.node]
    x = samples(model)
    ours, theirs = run(expanded, x=x), run(model, x=x)
    assert np.ptp(theirs) > 10 * step  # the case is not flat
    steps = np.rint((ours - theirs) / step)
    # A sum on the edge between two integers may fall on either side.
    assert np.abs(steps).max() <= 1
    assert (steps != 0).mean() <= 0.02


def test_every_operator_has_a_case():
    assert {case.split(",")[0].split()[0] for case in CASES} == set(QLINEAR)


def test_qgemm_may_leave_its_result_float():
    model = gemm(True, True, result=False)
    expanded, _ = applied(FloatOperatorsPass(expand_qlinear), model)
    assert operators(expanded).count("QuantizeLinear") == 1
    x = samples(model)
    np.testing.assert_allclose(run(expanded, x=x), run(model, x=x), rtol=1e-5, atol=1e-4)


def test_a_result_without_a_zero_point_keeps_its_type():
    g = Integers()
    data = g.quantize("x", 0.05, np.int8(0))
    scale = g.constant(np.float32(0.04))
    y = g.op("QLinearAdd", [data[0], data[1], "", data[0], data[1], "", scale], "node", **MICROSOFT)
    model = g.proto(IMAGES, g.dequantize(y, [scale, g.constant(np.int8(0))]), 4)
    expanded, _ = applied(FloatOperatorsPass(expand_qlinear), model)
    x = samples(model) / 2
    whole = np.rint(np.rint(x / np.float32(0.05)) * 0.1 / 0.04)  # ONNX Runtime refuses the original
    np.testing.assert_allclose(run(expanded, x=x), whole.clip(-128, 127) * 0.04, atol=0.0401)
    assert run(expanded, x=x).min() < -1


def test_types_and_shapes_are_set():
    graph_model = ir.from_proto(CASES["QLinearAdd"][0])
    FloatOperatorsPass(expand_qlinear)(graph_model)
    node = next(node for node in graph_model.graph if node.name == "node")
    assert [value.dtype for value in (*node.inputs, *node.outputs)] == [ir.DataType.FLOAT] * 3
    quantized = next(iter(node.outputs[0].uses()))[0].outputs[0]
    assert (quantized.name, quantized.dtype) == ("node_out", ir.DataType.UINT8)


def obstacle(model):
    graph_model = ir.from_proto(model)
    before = operators(model)
    expansion = FloatOperatorsPass(expand_qlinear)
    expansion(graph_model)
    assert [node.op_type for node in graph_model.graph] == before
    return expansion.obstacles["node"]


def test_channels_last_is_refused():
    model = unary("QLinearGlobalAveragePool", 0.05, np.uint8(0), channels_last=1)
    assert obstacle(model) == "its data is channels_last, and TensorRT takes channels first"


def test_parameters_at_run_time_are_refused():
    g = Integers()
    scale = g.op("ReduceMax", ["x"], "scale", keepdims=0)
    zero = g.constant(np.uint8(0))
    data = g.op("QuantizeLinear", ["x", scale, zero], "quantize")
    result = g.parameters(0.1)
    y = g.op("QLinearSigmoid", [data, scale, zero, *result], "node", **MICROSOFT)
    message = obstacle(g.proto(IMAGES, g.dequantize(y, result), 4))
    assert message == "its scale or zero point 'scale_out' is computed at run time"


def test_an_activation_with_a_scale_a_channel_is_refused():
    g = Integers()
    result = g.parameters(0.1)
    scales = g.parameters([0.1] * 4, np.zeros(4, np.uint8))
    data = g.op("QuantizeLinear", ["x", *scales], "quantize", axis=1)
    y = g.op("QLinearSigmoid", [data, *scales, *result], "node", **MICROSOFT)
    message = obstacle(g.proto(IMAGES, g.dequantize(y, result), 4))
    assert message == f"'{scales[0]}' has one scale per channel of an activation"


def test_a_bias_at_run_time_is_refused():
    g = Integers()
    bias = g.op("Cast", [g.op("ReduceMax", ["x"], "max", keepdims=0)], "bias", to=6)
    weights = [g.random_integers(8, 3), *g.parameters(0.02, np.int8(0))]
    y = g.op("QGemm", [*g.quantize("x"), *weights, bias], "node", **MICROSOFT)
    assert obstacle(g.proto(ROWS, y, 2)) == "its bias 'bias_out' is computed at run time"


def test_a_softmax_of_another_opset_is_refused():
    model = unary("QLinearSoftmax", 0.01, np.uint8(0), opset=11, axis=1)
    assert obstacle(model) == "it is the Softmax of opset 11, and the model's opset has another"


def test_a_foreign_operator_of_the_same_name_stays():
    model = binary("QLinearAdd")
    model.graph.node[3].domain = "elsewhere"
    model.opset_import.append(helper.make_opsetid("elsewhere", 1))
    _, modified = applied(FloatOperatorsPass(expand_qlinear), model)
    assert model.graph.node[3].op_type == "QLinearAdd" and not modified
