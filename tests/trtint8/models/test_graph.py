"""Constants of a graph: read, added, and given new values."""

import numpy as np
import onnx_ir as ir
import pytest
from onnx import helper

from calibrators.host.session import open_session
from tests.trtint8.onnx_models import normal, parsed
from trtint8.models.graph import (
    Window,
    add_initializer,
    constant_input,
    holds_graphs,
    inner_graphs,
    is_along_last_axis,
    may_be_float,
    message_graphs,
    read_constant,
    set_constant_input,
    set_element_type,
    unused_name,
    value_names,
)
from trtint8.models.model import load_model

ONES, TWOS = np.ones((1, 1), np.float32), np.full((1, 1), 2, np.float32)


@pytest.fixture
def nodes():
    """Two Gemm nodes that share weights; the first has a bias of its own, the second has none."""
    body = "[first] h = Gemm (x, w, b) [second] y = Gemm (h, w)"
    model = parsed("float[N, 1] x", "float[] y", body, w=ONES, b=np.zeros(1, np.float32))
    return {node.name: node for node in load_model(model).graph_model.graph}


def test_inputs_that_are_no_constants_have_no_value(nodes):
    assert constant_input(nodes["first"], 0) is None
    assert constant_input(nodes["second"], 0) is None
    assert constant_input(nodes["second"], 2) is None
    np.testing.assert_array_equal(constant_input(nodes["second"], 1), ONES)


def test_a_constant_with_one_reader_keeps_its_name(nodes):
    name = nodes["first"].inputs[2].name
    set_constant_input(nodes["first"], 2, np.full(1, 3, np.float32))
    assert nodes["first"].inputs[2].name == name
    np.testing.assert_array_equal(constant_input(nodes["first"], 2), [3])


def test_a_shared_constant_stays_as_it_is_for_other_nodes(nodes):
    set_constant_input(nodes["first"], 1, TWOS)
    np.testing.assert_array_equal(constant_input(nodes["first"], 1), TWOS)
    np.testing.assert_array_equal(constant_input(nodes["second"], 1), ONES)
    assert nodes["first"].inputs[1].name == "first_input_1"


def test_an_input_is_added_under_a_name_that_is_free(nodes):
    nodes["second"].graph.inputs[0].name = "second_input_2"
    set_constant_input(nodes["second"], 2, np.full(1, 3, np.float32))
    assert nodes["second"].inputs[2].name == "second_input_2_1"
    np.testing.assert_array_equal(constant_input(nodes["second"], 2), [3])


def test_constants_are_read_and_added():
    model = ir.from_proto(parsed("float[2] x", "float[] y", "y = Add (x, c)", c=np.float32([1, 2])))
    (add,) = model.graph
    assert read_constant(add.inputs[0]) is None
    assert read_constant(add.inputs[1]).tolist() == [1.0, 2.0]
    assert read_constant(None) is None
    array = np.arange(6, dtype=np.int8).reshape(2, 3)
    value = add_initializer(model.graph, "new", array)
    assert (value.name, value.dtype, tuple(value.shape.numpy())) == ("new", ir.DataType.INT8, (2, 3))
    assert model.graph.initializers["new"] is value
    np.testing.assert_array_equal(read_constant(value), array)


@pytest.mark.parametrize(
    ("used", "found"), [((), "w"), ("w", "w_1"), (("w", "w_1", "w_3"), "w_2"), (("v", "w_1"), "w")]
)
def test_an_unused_name_is_the_stem_or_the_stem_with_the_first_free_number(used, found):
    assert unused_name("w", set(used)) == found


def test_the_names_of_a_graph_are_those_of_its_inputs_initializers_and_computed_values():
    body = "first = Add (x, c) second = Clip (first, , c)"
    model = parsed("float[2] x, float[2] unread", "float[] second", body, c=np.float32([1, 2]))
    assert value_names(ir.from_proto(model).graph) == {"x", "unread", "c", "first", "second"}


