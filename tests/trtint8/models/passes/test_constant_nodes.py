"""Nodes of constants, by whichever way computes them."""

import warnings

import numpy as np
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.trtint8.models.passes.applying import run
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


@pytest.mark.parametrize(
    ("operator", "others", "attributes", "computed"),
    [
        ("Resize", ["", "scales"], {"coordinate_transformation_mode": "align_corners"}, False),
        ("Resize", ["", "scales"], {"coordinate_transformation_mode": "half_pixel"}, True),
        ("Resize", ["", "", "sizes"], {"coordinate_transformation_mode": "align_corners"}, True),
        (
            "Resize",
            ["", "", "sizes"],
            {"coordinate_transformation_mode": "align_corners", "antialias": 1},
            False,
        ),
        ("LpNormalization", [], {"p": 1}, False),
        ("LpNormalization", [], {"p": 2}, True),
    ],
)
def test_what_the_reference_computes_otherwise_than_onnx_runtime_is_not_computed(
    operator, others, attributes, computed
):
    if operator == "Resize":
        attributes = {"mode": "linear", **attributes}
    node = ir.from_proto(helper.make_node(operator, ["x", *others], ["y"], **attributes))
    arrays = {
        "x": np.random.default_rng(0).standard_normal((1, 1, 5, 6), np.float32),
        "scales": np.float32([1, 1, 0.7, 0.7]),
        "sizes": np.array([1, 1, 3, 4]),
    }
    arrays = {name: array for name, array in arrays.items() if name in ("x", *others)}
    if not computed:
        with pytest.raises(NotImplementedError, match=f"computes {operator}"):
            compute_node(node, arrays, 18)
        return
    found = compute_node(node, arrays, 18)
    np.testing.assert_allclose(found, by_onnx_runtime(node, arrays), rtol=1e-5, atol=1e-6)


def by_onnx_runtime(node, arrays):
    stored = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([ir.to_proto(node)], "g", [], [output], stored)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    return run(model)[0]
