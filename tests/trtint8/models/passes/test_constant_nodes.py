"""Nodes of constants, by whichever way computes them."""

import warnings

import numpy as np
import onnx_ir as ir
import pytest
from onnx import helper

from trtint8.models.passes.constant_nodes import compute_node

INTEGERS, FLOATS = np.arange(6).reshape(2, 3), np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.mark.parametrize(
    ("operator", "array", "wanted"),
    [
        ("Identity", FLOATS, FLOATS),
        ("Transpose", INTEGERS, INTEGERS.T),
        ("Transpose", FLOATS, FLOATS.T),
        ("Neg", INTEGERS, -INTEGERS),
    ],
)
def test_the_first_output(operator, array, wanted):
    node = ir.from_proto(helper.make_node(operator, ["x"], ["y"]))
    found = compute_node(node, {"x": array}, 17)
    assert found.dtype == wanted.dtype
    np.testing.assert_array_equal(found, wanted)


def test_an_input_may_be_left_out():
    node = ir.from_proto(helper.make_node("Clip", ["x", "", "most"], ["y"]))
    found = compute_node(node, {"x": FLOATS, "most": np.float32(2)}, 17)
    np.testing.assert_array_equal(found, np.minimum(FLOATS, 2))


def test_values_beyond_the_numbers_give_no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = compute_node(
            ir.from_proto(helper.make_node("Log", ["x"], ["y"])), {"x": np.float32([0, 1])}, 17
        )
    assert found.tolist() == [-np.inf, 0]
