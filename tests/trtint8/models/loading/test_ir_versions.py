"""Models that declare a newer version of the format than they need, or a very old one."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import trtint8
from trtint8.models.loading.ir_versions import settle_ir_version


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
    settle_ir_version(message)
    assert message.ir_version == version


def test_a_model_as_the_newest_onnx_writes_it_is_calibrated_and_validated():
    data = np.random.default_rng(0).standard_normal((10, 4)).astype(np.float32)
    source = model(onnx.IR_VERSION, ("", 17))
    quantized = trtint8.quantize(source, trtint8.calibrate(source, data, progress=False))
    assert quantized.ir_version == 10
    assert trtint8.validate(quantized, data, reference=source, progress=False).samples == 10


def with_listed_weights(*opsets):
    """A model as exporters wrote it for version 3, which onnx's checker takes in this form only."""
    message = model(3, *opsets)
    weight = helper.make_tensor_value_info("w", TensorProto.FLOAT, [4, 3])
    message.graph.input.append(weight)
    onnx.checker.check_model(message)
    return message


@pytest.mark.parametrize("opset", [11, 17])
def test_weights_that_old_exporters_listed_as_inputs_become_constants(opset, tmp_path):
    data = np.random.default_rng(0).standard_normal((10, 4)).astype(np.float32)
    source = with_listed_weights(("", opset))
    table = trtint8.calibrate(source, data, progress=False)
    quantized = trtint8.quantize(source, table)
    onnx.checker.check_model(quantized, full_check=True)
    assert [value.name for value in quantized.graph.input] == ["x"]
    migrated = trtint8.migrate(source, table).save(tmp_path / "migrated.onnx")
    mended = trtint8.mend(migrated).save(tmp_path / "mended.onnx")
    for path in (migrated, mended):
        onnx.checker.check_model(onnx.load(path), full_check=True)
    assert trtint8.validate(mended, data, reference=source, progress=False).outputs[0].sqnr_db > 30
