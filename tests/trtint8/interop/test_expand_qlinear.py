"""Each operator on integers beside its Q/DQ form, both in ONNX Runtime."""

import numpy as np
import onnx_ir as ir
import pytest
from onnx import helper

from tests.trtint8.integer_models import ABOVE_ZERO, applied, operators, run
from tests.trtint8.onnx_models import parsed
from trtint8.interop.integer_models import QLINEAR, FloatOperatorsPass, expand_qlinear

QUANTIZED = "q = QuantizeLinear (x, a, z) "
IMAGES, ROWS = "float[N, 4, 8, 8] x", "float[N, 8] x"

#: The attributes of the operators of one activation.
UNARY = {
    "QLinearAveragePool": "<kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]>",
    "QLinearGlobalAveragePool": "<channels_last = 0>",
    "QLinearLeakyRelu": "<alpha = 0.3>",
    "QLinearSigmoid": "",
    "QLinearSoftmax": "<opset = 17, axis = 1>",
}

#: A second activation.
TURNED = "turned = Transpose <perm = [0, 1, 3, 2]> (x) r = QuantizeLinear (turned, b, bz) "


def model_of(body, inputs=IMAGES, output="float[o0, o1, o2, o3] y", given=QUANTIZED, **constants):
    """A model of quantized rows or images ``q``; numbers of Python become float32."""
    arrays = {"a": np.float32(0.05), "z": ABOVE_ZERO}
    for name, value in constants.items():
        arrays[name] = np.float32(value) if isinstance(value, float | list) else value
    if "a =" in given:
        del arrays["a"]
    return parsed(inputs, output, given + body, domains=["com.microsoft"], **arrays)


def returned(call, prefix="", scale=0.4, zero=ABOVE_ZERO, **options):
    """The operator ``node``, whose integers have a scale, dequantized."""
    return model_of(
        f"{prefix} [node] node = {call} y = DequantizeLinear (node, c, cz)", c=scale, cz=zero, **options
    )


def unary(operator, scale, zero, attributes=None):
    attributes = UNARY[operator] if attributes is None else attributes
    return returned(f"com.microsoft.{operator} {attributes} (q, a, z, c, cz)", scale=scale, zero=zero, z=zero)


def several(call, scale=0.4, zero=ABOVE_ZERO, prefix="", **numbers):
    call = f"com.microsoft.{call}"
    return returned(call, TURNED + prefix, scale, zero, b=0.03, bz=np.uint8(100), **numbers)


def weights(per_channel, *shape, dtype=np.int8, channels=None):
    """Integers, their scale or scales, and zero points of weights."""
    ends = np.iinfo(dtype)
    scales = (
        np.linspace(0.01, 0.03, channels or shape[-1], dtype=np.float32) if per_channel else np.float32(0.02)
    )
    whole = np.random.default_rng(0).integers(ends.min, ends.max + 1, shape).astype(dtype)
    return {"w": whole, "p": scales, "pz": np.full(scales.shape, 0 if dtype == np.int8 else 131, dtype)}


def gemm(per_channel, transposed, alpha=1.0):
    stored = weights(per_channel, *((3, 8) if transposed else (8, 3)), channels=3)
    call = f"com.microsoft.QGemm <transB = {int(transposed)}, alpha = {alpha}> (q, a, z, w, p, pz, i, c, cz)"
    ends = {"inputs": ROWS, "output": "float[o0, o1] y"}
    return returned(
        call, scale=0.7, zero=np.uint8(128), i=np.array([90, -800, 300], np.int32), **stored, **ends
    )


def conv(per_channel, dtype):
    call = "QLinearConv <pads = [1, 1, 1, 1]> (q, a, z, w, p, pz, c, cz, i)"
    bias = np.array([90, -800, 300, 0, 5000], np.int32)
    stored = weights(per_channel, 5, 4, 3, 3, dtype=dtype, channels=5)
    return returned(call, scale=1.9, zero=np.uint8(128), i=bias, **stored)


def matmul(per_channel):
    call = "QLinearMatMul (q, a, z, w, p, pz, c, cz)"
    return returned(call, scale=0.9, zero=np.uint8(128), **weights(per_channel, 8, 5))