def test_copies_of_a_model_keep_their_element_types():
    value = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT))
    shared = ir.Value(name="x", type=value.type)
    set_element_type(value, ir.DataType.FLOAT16)
    assert (value.dtype, shared.dtype) == (ir.DataType.FLOAT16, ir.DataType.FLOAT)


def test_graphs_and_lists_of_graphs():
    one, two, three = (ir.Graph([], [], nodes=[], name=name) for name in ("one", "two", "three"))
    attributes = [ir.AttrGraph("body", one), ir.AttrInt64("axis", 1), ir.AttrGraphs("branches", [two, three])]
    node = ir.Node("", "Loop", [], attributes)
    assert [graph.name for graph in inner_graphs(node)] == ["one", "two", "three"]
    assert holds_graphs(node)
    relu = ir.Node("", "Relu", [])
    assert not list(inner_graphs(relu)) and not holds_graphs(relu)
    assert holds_graphs(ir.Node("own", "Switch", [], [ir.AttrGraphs("branches", [one])]))


def test_a_message_with_a_graph_and_a_list_of_graphs_in_one_attribute():
    inner = [helper.make_graph([], name, [], []) for name in ("one", "two")]
    node = helper.make_node("Loop", [], [], body=inner[0])
    node.attribute[0].graphs.append(inner[1])
    outer = helper.make_graph([node], "outer", [], [])
    assert sorted(graph.name for graph in message_graphs(outer)) == ["one", "outer", "two"]


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER", "VALID"])
def test_automatic_pads(auto_pad):
    values, weights = np.rint(64 * normal(1, 2, 7, 8)), np.rint(64 * normal(3, 2, 4, 3))
    node = ir.node("Conv", [], {"auto_pad": auto_pad, "strides": [2, 3]})
    window = Window.of(node, weights.shape[2:], lambda: values.shape[2:])
    found = []
    for pads in (f"pads = {list(window.pads)}", f'auto_pad = "{auto_pad}"'):
        body = f"y = Conv <{pads}, strides = [2, 3]> (x, w)"
        model = parsed("float[1, 2, 7, 8] x", "float[] y", body, w=weights)
        found.append(open_session(model.SerializeToString(), optimize=False).run(None, {"x": values})[0])
    assert np.array_equal(*found)


@pytest.mark.parametrize(
    ("attributes", "kernel", "pads"),
    [
        ({"pads": [1, 2]}, 3, (1, 2)),
        ({}, 3, (0, 0)),
        ({"auto_pad": "VALID", "pads": [1, 2]}, 3, (0, 0)),
        ({"auto_pad": "SAME_UPPER", "dilations": [2]}, 4, (3, 3)),
    ],
)
def test_explicit_pads_and_dilated_kernels(attributes, kernel, pads):
    found = Window.of(ir.node("Conv", [], attributes), [kernel], lambda: [7])
    assert found == Window((kernel,), (1,), tuple(attributes.get("dilations", [1])), pads)


@pytest.mark.parametrize(
    ("dtype", "expected"), [(None, True), (ir.DataType.BFLOAT16, True), (ir.DataType.INT64, False)]
)
def test_values_that_may_be_floats(dtype, expected):
    value = ir.Value(name="x", type=None if dtype is None else ir.TensorType(dtype))
    assert may_be_float(value) is expected


@pytest.mark.parametrize(
    ("axis", "shape", "expected"),
    [(-1, None, True), (2, [1, 2, 3], True), (1, [1, 2, 3], False), (2, None, False), (None, None, True)],
)
def test_a_node_along_the_last_axis(axis, shape, expected):
    node = ir.node("Softmax", [ir.Value(name="x")], {} if axis is None else {"axis": axis})
    node.outputs[0].shape = None if shape is None else ir.Shape(shape)
    assert is_along_last_axis(node) is expected
