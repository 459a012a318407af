"""Networks that compute every sample by itself, and others."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper

from tests.trtint8.onnx_models import Graph, conv_relu_conv
from trtint8.data import DEMO_MODEL
from trtint8.models.model import load_model, prepare
from trtint8.models.samples.separate import joined_by_graph


def graph_of(message):
    """The graph with inferred shapes."""
    return ir.from_proto(onnx.shape_inference.infer_shapes(message))


def test_convolutional_networks():
    assert joined_by_graph(prepare(load_model(DEMO_MODEL)).graph_model).separate
    assert joined_by_graph(graph_of(conv_relu_conv(quantized=False))).separate


def test_an_output_that_is_no_sample():
    def given(output):
        g = Graph(quantized=False)
        y, z = g.op("Relu", ["x"], "y"), g.op("Relu", [g.constant(np.ones((1, 4), np.float32))], "z")
        return graph_of(g.model({"x": ["N", 4]}, {"y": y, "z": z}[output]))

    assert joined_by_graph(given("y")).separate and joined_by_graph(given("y")).has_rows
    assert joined_by_graph(given("z")).separate and not joined_by_graph(given("z")).has_rows


def test_a_fixed_batch_cannot_be_divided():
    g = Graph(quantized=False)
    assert not joined_by_graph(graph_of(g.model({"x": [3, 4]}, g.op("Relu", ["x"], "y")))).separate


@pytest.mark.parametrize(
    ("shape", "separate"), [(["N", "M"], True), (["N", "N"], False), (["M", "N"], False)]
)
def test_an_axis_as_long_as_there_are_samples(shape, separate):
    g = Graph(quantized=False)
    y = g.op("ReduceMean", ["b"], "y", axes=[1])
    model = g.model({"a": ["N", 4], "b": shape}, y)
    assert joined_by_graph(graph_of(model)).separate == separate


def test_two_inputs_are_combined_sample_by_sample():
    def combined(kind):
        g = Graph(quantized=False)
        return graph_of(g.model({"a": ["N", 4, 4], "b": ["N", 4, 4]}, g.op(kind, ["a", "b"], "y")))

    assert joined_by_graph(combined("MatMul")).separate
    assert not joined_by_graph(combined("NoSuchOperator")).separate


def test_products_of_all_samples_with_all():
    g = Graph(quantized=False)
    y = g.op("MatMul", ["a", "b"], "y")
    assert not joined_by_graph(graph_of(g.model({"a": ["N", 4], "b": ["N", 4]}, y))).separate


def test_an_operator_of_another_domain():
    graph_model = graph_of(conv_relu_conv(quantized=False))
    graph_model.graph.node(1).domain = "com.example"
    assert not joined_by_graph(graph_model).separate


def test_a_branch_that_could_read_anything():
    g = Graph(quantized=False)
    yes, no = (
        helper.make_graph(
            [helper.make_node(kind, ["x"], [f"{kind}_y"])],
            kind,
            [],
            [helper.make_tensor_value_info(f"{kind}_y", 1, None)],
        )
        for kind in ("Relu", "Neg")
    )
    y = g.op("If", [g.constant(np.array(True))], "y", then_branch=yes, else_branch=no)
    assert not joined_by_graph(ir.from_proto(g.model({"x": ["N", 6]}, y))).separate
