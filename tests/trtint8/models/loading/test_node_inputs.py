"""Nodes that leave out an input which their operators need are refused by name."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from calibrators.errors import ModelError
from trtint8.models.model import load_model


def model(operator, inputs, domain="", **attributes):
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 4]) for name in "xy"]
    node = helper.make_node(operator, inputs, ["y"], "n", domain=domain, **attributes)
    weights = [numpy_helper.from_array(np.ones((4, 4), np.float32), "w")]
    graph = helper.make_graph([node], "g", ends[:1], ends[1:], weights)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


@pytest.mark.parametrize(
    ("operator", "inputs", "domain", "attributes"),
    [
        ("MatMul", ["x", ""], "", {}),
        ("MatMul", ["x"], "", {}),
        ("Relu", [], "", {}),
        ("Sum", ["x", ""], "", {}),
        ("Max", [""], "", {}),
        ("Concat", ["x", "", "x"], "", {"axis": 0}),
        ("Einsum", [""], "", {"equation": "ij->ij"}),
        ("QuantizeLinear", ["x", ""], "", {}),
        ("QuantizeLinear", ["x"], "com.microsoft", {}),
        ("DequantizeLinear", ["x", ""], "com.microsoft", {}),
    ],
)
def test_inputs_that_are_left_out(operator, inputs, domain, attributes):
    with pytest.raises(ModelError, match=operator):
        load_model(model(operator, inputs, domain, **attributes))


@pytest.mark.parametrize(
    ("operator", "inputs", "domain"),
    [
        ("MatMul", ["x", "w"], ""),
        ("Gemm", ["x", "w", ""], ""),
        ("Clip", ["x", "", ""], ""),
        ("Sum", ["x", "x", "w"], ""),
        ("BiasGelu", ["x"], "com.microsoft"),
    ],
)
def test_inputs_that_nobody_needs(operator, inputs, domain):
    assert load_model(model(operator, inputs, domain)).inputs[0].name == "x"
