"""Tensors whose bytes are not what their type and shape say are refused by name."""

import os
import re
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

import trtint8
from calibrators.errors import ModelError
from tests.trtint8.models.float_models import images, run, small
from tests.trtint8.onnx_models import function, normal, parsed, save_external
from trtint8.models.model import load_model, prepare
from trtint8.models.serialization import save_model, to_proto
from trtint8.models.session import open_graph_model


def of_raw_data(change):
    """A change to the bytes of the first constant."""
    return lambda first, _: setattr(first, "raw_data", change(first.raw_data))


def more_floats(first, _):
    first.ClearField("raw_data")
    first.float_data.extend([0.0] * 435)


def sparse_tensor(*dims):
    values = helper.make_tensor("sparse", TensorProto.FLOAT, [1], [1.0])
    return helper.make_sparse_tensor(values, helper.make_tensor("indices", TensorProto.INT64, [1], [3]), dims)


WORDS = helper.make_tensor("words", TensorProto.STRING, [2], [b"a", b"b"])


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda _, graph: graph.initializer.append(WORDS), "'words' of 'model'.*text"),
        (lambda _, graph: graph.sparse_initializer.append(sparse_tensor(8)), "'sparse' of 'model'.*sparse"),
        (
            of_raw_data(lambda data: data + bytes(8)),
            r"'constant0' of 'model'.* 1736 .*\[16, 3, 3, 3\].* 1728",
        ),
        (of_raw_data(lambda data: data[:-8]), "'constant0' of 'model'.* 1720 "),
        (more_floats, "'constant0' of 'model'.* 435 .* 432"),
        (
            lambda first, _: first.dims.__setitem__(slice(None), [2**32, 2**32]),
            "'constant0' of 'model'.* 1728 .* 73786976294838206464",
        ),
        (lambda first, _: setattr(first, "data_type", 99), "'constant0' of 'model'.* 99"),
        (lambda first, _: first.dims.__setitem__(0, -1), "constant0"),
    ],
    ids=["text", "sparse", "longer", "shorter", "more floats", "larger than memory", "type", "negative"],
)
def test_values_that_do_not_fit_their_declaration(change, named):
    model = small()
    change(model.graph.initializer[0], model.graph)
    with pytest.raises(ModelError, match=named):
        load_model(model)


def in_a_node(attribute, tensor, size=4):
    """A Constant that holds a tensor, and what it is added to."""
    made = parsed(f"float[{size}] x", f"float[{size}] y", "c = Constant () y = Add (x, c)")
    made.graph.node[0].attribute.append(helper.make_attribute(attribute, tensor))
    return made


def test_constants_of_nodes_are_checked_too():
    tensor = numpy_helper.from_array(np.zeros(4, np.float32), "k")
    assert load_model(in_a_node("value", tensor))
    tensor.raw_data += bytes(4)
    words = helper.make_tensor("k", TensorProto.STRING, [4], [b"a"] * 4)
    for model, named in (
        (in_a_node("value", tensor), r"'k' of 'model'.* 20 .*\[4\].* 16"),
        (in_a_node("value", words), "'k' of 'model'.*text"),
        (in_a_node("sparse_value", sparse_tensor(4)), "'sparse' of 'model'.*sparse"),
    ):
        with pytest.raises(ModelError, match=named):
            load_model(model)


@pytest.mark.parametrize(("count", "accepted"), [(2, False), (3, True), (4, False)])
def test_values_of_four_bits_are_packed(count, accepted):
    body = "d = DequantizeLinear (k, s) y = Add (x, d)"
    model = parsed("float[5] x", "float[5] y", body, opset=21, ir_version=10, s=np.float32(1))
    model.graph.initializer.add(name="k", data_type=TensorProto.INT4, dims=[5], raw_data=bytes(count))
    with nullcontext() if accepted else pytest.raises(ModelError, match=rf"'k' of 'model'.* {count} "):
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
    with pytest.raises(ModelError, match="'typed' of 'model'"):
        load_model(model)


def external(folder, dims=None, **entries):
    """A model with external data, of whose first tensor entries were replaced, or left out where None."""
    path = save_external(small(), folder)
    model = onnx.load(path, load_external_data=False)
    first = model.graph.initializer[0]
    first.dims[:] = dims or first.dims
    kept = {entry.key: entry.value for entry in first.external_data} | entries
    del first.external_data[:]
    for key, value in kept.items():
        if value is not None:
            first.external_data.add(key=key, value=value)
    path.write_bytes(model.SerializeToString())
    return path


