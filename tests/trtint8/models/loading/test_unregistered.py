"""Operators that a model's opset lacks, and that ONNX Runtime and TensorRT take."""

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

import trtint8
from calibrators.errors import ModelError
from trtint8.models.loading.unregistered import needed_opset
from trtint8.models.model import load_model

RANDOM = np.random.default_rng(0)
ONES, BIAS = np.ones(8, np.float32), RANDOM.standard_normal(8).astype(np.float32)
NORM = {"axis": -1, "epsilon": 1e-5}


def model(opset, operator, constants=(), shape=(2, 8), layer="MatMul", **attributes):
    """The operator behind a layer, and a layer behind it."""
    wide = 8 if layer == "MatMul" else shape[1]
    kernel = RANDOM.standard_normal((wide, wide, *[1] * (len(shape) - 2 if layer == "Conv" else 0)))
    weights = {"w": kernel.astype(np.float32)} | {f"c{i}": one for i, one in enumerate(constants)}
    nodes = [
        helper.make_node(layer, ["x", "w"], ["a"], "first"),
        helper.make_node(operator, ["a", *list(weights)[1:]], ["b"], "middle", **attributes),
        helper.make_node(layer, ["b", "w"], ["y"], "last"),
    ]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", *shape[1:]]) for name in "xy"]
    initializers = [numpy_helper.from_array(np.asarray(one), name) for name, one in weights.items()]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], initializers)
    ir_version = onnx.helper.find_min_ir_version_for([helper.make_opsetid("", opset)])
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=max(ir_version, 4)
    )


IMAGE = {"shape": (2, 4, 6, 6), "layer": "Conv"}
TAKEN = {
    "LayerNormalization 9": model(9, "LayerNormalization", [ONES, BIAS], **NORM),
    "LayerNormalization 12": model(12, "LayerNormalization", [ONES, BIAS], **NORM),
    "LayerNormalization 16": model(16, "LayerNormalization", [ONES], **NORM),
    "SimplifiedLayerNormalization 12": model(12, "SimplifiedLayerNormalization", [ONES], **NORM),
    "SimplifiedLayerNormalization 17": model(17, "SimplifiedLayerNormalization", [ONES], **NORM),
    "ThresholdedRelu 9": model(9, "ThresholdedRelu", alpha=1.0),
    "MeanVarianceNormalization 8": model(8, "MeanVarianceNormalization", **IMAGE),
    "GroupNormalization 18": model(18, "GroupNormalization", [ONES[:2], BIAS[:2]], num_groups=2, **IMAGE),
    "GroupNormalization 20": model(20, "GroupNormalization", [ONES[:2], BIAS[:2]], num_groups=2, **IMAGE),
    "ImageScaler 8": model(8, "ImageScaler", scale=0.5, bias=[0.1, 0.2, 0.3, 0.4], **IMAGE),
    "ImageScaler 7": model(7, "ImageScaler", scale=0.5, bias=[0.0] * 4, **IMAGE),
    "ParametricSoftplus 8": model(8, "ParametricSoftplus", alpha=0.5, beta=2.0),
    "ScaledTanh 9": model(9, "ScaledTanh", alpha=0.5, beta=2.0),
}


@pytest.mark.filterwarnings("ignore:output .y. of one sample changes")  # a mean over axis 0 as well
@pytest.mark.parametrize("name", TAKEN)
def test_the_network_computes_what_onnx_runtime_computes(name):
    source = TAKEN[name]
    shape = [dim.dim_value or 2 for dim in source.graph.input[0].type.tensor_type.shape.dim]
    data = RANDOM.standard_normal(shape).astype(np.float32)
    table = trtint8.calibrate(source, data, method="minmax", progress=False)
    kept = trtint8.quantize(source, table, keep_float=["*"], progress=False)
    expected, found = (
        ort.InferenceSession(one.SerializeToString(), providers=["CPUExecutionProvider"]).run(
            None, {"x": data}
        )
        for one in (source, kept)
    )
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-4, atol=1e-4)
    quantized = trtint8.quantize(source, table, progress=False)
    (result,) = trtint8.validate(quantized, data, reference=source, progress=False).outputs
    assert result.sqnr_db > 20


def test_a_model_is_read_in_the_opset_that_has_its_operators():
    assert needed_opset(TAKEN["LayerNormalization 12"]) == 17
    assert needed_opset(TAKEN["GroupNormalization 18"]) == 18
    assert load_model(model(13, "HardSwish")).graph_model.opset_imports[""] == 14


def test_operators_that_onnx_runtime_refuses_too():
    sizes = np.array([1, 1, 2, 2], np.float32)
    with pytest.raises(ModelError, match="Upsample"):
        load_model(model(10, "Upsample", [sizes], **IMAGE))
