"""Tensors whose bytes are not what their type and shape say are refused by name."""

import os
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

import trtint8
from calibrators.errors import ModelError
from tests.trtint8.models.float_models import images, run, small
from tests.trtint8.onnx_models import save_external
from trtint8.models.model import load_model, prepare
from trtint8.models.serialization import to_proto
from trtint8.models.session import open_graph_model


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


SECRET = np.full((16, 3, 3, 3), 7.0, np.float32)


def twice(tensor, location):
    tensor.external_data.add(key="location", value=str(location))


def test_a_key_that_is_there_twice(tmp_path):
    """Some readers take the first and others the last, so that what is checked is not what is read."""
    secret, folder = tmp_path / "secret", tmp_path / "model"
    folder.mkdir()
    secret.write_bytes(SECRET.tobytes())
    path = external(folder)
    model = onnx.load(path, load_external_data=False)
    for locations in (["weights.bin", secret], [secret, "weights.bin"], ["weights.bin"] * 2):
        tensor = model.graph.initializer[0]
        del tensor.external_data[:]
        for location in locations:
            twice(tensor, location)
        path.write_bytes(model.SerializeToString())
        with pytest.raises(ModelError, match=r"'constant0' of 'model\.onnx' has the key 'location' twice"):
            load_model(path)


def stored(folder, name="k", values=SECRET[0, 0], **entries):
    """A tensor whose values lie in a file of the folder."""
    (folder / f"{name}.bin").write_bytes(bytes(4) + values.tobytes())
    tensor = numpy_helper.from_array(values, name)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    entries = {"location": f"{name}.bin", "offset": "4"} | entries
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=value)
    return tensor


def opsets():
    return [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]


def everywhere(tensor):
    """Models that hold a tensor in every place where one can stand, by the name of the place."""
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [3, 3]) for name in "xy"]
    add, constant = helper.make_node("Add", ["x", "k"], ["y"]), helper.make_node("Constant", [], ["k"])
    constant.attribute.append(helper.make_attribute("value", tensor))
    out = helper.make_tensor_value_info("t", TensorProto.FLOAT, [3, 3])
    condition = numpy_helper.from_array(np.array(True), "c")

    def model(nodes, weights=(), functions=()):
        graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], weights)
        return helper.make_model(graph, opset_imports=opsets(), ir_version=8, functions=functions)

    def branch(nodes, weights=()):
        taken = helper.make_graph(
            [*nodes, helper.make_node("Add", ["x", "k"], ["t"])], "b", [], [out], weights
        )
        return [helper.make_node("If", ["c"], ["y"], then_branch=taken, else_branch=taken)]

    def function(*nodes, **options):
        return helper.make_function("own", "F", ["x"], ["y"], [*nodes, add], opsets(), **options)

    call = [helper.make_node("F", ["x"], ["y"], domain="own")]
    reference = helper.make_node("Constant", [], ["k"])
    reference.attribute.add(name="value", ref_attr_name="v", type=onnx.AttributeProto.TENSOR)
    default = helper.make_attribute("v", tensor)
    given = [helper.make_node("F", ["x"], ["y"], domain="own", v=tensor)]
    return {
        "weight": model([add], [tensor]),
        "constant": model([constant, add]),
        "constant of a branch": model(branch([constant]), [condition]),
        "weight of a branch": model(branch([], [tensor]), [condition]),
        "constant of a function": model(call, functions=[function(constant)]),
        "attribute of a call": model(given, functions=[function(reference, attributes=["v"])]),
        "default of a function": model(call, functions=[function(reference, attribute_protos=[default])]),
    }


PLACES = sorted(everywhere(numpy_helper.from_array(SECRET[0, 0], "k")))


