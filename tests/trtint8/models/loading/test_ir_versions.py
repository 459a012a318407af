"""Models that declare a newer version of the format than they need."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import trtint8
from trtint8.models.loading.ir_versions import lower_ir_version


def model(version, *opsets):
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"], name="matmul")],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 3])],
        [onnx.numpy_helper.from_array(np.eye(4, 3, dtype=np.float32), "w")],
    )
    imports = [helper.make_opsetid(*opset) for opset in opsets]
    return helper.make_model(graph, opset_imports=imports, ir_version=version)


@pytest.mark.parametrize(
    ("declared", "opsets", "version"),
    [
        (99, [("", 17)], 10),
        (10, [("", 17)], 10),
        (8, [("", 17)], 8),
        (4, [("", 21)], 4),
        (99, [("", 17), ("of.no.one", 3)], 10),
        (99, [("", 23)], 11),
    ],
)
def test_a_version_is_lowered_as_far_as_the_operators_allow(declared, opsets, version):
    message = model(declared, *opsets)
    lower_ir_version(message)
    assert message.ir_version == version


def test_a_model_as_the_newest_onnx_writes_it_is_calibrated_and_validated():
    data = np.random.default_rng(0).standard_normal((10, 4)).astype(np.float32)
    source = model(onnx.IR_VERSION, ("", 17))
    quantized = trtint8.quantize(source, trtint8.calibrate(source, data, progress=False))
    assert quantized.ir_version == 10
    assert trtint8.validate(quantized, data, reference=source, progress=False).samples == 10
