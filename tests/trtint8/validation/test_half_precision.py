"""Overflow of FP16 models that ONNX Runtime hides on a CPU."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import trtint8
from trtint8.models.model import load_model
from trtint8.validation.opening import half_tensors


def stream(half, peak=1e5):
    """A product that reaches ``peak`` and is divided again, by hand in FP16 or in FP32."""
    dtype, kind = (np.float16, TensorProto.FLOAT16) if half else (np.float32, TensorProto.FLOAT)
    nodes = [
        helper.make_node("Cast", ["x"], ["typed"], to=kind),
        helper.make_node("MatMul", ["typed", "w"], ["large"]),
        helper.make_node("Mul", ["large", "small"], ["scaled"]),
        helper.make_node("Cast", ["scaled"], ["y"], to=TensorProto.FLOAT),
    ]
    ios = [[helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 4])] for name in "xy"]
    constants = [
        numpy_helper.from_array(np.full((4, 4), peak / 4, dtype), "w"),
        numpy_helper.from_array(dtype(1 / peak), "small"),
    ]
    graph = helper.make_graph(nodes, "g", *ios, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def ones(count=8):
    return {"x": np.ones((count, 4), np.float32)}


def test_the_tensors_in_fp16():
    assert set(half_tensors(load_model(stream(True)).graph_model)) == {"typed", "large", "scaled", "x"}
    model = stream(False)
    assert half_tensors(load_model(model).graph_model) == ()
    model.graph.node.insert(2, helper.make_node("Cast", ["large"], ["half"], to=TensorProto.FLOAT16))
    model.graph.node.insert(3, helper.make_node("Cast", ["half"], ["back"], to=TensorProto.FLOAT))
    model.graph.node[4].input[0] = "back"
    onnx.checker.check_model(model)
    assert "large" in half_tensors(load_model(model).graph_model)


@pytest.mark.parametrize(("rows", "divided"), [(8, 0), (40, 39)])
def test_validate_finds_what_overflows_on_a_gpu(rows, divided):
    """In one sample of many, too."""
    samples = ones(rows)
    samples["x"][:divided] /= 100
    with pytest.warns(UserWarning, match=r"'large' in FP16, .* 100000"):
        found = trtint8.validate(stream(True), samples, reference=stream(False), batch_size=3, progress=False)
    assert "FP16 in FP32 on a CPU" in found.judged


def test_what_stays_within_fp16_gives_no_warning(recwarn):
    samples = ones()
    samples["x"][:4] /= 100
    found = trtint8.validate(stream(True, 1e4), samples, reference=stream(False, 1e4), progress=False)
    assert "FP16 in FP32 on a CPU" in found.judged and not recwarn


def test_samples_that_do_not_fit_are_named_by_their_input():
    samples = {"x": np.ones((8, 3), np.float32)}
    with pytest.raises(trtint8.CalibrationDataError, match=r"'x' has shape 8x3 .* nx4"):
        trtint8.validate(stream(True), samples, reference=stream(False), progress=False)
