"""Nodes and constants that are added to a graph."""

import numpy as np

from tests.trtint8.sensitivity.gradients.differences import network, run
from trtint8.models.graph_writer import GraphWriter, attributes_of, reached_from, static_shape


def model():
    nodes = [("Relu", ["x"], "a", {}), ("Shape", ["a"], "s", {}), ("Transpose", ["a"], "y", {"perm": [1, 0]})]
    return network(nodes, {"x": [2, 3]})


def test_names_are_new_and_small_constants_shared():
    made = model()
    writer = GraphWriter(made.graph)
    assert writer.number(2.0) is writer.number(2.0)
    assert writer.number(2.0) is not writer.constant(np.int64(2))
    first, second = (writer.op("Mul", made.graph.inputs[0], writer.number(2.0)) for _ in range(2))
    assert first.name != second.name
    large = np.zeros(100, np.float32)
    assert writer.constant(large) is not writer.constant(large)


def test_reductions_of_both_forms():
    for opset in (17, 18):
        made = network([("Relu", ["x"], "y", {})], {"x": [2, 3]}, opset=opset)
        writer = GraphWriter(made.graph)
        mean = writer.reduced("ReduceMean", made.graph.inputs[0], [1], keep=False)
        mean.dtype = made.graph.inputs[0].dtype
        made.graph.outputs.append(mean)
        np.testing.assert_allclose(run(made, {"x": np.arange(6, dtype=np.float32).reshape(2, 3)})[1], [1, 4])


def test_a_node_is_copied_with_its_attributes():
    made = model()
    node = next(node for node in made.graph if node.op_type == "Transpose")
    writer = GraphWriter(made.graph)
    copied = writer.copy(node, made.graph.inputs)
    assert attributes_of(copied.producer()) == attributes_of(node)
    assert list(copied.producer().inputs) == list(made.graph.inputs)


def test_what_depends_on_a_tensor_by_values_and_not_by_its_shape():
    made = model()
    reached = reached_from(made.graph, [made.graph.inputs[0]])
    assert {value.name for value in reached} == {"x", "a", "y"}
    assert static_shape(made.graph.inputs[0]) == [2, 3] and static_shape(None) is None
