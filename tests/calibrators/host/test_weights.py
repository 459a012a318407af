import numpy as np
import onnx
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from calibrators.host.weights import LARGE, LightModel
from tests.calibrators.specs import NO_FILES

LARGEST = np.arange(LARGE // 4, dtype=np.float32).reshape(32, -1)
CONSTANTS = {
    "large": LARGEST,
    "small": LARGEST[0],
    "double": LARGEST.astype(np.float64),
    "halves": LARGEST.astype(np.float16),
}


def _message(constants=CONSTANTS, inputs=()):
    nodes = [helper.make_node("Identity", [name], [f"{name}_out"]) for name in constants]
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "g",
        [info(name, TensorProto.FLOAT, LARGEST.shape) for name in inputs],
        [info(f"{name}_out", TensorProto.FLOAT, values.shape) for name, values in constants.items()],
        [numpy_helper.from_array(values, name) for name, values in constants.items()],
        doc_string="a graph",
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _whole(light):
    """The message with its weights in it again."""
    whole = onnx.ModelProto()
    whole.CopyFrom(light.message)
    for tensor in whole.graph.initializer:
        if tensor.name in light.weights:
            tensor.raw_data = light.weights[tensor.name].tobytes()
            tensor.ClearField("external_data")
            tensor.ClearField("data_location")
    return whole


def test_large_float32_weights_are_beside_the_message():
    light = LightModel.parse(_message().SerializeToString())
    assert list(light.weights) == ["large"]
    np.testing.assert_array_equal(light.weights["large"], LARGEST)
    assert light.weights["large"].flags.aligned and not light.weights["large"].flags.writeable
    left = {tensor.name: tensor for tensor in light.message.graph.initializer}
    assert list(left) == list(CONSTANTS)
    assert (left["large"].raw_data, list(left["large"].dims)) == (b"", list(LARGEST.shape))
    for name in ("small", "double", "halves"):
        np.testing.assert_array_equal(numpy_helper.to_array(left[name]), CONSTANTS[name])


@given(
    st.dictionaries(
        st.text(max_size=300),
        st.tuples(st.sampled_from(["<f4", "<f2", "<i8"]), st.integers(0, 40), st.sampled_from([0, 1, 100])),
        max_size=5,
    )
)
def test_nothing_else_changes(tensors):
    constants = {name: np.ones((rows, columns), kind) for name, (kind, rows, columns) in tensors.items()}
    message = _message(constants)
    light = LightModel.parse(message.SerializeToString())
    assert _whole(light) == message
    assert onnx.ModelProto.FromString(b"".join(light.pieces())) == message
    assert set(light.weights) == {
        name for name, array in constants.items() if array.dtype == np.float32 and array.nbytes >= LARGE
    }


def test_large_weights_are_not_copied_to_be_written():
    light = LightModel.parse(_message().SerializeToString())
    pieces = [piece for piece in light.pieces() if isinstance(piece, memoryview)]
    values = [np.frombuffer(piece, np.uint8) for piece in pieces]
    (shared,) = (array for array in values if np.shares_memory(array, light.weights["large"]))
    assert shared.nbytes == LARGEST.nbytes


def test_weights_that_nothing_reads_are_left_out():
    message = _message(dict.fromkeys(("read", "given", "listed", "inside", "unused"), LARGEST), ["listed"])
    del message.graph.node[1:]
    message.graph.output[1].name = "given"
    inner = helper.make_graph(
        [helper.make_node("Neg", ["inside"], ["n"])], "i", [], [message.graph.output[0]]
    )
    message.graph.node.append(helper.make_node("If", ["c"], ["y"], then_branch=inner, else_branch=inner))
    light = LightModel.parse(message.SerializeToString())
    used = light.used()
    assert set(used.weights) == {"read", "given", "listed", "inside"}
    assert {tensor.name for tensor in used.message.graph.initializer} == set(used.weights)
    assert set(light.weights) == {*used.weights, "unused"}
    assert _whole(light) == message
    assert used.used() is used


def test_where_protobuf_finds_an_end_so_do_we():
    data = _message({"large": LARGEST, "small": LARGEST[0, :3]}).SerializeToString()
    ends = 0
    for size in [*range(300), *range(LARGE, len(data))]:
        message = onnx.ModelProto()
        try:
            message.ParseFromString(data[:size])
        except DecodeError:
            with pytest.raises(DecodeError):
                LightModel.parse(data[:size])
        else:
            assert _whole(LightModel.parse(data[:size])) == message
            ends += 1
    assert ends > 1


def test_an_older_message_may_hold_the_graph_in_two_fields():
    first, second = onnx.ModelProto(ir_version=8), onnx.ModelProto()
    first.graph.CopyFrom(_message({"a": LARGEST}).graph)
    second.graph.CopyFrom(_message({"b": LARGEST + 1}).graph)
    data = first.SerializeToString() + second.SerializeToString()
    assert _whole(LightModel.parse(data)) == onnx.ModelProto.FromString(data)


@pytest.mark.parametrize("data", [b"garbage" * 50, b"\xff" * 20, b"\x3a\x05abc", b"\x3b"])
def test_what_is_no_message(data):
    with pytest.raises(DecodeError):
        LightModel.parse(data)


def test_a_file_is_read_as_its_bytes_are(tmp_path):
    path = tmp_path / "m.onnx"
    path.write_bytes(_message().SerializeToString())
    light = LightModel.read(path)
    path.write_bytes(b"")
    assert _whole(light) == _message()
    assert not LightModel.read(path).message.ListFields()
    path.write_bytes(b"garbage")
    with pytest.raises(DecodeError):
        LightModel.read(path)


def test_what_is_wrong_stays_wrong():
    message = _message()
    message.graph.initializer[0].dims[:] = [7, 7]
    light = LightModel.parse(message.SerializeToString())
    assert not light.weights and light.message == message
    twice = _message()
    twice.graph.initializer.append(twice.graph.initializer[0])
    light = LightModel.parse(twice.SerializeToString())
    filled = [bool(tensor.raw_data) for tensor in light.message.graph.initializer]
    assert filled == [False, True, True, True, True]
    assert onnx.ModelProto.FromString(b"".join(light.pieces())) == twice
    elsewhere = _message()
    elsewhere.graph.initializer[0].external_data.add(key="location", value="w.bin")
    light = LightModel.parse(elsewhere.SerializeToString())
    assert not light.weights and light.message == elsewhere


@pytest.mark.parametrize("make", NO_FILES)
def test_what_is_no_file_is_refused_and_not_waited_for(make, tmp_path):
    make(tmp_path / "m.onnx")
    with pytest.raises(OSError, match=r"m\.onnx"):
        LightModel.read(tmp_path / "m.onnx")
