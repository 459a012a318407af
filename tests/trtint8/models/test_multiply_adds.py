"""Multiply-adds of nodes."""

import onnx_ir as ir
import pytest

from trtint8.models.multiply_adds import multiply_adds


def counted(operator, inputs, output, **attributes):
    values = [ir.Value(name=str(index)) for index in range(len(inputs))]
    node = ir.node(operator, values, attributes)
    return multiply_adds(node, dict(zip((*values, *node.outputs), (*inputs, output), strict=True)).get)


@pytest.mark.parametrize(
    ("operator", "inputs", "output", "attributes", "expected"),
    [
        ("Conv", [(2, 8, 16, 16), (32, 4, 3, 3)], (2, 32, 8, 8), {"group": 2}, 2 * 32 * 8 * 8 * 4 * 9),
        (
            "DeformConv",
            [(2, 8, 16, 16), (32, 4, 3, 3), (2, 18, 8, 8)],
            (2, 32, 8, 8),
            {"group": 2},
            2 * 32 * 8 * 8 * 36,
        ),
        ("ConvTranspose", [(2, 8, 16, 16), (8, 32, 2, 2)], (2, 32, 32, 32), {}, 2 * 8 * 16 * 16 * 32 * 4),
        ("Gemm", [(5, 64), (32, 64)], (5, 32), {"transB": 1}, 5 * 64 * 32),
        ("Gemm", [(64, 5), (64, 32)], (5, 32), {"transA": 1}, 5 * 64 * 32),
        ("MatMul", [(2, 10, 64), (64, 32)], (2, 10, 32), {}, 2 * 10 * 64 * 32),
        ("Einsum", [(2, 10, 64), (64, 32)], (2, 32, 10), {"equation": "bti, ij -> btj"}, 2 * 10 * 64 * 32),
        ("LSTM", [(10, 3, 16), (2, 128, 16), (2, 128, 32)], None, {}, 10 * 3 * 2 * 4 * 32 * (16 + 32)),
    ],
)
def test_products(operator, inputs, output, attributes, expected):
    assert counted(operator, inputs, output, **attributes) == expected


@pytest.mark.parametrize(
    ("operator", "inputs", "output", "attributes"),
    [
        ("MatMul", [None, (64, 32)], (2, 10, 32), {}),
        ("LSTM", [None, (2, 128, 16), (2, 128, 32)], None, {}),
        ("Gemm", [(3,), (3, 3)], (3,), {}),
        ("Einsum", [(2, 10, 64), (64, 32)], (2, 10, 32), {"equation": "...i,ij->...j"}),
        ("Relu", [(2, 3)], (2, 3), {}),
    ],
)
def test_what_is_not_counted(operator, inputs, output, attributes):
    assert counted(operator, inputs, output, **attributes) is None
