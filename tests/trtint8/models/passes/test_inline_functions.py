"""The nodes of functions in the place of their calls."""

import onnx_ir as ir
from onnx import TensorProto, helper

from trtint8.models.passes.inline_functions import InlineFunctionsPass


def test_nodes_without_a_name_are_named_after_their_function():
    opset, own = helper.make_opsetid("", 17), helper.make_opsetid("own", 1)
    body = [helper.make_node("Relu", ["a"], ["b"]), helper.make_node("Neg", ["b"], ["c"], "turn")]
    inner = helper.make_function("own", "Inner", ["a"], ["c"], body, [opset])
    body = [helper.make_node("Exp", ["a"], ["b"]), helper.make_node("Inner", ["b"], ["c"], domain="own")]
    outer = helper.make_function("own", "Outer", ["a"], ["c"], body, [opset, own])
    calls = [
        helper.make_node("Outer", ["x"], ["h"], domain="own"),
        helper.make_node("Inner", ["h"], ["y"], domain="own"),
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N"]) for name in "xy"]
    graph = helper.make_graph(calls, "g", ends[:1], ends[1:])
    model = ir.from_proto(helper.make_model(graph, functions=[inner, outer], opset_imports=[opset, own]))
    assert InlineFunctionsPass()(model).modified and not model.functions
    names = [node.name for node in model.graph]
    assert names[0] == "Outer_Exp" and len(set(names)) == 5
    # Which numbers are behind them is onnx-ir's matter.
    assert [name.rstrip("_0123456789") for name in names[1:]] == ["Inner_Relu", "turn"] * 2
