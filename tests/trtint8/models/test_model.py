"""Reading, checking, fingerprinting and preparing models."""

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import trtint8
from calibrators.errors import ModelError, OutputError
from calibrators.host.session import open_session
from tests.trtint8.models.float_models import images, run, small
from tests.trtint8.onnx_models import Shaped, save_external
from tests.trtint8.tuning.networks import uneven
from tests.trtint8.validation.small_models import scaled
from trtint8.data import DEMO_MODEL
from trtint8.models.model import (
    FLOAT_MODEL,
    calibration_of,
    check_model_name,
    forget_origin,
    load_float_model,
    load_model,
    names_model,
    prepare,
    rebuilt,
    record_calibration,
    record_float_model,
)
from trtint8.models.serialization import to_light, to_proto


@pytest.mark.parametrize("path", [".", "a" * 300 + ".onnx", "a\0b"])
def test_names_that_are_no_model(path):
    with pytest.raises(ModelError, match=r"there is no model|has a NUL character"):
        load_model(path)


def test_missing_file_and_folder(tmp_path):
    with pytest.raises(ModelError, match="there is no model"):
        load_model(tmp_path / "missing.onnx")
    with pytest.raises(ModelError, match="it is a folder"):
        load_model(tmp_path)


@pytest.mark.parametrize("as_file", [True, False])
@pytest.mark.parametrize(
    ("cut", "words"), [("empty", "is empty"), ("garbage", "not a"), ("half", "is truncated")]
)
def test_unreadable_bytes(cut, words, as_file, tmp_path):
    demo = DEMO_MODEL.read_bytes()
    data = {"empty": b"", "garbage": b"garbage" * 50, "half": demo[: len(demo) // 2]}[cut]
    path = tmp_path / "m.onnx"
    path.write_bytes(data)
    with pytest.raises(ModelError, match=words):
        load_model(path if as_file else data)


def test_no_nodes():
    with pytest.raises(ModelError, match="holds no nodes"):
        load_model(helper.make_model(helper.make_graph([], "g", [], [])))


def test_invalid_model():
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["nowhere"], ["y"])], "g", [x], [y])
    with pytest.raises(ModelError, match=r"not a valid ONNX model: .*nowhere"):
        load_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))


@pytest.mark.parametrize("inside", [False, True])
def test_attributes_that_refer_to_those_of_a_function(inside):
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy")
    node = helper.make_node("Softmax", ["x"], ["y"], name="softmax", axis=0)
    node.attribute[0].ref_attr_name = "N"
    nodes, condition = [node], helper.make_tensor("c", TensorProto.BOOL, [], [True])
    if inside:
        branch = helper.make_graph(nodes, "b", [], [y])
        nodes = [helper.make_node("If", ["c"], ["y"], then_branch=branch, else_branch=branch)]
    graph = helper.make_graph(nodes, "g", [x], [y], [condition])
    with pytest.raises(ModelError, match="'axis' of node 'softmax' refers to 'N'"):
        load_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))


def test_external_data_while_an_array_of_it_is_in_use(tmp_path):
    path = save_external(onnx.load(DEMO_MODEL), tmp_path)
    graph_model = load_model(path).graph_model
    name, value = max(graph_model.graph.initializers.items(), key=lambda one: one[1].const_value.nbytes)
    held = value.const_value.numpy()
    wanted = {one.name: onnx.numpy_helper.to_array(one) for one in onnx.load(DEMO_MODEL).graph.initializer}
    proto = to_proto(graph_model)
    for one in proto.graph.initializer:
        np.testing.assert_array_equal(onnx.numpy_helper.to_array(one), wanted[one.name])
    np.testing.assert_array_equal(held, wanted[name])
    assert graph_model.graph.initializers[name].const_value.numpy() is held


def test_external_data_missing_too_short_or_out_of_reach(tmp_path):
    path = save_external(small(), tmp_path)
    with pytest.raises(ModelError, match=r"weights\.bin.*give the model's path"):
        load_model(path.read_bytes())
    weights = tmp_path / "weights.bin"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(ModelError, match=r"weights\.bin' is truncated"):
        load_model(path)
    weights.unlink()
    with pytest.raises(ModelError, match=r"weights\.bin', and there is no such file"):
        load_model(path)


def test_prepare_keeps_inputs_outputs_and_results():
    g = Shaped()
    x = g.op("Conv", ["images", g.weights(4, 3, 3, 3)], "conv")
    x = g.op("BatchNormalization", [x, *(g.constant(np.full(4, v, np.float32)) for v in (2, 1, 0, 3))], "n")
    model = g.model({"images": ["N", 3, 16, 16]}, g.op("Identity", [x], "identity"))
    loaded = load_model(model)
    prepared = prepare(loaded)
    after = to_proto(prepared.graph_model)
    assert [node.op_type for node in after.graph.node] == ["Conv"]
    assert prepared.inputs == loaded.inputs and prepared.fingerprint == loaded.fingerprint
    assert [value.name for value in after.graph.output] == ["identity_out"]
    assert len(loaded.graph_model.graph) == 3
    np.testing.assert_allclose(run(after, images()), run(model, images()), rtol=1e-5, atol=1e-5)


