"""Tensors whose bytes are not what their type and shape say are refused by name."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from calibrators.errors import ModelError
from tests.trtint8.models.float_models import images, run, small
from tests.trtint8.onnx_models import save_external
from trtint8.models.model import load_model, prepare
from trtint8.models.serialization import to_proto


def inline_text(graph):
    graph.initializer.append(helper.make_tensor("words", TensorProto.STRING, [2], [b"a", b"b"]))


def sparse(graph):
    values = helper.make_tensor("sparse", TensorProto.FLOAT, [1], [1.0])
    indices = helper.make_tensor("indices", TensorProto.INT64, [1], [3])
    graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [8]))


def longer(graph):
    graph.initializer[0].raw_data += bytes(8)


def shorter(graph):
    graph.initializer[0].raw_data = graph.initializer[0].raw_data[:-8]


def more_floats(graph):
    graph.initializer[0].ClearField("raw_data")
    graph.initializer[0].float_data.extend([0.0] * 435)


def larger_than_memory(graph):
    graph.initializer[0].dims[:] = [2**32, 2**32]


def unknown_type(graph):
    graph.initializer[0].data_type = 99


def negative(graph):
    graph.initializer[0].dims[0] = -1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (inline_text, "'words' of 'model' holds text"),
        (sparse, "'sparse' of 'model' is sparse"),
        (longer, r"'constant0' of 'model' holds 1736 bytes, but its shape \[16, 3, 3, 3\] needs 1728"),
        (shorter, "'constant0' of 'model' holds 1720 bytes"),
        (more_floats, "'constant0' of 'model' holds 435 values, but its shape .* needs 432"),
        (larger_than_memory, r"'constant0' of 'model' holds 1728 bytes, but .* needs 73786976294838206464"),
        (unknown_type, "'constant0' of 'model' has the element type 99"),
        (negative, "constant0"),
    ],
)
def test_values_that_do_not_fit_their_declaration(change, words):
    model = small()
    change(model.graph)
    with pytest.raises(ModelError, match=words):
        load_model(model)


def stored_in_a_node(tensor):
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in "xy")
    nodes = [
        helper.make_node("Constant", [], ["c"], value=tensor),
        helper.make_node("Add", ["x", "c"], ["y"]),
    ]
    graph = helper.make_graph(nodes, "g", [x], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_constants_of_nodes_are_checked_too():
    tensor = numpy_helper.from_array(np.zeros(4, np.float32), "k")
    assert load_model(stored_in_a_node(tensor))
    tensor.raw_data += bytes(4)
    with pytest.raises(ModelError, match=r"'k' of 'model' holds 20 bytes, but its shape \[4\] needs 16"):
        load_model(stored_in_a_node(tensor))
    words = helper.make_tensor("k", TensorProto.STRING, [4], [b"a"] * 4)
    with pytest.raises(ModelError, match="'k' of 'model' holds text"):
        load_model(stored_in_a_node(words))


@pytest.mark.parametrize(("count", "accepted"), [(2, False), (3, True), (4, False)])
def test_values_of_four_bits_are_packed(count, accepted):
    tensor = TensorProto(name="k", data_type=TensorProto.INT4, dims=[5], raw_data=bytes(count))
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [5]) for name in "xy")
    nodes = [
        helper.make_node("DequantizeLinear", ["k", "s"], ["d"]),
        helper.make_node("Add", ["x", "d"], ["y"]),
    ]
    graph = helper.make_graph(nodes, "g", [x], [y], [tensor, numpy_helper.from_array(np.float32(1), "s")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    if accepted:
        assert load_model(model)
    else:
        with pytest.raises(ModelError, match=rf"'k' of 'model' holds {count} bytes"):
            load_model(model)


@pytest.mark.parametrize(
    ("data_type", "values", "field"),
    [
        (TensorProto.FLOAT, [1.0] * 3, "float_data"),
        (TensorProto.DOUBLE, [1.0] * 3, "double_data"),
        (TensorProto.INT64, [1] * 3, "int64_data"),
        (TensorProto.UINT32, [1] * 3, "uint64_data"),
        (TensorProto.FLOAT16, [1] * 3, "int32_data"),
        (TensorProto.COMPLEX64, [1 + 1j] * 3, "float_data"),
    ],
)
def test_typed_fields_are_counted(data_type, values, field):
    model = small()
    tensor = helper.make_tensor("typed", data_type, [3], values)
    assert len(getattr(tensor, field))
    model.graph.initializer.append(tensor)
    assert load_model(model)
    getattr(model.graph.initializer[-1], field).append(1)
    with pytest.raises(ModelError, match=r"'typed' of 'model' holds . values, but its shape"):
        load_model(model)


def external(folder, **entries):
    """A model with external data, of whose first tensor entries were replaced, or left out where None."""
    path = save_external(small(), folder)
    model = onnx.load(path, load_external_data=False)
    data = model.graph.initializer[0].external_data
    kept = {entry.key: entry.value for entry in data} | entries
    del data[:]
    for key, value in kept.items():
        if value is not None:
            data.add(key=key, value=value)
    path.write_bytes(model.SerializeToString())
    return path


@pytest.mark.parametrize("value", ["x", "-4", "", "1" * 30, "1.5", " 4"])
@pytest.mark.parametrize("key", ["offset", "length"])
def test_external_data_with_a_bad_number(key, value, tmp_path):
    with pytest.raises(ModelError, match=rf"'constant0' of 'model\.onnx' has the {key} '{value}' in its ext"):
        load_model(external(tmp_path, **{key: value}))


def test_external_data_of_another_length(tmp_path):
    with pytest.raises(ModelError, match=r"'constant0' of .* has a length of 4 bytes .* needs 1728"):
        load_model(external(tmp_path, length="4"))


def test_external_data_beyond_the_end(tmp_path):
    path = external(tmp_path, length=None)
    assert load_model(path)
    (tmp_path / "weights.bin").write_bytes(bytes(8))
    with pytest.raises(
        ModelError, match=r"truncated: the tensor 'constant0' of .* ends at byte 1728, .* at 8;"
    ):
        load_model(path)


@pytest.mark.parametrize("location", ["", "missing", "x" * 5000, "zero\0byte"])
def test_external_data_nowhere(location, tmp_path):
    with pytest.raises(ModelError, match="there is no such file"):
        load_model(external(tmp_path, location=location))


@pytest.mark.parametrize("location", ["../weights.bin", "a/../../weights.bin", "/etc/passwd"])
def test_external_data_outside_the_folder(location, tmp_path):
    folder = tmp_path / "folder"
    (folder / "a").mkdir(parents=True)
    path = external(folder, location=location)
    (folder / "weights.bin").rename(tmp_path / "weights.bin")
    words = f"keeps weights in '{location}', which is not inside the model's folder; save the model with"
    with pytest.raises(ModelError, match=words):
        load_model(path)


def test_external_data_outside_the_folder_under_the_name_of_a_weight(tmp_path):
    """A large weight is kept beside its message, in which it looks like one in another file."""
    model = small()
    weight = model.graph.initializer[0]
    weight.CopyFrom(numpy_helper.from_array(np.ones((64, 64), np.float32), weight.name))
    hostile = onnx.TensorProto(name=weight.name, data_type=onnx.TensorProto.FLOAT, dims=[2])
    hostile.data_location = onnx.TensorProto.EXTERNAL
    hostile.external_data.add(key="location", value="/etc/passwd")
    model.graph.node.append(helper.make_node("Constant", [], ["hostile"], value=hostile))
    onnx.save(model, tmp_path / "model.onnx")
    with pytest.raises(ModelError, match="keeps weights in '/etc/passwd', which is not inside"):
        load_model(tmp_path / "model.onnx")


@pytest.mark.parametrize("link", [Path.symlink_to, Path.hardlink_to], ids=["symbolic", "hard"])
def test_external_data_that_is_a_link(link, tmp_path):
    """As in Hugging Face's caches, where the model is a link too, and both lead to another folder."""
    blobs, folder = tmp_path / "blobs", tmp_path / "snapshot"
    for made in (blobs, folder):
        made.mkdir()
    path = save_external(small(), blobs)
    for name, blob in ((path.name, "a"), ("weights.bin", "b")):
        (blobs / name).rename(blobs / blob)
        link(folder / name, blobs / blob)
    loaded = load_model(folder / path.name)
    assert to_proto(loaded.graph_model) == to_proto(load_model(small()).graph_model)
    feed = images()
    np.testing.assert_array_equal(run(to_proto(prepare(loaded).graph_model), feed), run(small(), feed))


@pytest.mark.parametrize("dims", [[-4, 3, 3, 3], [4, 3, 3, 3, -2]])
def test_external_data_of_a_shape_that_no_tensor_has(dims, tmp_path):
    path = save_external(small(), tmp_path)
    model = onnx.load(path, load_external_data=False)
    model.graph.initializer[0].dims[:] = dims
    onnx.save(model, path)
    with pytest.raises(
        ModelError, match=r"the tensor 'constant0' of 'model.onnx' has the shape \[.*\], which"
    ):
        load_model(path)
