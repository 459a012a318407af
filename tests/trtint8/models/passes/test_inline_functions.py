"""The nodes of functions in the place of their calls."""

import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from calibrators.errors import ModelError
from trtint8.models.model import load_model, prepare
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


OPSETS = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]


def function(name, nodes, inputs=("a",), outputs=("c",), domain="own"):
    return helper.make_function(domain, name, list(inputs), list(outputs), nodes, OPSETS)


def call(name, source, target, domain="own"):
    return helper.make_node(name, [source], [target], domain=domain)


def constant(name):
    return helper.make_node("Constant", [], [name], value=helper.make_tensor("v", TensorProto.BOOL, [], [1]))


def model(functions, name="F0", nodes=None):
    ends = [helper.make_tensor_value_info(end, TensorProto.FLOAT, ["N"]) for end in "xy"]
    graph = helper.make_graph(nodes or [call(name, "x", "y")], "g", ends[:1], ends[1:])
    return helper.make_model(graph, functions=functions, opset_imports=OPSETS, ir_version=8)


def chain(depth, times):
    """Functions of which each calls the next one so many times."""
    links = [
        [call(f"F{level + 1}", f"b{turn}" if turn else "a", f"b{turn + 1}") for turn in range(times)]
        for level in range(depth)
    ]
    functions = [function(f"F{level}", nodes, outputs=[f"b{times}"]) for level, nodes in enumerate(links)]
    return [*functions, function(f"F{depth}", [helper.make_node("Relu", ["a"], ["c"])])]


@pytest.mark.parametrize("depth", [24, 60, 99])
def test_functions_that_come_to_too_many_nodes(depth):
    nodes = 2 ** (depth + 1) - 2 + 2**depth
    shown = f"{nodes:,}" if nodes < 1_000_000_000 else "more than 1,000,000,000"
    with pytest.raises(ModelError, match=f"the functions of 'model' come to {shown} nodes"):
        load_model(model(chain(depth, 2)))


def test_functions_that_come_to_too_many_nodes_where_they_are_not_called_or_inside_a_branch():
    uncalled = model(chain(40, 2), nodes=[helper.make_node("Relu", ["x"], ["y"])])
    with pytest.raises(ModelError, match="the functions of 'model' come to more than"):
        load_model(uncalled)
    inner = helper.make_graph([call("F0", "x", "t")], "b", [], [helper.make_empty_tensor_value_info("t")])
    condition = helper.make_node(
        "Constant", [], ["c"], value=helper.make_tensor("v", TensorProto.BOOL, [], [1])
    )
    branch = helper.make_node("If", ["c"], ["y"], then_branch=inner, else_branch=inner)
    with pytest.raises(ModelError, match="the functions of 'model' come to more than"):
        load_model(model(chain(40, 2), nodes=[condition, branch]))


def test_functions_that_are_called_often_and_come_to_few_nodes():
    prepared = prepare(load_model(model(chain(8, 2)))).graph_model
    assert len(list(prepared.graph)) == 2**8
    prepared = prepare(load_model(model(chain(90, 1)))).graph_model
    assert [node.op_type for node in prepared.graph] == ["Relu"]


def test_functions_that_call_each_other_too_deep():
    with pytest.raises(ModelError, match="of 'model' calls others more than 100 deep"):
        load_model(model(chain(150, 1)))


def test_functions_that_call_themselves():
    itself = [function("F0", [call("F0", "a", "c")])]
    each_other = [function("F0", [call("F1", "a", "c")]), function("F1", [call("F0", "a", "c")])]
    inner = helper.make_graph([call("F0", "a", "t")], "b", [], [helper.make_empty_tensor_value_info("t")])
    condition = helper.make_node(
        "Constant", [], ["k"], value=helper.make_tensor("v", TensorProto.BOOL, [], [1])
    )
    branch = helper.make_node("If", ["k"], ["c"], then_branch=inner, else_branch=inner)
    for functions in (itself, each_other, [function("F0", [condition, branch])]):
        with pytest.raises(ModelError, match=r"the function 'own\.F[01]' of 'model' calls itself"):
            load_model(model(functions))


@pytest.mark.parametrize("domains", [("own", "own"), ("", "ai.onnx")])
def test_functions_that_are_there_twice(domains):
    body = [helper.make_node("Relu", ["a"], ["c"])]
    functions = [function("F0", body, domain=domain) for domain in domains]
    with pytest.raises(ModelError, match=r"'model' holds the function '.*F0' twice"):
        load_model(model(functions))


def test_a_function_with_the_name_of_an_operator():
    body = [helper.make_node("Neg", ["a"], ["c"])]
    hidden = model([function("Relu", body, domain="")], nodes=[helper.make_node("Relu", ["x"], ["y"])])
    with pytest.raises(ModelError, match="'Relu', which is the name of one of ONNX's operators"):
        load_model(hidden)


def test_calls_with_more_ends_than_the_function_has():
    body = [helper.make_node("Relu", ["a"], ["c"])]
    more = [
        helper.make_node("F0", ["x", "x"], ["y"], domain="own"),
        helper.make_node("F0", ["x"], ["y", "z"], domain="own"),
    ]
    for node in more:
        with pytest.raises(ModelError, match=r"a call of the function 'own\.F0' of 'model' has"):
            load_model(model([function("F0", body)], nodes=[node]))


@pytest.mark.parametrize(
    ("operator", "given"),
    [("Add", ["x", ""]), ("Add", ["", "x"]), ("Add", ["x"]), ("Sum", ["x", ""]), ("MatMul", [])],
)
def test_calls_that_leave_out_what_a_node_needs(operator, given):
    body = [helper.make_node(operator, ["a", "b"], ["c"], "n")]
    node = helper.make_node("F0", given, ["y"], domain="own")
    with pytest.raises(ModelError, match=rf"the node 'n.*' \({operator}\) of 'model' has no input"):
        load_model(model([function("F0", body, inputs="ab")], nodes=[node]))


def test_calls_that_leave_out_what_no_node_needs():
    body = [helper.make_node("Clip", ["a", "low", "high"], ["c"])]
    node = helper.make_node("F0", ["x", ""], ["y"], domain="own")
    prepared = prepare(load_model(model([function("F0", body, ["a", "low", "high"])], nodes=[node])))
    assert [node.op_type for node in prepared.graph_model.graph] == ["Clip"]