NOWHERE = ["", "missing", "x" * 5000, "zero\0byte"]
BACKSLASHES = ["a\\weights.bin", "..\\weights.bin", "\\\\host\\share\\weights.bin"]


@pytest.mark.parametrize(
    ("entries", "named"),
    [
        *(
            ({key: value}, rf"'constant0' of 'model\.onnx'.* {key} '{re.escape(value)}'")
            for key in ("offset", "length")
            for value in ("x", "-4", "", "1" * 30, "1.5", " 4")
        ),
        ({"length": "4"}, "'constant0' of .* 4 .* 1728"),
        *(({"location": location}, "no such file") for location in NOWHERE),
        *(({"location": location}, "not inside") for location in BACKSLASHES),
        *(({"dims": dims}, r"'constant0' of 'model\.onnx'") for dims in ([-4, 3, 3, 3], [4, 3, 3, 3, -2])),
    ],
)
def test_external_data_with_a_record_that_cannot_be(entries, named, tmp_path):
    with pytest.raises(ModelError, match=named):
        load_model(external(tmp_path, **entries))


def test_external_data_beyond_the_end(tmp_path):
    path = external(tmp_path, length=None)
    assert load_model(path)
    (tmp_path / "weights.bin").write_bytes(bytes(8))
    with pytest.raises(ModelError, match=r"'constant0' of .* 1728, .* 8"):
        load_model(path)


@pytest.mark.parametrize("location", ["../weights.bin", "a/../../weights.bin", "/etc/passwd"])
def test_external_data_outside_the_folder(location, tmp_path):
    folder = tmp_path / "folder"
    (folder / "a").mkdir(parents=True)
    path = external(folder, location=location)
    (folder / "weights.bin").rename(tmp_path / "weights.bin")
    with pytest.raises(ModelError, match=rf"'{location}'.* not inside"):
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
    with pytest.raises(ModelError, match="'/etc/passwd'"):
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


SECRET = np.full((16, 3, 3, 3), 7.0, np.float32)


def test_a_key_that_is_there_twice(tmp_path):
    """Some readers take the first and others the last, so that what is checked is not what is read."""
    secret, folder = tmp_path / "secret", tmp_path / "model"
    folder.mkdir()
    secret.write_bytes(SECRET.tobytes())
    path = external(folder)
    model = onnx.load(path, load_external_data=False)
    for locations in (["weights.bin", str(secret)], [str(secret), "weights.bin"], ["weights.bin"] * 2):
        tensor = model.graph.initializer[0]
        del tensor.external_data[:]
        for location in locations:
            tensor.external_data.add(key="location", value=location)
        path.write_bytes(model.SerializeToString())
        with pytest.raises(ModelError, match=r"'constant0' of 'model\.onnx'.* 'location' twice"):
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


