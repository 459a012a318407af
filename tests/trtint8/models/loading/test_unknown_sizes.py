"""Sizes that say only that they are not known."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import trtint8
from trtint8.models.loading.unknown_sizes import clear_unknown_sizes
from trtint8.models.model import load_model


def model(shape, output=("N", 3)):
    """A product of vectors, with its input's shape as some converters declare it."""
    weights = np.eye(4, 3, dtype=np.float32)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"], name="matmul")],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, output)],
        [onnx.numpy_helper.from_array(weights, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)])


def shape_of(value):
    return [
        dim.WhichOneof("value") and (dim.dim_param or dim.dim_value)
        for dim in value.type.tensor_type.shape.dim
    ]


def test_minus_one_and_a_question_mark_are_no_sizes():
    message = model([-1, "?", "?", 4], ["N", 0, -1])
    clear_unknown_sizes(message)
    assert shape_of(message.graph.input[0]) == [None, None, None, 4]
    assert shape_of(message.graph.output[0]) == ["N", 0, None]


def test_also_within_graphs_of_nodes():
    message = model(["N", 4])
    inner = model([-1, 4]).graph
    message.graph.node.append(helper.make_node("If", ["c"], ["z"], then_branch=inner, else_branch=inner))
    clear_unknown_sizes(message)
    for attribute in message.graph.node[1].attribute:
        assert shape_of(attribute.g.input[0]) == [None, 4]


@pytest.mark.parametrize("size", [-1, "?", ""])
def test_a_model_with_them_is_calibrated_in_batches_of_any_size(size):
    data = np.random.default_rng(0).standard_normal((10, 4)).astype(np.float32)
    source = model([size, 4], [size, 3])
    assert load_model(source).inputs[0].shape == (None, 4)
    table = trtint8.calibrate(source, data, batch_size=4, progress=False)
    assert table.amax["x"] == pytest.approx(np.abs(data).max(), rel=0.1)
    accuracy = trtint8.validate(trtint8.quantize(source, table), data, reference=source, progress=False)
    assert accuracy.samples == 10
