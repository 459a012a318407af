"""The graphs inside nodes."""

import onnx_ir as ir
from onnx import helper

from trtint8.models.inner_graphs import holds_graphs, inner_graphs, message_graphs


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
