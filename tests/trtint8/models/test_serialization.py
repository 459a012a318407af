"""Models as messages and files."""

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from calibrators.host.onnx_session import open_session
from calibrators.host.weights import LightModel
from tests.trtint8.models.float_models import small
from trtint8.data import DEMO_MODEL, load_digits_split
from trtint8.models.model import load_model, prepare
from trtint8.models.serialization import light_or_file, save_model, to_proto


def test_what_onnx_runtime_opens_is_light_or_a_file(monkeypatch):
    graph_model = prepare(load_model(DEMO_MODEL)).graph_model
    with light_or_file(graph_model) as light:
        assert isinstance(light, LightModel) and light.weights
    assert all(value.const_value.numpy() is not None for value in graph_model.graph.initializers.values())
    monkeypatch.setattr("trtint8.models.serialization._LARGEST_INLINE", 1000)
    x = {"images": load_digits_split().heldout_images[:3]}
    with light_or_file(graph_model) as file:
        assert isinstance(file, Path)
        found = open_session(file, optimize=True).run(None, x)
    assert not file.exists()
    monkeypatch.undo()
    with light_or_file(graph_model, used_up=True) as light:
        np.testing.assert_array_equal(open_session(light, optimize=True).run(None, x), found)


def test_saved_models_load_back_equal(tmp_path):
    model = load_model(small())
    path = save_model(model.graph_model, tmp_path / "out.onnx")
    assert load_model(path).fingerprint == model.fingerprint
    assert onnx.load(path).graph == to_proto(model.graph_model).graph
    assert list(tmp_path.iterdir()) == [path]


def test_a_saved_model_is_the_message_that_protobuf_would_write(tmp_path):
    source = small()
    values = np.arange(2048, dtype=np.float32).reshape(2, -1)
    for dtype in (np.float16, np.int32, np.float32):
        stored = onnx.numpy_helper.from_array(values.astype(dtype), f"of_{np.dtype(dtype)}")
        stored.doc_string = "large"
        source.graph.initializer.append(stored)
    source.graph.initializer[-1].metadata_props.add(key="origin", value="test")
    graph_model = ir.from_proto(source)
    saved = onnx.load(save_model(graph_model, tmp_path / "out.onnx"))
    assert list(saved.graph.initializer) == list(source.graph.initializer)
    whole = onnx.ModelProto.FromString(to_proto(graph_model).SerializeToString())
    for message in (saved, whole):
        del message.graph.initializer[:]
    assert saved == whole


def test_a_failed_save_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "out.onnx"
    path.write_bytes(b"old")

    def fail(*_):
        raise OSError("no space")

    monkeypatch.setattr("os.replace", fail)
    monkeypatch.setattr("pathlib.Path.replace", fail)
    with pytest.raises(Exception, match="no space"):
        save_model(load_model(small()).graph_model, path)
    assert path.read_bytes() == b"old" and list(tmp_path.iterdir()) == [path]
