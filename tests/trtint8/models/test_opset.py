"""Models in a newer opset."""

import numpy as np
import onnx_ir as ir
import pytest

from calibrators.errors import ModelError
from tests.trtint8.models.float_models import images, small
from tests.trtint8.onnx_models import save_external
from tests.trtint8.quantization.float16.half_models import network, run, weights
from trtint8.models.model import load_model, prepare, to_proto
from trtint8.models.opset import with_opset


def test_an_old_opset_is_converted():
    model = small()
    model.opset_import[0].version = 11
    prepared = prepare(load_model(model))
    assert prepared.graph_model.opset_imports[""] >= 13
    np.testing.assert_allclose(
        run(to_proto(prepared.graph_model), {"images": images()}),
        run(model, {"images": images()}),
        rtol=1e-5,
        atol=1e-5,
    )


def test_an_old_opset_with_weights_in_another_file_is_converted(tmp_path, monkeypatch):
    model = small()
    model.opset_import[0].version = 11
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    prepared = prepare(load_model(save_external(model, tmp_path)))
    np.testing.assert_allclose(
        run(to_proto(prepared.graph_model), {"images": images()}),
        run(small(), {"images": images()}),
        rtol=1e-5,
        atol=1e-5,
    )


def test_a_newer_opset_keeps_large_weights_as_they_are():
    source = network(("MatMul", [weights(64, 64)], {}), ("ReduceMean", [], {"axes": [1]}), shape=("N", 64))
    old = load_model(source).graph_model
    new = with_opset(old, 19, "model")
    assert new.opset_imports[""] == 19
    assert [value.name for value in new.graph.inputs] == ["x"]
    assert np.array_equal(new.graph.initializers["constant0"].const_value.numpy(), weights(64, 64))
    x = np.random.default_rng(0).standard_normal((3, 64)).astype(np.float32)
    assert np.allclose(run(to_proto(new), {"x": x}), run(source, {"x": x}))
    assert with_opset(new, 17, "model") is new


def test_an_opset_that_onnx_cannot_reach_is_named():
    source = network(("Relu", [], {}))
    source.graph.node[0].op_type = "Upsample"
    source.opset_import[0].version = 7
    with pytest.raises(ModelError, match="'model' has opset 7, 19 is needed, and it cannot be converted"):
        with_opset(ir.from_proto(source), 19, "model")
