"""Nodes that pass a tensor on: those that go, and those that must stay."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import trtint8
from tests.trtint8.models.passes.applying import applied, operators, run
from tests.trtint8.onnx_models import Graph
from trtint8.models.model import load_model, prepare
from trtint8.models.passes.identities import RemoveIdentitiesPass
from trtint8.models.serialization import to_proto


def branching():
    """An If one of whose branches is an Identity of a tensor from outside, between two convolutions."""
    info = helper.make_tensor_value_info
    then = helper.make_graph(
        [helper.make_node("Identity", ["c"], ["t"])], "then", [], [info("t", TensorProto.FLOAT, None)]
    )
    other = helper.make_graph(
        [helper.make_node("Relu", ["c"], ["e"])], "other", [], [info("e", TensorProto.FLOAT, None)]
    )
    random = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(0.2 * random.standard_normal(shape).astype(np.float32), name)
        for name, shape in (("w", (8, 3, 3, 3)), ("v", (4, 8, 3, 3)))
    ]
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1] * 4),
        helper.make_node("If", ["keep"], ["d"], then_branch=then, else_branch=other),
        helper.make_node("Conv", ["d", "v"], ["y"], pads=[1] * 4),
    ]
    inputs = [info("x", TensorProto.FLOAT, ["n", 3, 8, 8]), info("keep", TensorProto.BOOL, [])]
    graph = helper.make_graph(nodes, "g", inputs, [info("y", TensorProto.FLOAT, ["n", 4, 8, 8])], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_a_branch_that_passes_a_tensor_on_keeps_its_identity():
    prepared = to_proto(prepare(load_model(branching())).graph_model)
    onnx.checker.check_model(prepared)
    (node,) = [node for node in prepared.graph.node if node.op_type == "If"]
    branches = {attribute.name: attribute.g for attribute in node.attribute}
    assert [inner.op_type for inner in branches["then_branch"].node] == ["Identity"]
    assert [inner.op_type for inner in branches["else_branch"].node] == ["Relu"]


@pytest.mark.parametrize("keep", [True, False])
def test_such_a_model_is_quantized(keep):
    images = np.random.default_rng(1).standard_normal((16, 3, 8, 8)).astype(np.float32)
    data = [{"x": images, "keep": np.array(keep)}]
    table = trtint8.calibrate(branching(), data, progress=False)
    quantized = trtint8.quantize(branching(), table)
    accuracy = trtint8.validate(quantized, data, reference=branching(), progress=False)
    assert accuracy.outputs[0].sqnr_db > 30


def shared(outputs):
    """y = x w, passed on under other names."""
    g = Graph()
    product = g.op("MatMul", ["x", g.weights(4, 3)], "product")
    for name in outputs:
        g.nodes.append(helper.make_node("Identity", [product], [name], name=name))
    model = g.model({"x": ["N", 4]}, product)
    names = [product, *outputs]
    model.graph.output.extend(
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 3]) for name in names[1:]
    )
    return model


def test_outputs_keep_their_names_where_several_are_the_same_tensor():
    folded, modified = applied(RemoveIdentitiesPass(), shared(["a", "b"]))
    assert not modified
    x = np.ones((2, 4), np.float32)
    outputs = run(folded, x=x)
    assert len(outputs) == 3
    np.testing.assert_array_equal(outputs[0], outputs[1])


def test_an_output_takes_the_place_of_the_tensor_that_it_passes_on():
    model = shared(["a"])
    del model.graph.output[0]
    folded, modified = applied(RemoveIdentitiesPass(), model)
    assert modified and operators(folded) == ["MatMul"]
    assert folded.graph.node[0].output == ["a"]


def test_an_identity_of_an_input_or_of_a_constant_stays_where_it_is_an_output():
    g = Graph()
    constant = g.constant(np.ones(3, np.float32))
    for name, source in (("a", "x"), ("b", constant)):
        g.nodes.append(helper.make_node("Identity", [source], [name], name=name))
    model = g.model({"x": ["N", 4]}, "a")
    model.graph.output.append(helper.make_tensor_value_info("b", TensorProto.FLOAT, [3]))
    folded, modified = applied(RemoveIdentitiesPass(), model)
    assert not modified and operators(folded) == ["Identity", "Identity"]


def nested():
    """An If in a branch of an If: the inner one passes on what the outer branch returns as well."""
    info = helper.make_tensor_value_info
    inner = [
        helper.make_graph(
            [helper.make_node("Identity", ["r"], [name])], name, [], [info(name, TensorProto.FLOAT, None)]
        )
        for name in ("inner_then", "inner_else")
    ]
    outer = helper.make_graph(
        [
            helper.make_node("Relu", ["c"], ["r"]),
            helper.make_node("If", ["keep"], ["i"], then_branch=inner[0], else_branch=inner[1]),
        ],
        "outer",
        [],
        [info("r", TensorProto.FLOAT, None), info("i", TensorProto.FLOAT, None)],
    )
    other = helper.make_graph(
        [helper.make_node("Neg", ["c"], ["n"]), helper.make_node("Abs", ["c"], ["m"])],
        "other",
        [],
        [info("n", TensorProto.FLOAT, None), info("m", TensorProto.FLOAT, None)],
    )
    weights = numpy_helper.from_array(np.eye(4, 3, dtype=np.float32), "w")
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["c"], name="product"),
        helper.make_node("If", ["keep"], ["y", "z"], then_branch=outer, else_branch=other),
    ]
    inputs = [info("x", TensorProto.FLOAT, ["n", 4]), info("keep", TensorProto.BOOL, [])]
    outputs = [info(name, TensorProto.FLOAT, ["n", 3]) for name in ("y", "z")]
    graph = helper.make_graph(nodes, "g", inputs, outputs, [weights])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("keep", [True, False])
def test_a_branch_in_a_branch_returns_what_it_returned(keep):
    x = np.random.default_rng(2).standard_normal((5, 4)).astype(np.float32)
    prepared = to_proto(prepare(load_model(nested())).graph_model)
    onnx.checker.check_model(prepared)
    for found, wanted in zip(
        run(prepared, x=x, keep=np.array(keep)), run(nested(), x=x, keep=np.array(keep)), strict=True
    ):
        np.testing.assert_array_equal(found, wanted)