def test_initializers_that_are_listed_as_inputs_become_constants():
    g = Shaped()
    x = g.op("Conv", ["images", g.weights(4, 3, 3, 3)], "conv")
    x = g.op("BatchNormalization", [x, *(g.constant(np.full(4, v, np.float32)) for v in (2, 1, 0, 3))], "n")
    model = g.model({"images": ["N", 3, 16, 16]}, x)
    listed = onnx.ModelProto.FromString(model.SerializeToString())
    for stored in model.graph.initializer:
        listed.graph.input.add(name=stored.name).type.CopyFrom(
            helper.make_tensor_type_proto(stored.data_type, stored.dims)
        )
    loaded = load_model(listed)
    prepared = prepare(loaded)
    after = to_proto(prepared.graph_model)
    assert [value.name for value in after.graph.input] == ["images"]
    # Folded into the convolution, the statistics are gone, and so are the weights as they were.
    assert sorted(tuple(stored.dims) for stored in after.graph.initializer) == [(4,), (4, 3, 3, 3)]
    assert prepared.inputs == loaded.inputs and prepared.fingerprint == loaded.fingerprint
    np.testing.assert_allclose(run(after, images()), run(model, images()), rtol=1e-5, atol=1e-5)


def test_a_message_that_is_given_stays_as_it_is():
    model = onnx.load(DEMO_MODEL)
    before = model.SerializeToString(deterministic=True)
    light = to_light(prepare(load_model(model)).graph_model)
    assert light.weights and len(light.message.SerializeToString()) < len(before) / 5
    assert model.SerializeToString(deterministic=True) == before
    assert load_model(model).fingerprint == load_model(DEMO_MODEL).fingerprint


@pytest.mark.skipif(
    "TRTINT8_LARGE" not in os.environ, reason="TRTINT8_LARGE is not set: takes 5 GB of memory"
)
def test_a_message_of_more_than_protobuf_can_hold():
    model = small()
    for index in range(2):
        zeros = {"data_type": TensorProto.FLOAT, "dims": [1 << 28], "raw_data": bytes(1 << 30)}
        model.graph.initializer.add(name=f"large{index}", **zeros)
    with pytest.raises(ModelError, match=r"^'model' is larger than 2 GiB and .*; save it with external data"):
        load_model(model)


def test_an_unknown_type_of_a_value_is_refused():
    model = small()
    model.graph.output[0].type.tensor_type.elem_type = 99
    with pytest.raises(
        ModelError, match="'model' cannot be read: 99 is not a valid DataType; export it again"
    ):
        load_model(model)


def test_on_which_devices_nodes_should_run_is_left_out():
    model = onnx.load(DEMO_MODEL)
    plain = load_model(model).fingerprint
    node = model.graph.node[0]
    if not hasattr(node, "device_configurations"):
        pytest.skip("this ONNX has no configurations of devices")
    node.device_configurations.add()
    model.configuration.add(name="two", num_devices=2)
    loaded = load_model(model)
    assert loaded.fingerprint == plain
    assert not to_proto(loaded.graph_model).graph.node[0].device_configurations
    assert len(node.device_configurations) == 1


def test_an_input_without_an_element_type_is_refused():
    model = onnx.load(DEMO_MODEL)
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.UNDEFINED
    problem = "the input 'images' of 'model' has no element type"
    with pytest.raises(ModelError, match=problem):
        assert load_model(model).inputs