def everywhere(tensor):
    """Models that hold a tensor in every place where one can stand, by the name of the place."""
    add = "y = Add (x, k)"

    def model(body, functions="", weights=(), **attributes):
        """Puts the tensor into the weights and the attribute of nodes that are named after their place."""
        made = parsed("float[3, 3] x", "float[3, 3] y", body, functions, domains=["own"], c=np.array(True))
        made.graph.initializer.extend(weights)
        for node in (*made.graph.node, *(node for one in made.functions for node in one.node)):
            if node.name in attributes:
                node.attribute.append(helper.make_attribute(attributes[node.name], tensor))
        return made

    def branch(nodes, weights=()):
        made = model(f"""y = If (c) <then_branch = t () => (float[3, 3] t) {{ {nodes} t = Add (x, k) }},
            else_branch = e () => (float[3, 3] e) {{ {nodes} e = Add (x, k) }}>""")
        for attribute in made.graph.node[0].attribute:
            attribute.g.initializer.extend(weights)
            if nodes:
                attribute.g.node[0].attribute.append(helper.make_attribute("value", tensor))
        return made

    call = "[call] y = own.F (x)"
    refers = model(call, function("F<v>", "x", "y", f"k = Constant <value: tensor = @v> () {add}"), call="v")
    default = model(call, function("F", "x", "y", f"k = Constant <value: tensor = @v> () {add}"))
    default.functions[0].attribute_proto.append(helper.make_attribute("v", tensor))
    return {
        "weight": model(add, weights=[tensor]),
        "constant": model(f"[constant] k = Constant () {add}", constant="value"),
        "constant of a branch": branch("k = Constant ()"),
        "weight of a branch": branch("", [tensor]),
        "constant of a function": model(
            call, function("F", "x", "y", f"[constant] k = Constant () {add}"), constant="value"
        ),
        "attribute of a call": refers,
        "default of a function": default,
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
        np.testing.assert_array_equal(open_graph_model(given.graph_model).run({"x": x})[0], x + 7)


BAD_RECORDS = {
    "a path elsewhere": {"location": "/etc/passwd"},
    "a folder above": {"location": "../k.bin"},
    "before the beginning": {"offset": "-4"},
    "behind the end": {"offset": "8"},
    "too long": {"length": "9"},
}


@pytest.mark.parametrize("problem", [*BAD_RECORDS, "twice", "twice and not used", "here too"])
@pytest.mark.parametrize("place", PLACES)
def test_records_are_checked_wherever_the_tensor_stands(place, problem, tmp_path):
    tensor, named = stored(tmp_path, **BAD_RECORDS.get(problem, {})), r"'k' of 'model\.onnx'"
    if "twice" in problem:
        tensor.external_data.add(key="location", value="/etc/passwd")
        named += ".* 'location' twice"
    if problem in ("twice and not used", "here too"):
        tensor.raw_data = SECRET[0, 0].tobytes()
    if problem == "twice and not used":
        tensor.data_location = TensorProto.DEFAULT
    path = tmp_path / "model.onnx"
    path.write_bytes(everywhere(tensor)[place].SerializeToString())
    with pytest.raises(ModelError, match=None if problem in BAD_RECORDS else named):
        load_model(path)


def test_graphs_for_training_are_checked_too(tmp_path):
    model = everywhere(numpy_helper.from_array(SECRET[0, 0], "k"))["weight"]
    model.training_info.add().algorithm.initializer.append(stored(tmp_path, "t", location="/etc/passwd"))
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(ModelError, match="/etc/passwd"):
        load_model(tmp_path / "model.onnx")


def test_a_large_weight_that_names_a_file_as_well(tmp_path):
    """The values of large weights are taken out of the message before anything is checked."""
    weight = np.ones((64, 64), np.float32)
    model = parsed("float[N, 64] x", "float[N, 64] y", "y = MatMul (x, w)", w=weight)
    tensor = model.graph.initializer[0]
    tensor.external_data.add(key="location", value="/etc/passwd")
    loaded = load_model(model)
    np.testing.assert_array_equal(loaded.graph_model.graph.initializers["w"].const_value.numpy(), weight)
    tensor.data_location = TensorProto.EXTERNAL
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(ModelError, match=r"'w' of 'model\.onnx'"):
        load_model(tmp_path / "model.onnx")
    del tensor.external_data[:]
    tensor.data_location = TensorProto.DEFAULT
    model.graph.initializer.append(tensor)
    with pytest.raises(ModelError, match=r"'model'.* 'w' twice"):
        load_model(model)


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
    path = linked(tmp_path / "model", tmp_path / "secret")
    with pytest.raises(ModelError, match=r"'weights.bin', .*secret'"):
        load_model(path)
    (tmp_path / "here").symlink_to(tmp_path / "model")  # the user's own link changes nothing
    with pytest.raises(ModelError, match="outside of"):
        load_model(tmp_path / "here" / path.name)
    (tmp_path / "model" / "weights.bin").unlink()
    (tmp_path / "model" / "weights").symlink_to(tmp_path)
    model = onnx.load(path, load_external_data=False)
    for tensor in model.graph.initializer:
        tensor.external_data[0].value = "weights/secret"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(ModelError, match="outside of"):
        load_model(path)


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
    with pytest.raises(ModelError, match="no such file"):
        load_model(path)


def test_a_file_that_is_exchanged_after_it_was_checked(tmp_path):
    path = external(tmp_path)
    loaded = load_model(path)
    (tmp_path / "other").write_bytes(bytes((tmp_path / "weights.bin").stat().st_size))
    (tmp_path / "other").replace(tmp_path / "weights.bin")
    assert to_proto(loaded.graph_model) == to_proto(load_model(small()).graph_model)


@pytest.mark.parametrize(
    ("data_type", "dims", "size"),
    [
        (TensorProto.INT4, [3, 3], 5),
        (TensorProto.FLOAT16, [3, 3], 18),
        (TensorProto.BFLOAT16, [3, 3], 18),
        (TensorProto.INT8, [3, 3], 9),
        (TensorProto.FLOAT, [0, 3], 0),
    ],
)
def test_weights_of_any_type_in_files(data_type, dims, size, tmp_path):
    content = bytes(range(1, size + 1))
    (tmp_path / "k.bin").write_bytes(content)
    body = "f = Cast <to = 1> (k) y = Concat <axis = 0> (x, f)"
    model = parsed("float[N, 3] x", "float[M, 3] y", body, opset=21, ir_version=10)
    tensor = model.graph.initializer.add(name="k", data_type=data_type, dims=dims)
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="k.bin")
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    loaded = load_model(tmp_path / "model.onnx").graph_model.graph.initializers["k"].const_value
    assert (int(loaded.dtype), loaded.numpy().shape, loaded.tobytes()) == (data_type, tuple(dims), content)


