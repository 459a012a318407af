"""Models whose nodes stand before what they read."""

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

import trtint8
from trtint8.models.loading.node_order import sort_nodes


def model(nodes, weights=()):
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 4])],
        list(weights),
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def chain(length):
    names = ["x", *(f"t{i}" for i in range(length - 1)), "y"]
    return [helper.make_node("Relu", [names[i]], [names[i + 1]], name=f"relu{i}") for i in range(length)]


def names(graph):
    return [node.name for node in graph.node]


@settings(max_examples=50)
@given(st.permutations(range(6)))
def test_a_chain_in_any_order_is_put_in_order(order):
    nodes = chain(6)
    message = model([nodes[i] for i in order])
    sort_nodes(message)
    assert names(message.graph) == [f"relu{i}" for i in range(6)]
    onnx.checker.check_model(message)


def test_nodes_that_are_in_order_stay_where_they_are():
    nodes = [
        helper.make_node("Relu", ["x"], ["b"], name="later"),
        helper.make_node("Neg", ["x"], ["a"], name="earlier"),
        helper.make_node("Add", ["a", "b"], ["y"], name="sum"),
    ]
    message = model(nodes)
    sort_nodes(message)
    assert names(message.graph) == ["later", "earlier", "sum"]


def test_what_a_branch_reads_comes_before_its_node():
    kinds = {"then_branch": "Identity", "else_branch": "Neg"}
    branches = {
        key: helper.make_graph(
            [helper.make_node(kind, ["a"], [f"{kind}_out"])],
            kind,
            [],
            [helper.make_tensor_value_info(f"{kind}_out", TensorProto.FLOAT, None)],
        )
        for key, kind in kinds.items()
    }
    condition = onnx.numpy_helper.from_array(np.array(True), "condition")
    message = model(
        [
            helper.make_node("If", ["condition"], ["y"], name="if", **branches),
            helper.make_node("Relu", ["x"], ["a"], name="relu"),
        ],
        [condition],
    )
    sort_nodes(message)
    assert names(message.graph) == ["relu", "if"]


def test_a_cycle_is_left_to_the_checker():
    nodes = [
        helper.make_node("Add", ["x", "b"], ["a"], name="first"),
        helper.make_node("Relu", ["a"], ["b"], name="second"),
        helper.make_node("Relu", ["b"], ["y"], name="third"),
    ]
    message = model(nodes)
    sort_nodes(message)
    assert names(message.graph) == ["first", "second", "third"]
    with pytest.raises(trtint8.ModelError, match="is not a valid ONNX model"):
        trtint8.quantize(message, trtint8.CalibrationTable({}))


def test_a_cast_at_the_end_of_the_graph_is_no_obstacle(tmp_path):
    weights = onnx.numpy_helper.from_array(np.eye(4, dtype=np.float16), "w")
    nodes = [
        helper.make_node("MatMul", ["half", "w"], ["product"], name="matmul"),
        helper.make_node("Cast", ["x"], ["half"], name="cast_in", to=TensorProto.FLOAT16),
        helper.make_node("Cast", ["product"], ["y"], name="cast_out", to=TensorProto.FLOAT),
    ]
    path = tmp_path / "half.onnx"
    onnx.save(model(nodes, [weights]), path)
    data = np.random.default_rng(0).standard_normal((8, 4)).astype(np.float32)
    table = trtint8.calibrate(path, data, progress=False)
    accuracy = trtint8.validate(trtint8.quantize(path, table), data, reference=path, progress=False)
    assert accuracy.outputs[0].sqnr_db > 30
