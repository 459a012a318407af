"""Types and shapes of the tensors inside a graph."""

import onnx_ir as ir
import pytest

from tests.trtint8.onnx_models import Graph
from trtint8.models.loading.inner_shapes import declare_inner_shapes
from trtint8.models.model import load_model


@pytest.fixture
def model():
    """A product and a sum of its shape, of which nothing is declared."""
    g = Graph(quantized=False)
    product = g.op("MatMul", ["x", g.weights(6, 5)], "product")
    g.op("Shape", [product], "shape")
    return load_model(g.model({"x": ["N", 6]}, g.op("Relu", [product], "y")))


def declared(model):
    return {value.name: value for node in model.graph_model.graph for value in node.outputs}


def test_what_is_left_out_is_inferred(model):
    before = declared(model)
    assert before["product_out"].shape is before["product_out"].dtype is None
    declare_inner_shapes(model.graph_model, model.light)
    after = declared(model)
    assert list(after["product_out"].shape)[1] == 5 and not isinstance(after["product_out"].shape[0], int)
    assert after["product_out"].dtype == ir.DataType.FLOAT
    assert list(after["shape_out"].shape) == [2] and after["shape_out"].dtype == ir.DataType.INT64


def test_what_is_declared_stays(model):
    value = declared(model)["product_out"]
    value.shape, value.type = ir.Shape(["samples", "features"]), ir.TensorType(ir.DataType.FLOAT16)
    declare_inner_shapes(model.graph_model, model.light)
    assert str(value.shape) == "[samples,features]" and value.dtype == ir.DataType.FLOAT16


def test_nothing_is_inferred_where_nothing_is_left_out(model, monkeypatch):
    declare_inner_shapes(model.graph_model, model.light)
    monkeypatch.setattr("onnx.shape_inference.infer_shapes", None)
    declare_inner_shapes(model.graph_model, model.light)


def test_a_graph_that_contradicts_itself_stays_as_it_is(model):
    product = next(node for node in model.light.message.graph.node if node.op_type == "MatMul")
    product.input[0] = product.input[1]
    declare_inner_shapes(model.graph_model, model.light)
    assert declared(model)["product_out"].shape is None
