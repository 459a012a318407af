"""Types and shapes that ONNX infers."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import trtint8
from tests.trtint8.onnx_models import Graph
from trtint8.models.loading.inferred_types import correct_shapes, infer_types


@pytest.fixture
def message():
    g = Graph(quantized=False)
    return g.model({"x": ["N", 6]}, g.op("Relu", [g.op("MatMul", ["x", g.weights(6, 5)], "product")], "y"))


def test_a_copy_has_what_is_inferred(message):
    before = message.SerializeToString()
    (product,) = infer_types(message).graph.value_info
    assert product.name == "product_out" and product.type.tensor_type.elem_type == onnx.TensorProto.FLOAT
    assert [size.dim_value for size in product.type.tensor_type.shape.dim] == [0, 5]
    assert message.SerializeToString() == before


def test_a_model_of_which_onnx_infers_nothing(message):
    message.ClearField("opset_import")
    assert infer_types(message) is None


def declared(shapes, x=(1, 4, 8, 8)):
    """A Split into 3 and 5 channels, and what the model says of its shapes."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1] * 4),
        helper.make_node("Split", ["c", "sizes"], ["a", "y"], axis=1),
        helper.make_node("Mine", ["a"], ["p"], domain="mine"),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shapes.get("y"))],
        [
            numpy_helper.from_array(np.zeros((8, 4, 3, 3), np.float32), "w"),
            numpy_helper.from_array(np.array([3, 5]), "sizes"),
        ],
        value_info=[
            helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
            for name, shape in shapes.items()
            if name != "y"
        ],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("mine", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def shapes_after(message):
    correct_shapes(message)
    values = (*message.graph.value_info, *message.graph.output)
    return {
        value.name: [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for value in values
    }


@pytest.mark.parametrize("stale", [[1, 4, 8, 8], [1, 8], [1, 8, 4, 4]])
def test_shapes_that_tensors_had_before_an_edit_are_corrected(stale):
    found = shapes_after(declared({"a": stale, "y": stale}))
    assert found == {"a": [1, 3, 8, 8], "y": [1, 5, 8, 8]}


def test_a_batch_of_one_is_corrected_where_the_input_was_opened():
    found = shapes_after(declared({"a": [1, 3, 8, 8], "y": [1, 5, 8, 8]}, x=("N", 4, 8, 8)))
    assert found == {"a": ["N", 3, 8, 8], "y": [1, 5, 8, 8]}, "an output may promise a number"


def test_what_onnx_does_not_know_stays():
    found = shapes_after(declared({"p": [7, 7], "c": ["batch", 8, "h", 8], "y": [1, 5, 8, 8]}))
    assert found == {"p": [7, 7], "c": ["batch", 8, "h", 8], "y": [1, 5, 8, 8]}


def test_calibration_does_not_depend_on_stale_shapes():
    x = np.random.default_rng(0).standard_normal((2, 4, 8, 8)).astype(np.float32)
    stale, right = declared({"c": [1, 9, 8, 8], "y": [1, 7, 8, 8]}), declared({"y": [1, 5, 8, 8]})
    for message in (stale, right):
        message.graph.node.pop()
    tables = [trtint8.calibrate(one, [{"x": x[:1]}, {"x": x[1:]}], progress=False) for one in (stale, right)]
    assert tables[0].amax == tables[1].amax
