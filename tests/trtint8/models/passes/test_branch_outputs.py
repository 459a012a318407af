"""Branches compute what they return."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import trtint8
from trtint8.models.model import load_model, prepare, to_proto


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
