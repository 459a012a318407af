"""Outputs whose shape an exporter left out."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from calibrators.errors import ModelError
from trtint8.models.loading.output_shapes import declare_output_shapes
from trtint8.models.model import load_model


def model(operator="Relu", domain=""):
    weights = numpy_helper.from_array(np.zeros((8, 3, 3, 3), np.float32), "w")
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1] * 4),
        helper.make_node(operator, ["c"], ["y"], domain=domain),
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, 8, 8])]
    bare = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "g", inputs, [bare], [weights])
    opsets = [helper.make_opsetid("", 17), *([helper.make_opsetid(domain, 1)] if domain else [])]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def test_the_inferred_shape_is_declared():
    with pytest.raises(onnx.checker.ValidationError):
        onnx.checker.check_model(model())
    (output,) = load_model(model()).graph_model.graph.outputs
    assert [dim if isinstance(dim, int) else dim.value for dim in output.shape] == ["n", 8, 8, 8]


def test_other_outputs_stay():
    declared = load_model(model())
    message = onnx.ModelProto()
    message.CopyFrom(model())
    message.graph.output[0].type.tensor_type.shape.dim.add().dim_param = "any"
    before = message.SerializeToString()
    declare_output_shapes(message)
    assert message.SerializeToString() == before
    assert declared.name == "model"


def test_what_cannot_be_inferred_is_refused_as_before():
    with pytest.raises(ModelError, match="is not a valid ONNX model: Field 'shape' of 'type' is required"):
        load_model(model("Unknown", "somebody"))
