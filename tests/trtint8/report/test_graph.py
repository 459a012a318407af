"""The network as a graph."""

import dataclasses

import onnx
import pytest

from tests.trtint8.report.samples import HOSTILE
from trtint8.models.model import load_model
from trtint8.report import graph
from trtint8.report.graph import GraphEdge, GraphNode, NetworkGraph, make_graph
from trtint8.report.layers import Cell


def parsed(text):
    """The graph of a model in ONNX's text form, with inferred types and node names."""
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {text}')
    for number, node in enumerate(model.graph.node):
        node.name = f"{node.op_type}{number}"
    return load_model(onnx.shape_inference.infer_shapes(model)).graph_model


def drawn(text):
    """The graph of such a model alone."""
    return make_graph(parsed(text), None, None)


def lines(made):
    """The edges by the names of their nodes."""
    names = [node.cell.node for node in made.nodes]
    return [(names[edge.source], names[edge.target], edge.int8) for edge in made.edges]


class TestMakeGraph:
    def test_precisions_are_the_engines(self, found):
        made = make_graph(load_model(found.paths["qdq"]).graph_model, found.engine, found.sensitivity)
        assert made.nodes == (
            GraphNode(Cell("images", "input", ""), shape="N×3×16×16"),
            GraphNode(
                Cell(HOSTILE, "Conv", "INT8", 0.75, 4, 30.0, 42.0),
                "Q/DQ pairs stand before its operands",
                "N×16×16×16",
            ),
            GraphNode(
                Cell("relu", "Relu", "unknown"),
                "no kernel of the engine names it; it was folded into others",
                "N×16×16×16",
            ),
            GraphNode(
                Cell("second", "Conv", "FP32"),
                "Q/DQ pairs ask for INT8, but the engine computes it in FP32",
                "N×16×16×16",
            ),
            GraphNode(Cell("second_out", "output", ""), shape="N×16×16×16"),
        )
        assert lines(made) == [
            ("images", HOSTILE, True),
            (HOSTILE, "relu", False),
            ("relu", "second", True),
            ("second", "second_out", False),
        ]
        assert made.left_out == 0 and not made.too_large

    def test_without_an_engine_they_are_what_the_pairs_ask_for(self, found):
        made = make_graph(load_model(found.paths["qdq"]).graph_model, None, None)
        assert [node.cell.precision for node in made.nodes] == ["", "INT8", "float", "INT8", ""]
        assert made.nodes[2].reason == (
            "it multiplies no matrices; TensorRT computes it together with the layer before it where it can"
        )

    def test_the_placements_reason_is_given(self, found):
        told = dataclasses.replace(found.engine, float_nodes=(("second", "kept in float by hand"),))
        made = make_graph(load_model(found.paths["qdq"]).graph_model, told, None)
        assert made.nodes[3].reason == "kept in float by hand"

    def test_without_a_model_there_is_none(self, found):
        assert make_graph(None, found.engine, found.sensitivity) is None

    def test_operators_that_compute_only_from_sizes_are_left_out(self):
        made = drawn("""g (float[N,2,3] x) => (float[N,k] y) <int64[1] last = {-1}, int64[1] zero = {0}> {
                r = Relu(x)  s = Shape(r)  n = Gather(s, zero)  t = Concat<axis=0>(n, last)
                y = Reshape(r, t) }""")
        assert lines(made) == [("x", "Relu0", False), ("Relu0", "Reshape4", False), ("Reshape4", "y", False)]
        assert made.left_out == 3

    def test_numbers_made_of_sizes_are_left_out(self):
        made = drawn("""g (float[N,3] x) => (float[N,3] y) {
                s = Shape<start=1>(x)  f = Cast<to=1>(s)  r = Sqrt(f)  y = Div(x, r) }""")
        assert lines(made) == [("x", "Div3", False), ("Div3", "y", False)] and made.left_out == 3

    def test_integers_that_depend_on_values_are_drawn(self):
        made = drawn("g (float[2,3] x) => (int64[2,1] y) { y = ArgMax<axis=1>(x) }")
        assert lines(made) == [("x", "ArgMax0", False), ("ArgMax0", "y", False)] and made.left_out == 0

    def test_a_tensor_that_is_read_twice_is_one_edge(self):
        made = drawn("""g (float[2] x) => (float[2] y)
                <float s = {0.5}, int8 z = {0}> {
                q = QuantizeLinear(x, s, z)  d = DequantizeLinear(q, s, z)  y = Mul(x, d) }""")
        assert lines(made) == [("x", "Mul2", True), ("Mul2", "y", False)]
        assert made.nodes[1].cell.precision == "float"
        assert made.nodes[1].reason == "it multiplies no matrices"

    def test_what_reads_nothing_but_pairs_is_meant_to_run_in_int8(self):
        made = drawn("""g (float[2] x) => (float[2] y) <float s = {0.5}, int8 z = {0}, float[2] c = {1, 2}> {
                q = QuantizeLinear(x, s, z)  d = DequantizeLinear(q, s, z)  y = Add(d, c) }""")
        assert made.nodes[1].cell.precision == "INT8"
        assert made.nodes[1].reason == "Q/DQ pairs stand before its inputs"

    @pytest.mark.parametrize(
        ("operator", "reason"),
        [
            ("y = MatMul(x, x)", "no Q/DQ pair stands before its operands"),
            ('y = Einsum<equation="ij,jk->ik">(x, x)', "it is no product of two matrices, so it cannot "),
        ],
    )
    def test_products_in_float_have_a_reason(self, operator, reason):
        made = drawn(f"g (float[2,2] x) => (float[2,2] y) {{ {operator} }}")
        assert made.nodes[1].cell.precision == "float" and made.nodes[1].reason.startswith(reason)


def chain(length, skips=()):
    nodes = tuple(GraphNode(Cell(str(place), "Relu", "float")) for place in range(length))
    pairs = [(place, place + 1) for place in range(length - 1)] + list(skips)
    return NetworkGraph(nodes, tuple(GraphEdge(*pair, False) for pair in pairs), 0)


class TestTooLarge:
    def test_too_many_boxes(self, monkeypatch):
        monkeypatch.setattr(graph, "MOST_NODES", 4)
        assert not chain(4).too_large and chain(5).too_large

    def test_tensors_that_lead_too_far(self, monkeypatch):
        assert chain(4).columns_crossed == 3 and chain(4, [(0, 3)]).columns_crossed == 6
        monkeypatch.setattr(graph, "MOST_COLUMNS", 5)
        assert not chain(4).too_large and chain(4, [(0, 3)]).too_large
