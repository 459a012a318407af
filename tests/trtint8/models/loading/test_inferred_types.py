"""Types and shapes that ONNX infers."""

import onnx
import pytest

from tests.trtint8.onnx_models import Graph
from trtint8.models.loading.inferred_types import infer_types


@pytest.fixture
def message():
    g = Graph(quantized=False)
    return g.model({"x": ["N", 6]}, g.op("Relu", [g.op("MatMul", ["x", g.weights(6, 5)], "product")], "y"))


def test_a_copy_has_what_is_inferred(message):
    before = message.SerializeToString()
    (product,) = infer_types(message).graph.value_info
    assert product.name == "product_out" and product.type.tensor_type.elem_type == onnx.TensorProto.FLOAT
    assert [size.dim_value for size in product.type.tensor_type.shape.dim] == [0, 5]
    assert message.SerializeToString() == before


def test_a_model_of_which_onnx_infers_nothing(message):
    message.ClearField("opset_import")
    assert infer_types(message) is None
