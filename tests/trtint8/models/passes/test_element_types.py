"""Types of tensors behind operators that ONNX does not define."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import trtint8
from calibrators.tables.table import CalibrationTable
from tests.trtint8.quantization.float16.half_models import FLOAT, network, run, weights
from trtint8.models.model import load_model
from trtint8.models.passes.element_types import settle_element_types

MICROSOFT = "com.microsoft"


def around(*steps, shape=(4, 32)):
    """Two products around steps, of which those in ``com.microsoft`` are called ``ms_...``."""
    product = ("MatMul", [weights(32, 32)], {})
    model = network(product, *((op.removeprefix("ms_"), *rest) for op, *rest in steps), product, shape=shape)
    for node, (op, *_) in zip(list(model.graph.node)[1:-1], steps, strict=True):
        if op.startswith("ms_"):
            node.domain = MICROSOFT
    model.opset_import.append(helper.make_opsetid(MICROSOFT, 1))
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info(model.graph.output[0].name, FLOAT, shape))
    return model


FORMS = {
    "gelu": [("ms_QuickGelu", [], {})],
    "product": [("ms_FusedMatMul", [weights(32, 32)], {"alpha": 0.5})],
    "gemm": [("ms_FusedGemm", [weights(32, 32), weights(32)], {"activation": "Relu"})],
    "two with known ones between": [
        ("ms_FusedMatMul", [weights(32, 32)], {}), ("Relu", [], {}), ("Sigmoid", [], {}),
        ("ms_FusedMatMul", [weights(32, 32)], {}), ("Add", [weights(32)], {}),
    ],
    "in a row": [("ms_QuickGelu", [], {}), ("ms_FusedMatMul", [weights(32, 32)], {}), ("Neg", [], {})],
    "decided by": [("ms_FusedMatMul", [weights(32, 32)], {}), ("Floor", [], {})],
    "moved": [("ms_FusedMatMul", [weights(32, 32)], {}), ("Reshape", [np.array([4, 32])], {})],
}  # fmt: skip


@pytest.mark.parametrize("target", ["tensorrt-11", "rtx"])
@pytest.mark.parametrize("float32_io", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_what_is_written_is_valid_and_computes_the_same(form, float32_io, target):
    model = around(*FORMS[form])
    x = np.random.default_rng(0).standard_normal((4, 32)).astype(np.float32)
    table = trtint8.calibrate(model, {"x": x}, method="minmax", progress=False)
    options = {"target": target, "keep_int8": ["*"], "float16": True, "float32_io": float32_io}
    made = trtint8.quantize(model, table, progress=False, **options)
    onnx.checker.check_model(made, full_check=True)
    wanted = run(model, {"x": x})
    got = run(made, {"x": x if float32_io else x.astype(np.float16)}).astype(np.float32)
    assert np.abs(got - wanted).max() < 0.2 * np.abs(wanted).max() + (form == "decided by")


@pytest.mark.parametrize("float32_io", [False, True])
def test_a_plugin_between_layers_reads_and_gives_float32(float32_io):
    model = around(("Relu", [], {}))
    model.graph.node[1].op_type = "MyPlugin_TRT"
    table = CalibrationTable({"x": 3.0, "matmul0_out": 9.0, "relu1_out": 9.0, "matmul2_out": 30.0})
    made = trtint8.quantize(model, table, target="rtx", keep_int8=["*"], float16=True, float32_io=float32_io)
    constants = {one.name: one.data_type for one in made.graph.initializer}
    plugin = next(node for node in made.graph.node if node.op_type == "MyPlugin_TRT")
    cast = next(node for node in made.graph.node if plugin.input[0] in node.output)
    (reader,) = (node for node in made.graph.node if plugin.output[0] in node.input)
    assert (cast.op_type, cast.attribute[0].i) == ("Cast", FLOAT)
    assert (reader.op_type, constants[reader.input[1]]) == ("QuantizeLinear", FLOAT)


def test_types_follow_from_what_stands_beside():
    model = around(
        ("Relu", [], {}), ("ms_QuickGelu", [], {}), ("Sigmoid", [], {}), ("Add", [weights(32)], {})
    )
    graph_model = load_model(model).graph_model
    for node in graph_model.graph:
        for value in node.outputs:
            value.type = None
    settle_element_types(graph_model)
    types = [node.outputs[0].dtype for node in graph_model.graph]
    assert types == [TensorProto.FLOAT] * len(types)


def test_what_nothing_tells_stays_open():
    graph_model = load_model(around(("ms_A", [], {}), ("Relu", [], {}), ("ms_B", [], {}))).graph_model
    settle_element_types(graph_model)
    assert [node.outputs[0].dtype for node in graph_model.graph][1:3] == [None, None]
