"""Quantized constants and the values that they represent."""

import numpy as np
import onnx_ir as ir
import pytest

from calibrators.errors import ModelError
from trtint8.interop.stored_integers import float_values


def dequantize(whole, scales, **attributes):
    values = [
        ir.Value(name=name, const_value=ir.tensor(np.asarray(array), name=name))
        for name, array in (("w", whole), ("s", np.float32(scales)))
    ]
    given = [ir.AttrInt64(name, value) for name, value in attributes.items()]
    return ir.Node("", "DequantizeLinear", values, given, name="d")


def values_of(whole, scales, zeros=(0,), **attributes):
    flat = np.float32(scales).reshape(-1)
    return float_values(dequantize(whole, scales, **attributes), whole, flat, np.asarray(zeros))


def test_one_scale_and_one_per_channel():
    whole = np.array([[1, 2], [3, 4]], np.int8)
    assert values_of(whole, 0.5).tolist() == [[0.5, 1.0], [1.5, 2.0]]
    assert values_of(whole, [1, 10]).tolist() == [[1, 20], [3, 40]]
    assert values_of(whole, [1, 10], zeros=[1, 2], axis=0).tolist() == [[0, 1], [10, 20]]


def test_one_scale_per_block():
    whole = np.ones((5, 2), np.int8)
    scales = [[1, 2], [3, 4], [5, 6]]
    wanted = [[1, 2], [1, 2], [3, 4], [3, 4], [5, 6]]
    assert values_of(whole, scales, axis=0, block_size=2).tolist() == wanted
    assert values_of(whole, scales, axis=-2, block_size=2).tolist() == wanted
    less = values_of(whole, scales, zeros=[1, 0, 1, 0, 0, 0], axis=0, block_size=2)
    assert less.tolist() == [[0, 2], [0, 2], [0, 4], [0, 4], [5, 6]]


def test_scales_that_do_not_fit_the_blocks():
    with pytest.raises(ModelError, match=r"'w' of shape \[8, 2\] in blocks of 4 along axis 0 needs \[2, 2\]"):
        values_of(np.ones((8, 2), np.int8), np.ones((4, 2)), axis=0, block_size=4)


@pytest.mark.parametrize("axis", [9, -9, 1])
def test_scales_that_do_not_fit_the_axis(axis):
    with pytest.raises(ModelError, match=rf"4 scales along axis {axis}, .* tensor 'w' of shape \[4, 3\]"):
        values_of(np.ones((4, 3), np.int8), np.ones(4), axis=axis)
