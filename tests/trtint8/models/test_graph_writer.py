"""Nodes and constants that are added to a graph."""

import numpy as np
import onnx_ir as ir

from tests.trtint8.sensitivity.gradients.differences import network, run
from trtint8.models.graph_writer import GraphWriter, Term, attributes_of, reached_from, static_shape


def model():
    return network("float[2, 3] x", "a = Relu (x) s = Shape (a) y = Transpose <perm = [1, 0]> (a)")


def test_names_are_new_and_small_constants_shared():
    made = model()
    writer = GraphWriter(made.graph)
    x = Term(writer, made.graph.inputs[0])
    first, second = (x * 2 for _ in range(2))
    assert first.value.name != second.value.name
    (one, other), whole = (term.value.producer().inputs[1] for term in (first, second)), x * np.int64(2)
    assert one is other is not whole.value.producer().inputs[1]
    large = np.zeros(100, np.float32)
    assert writer.constant(large) is not writer.constant(large)


def test_reductions_of_both_forms():
    for opset in (17, 18):
        made = network("float[2, 3] x", "y = Relu (x)", opset)
        x = Term(GraphWriter(made.graph), made.graph.inputs[0])
        mean = x.reduced("ReduceMean", [1], keep=False).value
        mean.dtype = made.graph.inputs[0].dtype
        made.graph.outputs.append(mean)
        np.testing.assert_allclose(run(made, {"x": np.arange(6, dtype=np.float32).reshape(2, 3)})[1], [1, 4])


def test_a_node_is_copied_with_its_attributes():
    made = model()
    node = next(node for node in made.graph if node.op_type == "Transpose")
    writer = GraphWriter(made.graph)
    copied = writer.copy(node, made.graph.inputs).value
    assert attributes_of(copied.producer()) == attributes_of(node)
    assert list(copied.producer().inputs) == list(made.graph.inputs)


def test_what_depends_on_a_tensor_by_values_and_not_by_its_shape():
    made = model()
    reached = reached_from(made.graph, [made.graph.inputs[0]])
    assert {value.name for value in reached} == {"x", "a", "y"}
    assert static_shape(made.graph.inputs[0]) == [2, 3] and static_shape(None) is None


def test_calculating_with_terms_appends_what_it_computes():
    made = network("float[2, 3] x", "y = Relu (x)")
    x = Term(GraphWriter(made.graph), made.graph.inputs[0])
    feed = np.arange(1, 7, dtype=np.float32).reshape(2, 3)
    found = {
        "1 - x": (1 - x, 1 - feed),
        "x / 2 + 3": (x / 2 + 3, feed / 2 + 3),
        "2 / x": (2 / x, 2 / feed),
        "-(x - x * x)": (-(x - x * x), feed * feed - feed),
        "array": (feed[0] * x, feed[0] * feed),
        "between": (((x > 2) & (x < 5)).cast(ir.DataType.FLOAT), (feed > 2) & (feed < 5)),
        "flat": (x.op("Reshape", [-1]), feed.ravel()),
        "double": (x.cast(ir.DataType.DOUBLE) * np.float64(0.1), feed * 0.1),
    }
    for name, (term, _) in found.items():
        term.value.dtype = ir.DataType.DOUBLE if name == "double" else ir.DataType.FLOAT
        made.graph.outputs.append(term.value)
    for (_, wanted), got in zip(found.values(), run(made, {"x": feed})[1:], strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-6)
