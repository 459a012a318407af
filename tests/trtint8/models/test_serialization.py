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
from tests.trtint8.onnx_models import save_external
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


def test_fingerprint_follows_weights_and_not_where_they_lie(tmp_path):
    inline = load_model(small()).fingerprint
    assert load_model(save_external(small(), tmp_path)).fingerprint == inline
    changed = small()
    data = bytearray(changed.graph.initializer[0].raw_data)
    data[0] ^= 1
    changed.graph.initializer[0].raw_data = bytes(data)
    assert load_model(changed).fingerprint != inline


def changed(change):
    model = small()
    change(model.graph)
    # Not every change leaves a model that the checker takes: only its fingerprint is asked for.
    return fingerprint(ir.from_proto(model))


def test_what_decides_the_result_decides_the_fingerprint():
    def rename(graph):
        graph.node[1].name = "other"

    def operator(graph):
        graph.node[1].op_type = "Abs"

    def attribute(graph):
        graph.node[0].attribute[0].ints[0] = 2

    def shape(graph):
        graph.input[0].type.tensor_type.shape.dim[1].dim_value = 4

    same = changed(lambda _graph: None)
    assert len(same) == 64 and int(same, 16) >= 0
    assert changed(rename) == same
    others = [changed(change) for change in (operator, attribute, shape)]
    assert len({same, *others}) == 4


def test_constants_within_nodes_count():
    def model(value):
        node = onnx.helper.make_node(
            "Constant", [], ["c"], value=onnx.numpy_helper.from_array(np.float32([value]))
        )
        graph = onnx.helper.make_graph([node], "g", [], [onnx.helper.make_tensor_value_info("c", 1, [1])])
        return fingerprint(ir.from_proto(onnx.helper.make_model(graph)))

    assert model(1.0) == model(1.0) != model(2.0)


def test_threads_change_nothing(monkeypatch):
    alone = load_model(small()).fingerprint
    monkeypatch.setattr(session, "_WORTH_THREADS", 0)
    assert load_model(small()).fingerprint == alone


def test_weights_of_inner_graphs_count():
    def model(value):
        branches = {}
        for name, number in (("then_branch", value), ("else_branch", 0.0)):
            weight = onnx.numpy_helper.from_array(np.float32([number]), f"{name}_weight")
            node = onnx.helper.make_node("Identity", [f"{name}_weight"], [f"{name}_y"])
            made = onnx.helper.make_tensor_value_info(f"{name}_y", 1, [1])
            branches[name] = onnx.helper.make_graph([node], name, [], [made], [weight])
        choice = onnx.helper.make_node("If", ["c"], ["y"], **branches)
        condition = onnx.helper.make_tensor_value_info("c", onnx.TensorProto.BOOL, [])
        made = onnx.helper.make_tensor_value_info("y", 1, [1])
        graph = onnx.helper.make_graph([choice], "g", [condition], [made])
        return fingerprint(ir.from_proto(onnx.helper.make_model(graph)))

    assert model(1.0) == model(1.0) != model(2.0)


def test_bodies_of_functions_count():
    def model(operator):
        opsets = [onnx.helper.make_opsetid(domain, version) for domain, version in (("", 18), ("own", 1))]
        body = [onnx.helper.make_node(operator, ["a"], ["b"])]
        function = onnx.helper.make_function("own", "Act", ["a"], ["b"], body, opsets[:1])
        values = [onnx.helper.make_tensor_value_info(name, 1, [1]) for name in ("x", "y")]
        node = onnx.helper.make_node("Act", ["x"], ["y"], domain="own")
        graph = onnx.helper.make_graph([node], "g", values[:1], values[1:])
        made = onnx.helper.make_model(graph, opset_imports=opsets, functions=[function])
        return fingerprint(ir.from_proto(made))

    assert model("Relu") == model("Relu") != model("Sigmoid")