def test_the_nodes_of_functions_take_the_place_of_those_that_call_them():
    """Otherwise no layer of a function could be quantized."""
    random = np.random.default_rng(3)
    nodes = [
        helper.make_node("MatMul", ["fx", "fw"], ["product"]),
        helper.make_node("Relu", ["product"], ["fy"]),
    ]
    opset = helper.make_opsetid("", 17)
    function = helper.make_function("own", "Linear", ["fx", "fw"], ["fy"], nodes, [opset])
    calls = [
        helper.make_node("Linear", ["x", "v"], ["a"], "first", domain="own"),
        helper.make_node("Linear", ["a", "w"], ["y"], "second", domain="own"),
    ]
    weights = {name: random.standard_normal((4, 4)).astype(np.float32) for name in "vw"}
    graph = helper.make_graph(
        calls,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 4])],
        [onnx.numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    opsets = [opset, helper.make_opsetid("own", 1)]
    loaded = load_model(helper.make_model(graph, functions=[function], opset_imports=opsets, ir_version=9))
    prepared = prepare(loaded)
    assert [node.op_type for node in prepared.graph_model.graph] == ["MatMul", "Relu"] * 2
    assert len({node.name for node in prepared.graph_model.graph}) == 4
    assert not prepared.graph_model.functions and len(loaded.graph_model.functions) == 1
    assert prepared.fingerprint == loaded.fingerprint
    x = random.standard_normal((5, 4)).astype(np.float32)
    wanted = np.maximum(np.maximum(x @ weights["v"], 0) @ weights["w"], 0)
    session = open_session(to_proto(prepared.graph_model).SerializeToString(), optimize=True)
    np.testing.assert_allclose(session.run(None, {"x": x})[0], wanted, rtol=1e-5)


def test_pairs_inside_a_function_make_a_quantized_model():
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 4]) for name in "xy"]
    scale = helper.make_tensor("s", TensorProto.FLOAT, [], [0.1])
    body = [
        helper.make_node("QuantizeLinear", ["a", "s"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s"], ["b"]),
    ]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    function = helper.make_function("own", "Pair", ["a", "s"], ["b"], body, opsets)
    node = helper.make_node("Pair", ["x", "s"], ["y"], domain="own")
    graph = helper.make_graph([node], "g", ends[:1], ends[1:], [scale])
    model = helper.make_model(graph, functions=[function], opset_imports=opsets, ir_version=8)
    assert load_model(model).is_quantized
    with pytest.raises(ModelError, match="holds Q/DQ pairs already"):
        load_float_model(model)


def test_inputs_and_outputs_that_tensorrt_cannot_take_are_named():
    g = Shaped()
    whole = g.model({"x": ["N", 4]}, g.op("MatMul", ["x", g.weights(4, 4)], "only"))
    shapeless, typeless, text, mute = (
        onnx.ModelProto.FromString(whole.SerializeToString()) for _ in range(4)
    )
    shapeless.graph.input[0].type.tensor_type.ClearField("shape")
    typeless.graph.input[0].ClearField("type")
    text.graph.input[0].type.tensor_type.elem_type = TensorProto.STRING
    del mute.graph.output[:]
    for broken, words in ((shapeless, "'x'.*shape"), (typeless, "'x'.*type"), (text, "'x'.*text")):
        with pytest.raises(ModelError, match=words):
            load_model(broken)
    with pytest.raises(ModelError, match="no outputs"):
        load_model(mute)


def test_the_first_float_model_counts():
    graph_model = load_model(scaled(1.0)).graph_model
    record_float_model(graph_model, "first")
    record_float_model(graph_model, "second")
    assert graph_model.metadata_props == {FLOAT_MODEL: "first"}
    forget_origin(graph_model)
    assert graph_model.metadata_props == {}


def test_samples_are_recorded_where_they_are_known():
    graph_model = load_model(scaled(1.0)).graph_model
    record_calibration(graph_model, None, 5)
    record_calibration(graph_model, "digest", None)
    assert calibration_of(graph_model) is None
    record_calibration(graph_model, "digest", 5)
    assert calibration_of(graph_model) == ("digest", 5)
    graph_model.metadata_props["trtint8.calibration_samples"] = "five"
    assert calibration_of(graph_model) is None


def test_a_changed_model_says_which_it_was_made_from():
    model = load_model(DEMO_MODEL)
    prepared = prepare(model)
    changed = prepared.graph_model.clone()
    weight = next(iter(changed.graph.initializers.values()))
    weight.name += "_changed"
    again = rebuilt(changed, "changed")
    assert again.fingerprint != model.fingerprint
    assert again.graph_model.metadata_props[FLOAT_MODEL] == model.fingerprint


def test_a_quantized_model_says_both():
    model, images = uneven(), np.random.default_rng(1).standard_normal((64, 3, 6, 6)).astype(np.float32)
    table = trtint8.calibrate(model, images, method="mse", progress=False)
    for options in ({}, {"float16": True}, {"equalize": images, "progress": False}):
        found = load_model(trtint8.quantize(model, table, **options)).graph_model
        assert found.metadata_props[FLOAT_MODEL] == load_model(model).fingerprint
        assert calibration_of(found) == (table.provenance.data, 64)


def test_a_mended_model_says_nothing(split):
    table = trtint8.calibrate(DEMO_MODEL, split.calibration_images[:20], progress=False)
    foreign = onnx.load_from_string(trtint8.quantize(DEMO_MODEL, table).SerializeToString())
    del foreign.metadata_props[:]
    assert not to_proto(trtint8.mend(foreign).graph_model).metadata_props


def test_models_are_told_from_engines():
    assert names_model("a/net.ONNX") and names_model(Path("net.int8.onnx"))
    assert not any(map(names_model, ("net.engine", "net.onnx.engine", "onnx", ".onnx")))


def test_a_name_of_an_engine_is_refused_before_any_work():
    assert check_model_name("a/net.onnx") == Path("a/net.onnx")
    with pytest.raises(OutputError) as caught:
        check_model_name("a/net.onx")
    assert str(caught.value) == (
        "the name 'a/net.onx' does not end in .onnx, as that of a model does; end it in .onnx"
    )
    with pytest.raises(OutputError, match=r"^the name 'a/\.onnx' is an ending alone; put a name before it$"):
        check_model_name("a/.onnx")
