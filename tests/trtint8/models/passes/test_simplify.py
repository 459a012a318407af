"""Nodes that pass a tensor on: those that go, and those that must stay."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

import trtint8
from calibrators.errors import ModelError
from calibrators.tables.table import CalibrationTable
from tests.trtint8.models.passes.applying import IMAGES, applied, operators, run
from tests.trtint8.onnx_models import Graph, Shaped
from tests.trtint8.quantization.float16.half_models import FLOAT, network, weights
from tests.trtint8.quantization.float16.half_models import run as element_types_run
from trtint8.models.model import load_model, prepare
from trtint8.models.passes.simplify import (
    FoldBatchNormPass,
    InferShapesPass,
    InlineFunctionsPass,
    NameNodesPass,
    RemoveIdentitiesPass,
    SumsAsAddsPass,
    settle_element_types,
)
from trtint8.models.serialization import to_proto
from trtint8.quantization.float16 import to_float16
from trtint8.quantization.placement import place


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


def summed(names):
    """A Sum of inputs of four channels, whose last one is broadcast."""
    info = helper.make_tensor_value_info
    inputs = [info(name, TensorProto.FLOAT, ["N", 4, 1 if name == names[-1] else 3]) for name in names]
    node = helper.make_node("Sum", names, ["y"], "total")
    graph = helper.make_graph([node], "g", inputs, [info("y", TensorProto.FLOAT, ["N", 4, 3])])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("names", [["a", "b"], ["a", "b", "c"], ["a", "b", "c", "d"]])
def test_the_same_sum(names):
    model = summed(names)
    random = np.random.default_rng(0)
    feeds = {
        name: random.standard_normal((2, 4, 1 if name == names[-1] else 3)).astype(np.float32)
        for name in names
    }
    rewritten, modified = applied(SumsAsAddsPass(), model)
    onnx.checker.check_model(rewritten, full_check=True)
    assert modified and operators(rewritten) == ["Add"] * (len(names) - 1)
    last = rewritten.graph.node[-1]
    assert (last.name, list(last.output)) == ("total", ["y"])
    assert [value.name for value in rewritten.graph.output] == ["y"]
    np.testing.assert_allclose(run(rewritten, **feeds)[0], run(model, **feeds)[0], rtol=1e-6, atol=1e-6)


def test_a_sum_of_one_tensor_stays():
    g = Shaped(quantized=False)
    model = g.model(IMAGES, g.op("Sum", ["x"], "same"))
    rewritten, modified = applied(SumsAsAddsPass(), model)
    assert (modified, operators(rewritten)) == (False, ["Sum"])


def shortcut(kind):
    """A convolution, another one behind it, and the sum of both."""
    g = Shaped(quantized=False)
    first = g.op("Conv", ["x", g.weights(8, 4, 3, 3)], "first", pads=[1] * 4)
    second = g.op("Conv", [g.op("Relu", [first], "r"), g.weights(8, 8, 3, 3)], "second", pads=[1] * 4)
    return g.model(IMAGES, g.op("Relu", [g.op(kind, [second, first], "sum")], "y"))


def test_shortcuts_are_quantized_as_those_of_an_add():
    found = []
    for kind in ("Sum", "Add"):
        prepared = prepare(load_model(shortcut(kind))).graph_model
        placement = place(prepared)
        found.append((operators(to_proto(prepared)), set(placement.tensors), set(placement.quantized_nodes)))
    assert found[0] == found[1]
    assert "first_out" in found[0][1]


def test_nodes_get_unique_names_and_keep_those_they_have():
    g = Graph()
    x = "x"
    for name in ("a", "b", "c", "d"):
        x = g.op("Relu", [x], name)
    model = g.model(IMAGES, x)
    for node, name in zip(model.graph.node, ("same", "same", "", "own"), strict=True):
        node.name = name
    named, modified = applied(NameNodesPass(), model)
    assert modified
    assert [node.name for node in named.graph.node] == ["same", "Relu_b_out", "Relu_c_out", "own"]
    again, modified = applied(NameNodesPass(), named)
    assert not modified and again.graph.node == named.graph.node


def test_a_made_up_name_leaves_a_later_nodes_own_name_alone():
    g = Graph()
    model = g.model(IMAGES, g.op("Relu", [g.op("Relu", ["x"], "a")], "b"))
    model.graph.node[0].name, model.graph.node[1].name = "", "Relu_a_out"
    named, _ = applied(NameNodesPass(), model)
    names = [node.name for node in named.graph.node]
    assert names[1] == "Relu_a_out" and len(set(names)) == 2


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


def test_calls_that_leave_out_an_attribute():
    body = [
        helper.make_node("Cast", ["a"], ["c"], "cast"),
        helper.make_node("Constant", [], ["k"], "constant"),
    ]
    body[0].attribute.add(name="to", ref_attr_name="kind", type=onnx.AttributeProto.INT)
    body[1].attribute.add(name="value_float", ref_attr_name="number", type=onnx.AttributeProto.FLOAT)
    called = helper.make_function("own", "F0", ["a"], ["c"], body, OPSETS, ["kind", "number"])

    def given(**attributes):
        return model([called], nodes=[helper.make_node("F0", ["x"], ["y"], domain="own", **attributes)])

    assert load_model(given(kind=TensorProto.FLOAT, number=1.0))
    with pytest.raises(ModelError, match=r"the node 'cast' \(Cast\) of 'model' has no attribute 'to'"):
        load_model(given(number=1.0))
    with pytest.raises(ModelError, match=r"the node 'constant' \(Constant\) of 'model' has no value"):
        load_model(given(kind=TensorProto.FLOAT))


def test_functions_with_graphs_as_attributes():
    inner = helper.make_graph([helper.make_node("Relu", ["a"], ["t"])], "b", [], [])
    body = helper.make_attribute("body", inner)
    default, referring = (function("F0", [helper.make_node("Relu", ["a"], ["c"])]) for _ in range(2))
    default.attribute_proto.append(body)
    referring.attribute.append("body")
    reference = onnx.AttributeProto(name="x", ref_attr_name="body", type=onnx.AttributeProto.GRAPH)
    referring.node[0].attribute.append(reference)
    given = model([function("F0", [helper.make_node("Relu", ["a"], ["c"])])])
    given.graph.node[0].attribute.append(body)
    for refused in (model([default]), model([referring]), given):
        with pytest.raises(
            ModelError, match=r"the function 'own\.F0' of 'model' has a graph as an attribute"
        ):
            load_model(refused)


def normalized(operator="Conv", bias=True):
    g = Graph()
    shape = (5, 4, 3, 3) if operator == "Conv" else (4, 5, 3, 3)
    x = g.op(operator, ["x", g.weights(*shape), *([g.weights(5)] if bias else [])], "conv")
    parameters = [g.weights(5), g.weights(5), g.weights(5), g.constant(np.full(5, 0.7, np.float32))]
    return g, g.op("BatchNormalization", [x, *parameters], "norm")


@pytest.mark.parametrize("operator", ["Conv", "ConvTranspose"])
@pytest.mark.parametrize("bias", [True, False])
def test_batch_norm_is_folded(operator, bias):
    g, y = normalized(operator, bias)
    model = g.model(IMAGES, y)
    folded, modified = applied(FoldBatchNormPass(), model)
    assert modified and operators(folded) == [operator]
    assert folded.graph.output[0].name == "norm_out"
    x = np.random.default_rng(1).standard_normal((2, 4, 6, 6)).astype(np.float32)
    np.testing.assert_allclose(run(folded, x=x)[0], run(model, x=x)[0], rtol=1e-5, atol=1e-5)


def test_batch_norm_stays_when_the_conv_has_a_second_reader():
    g, y = normalized()
    model = g.model(IMAGES, g.op("Add", [y, "conv_out"], "add"))
    folded, modified = applied(FoldBatchNormPass(), model)
    assert not modified and operators(folded) == operators(model)


def test_batch_norm_stays_when_the_conv_is_a_graph_output():
    g, y = normalized()
    model = g.model(IMAGES, y)
    model.graph.output.append(onnx.helper.make_tensor_value_info("conv_out", 1, None))
    folded, modified = applied(FoldBatchNormPass(), model)
    assert not modified and operators(folded) == operators(model)


def test_folded_parameters_get_names_that_no_activation_has():
    g, y = normalized()
    conv = next(node for node in g.nodes if node.op_type == "Conv")
    name = f"{conv.input[1]}_folded"
    g.nodes.append(onnx.helper.make_node("Relu", [y], [name], "relu"))
    folded, _ = applied(FoldBatchNormPass(), g.model(IMAGES, name))
    assert [tensor.name for tensor in folded.graph.initializer if "_folded" in tensor.name] == [
        f"{name}_1",
        f"{name}_bias",
    ]
    assert folded.graph.output[0].name == name


@pytest.mark.parametrize("place", [1, 2, 3, 4])
def test_parameters_of_another_length_are_refused_by_name(place):
    g, y = normalized()
    norm = g.nodes[-1]
    norm.input[place] = wrong = g.weights(4)
    model = g.model(IMAGES, y)
    model.graph.output[0].CopyFrom(
        onnx.helper.make_tensor_value_info(y, onnx.TensorProto.FLOAT, [2, 5, 4, 4])
    )
    with pytest.raises(
        ModelError, match=rf"'{wrong}' has the shape \[4\], but 'norm' .* 5 channels of 'conv'"
    ):
        prepare(load_model(model))


def test_batch_norm_of_a_negative_variance_stays():
    g, y = normalized()
    g.nodes[-1].input[4] = g.constant(np.full(5, -1, np.float32))
    model = g.model(IMAGES, y)
    folded, modified = applied(FoldBatchNormPass(), model)
    assert not modified and operators(folded) == operators(model)


def found_boxes():
    """What detectors do with the boxes that they find: those above 0.5, reshaped as (boxes, 4).

    The sizes for the Reshape are those of another tensor, as PyTorch's exporter writes them.
    """
    node = helper.make_node
    nodes = [
        node("Greater", ["scores", "limit"], ["is_found"]),
        node("Compress", ["boxes", "is_found"], ["found"], axis=0),
        node("Flatten", ["found"], ["flat"], axis=1),
        node("Shape", ["flat"], ["sizes"]),
        node("Gather", ["sizes", "zero"], ["first"], axis=0),
        node("Gather", ["sizes", "one"], ["second"], axis=0),
        node("Unsqueeze", ["first", "axes"], ["first_alone"]),
        node("Unsqueeze", ["second", "axes"], ["second_alone"]),
        node("Concat", ["first_alone", "second_alone"], ["shape"], axis=0),
        node("Relu", ["found"], ["inside"]),
        node("Reshape", ["inside", "shape"], ["y"]),
    ]
    constants = [
        numpy_helper.from_array(np.float32(0.5), "limit"),
        numpy_helper.from_array(np.int64(0), "zero"),
        numpy_helper.from_array(np.int64(1), "one"),
        numpy_helper.from_array(np.array([0], np.int64), "axes"),
    ]
    info = helper.make_tensor_value_info
    inputs = [info("boxes", TensorProto.FLOAT, ["N", 2, 2]), info("scores", TensorProto.FLOAT, ["N"])]
    outputs = [info("y", TensorProto.FLOAT, ["found", None])]
    graph = helper.make_graph(nodes, "g", inputs, outputs, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def prepared(model):
    return to_proto(prepare(load_model(model)).graph_model)


def in_float16(model):
    """As ``quantize --float16`` converts what is left around Q/DQ pairs."""
    graph_model = prepare(load_model(model)).graph_model
    return to_proto(to_float16(graph_model, float32_io=True, peaks=None, name="m")[0])


@pytest.mark.parametrize("scores", [[0.1, 0.2, 0.3], [0.9, 0.1, 0.8]], ids=["nothing found", "two found"])
@pytest.mark.parametrize("changed", [prepared, in_float16])
def test_a_detector_that_finds_nothing_runs(changed, scores):
    model = found_boxes()
    feeds = {
        "boxes": np.arange(12, dtype=np.float32).reshape(3, 2, 2),
        "scores": np.array(scores, np.float32),
    }
    (wanted,) = run(model, **feeds)
    assert wanted.shape == (sum(score > 0.5 for score in scores), 4)
    np.testing.assert_array_equal(run(changed(model), **feeds)[0], wanted)


def test_the_names_of_the_model_stay():
    model, modified = applied(InferShapesPass(), found_boxes())
    assert modified
    sizes = {
        value.name: [size.dim_param or size.dim_value or None for size in value.type.tensor_type.shape.dim]
        for value in (*model.graph.input, *model.graph.value_info, *model.graph.output)
    }
    assert sizes["boxes"] == ["N", 2, 2] and sizes["is_found"] == ["N"] and sizes["y"] == ["found", 4]
    assert sizes["found"] == sizes["inside"] == [None, 2, 2] and sizes["flat"] == [None, 4]
    assert sizes["shape"] == [2]


def test_other_networks_keep_the_names_of_equal_sizes():
    """With them ONNX Runtime fuses an Add with the LayerNormalization behind it."""
    g = Graph(quantized=False)
    rows = g.op("Reshape", ["x", g.constant(np.array([-1, 8], np.int64))], "rows")
    y = g.op("Relu", [rows], "relu")
    model, _ = applied(InferShapesPass(), g.model({"x": ["N", 4, 8]}, y))
    values = (*model.graph.value_info, *model.graph.output)
    names = {
        value.name: value.type.tensor_type.shape.dim[0].dim_param
        for value in values
        if value.name in (rows, y)
    }
    assert names[rows] and names[rows] == names[y]


@pytest.mark.parametrize(
    ("domain", "operator", "attributes"),
    [("", "GroupNormalization", {"num_groups": 2}), ("com.microsoft", "Gelu", {})],
)
def test_operators_of_which_onnx_infers_nothing_pass_type_and_shape_on(domain, operator, attributes):
    g = Graph(quantized=False)
    channels = [g.constant(np.ones(4, np.float32)) for _ in range(2)]
    values = ["x"]
    for number in range(2):
        inputs = values[-1:] + (channels if not domain else [])
        values.append(g.op(operator, inputs, f"made{number}", domain=domain, **attributes))
        values.append(g.op("Relu", values[-1:], f"relu{number}"))
    before = g.model({"x": ["N", 4, 6, 6]}, values[-1])
    before.opset_import[0].version = 21
    model, _ = applied(InferShapesPass(), before)
    found = {value.name: value.type.tensor_type for value in (*model.graph.value_info, *model.graph.output)}
    for name in values[1:]:
        assert found[name].elem_type == TensorProto.FLOAT
        assert [size.dim_param or size.dim_value for size in found[name].shape.dim] == ["N", 4, 6, 6]
    assert [(node.domain, node.op_type) for node in model.graph.node] == [
        (domain, operator),
        ("", "Relu"),
    ] * 2


MICROSOFT = "com.microsoft"


def around(*steps, shape=(4, 32)):
    """Two products around steps, of which those in ``com.microsoft`` are called ``ms_...``."""
    product = ("MatMul", [weights(32, 32)], {})
    model = network(product, *((op.removeprefix("ms_"), *rest) for op, *rest in steps), product, shape=shape)
    for node, (op, *_) in zip(list(model.graph.node)[1:-1], steps, strict=True):
        if op.startswith("ms_"):
            node.domain = MICROSOFT
    model.opset_import.append(helper.make_opsetid(MICROSOFT, 1))
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info(model.graph.output[0].name, FLOAT, shape))
    return model


FORMS = {
    "gelu": [("ms_QuickGelu", [], {})],
    "product": [("ms_FusedMatMul", [weights(32, 32)], {"alpha": 0.5})],
    "gemm": [("ms_FusedGemm", [weights(32, 32), weights(32)], {"activation": "Relu"})],
    "two with known ones between": [
        ("ms_FusedMatMul", [weights(32, 32)], {}), ("Relu", [], {}), ("Sigmoid", [], {}),
        ("ms_FusedMatMul", [weights(32, 32)], {}), ("Add", [weights(32)], {}),
    ],
    "in a row": [("ms_QuickGelu", [], {}), ("ms_FusedMatMul", [weights(32, 32)], {}), ("Neg", [], {})],
    "decided by": [("ms_FusedMatMul", [weights(32, 32)], {}), ("Floor", [], {})],
    "moved": [("ms_FusedMatMul", [weights(32, 32)], {}), ("Reshape", [np.array([4, 32])], {})],
}  # fmt: skip


@pytest.mark.parametrize("target", ["tensorrt-11", "rtx"])
@pytest.mark.parametrize("float32_io", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_what_is_written_is_valid_and_computes_the_same(form, float32_io, target):
    model = around(*FORMS[form])
    x = np.random.default_rng(0).standard_normal((4, 32)).astype(np.float32)
    table = trtint8.calibrate(model, {"x": x}, method="minmax", progress=False)
    options = {"target": target, "keep_int8": ["*"], "float16": True, "float32_io": float32_io}
    made = trtint8.quantize(model, table, progress=False, **options)
    onnx.checker.check_model(made, full_check=True)
    wanted = element_types_run(model, {"x": x})
    got = element_types_run(made, {"x": x if float32_io else x.astype(np.float16)}).astype(np.float32)
    assert np.abs(got - wanted).max() < 0.2 * np.abs(wanted).max() + (form == "decided by")


@pytest.mark.parametrize("float32_io", [False, True])
def test_a_plugin_between_layers_reads_and_gives_float32(float32_io):
    model = around(("Relu", [], {}))
    model.graph.node[1].op_type = "MyPlugin_TRT"
    table = CalibrationTable({"x": 3.0, "matmul0_out": 9.0, "relu1_out": 9.0, "matmul2_out": 30.0})
    made = trtint8.quantize(model, table, target="rtx", keep_int8=["*"], float16=True, float32_io=float32_io)
    constants = {one.name: one.data_type for one in made.graph.initializer}
    plugin = next(node for node in made.graph.node if node.op_type == "MyPlugin_TRT")
    cast = next(node for node in made.graph.node if plugin.input[0] in node.output)
    (reader,) = (node for node in made.graph.node if plugin.output[0] in node.input)
    assert (cast.op_type, cast.attribute[0].i) == ("Cast", FLOAT)
    assert (reader.op_type, constants[reader.input[1]]) == ("QuantizeLinear", FLOAT)


def test_types_follow_from_what_stands_beside():
    model = around(
        ("Relu", [], {}), ("ms_QuickGelu", [], {}), ("Sigmoid", [], {}), ("Add", [weights(32)], {})
    )
    graph_model = load_model(model).graph_model
    for node in graph_model.graph:
        for value in node.outputs:
            value.type = None
    settle_element_types(graph_model)
    types = [node.outputs[0].dtype for node in graph_model.graph]
    assert types == [TensorProto.FLOAT] * len(types)


def test_what_nothing_tells_stays_open():
    graph_model = load_model(around(("ms_A", [], {}), ("Relu", [], {}), ("ms_B", [], {}))).graph_model
    settle_element_types(graph_model)
    assert [node.outputs[0].dtype for node in graph_model.graph][1:3] == [None, None]
