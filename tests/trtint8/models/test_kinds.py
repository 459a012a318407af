"""Kinds of nodes and of values."""

import onnx_ir as ir
import pytest

from trtint8.models.kinds import is_along_last_axis, may_be_float


@pytest.mark.parametrize(
    ("dtype", "expected"), [(None, True), (ir.DataType.BFLOAT16, True), (ir.DataType.INT64, False)]
)
def test_values_that_may_be_floats(dtype, expected):
    value = ir.Value(name="x", type=None if dtype is None else ir.TensorType(dtype))
    assert may_be_float(value) is expected


@pytest.mark.parametrize(
    ("axis", "shape", "expected"),
    [(-1, None, True), (2, [1, 2, 3], True), (1, [1, 2, 3], False), (2, None, False), (None, None, True)],
)
def test_a_node_along_the_last_axis(axis, shape, expected):
    node = ir.node("Softmax", [ir.Value(name="x")], {} if axis is None else {"axis": axis})
    node.outputs[0].shape = None if shape is None else ir.Shape(shape)
    assert is_along_last_axis(node) is expected