@pytest.mark.parametrize("place", PLACES)
def test_values_in_files_are_read_wherever_the_tensor_stands(place, tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(everywhere(stored(tmp_path))[place].SerializeToString())
    loaded = load_model(path)
    assert loaded.data_files == (tmp_path.resolve() / "k.bin",)
    x = np.arange(9, dtype=np.float32).reshape(3, 3)
    inside = load_model(everywhere(numpy_helper.from_array(SECRET[0, 0], "k"))[place])
    assert loaded.fingerprint == inside.fingerprint
    for given in (loaded, prepare(loaded)):
        session = open_graph_model(given.graph_model)
        np.testing.assert_array_equal(session.run({"x": x})[0], x + 7)


@pytest.mark.parametrize(
    "entries",
    [
        {"location": "/etc/passwd"},
        {"location": "../k.bin"},
        {"offset": "-4"},
        {"offset": "8"},
        {"length": "9"},
    ],
    ids=lambda entries: "".join(f"{key}={value}" for key, value in entries.items()),
)
@pytest.mark.parametrize("place", PLACES)
def test_records_are_checked_wherever_the_tensor_stands(place, entries, tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(everywhere(stored(tmp_path, **entries))[place].SerializeToString())
    with pytest.raises(ModelError):
        load_model(path)


@pytest.mark.parametrize("place", PLACES)
def test_keys_twice_are_refused_wherever_the_tensor_stands(place, tmp_path):
    tensor = stored(tmp_path)
    twice(tensor, "/etc/passwd")
    path = tmp_path / "model.onnx"
    path.write_bytes(everywhere(tensor)[place].SerializeToString())
    with pytest.raises(ModelError, match=r"'k' of 'model\.onnx' has the key 'location' twice"):
        load_model(path)
    tensor.data_location, tensor.raw_data = TensorProto.DEFAULT, SECRET[0, 0].tobytes()
    path.write_bytes(everywhere(tensor)[place].SerializeToString())
    with pytest.raises(ModelError, match=r"'k' of 'model\.onnx' has the key 'location' twice"):
        load_model(path)


def test_graphs_for_training_are_checked_too(tmp_path):
    model = everywhere(numpy_helper.from_array(SECRET[0, 0], "k"))["weight"]
    model.training_info.add().algorithm.initializer.append(stored(tmp_path, "t", location="/etc/passwd"))
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(ModelError, match="/etc/passwd"):
        load_model(tmp_path / "model.onnx")


def test_a_sparse_constant_of_a_node():
    values = helper.make_tensor("sparse", TensorProto.FLOAT, [1], [1.0])
    indices = helper.make_tensor("indices", TensorProto.INT64, [1], [3])
    model = everywhere(numpy_helper.from_array(SECRET[0, 0], "k"))["constant"]
    del model.graph.node[0].attribute[:]
    sparse = helper.make_sparse_tensor(values, indices, [3, 3])
    model.graph.node[0].attribute.append(helper.make_attribute("sparse_value", sparse))
    with pytest.raises(ModelError, match="'sparse' of 'model' is sparse"):
        load_model(model)


def test_values_here_and_in_a_file(tmp_path):
    tensor = stored(tmp_path)
    tensor.raw_data = SECRET[0, 0].tobytes()
    for place, model in everywhere(tensor).items():
        (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
        with pytest.raises(
            ModelError, match=r"'k' of 'model\.onnx' holds values, and says that they lie in a"
        ):
            load_model(tmp_path / "model.onnx")
        assert place


def test_a_large_weight_that_names_a_file_as_well(tmp_path):
    """The values of large weights are taken out of the message before anything is checked."""
    weight = np.ones((64, 64), np.float32)
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 64]) for name in "xy"]
    tensor = numpy_helper.from_array(weight, "w")
    tensor.external_data.add(key="location", value="/etc/passwd")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])], "g", ends[:1], ends[1:], [tensor]
    )
    model = helper.make_model(graph, opset_imports=opsets(), ir_version=8)
    loaded = load_model(model)
    np.testing.assert_array_equal(loaded.graph_model.graph.initializers["w"].const_value.numpy(), weight)
    model.graph.initializer[0].data_location = TensorProto.EXTERNAL
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(
        ModelError, match=r"'w' of 'model\.onnx' holds values, and says that they lie in a file"
    ):
        load_model(tmp_path / "model.onnx")
    del model.graph.initializer[0].external_data[:]
    model.graph.initializer[0].data_location = TensorProto.DEFAULT
    model.graph.initializer.append(model.graph.initializer[0])
    with pytest.raises(ModelError, match="'model' holds the constant 'w' twice"):
        load_model(model)


@pytest.mark.parametrize("location", ["a\\weights.bin", "..\\weights.bin", "\\\\host\\share\\weights.bin"])
def test_external_data_with_backslashes(location, tmp_path):
    with pytest.raises(ModelError, match="which is not inside the model's folder"):
        load_model(external(tmp_path, location=location))


def linked(folder, target):
    """A model whose file of weights is a link."""
    folder.mkdir(exist_ok=True)
    path = external(folder)
    (folder / "weights.bin").replace(target)
    (folder / "weights.bin").symlink_to(target)
    return path


def test_a_link_that_stays_in_the_model_s_folder(tmp_path):
    (tmp_path / "model" / "blobs").mkdir(parents=True)
    path = linked(tmp_path / "model", tmp_path / "model" / "blobs" / "b")
    assert to_proto(load_model(path).graph_model) == to_proto(load_model(small()).graph_model)


def test_a_link_that_leads_out_of_the_model_s_folder(tmp_path):
    secret = tmp_path / "secret"
    path = linked(tmp_path / "model", secret)
    with pytest.raises(ModelError, match=rf"'weights.bin', a link to '.*{secret.name}' outside of the model"):
        load_model(path)
    (tmp_path / "here").symlink_to(tmp_path / "model")  # the user's own link changes nothing
    with pytest.raises(ModelError, match="outside of the model's folder"):
        load_model(tmp_path / "here" / path.name)
    (tmp_path / "model" / "weights.bin").unlink()
    (tmp_path / "model" / "weights").symlink_to(tmp_path)
    with pytest.raises(ModelError, match="outside of the model's folder"):
        load_model(external_again(path, f"weights/{secret.name}"))


