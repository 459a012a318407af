"""A model in two parts, which compute together what it computes."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest

from calibrators.errors import ModelError
from tests.trtint8.onnx_models import function, parsed
from tests.trtint8.refused_models import refused_model
from trtint8.models.model import load_model, prepare
from trtint8.models.outputs.picked import cut_model, tensors_before
from trtint8.models.serialization import to_proto

X = np.random.default_rng(1).standard_normal((2, 3, 8, 8)).astype(np.float32)


@pytest.fixture
def whole():
    return prepare(load_model(refused_model()))


def names(values):
    return [value.name for value in values]


def run(graph_model, feeds):
    message = to_proto(graph_model)
    session = onnxruntime.InferenceSession(message.SerializeToString(), providers=["CPUExecutionProvider"])
    outputs = [output.name for output in session.get_outputs()]
    return dict(zip(outputs, session.run(outputs, feeds), strict=True))


def nodes_named(model, *wanted):
    return [node for node in model.graph_model.graph if node.name in wanted]


def test_both_parts_together_compute_what_the_model_computes(whole):
    cut = cut_model(whole, ["r", "s", "kept"])
    assert names(cut.head.graph_model.graph.inputs) == ["x"]
    assert names(cut.head.graph_model.graph.outputs) == ["r", "s", "kept"]
    assert names(cut.tail.graph.inputs) == ["r", "s"]
    assert names(cut.tail.graph.outputs) == ["positions", "values", "others"]
    assert [node.op_type for node in cut.tail.graph] == ["NonZero", "Cast", "Unique", "NonZero"]
    head = run(cut.head.graph_model, {"x": X})
    found = head | run(cut.tail, {name: head[name] for name in ("r", "s")})
    for name, expected in run(whole.graph_model, {"x": X}).items():
        np.testing.assert_array_equal(found[name], expected)


def test_outputs_that_need_the_tensors_are_behind_the_cut(whole):
    cut = cut_model(whole, ["s"])
    assert names(cut.head.graph_model.graph.outputs) == ["positions", "s"]
    assert names(cut.tail.graph.outputs) == ["values", "others", "kept"]
    assert cut.head.fingerprint != whole.fingerprint
    assert names(whole.graph_model.graph.outputs) == ["positions", "values", "others", "kept"]
    # The tail reads what the head gives, and inputs of the model only where it must.
    assert names(cut_model(whole, ["s", "kept"]).tail.graph.outputs) == ["values", "others"]
    assert names(cut_model(whole, ["d"]).tail.graph.inputs) == ["d"]


@pytest.mark.parametrize("tensors", [["nothing"], ["x"], ["w"], ["kept", "positions"]])
def test_where_no_cut_can_be(whole, tensors):
    with pytest.raises(ModelError, match=rf"'model'.*{', '.join(map(repr, tensors))}"):
        cut_model(whole, tensors)


def test_the_tensors_before_some_nodes(whole):
    graph = whole.graph_model.graph
    assert tensors_before(graph, nodes_named(whole, "where_node")) == ("r", "values", "others", "kept")
    assert tensors_before(graph, nodes_named(whole, "d_node")) == ("r", "positions")
    assert tensors_before(graph, nodes_named(whole, "c_node")) == ()


def test_both_parts_have_the_functions_of_the_model():
    twice = function("Twice", "a", "b", "two = Constant <value_float = 2.0> () b = Mul (a, two)")
    body = "t = own.Twice (x) m = MatMul (t, w) y = own.Twice (m)"
    model = parsed("float[4, 4] x", "float[4, 4] y", body, twice, domains=["own"], w=X[0, 0, :4, :4])
    whole = prepare(load_model(model))
    cut = cut_model(whole, ["m"])
    x = X[0, 1, :4, :4]
    (expected,) = run(whole.graph_model, {"x": x}).values()
    np.testing.assert_array_equal(run(cut.tail, run(cut.head.graph_model, {"x": x}))["y"], expected)