CASES = {
    **{
        f"{operator}, {zero.dtype}": (unary(operator, scale, zero), scale)
        for operator in UNARY
        for scale, zero in [(1 / 128, np.uint8(3)), (1 / 64, np.int8(-20))]
    },
    "QLinearAdd": (several("QLinearAdd (q, a, z, r, b, bz, c, cz)", 0.043), 0.043),
    "QLinearMul": (several("QLinearMul (q, a, z, r, b, bz, c, cz)"), 0.4),
    "QLinearWhere": (
        several(
            "QLinearWhere (positive, q, a, z, r, b, bz, c, cz)",
            prefix="positive = Greater (x, none)",
            none=0.0,
        ),
        0.4,
    ),
    "QLinearConcat": (
        several(
            "QLinearConcat <axis = 1> (c, cz, q, a, z, r, b, bz, s, d, z)",
            0.06,
            np.uint8(110),
            "s = QuantizeLinear (x, d, z)",
            d=0.07,
        ),
        0.06,
    ),
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
    call = "[node] y = com.microsoft.QGemm <transB = 1> (q, a, z, w, p, pz, i)"
    stored = weights(True, 3, 8, channels=3)
    model = model_of(call, ROWS, "float[o0, o1] y", i=np.array([90, -800, 300], np.int32), **stored)
    expanded, _ = applied(FloatOperatorsPass(expand_qlinear), model)
    assert operators(expanded).count("QuantizeLinear") == 1
    x = samples(model)
    np.testing.assert_allclose(run(expanded, x=x), run(model, x=x), rtol=1e-5, atol=1e-4)


def test_a_result_without_a_zero_point_keeps_its_type():
    body = """node = com.microsoft.QLinearAdd (q, a, "", q, a, "", c) y = DequantizeLinear (node, c, z)"""
    model = model_of(body, z=np.int8(0), c=0.04)
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
    assert (quantized.name, quantized.dtype) == ("node", ir.DataType.UINT8)


SIGMOID = "[node] node = com.microsoft.QLinearSigmoid (q, a, z, c, cz) y = DequantizeLinear (node, c, cz)"


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (
            unary("QLinearGlobalAveragePool", 0.05, np.uint8(0), "<channels_last = 1>"),
            "its data is channels_last, and TensorRT takes channels first",
        ),
        (
            model_of(SIGMOID, given="a = ReduceMax <keepdims = 0> (x)" + QUANTIZED, c=0.1, cz=ABOVE_ZERO),
            "its scale or zero point 'a' is computed at run time",
        ),
        (
            model_of(
                SIGMOID,
                given=QUANTIZED.replace("(", "<axis = 1> ("),
                c=0.1,
                cz=ABOVE_ZERO,
                a=[0.1] * 4,
                z=np.zeros(4, np.uint8),
            ),
            "'a' has one scale per channel of an activation",
        ),
        (
            model_of(
                """m = ReduceMax <keepdims = 0> (x) bias = Cast <to = 6> (m)
                [node] y = com.microsoft.QGemm (q, a, z, w, p, pz, bias)""",
                ROWS,
                "float[o0, o1] y",
                **weights(False, 8, 3),
            ),
            "its bias 'bias' is computed at run time",
        ),
        (
            unary("QLinearSoftmax", 0.01, np.uint8(0), "<opset = 11, axis = 1>"),
            "it is the Softmax of opset 11, and the model's opset has another",
        ),
    ],
)
def test_what_cannot_be_replaced_is_told_and_stays(model, words):
    graph_model = ir.from_proto(model)
    expansion = FloatOperatorsPass(expand_qlinear)
    expansion(graph_model)
    assert [node.op_type for node in graph_model.graph] == operators(model)
    assert expansion.obstacles["node"] == words


def test_a_foreign_operator_of_the_same_name_stays():
    model = several("QLinearAdd (q, a, z, r, b, bz, c, cz)")
    model.graph.node[3].domain = "elsewhere"
    model.opset_import.append(helper.make_opsetid("elsewhere", 1))
    _, modified = applied(FloatOperatorsPass(expand_qlinear), model)
    assert model.graph.node[3].op_type == "QLinearAdd" and not modified