def external_again(path, location):
    model = onnx.load(path, load_external_data=False)
    for tensor in model.graph.initializer:
        tensor.external_data[0].value = location
    path.write_bytes(model.SerializeToString())
    return path


@pytest.mark.parametrize("nested", [False, True])
def test_a_model_that_is_a_link_beside_its_weights_in_a_cache(nested, tmp_path):
    """As in Hugging Face's caches: snapshots/REVISION/model.onnx leads to blobs/HASH, and weights too."""
    blobs, folder = tmp_path / "blobs", tmp_path / "snapshots" / "revision" / ("onnx" if nested else "")
    blobs.mkdir()
    folder.mkdir(parents=True)
    path = external(blobs)
    path.rename(blobs / "a")
    (blobs / "weights.bin").rename(blobs / "b")
    up = Path("../../../blobs" if nested else "../../blobs")
    (folder / "model.onnx").symlink_to(up / "a")
    (folder / "weights.bin").symlink_to(up / "b")
    loaded = load_model(folder / "model.onnx")
    assert loaded.data_files == (blobs.resolve() / "b",)
    assert to_proto(loaded.graph_model) == to_proto(load_model(small()).graph_model)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes here")
def test_a_named_pipe_in_the_place_of_the_weights(tmp_path):
    path = external(tmp_path)
    (tmp_path / "weights.bin").unlink()
    os.mkfifo(tmp_path / "weights.bin")
    with pytest.raises(ModelError, match="there is no such file"):
        load_model(path)


def test_a_file_that_is_exchanged_after_it_was_checked(tmp_path):
    path = external(tmp_path)
    loaded = load_model(path)
    (tmp_path / "other").write_bytes(bytes((tmp_path / "weights.bin").stat().st_size))
    (tmp_path / "other").replace(tmp_path / "weights.bin")
    assert to_proto(loaded.graph_model) == to_proto(load_model(small()).graph_model)


@pytest.mark.parametrize(
    ("data_type", "size"),
    [(TensorProto.INT4, 5), (TensorProto.FLOAT16, 18), (TensorProto.BFLOAT16, 18), (TensorProto.INT8, 9)],
)
def test_weights_of_any_type_in_files(data_type, size, tmp_path):
    content = bytes(range(1, size + 1))
    (tmp_path / "k.bin").write_bytes(content)
    tensor = TensorProto(name="k", data_type=data_type, dims=[3, 3], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="k.bin")
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [3, 3]) for name in "xy"]
    nodes = [
        helper.make_node("Cast", ["k"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Add", ["x", "f"], ["y"]),
    ]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], [tensor])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    loaded = load_model(tmp_path / "model.onnx").graph_model.graph.initializers["k"].const_value
    assert (int(loaded.dtype), loaded.tobytes()) == (data_type, content)


def test_a_weight_without_elements_in_an_empty_file(tmp_path):
    (tmp_path / "k.bin").touch()
    tensor = TensorProto(
        name="k", data_type=TensorProto.FLOAT, dims=[0, 3], data_location=TensorProto.EXTERNAL
    )
    tensor.external_data.add(key="location", value="k.bin")
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 3]) for name in "xy"]
    node = helper.make_node("Concat", ["x", "k"], ["y"], axis=0)
    graph = helper.make_graph([node], "g", ends[:1], ends[1:], [tensor])
    model = helper.make_model(graph, opset_imports=opsets(), ir_version=8)
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    loaded = load_model(tmp_path / "model.onnx").graph_model.graph.initializers["k"].const_value
    assert loaded.numpy().shape == (0, 3)


def test_shapes_and_types_that_follow_from_small_constants_in_other_files(tmp_path):
    """Of what an exporter leaves open: parts of a sequence, of a shape that a constant names."""
    random = np.random.default_rng(0)
    constants = {
        "weights": random.standard_normal((8, 8)).astype(np.float32),
        "sizes": np.array([0, 2, 4]),
        "half": np.array(2),
        "second": np.array(1),
    }
    nodes = [
        helper.make_node("MatMul", ["x", "weights"], ["m"], "layer"),
        helper.make_node("Reshape", ["m", "sizes"], ["r"], "reshape"),
        helper.make_node("SplitToSequence", ["r", "half"], ["s"], "split", axis=2),
        helper.make_node("SequenceAt", ["s", "second"], ["y"], "pick"),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path = save_external(model, tmp_path)
    x = random.standard_normal((16, 8)).astype(np.float32)
    table = trtint8.calibrate(path, {"x": x}, method="minmax", progress=False)
    quantized = trtint8.quantize(path, table, keep_float=["*"], progress=False)
    wanted = (x @ constants["weights"]).reshape(16, 2, 4)[:, :, 2:]
    (found,) = ort.InferenceSession(quantized.SerializeToString()).run(None, {"x": x})
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