def test_shapes_and_types_that_follow_from_small_constants_in_other_files(tmp_path):
    """Of what an exporter leaves open: parts of a sequence, of a shape that a constant names."""
    weights, x = normal(8, 8), normal(16, 8, seed=1)
    body = """[layer] m = MatMul (x, weights) r = Reshape (m, sizes)
        s = SplitToSequence <axis = 2> (r, half) y = SequenceAt (s, second)"""
    constants = {"sizes": np.array([0, 2, 4]), "half": np.array(2), "second": np.array(1)}
    model = parsed("float[N, 8] x", "float[] y", body, weights=weights, **constants)
    path = save_external(model, tmp_path)
    table = trtint8.calibrate(path, {"x": x}, method="minmax", progress=False)
    quantized = trtint8.quantize(path, table, keep_float=["*"], progress=False)
    wanted = (x @ weights).reshape(16, 2, 4)[:, :, 2:]
    (found,) = ort.InferenceSession(quantized.SerializeToString()).run(None, {"x": x})
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


def at_places(folder, places, shape=(64, 64), elsewhere=False):
    """A chain of MatMuls whose weights lie in one file: each at a place, or as a Constant of a node."""
    values = normal(*shape)
    (folder / "w.bin").write_bytes(values.tobytes() + bytes(max(places)))
    nodes = [f"v{n + 1} = MatMul (v{n}, w{n})" for n in range(len(places))]
    if elsewhere:
        nodes = [f"w{n} = Constant () {node}" for n, node in enumerate(nodes)]
    model = parsed("float[2, 64] v0", f"float[2, 64] v{len(places)}", " ".join(nodes))
    for number, place in enumerate(places):
        entries = {"location": "w.bin", "offset": str(place)}
        tensor = TensorProto(name=f"w{number}", data_type=TensorProto.FLOAT, dims=shape)
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in entries.items():
            tensor.external_data.add(key=key, value=value)
        if elsewhere:
            model.graph.node[2 * number].attribute.append(helper.make_attribute("value", tensor))
        else:
            model.graph.initializer.append(tensor)
    onnx.save(model, folder / "model.onnx")
    return folder / "model.onnx", values


def test_weights_at_one_place_of_a_file_are_one_weight(tmp_path):
    path, values = at_places(tmp_path, [0] * 300)
    loaded = load_model(path)
    assert list(loaded.graph_model.graph.initializers) == ["w0"]
    save_model(loaded.graph_model, tmp_path / "copy.onnx")
    assert (tmp_path / "copy.onnx").stat().st_size < 2 * values.nbytes + 300 * 100
    path, values = at_places(tmp_path, [0] * 3)
    x = normal(2, 64, seed=1)
    result = open_graph_model(load_model(path).graph_model).run({"v0": x})[0]
    np.testing.assert_allclose(result, x @ values @ values @ values, rtol=1e-3)


@pytest.mark.parametrize(
    ("places", "elsewhere"), [(range(0, 4 * 300, 4), False), ([0] * 300, True)], ids=["apart", "of nodes"]
)
def test_tensors_that_lie_on_each_other_in_a_file_are_bounded(places, elsewhere, tmp_path):
    path, _ = at_places(tmp_path, list(places), elsewhere=elsewhere)
    with pytest.raises(ModelError, match=r"'model\.onnx' lie on each other in '.*w\.bin'.* [0-9,]+ bytes"):
        load_model(path)


def test_files_that_become_shorter_after_they_were_read(tmp_path):
    path, values = at_places(tmp_path, [0])
    loaded = load_model(path)
    os.truncate(tmp_path / "w.bin", 0)
    os.truncate(path, 0)
    np.testing.assert_array_equal(loaded.graph_model.graph.initializers["w0"].const_value.numpy(), values)


def test_a_file_that_becomes_shorter_while_it_is_read(tmp_path, monkeypatch):
    path, _ = at_places(tmp_path, [0])
    fstat = os.fstat

    def cut(descriptor):
        status = fstat(descriptor)
        if os.path.samestat(status, (tmp_path / "w.bin").stat()):
            os.truncate(tmp_path / "w.bin", 100)
        return status

    monkeypatch.setattr(os, "fstat", cut)
    with pytest.raises(ModelError, match=r"w\.bin' is truncated: .*'w0'.* 16384, the file at 100;"):
        load_model(path)
