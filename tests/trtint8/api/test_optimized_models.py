"""Models that ONNX Runtime's optimizer has written, or that hold its own operators."""

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import numpy_helper

import trtint8
from tests.trtint8.onnx_models import normal, parsed

MICROSOFT = "com.microsoft"
X = {"x": normal(16, 16, 8, 8)}


@pytest.fixture(scope="module")
def convolutions():
    """Two convolutions, of which the optimizer fuses the first with the Relu behind it."""
    body = "[first] f = Conv <pads = [1, 1, 1, 1]> (x, w) r = Relu (f) [last] y = Conv (r, v)"
    weights = {"w": 0.1 * normal(16, 16, 3, 3), "v": 0.1 * normal(16, 16, 1, 1, seed=1)}
    return parsed("float[1, 16, 8, 8] x", "float[1, 16, 8, 8] y", body, **weights)


def optimized(model, folder):
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(folder / "optimized.onnx")
    options.log_severity_level = 4
    ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return onnx.load(folder / "optimized.onnx")


def test_layers_that_the_optimizer_fused_are_counted_as_float(convolutions, tmp_path):
    model = optimized(convolutions, tmp_path)
    assert [node.op_type for node in model.graph.node] == ["FusedConv", "Conv"]
    with pytest.warns(UserWarning, match=r"optimizer.*\(FusedConv\)"):
        table = trtint8.calibrate(model, X, method="minmax")
    with pytest.warns(UserWarning, match="optimizer"):
        placement = trtint8.write_quantized(model, table, tmp_path / "q.onnx").quantized.placement
    assert (len(placement.quantized_nodes), placement.multiplying) == (1, 2)
    assert list(placement.float_causes.values()) == ["model"]
    with pytest.warns(UserWarning, match="optimizer"):
        assert len(trtint8.measure_sensitivity(model, table, X).layers) == 1


def in_blocks(model):
    """The same with the domain of the layouts that ONNX Runtime chooses on some processors."""
    for node in model.graph.node:
        node.domain = "com.microsoft.nchwc"
    return model


def alone(body):
    """A model of one node."""
    return lambda *_: parsed("float[4, 8] x", "float[4, 8] y", body, domains=[MICROSOFT], w=normal(8, 8))


@pytest.mark.parametrize(
    "build",
    [
        lambda *given: in_blocks(optimized(*given)),
        alone("y = com.microsoft.FusedMatMul <transB = 1> (x, w)"),
        alone('y = com.microsoft.FusedGemm <activation = "Relu"> (x, w)'),
        alone("y = com.microsoft.SkipSimplifiedLayerNormalization (x, x, w)"),
        alone("y = com.microsoft.OfTomorrow (x)"),
    ],
)
def test_a_model_of_fused_layers_alone_is_refused_by_the_optimizers_name(build, convolutions, tmp_path):
    model = build(convolutions, tmp_path)
    table = trtint8.CalibrationTable({"x": 1.0})
    for patterns in ((), ("*",)):
        with pytest.warns(UserWarning, match="optimizer"), pytest.raises(trtint8.ModelError):
            trtint8.quantize(model, table, float16=True, keep_int8=patterns)


def test_a_reference_may_be_optimized(convolutions, tmp_path, recwarn):
    table = trtint8.calibrate(convolutions, X, method="minmax")
    quantized = trtint8.quantize(convolutions, table)
    model = optimized(convolutions, tmp_path)
    accuracy = trtint8.validate(quantized, X, reference=model)
    assert 20 < accuracy.outputs[0].sqnr_db < 60
    assert not [one for one in recwarn if "optimizer" in str(one.message)]


def test_operators_of_onnx_runtime_that_compute_on_integers_are_mended_and_not_warned_of(recwarn):
    made = alone("y = com.microsoft.DynamicQuantizeMatMul (x, q, w)")()
    made.graph.initializer.append(numpy_helper.from_array(np.ones((8, 8), np.int8), "q"))
    made.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.ones(8, np.float32), "w"))
    with pytest.raises(trtint8.ModelError, match="lint"):
        trtint8.quantize(made, trtint8.CalibrationTable({"x": 1.0}))
    assert not [one for one in recwarn if "optimizer" in str(one.message)]
