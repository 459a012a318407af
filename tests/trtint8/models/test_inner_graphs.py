"""The graphs inside nodes."""

import onnx_ir as ir

from trtint8.models.inner_graphs import holds_graphs, inner_graphs


def test_graphs_and_lists_of_graphs():
    one, two, three = (ir.Graph([], [], nodes=[], name=name) for name in ("one", "two", "three"))
    attributes = [ir.AttrGraph("body", one), ir.AttrInt64("axis", 1), ir.AttrGraphs("branches", [two, three])]
    node = ir.Node("", "Loop", [], attributes)
    assert [graph.name for graph in inner_graphs(node)] == ["one", "two", "three"]
    assert holds_graphs(node)
    relu = ir.Node("", "Relu", [])
    assert not list(inner_graphs(relu)) and not holds_graphs(relu)
    assert holds_graphs(ir.Node("own", "Switch", [], [ir.AttrGraphs("branches", [one])]))
