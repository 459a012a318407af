"""A unique name for every node."""

from tests.trtint8.models.passes.applying import IMAGES, applied
from tests.trtint8.onnx_models import Graph
from trtint8.models.passes.name_nodes import NameNodesPass


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
