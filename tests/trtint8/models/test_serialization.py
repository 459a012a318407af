"""Models as messages and files."""

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from calibrators.host import session
from calibrators.host.session import open_session
from calibrators.host.weights import LightModel
from tests.trtint8.models.float_models import small
from tests.trtint8.onnx_models import function, parsed, save_external
from trtint8.data import DEMO_MODEL, load_digits_split
from trtint8.models.model import load_model, prepare
from trtint8.models.serialization import fingerprint, light_or_file, save_model, to_proto


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


def changed(change):
    model = small()
    change(model.graph)
    # Not every change leaves a model that the checker takes: only its fingerprint is asked for.
    return fingerprint(ir.from_proto(model))


def test_what_decides_the_result_decides_the_fingerprint(tmp_path, monkeypatch):
    same = changed(lambda _: None)
    assert len(same) == 64 and int(same, 16) >= 0
    assert changed(lambda graph: setattr(graph.node[1], "name", "other")) == same
    assert load_model(save_external(small(), tmp_path)).fingerprint == load_model(small()).fingerprint == same
    first = small().graph.initializer[0].raw_data
    others = [
        lambda graph: setattr(graph.node[1], "op_type", "Abs"),
        lambda graph: graph.node[0].attribute[0].ints.__setitem__(0, 2),
        lambda graph: setattr(graph.input[0].type.tensor_type.shape.dim[1], "dim_value", 4),
        lambda graph: setattr(graph.initializer[0], "raw_data", bytes([first[0] ^ 1]) + first[1:]),
    ]
    assert len({same, *map(changed, others)}) == 5
    monkeypatch.setattr(session, "_WORTH_THREADS", 0)
    assert load_model(small()).fingerprint == same


def constant(value):
    """A node's constant."""
    return parsed(
        "float[1] x", "float[1] y", f"c = Constant <value = float[1] {{{value}}}> () y = Add (x, c)"
    )


def weight_of_a_branch(value):
    branches = ", ".join(
        f"{kind}_branch = b () => (float[1] {kind}_y) <float[1] {kind}_w = {{{number}}}> "
        f"{{ {kind}_y = Identity ({kind}_w) }}"
        for kind, number in (("then", value), ("else", 0))
    )
    return parsed("bool c", "float[1] y", f"y = If (c) <{branches}>")


def body_of_a_function(value):
    act = function("Act", "a", "b", f"b = {['Identity', 'Relu', 'Sigmoid'][value]} (a)", opset=18)
    return parsed("float[1] x", "float[1] y", "y = own.Act (x)", act, opset=18, domains=["own"])


@pytest.mark.parametrize("model", [constant, weight_of_a_branch, body_of_a_function])
def test_what_stands_inside_nodes_and_functions_counts(model):
    one, again, two = (fingerprint(ir.from_proto(model(value))) for value in (1, 1, 2))
    assert one == again != two
