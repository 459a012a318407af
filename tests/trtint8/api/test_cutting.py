"""A model cut in two by the public call."""

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import trtint8
from calibrators.errors import ModelError
from trtint8.data import DEMO_MODEL


def run(model, feed):
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, feed), strict=True))


def test_both_parts_together_compute_what_the_model_does():
    whole = onnx.load(DEMO_MODEL)
    tensor = next(node for node in whole.graph.node if node.op_type == "Gemm").input[0]
    head, tail = trtint8.cut_model(DEMO_MODEL, [tensor])
    feed = {"images": np.random.default_rng(0).random((3, 1, 8, 8), np.float32)}
    middle = run(head, feed)
    assert list(middle) == [tensor]
    np.testing.assert_allclose(run(tail, middle)["logits"], run(whole, feed)["logits"], rtol=1e-5, atol=1e-5)


def test_a_tensor_that_is_not_there_is_refused():
    with pytest.raises(ModelError, match="nowhere"):
        trtint8.cut_model(DEMO_MODEL, ["nowhere"])


def test_one_tensor_by_itself_is_one():
    whole = onnx.load(DEMO_MODEL)
    tensor = next(node for node in whole.graph.node if node.op_type == "Gemm").input[0]
    head, _ = trtint8.cut_model(DEMO_MODEL, tensor)
    assert [output.name for output in head.graph.output] == [tensor]
    with pytest.raises(ModelError, match="no tensor is named"):
        trtint8.cut_model(DEMO_MODEL, [])
