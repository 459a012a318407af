"""Nodes of constants, by whichever way computes them."""

import itertools
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


@pytest.mark.parametrize("operator", ["MaxPool", "AveragePool", "LpPool"])
def test_pooling_is_not_computed(operator):
    node = ir.from_proto(helper.make_node(operator, ["x"], ["y"], kernel_shape=[2, 2], auto_pad="SAME_LOWER"))
    with pytest.raises(NotImplementedError, match=f"computes {operator}"):
        compute_node(node, {"x": np.zeros((1, 1, 5, 6), np.float32)}, 18)


LARGEST = (1 << 63) - 1


@pytest.mark.parametrize("dtype", [np.int64, np.float32])
@pytest.mark.parametrize("step", [-2, -1, 1, 2])
def test_slices_are_those_of_onnx_runtime_or_not_computed(dtype, step):
    left = []
    data = np.arange(3).astype(dtype)
    for start, end in itertools.product((-LARGEST, -4, -3, -1, 0, 2, 3, LARGEST), repeat=2):
        node = ir.from_proto(helper.make_node("Slice", ["x", "starts", "ends", "axes", "steps"], ["y"]))
        arrays = {"x": data, "starts": np.array([start]), "ends": np.array([end])}
        arrays |= {"axes": np.array([-1]), "steps": np.array([step])}
        try:
            found = compute_node(node, arrays, 18)
        except NotImplementedError:
            left.append((start, end))
            continue
        wanted = by_onnx_runtime(node, arrays, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))
        np.testing.assert_array_equal(found, wanted)
    outside = [(start, end) for start, end in left if start < -3 or end >= 3]
    assert left == outside and len(left) == (28 if step < 0 else 0)


def by_onnx_runtime(node, arrays, dtype=TensorProto.FLOAT):
    stored = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    output = helper.make_tensor_value_info("y", dtype, None)
    graph = helper.make_graph([ir.to_proto(node)], "g", [], [output], stored)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    return run(model)[0]


def test_places_in_another_size_are_not_folded():
    """ONNX's reference takes the places of a MaxUnpool for those in the size that the node would have."""
    places = np.array([[[[5, 7], [13, 15]]]])
    node = ir.from_proto(helper.make_node("MaxUnpool", ["x", "i", "s"], ["y"], kernel_shape=[2, 2]))
    arrays = {"x": FLOATS[:, :2].reshape(1, 1, 2, 2), "i": places, "s": np.array([1, 1, 5, 5])}
    with pytest.raises(NotImplementedError):
        compute_node(node, arrays, 17)
