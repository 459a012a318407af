"""Which integers an input takes, by what the graph does with it."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from trtint8.models.model import load_model


def bounds(nodes, *, initializers=(), outputs=("y",), dtype=TensorProto.INT64):
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("ids", dtype, ["N", 6])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in dict(initializers).items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    return [spec.bound for spec in load_model(model).inputs]


TABLE = {"table": np.zeros((50, 4), np.float32)}


def test_tokens_are_rows_of_the_table():
    assert bounds([helper.make_node("Gather", ["table", "ids"], ["y"])], initializers=TABLE) == [50]


def test_tokens_may_be_converted_and_reshaped_first():
    nodes = [
        helper.make_node("Cast", ["ids"], ["c"], to=TensorProto.INT32),
        helper.make_node("Reshape", ["c", "shape"], ["r"]),
        helper.make_node("Gather", ["table", "r"], ["y"]),
    ]
    assert bounds(nodes, initializers=TABLE | {"shape": np.array([-1])}) == [50]


def test_the_smallest_of_several_tables_counts():
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["y"]),
        helper.make_node("Gather", ["small", "ids"], ["z"]),
    ]
    tables = TABLE | {"small": np.zeros((7, 2), np.float32)}
    assert bounds(nodes, initializers=tables, outputs=("y", "z")) == [7]


@pytest.mark.parametrize("axis", [1, -1])
def test_columns_are_no_rows(axis):
    nodes = [helper.make_node("Gather", ["table", "ids"], ["y"], axis=axis)]
    assert bounds(nodes, initializers=TABLE) == [None]


def test_a_mask_is_converted_to_booleans_or_subtracted_from_one():
    to_bool = [
        helper.make_node("Unsqueeze", ["ids", "axes"], ["u"]),
        helper.make_node("Cast", ["u"], ["b"], to=TensorProto.BOOL),
        helper.make_node("Where", ["b", "one", "one"], ["y"]),
    ]
    constants = {"axes": np.array([1]), "one": np.ones((), np.float32)}
    assert bounds(to_bool, initializers=constants) == [2]
    subtracted = [
        helper.make_node("Cast", ["ids"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Sub", ["one", "f"], ["y"]),
    ]
    assert bounds(subtracted, initializers={"one": np.ones((1, 1), np.float32)}) == [2]
    assert bounds(subtracted, initializers={"one": np.full((), 3, np.float32)}) == [None]


def test_nothing_is_said_of_floats_and_of_other_integers():
    assert bounds([helper.make_node("Cast", ["ids"], ["y"], to=TensorProto.FLOAT)]) == [None]
    relu = [helper.make_node("Relu", ["ids"], ["y"])]
    assert bounds(relu, dtype=TensorProto.FLOAT) == [None]
