"""FP16 is quantized as FP32 is: to the nearest, where ONNX Runtime before 1.30 rounds towards zero."""

import numpy as np
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from trtint8.models.model import load_model
from trtint8.models.passes.quantize_in_float32 import QuantizeInFloat32Pass, quantizes_half
from trtint8.models.session import open_graph_model, open_model

X = np.random.default_rng(0).uniform(-1.7, 1.7, (64, 3)).astype(np.float16)


def quantizer(scale, *, as_node=False, **attributes):
    """The input as integers, and as the numbers that these stand for."""
    scale = np.asarray(scale)
    tensors = {"zero": np.zeros(scale.shape, np.int8), "scale": scale}
    nodes = []
    if as_node:
        value = numpy_helper.from_array(tensors.pop("scale"), "value")
        nodes.append(helper.make_node("Constant", [], ["scale"], value=value))
    nodes += [
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q"], "quantize", axis=1, **attributes),
        helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["y"], axis=1),
    ]
    dtype = helper.np_dtype_to_tensor_dtype(scale.dtype)
    x, y = (helper.make_tensor_value_info(name, dtype, ["N", 3]) for name in "xy")
    q = helper.make_tensor_value_info("q", TensorProto.INT8, ["N", 3])
    initializers = [numpy_helper.from_array(array, name) for name, array in tensors.items()]
    graph = helper.make_graph(nodes, "g", [x], [q, y], initializers)
    opset = helper.make_opsetid("", 23 if attributes else 19)
    return helper.make_model(graph, opset_imports=[opset], ir_version=10)


@pytest.mark.parametrize("as_node", [False, True])
@pytest.mark.parametrize("scale", [np.float16(0.0123), np.array([0.0123, 0.5, 0.02], np.float16)])
def test_integers_are_the_nearest(scale, as_node):
    model = load_model(quantizer(scale, as_node=as_node))
    nearest = np.clip(np.rint(X.astype(np.float32) / scale.astype(np.float32)), -128, 127)
    for opened in (open_model(model, threads=1), open_graph_model(model.graph_model, threads=1)):
        integers, values = opened.run({"x": X})
        np.testing.assert_array_equal(integers, nearest)
        assert values.dtype == np.float16
        np.testing.assert_array_equal(values, (nearest * scale.astype(np.float32)).astype(np.float16))
    assert [node.op_type for node in model.graph_model.graph][-2:] == ["QuantizeLinear", "DequantizeLinear"]


def test_the_nodes():
    model = ir.from_proto(quantizer(np.float16(0.5), precision=TensorProto.FLOAT16))
    assert quantizes_half(model)
    result = QuantizeInFloat32Pass()(model)
    assert result.modified and not quantizes_half(model)
    node = next(node for node in model.graph if node.op_type == "QuantizeLinear")
    assert [value.name for value in node.inputs] == ["x_float32", "scale_float32", "zero"]
    assert [value.dtype for value in node.inputs[:2]] == [ir.DataType.FLOAT] * 2
    assert set(node.attributes) == {"axis"}
    back = next(node for node in model.graph if node.op_type == "DequantizeLinear")
    assert back.inputs[1].name == "scale"


def test_float32_is_left_alone():
    model = ir.from_proto(quantizer(np.float32(0.5)))
    assert not quantizes_half(model)
    assert not QuantizeInFloat32Pass()(model).modified
    assert len(list(model.graph)) == 2
