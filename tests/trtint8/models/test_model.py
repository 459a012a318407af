"""Reading, checking, fingerprinting and preparing models."""

import os
import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import trtint8
from calibrators.errors import ModelError, OutputError
from calibrators.host.session import open_session
from tests.trtint8.models.float_models import images, run, small
from tests.trtint8.onnx_models import function, normal, parsed, save_external
from tests.trtint8.tuning.networks import uneven
from tests.trtint8.validation.small_models import scaled
from trtint8.data import DEMO_MODEL
from trtint8.models.graph import weight_bytes
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
from trtint8.models.passes.fold_constants import FoldConstantsPass
from trtint8.models.serialization import to_light, to_proto


@pytest.mark.parametrize("path", [".", "a" * 300 + ".onnx", "a\0b", "missing.onnx"])
def test_names_that_are_no_model(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelError):
        load_model(path)


@pytest.mark.parametrize("as_file", [True, False])
@pytest.mark.parametrize(("cut", "word"), [("empty", "empty"), ("garbage", "not"), ("half", "truncated")])
def test_unreadable_bytes(cut, word, as_file, tmp_path):
    demo = DEMO_MODEL.read_bytes()
    data = {"empty": b"", "garbage": b"garbage" * 50, "half": demo[: len(demo) // 2]}[cut]
    path = tmp_path / "m.onnx"
    path.write_bytes(data)
    with pytest.raises(ModelError, match=word):
        load_model(path if as_file else data)


def with_element_type(place, kind):
    """The small model with another type of an input or output."""
    model = small()
    getattr(model.graph, place)[0].type.tensor_type.elem_type = kind
    return model


def without(place, field):
    """A product, of whose input or outputs something is left out."""
    model = parsed("float[N, 4] x", "float[N, 4] y", "y = MatMul (x, w)", w=normal(4, 4))
    for message in [model.graph, model.graph.input[0], model.graph.input[0].type.tensor_type]:
        if type(message).__name__ == place:
            message.ClearField(field)
    return model


REFERS = "[softmax] {0} = Softmax <axis: int = @N> ({1})"
REFERRING = [
    f"{kind}_branch = b () => (float[1] {kind}) {{ {REFERS.format(kind, 'x')} }}" for kind in ("then", "else")
]
BRANCH = f"y = If (c) <{', '.join(REFERRING)}>"


@pytest.mark.parametrize(
    ("model", "named"),
    [
        (helper.make_model(helper.make_graph([], "g", [], [])), "no nodes"),
        (parsed("float[1] x", "float[1] y", "y = Relu (nowhere)"), "nowhere"),
        (parsed("float[1] x", "float[1] y", REFERS.format("y", "x")), "'axis' .*'softmax' .*'N'"),
        (parsed("float[1] x", "float[1] y", BRANCH, c=np.array(True)), "'axis' .*'softmax' .*'N'"),
        (with_element_type("output", 99), "'model'.* 99 "),
        (with_element_type("input", TensorProto.UNDEFINED), "'images' of 'model'"),
        (with_element_type("input", TensorProto.STRING), "'images'.*text"),
        (without("Tensor", "shape"), "'x'.*shape"),
        (without("ValueInfoProto", "type"), "'x'.*type"),
        (without("GraphProto", "output"), "no outputs"),
    ],
    ids=[
        "no nodes",
        "no input",
        "a reference",
        "one inside",
        "type",
        "no type",
        "text",
        "no shape",
        "typeless",
        "mute",
    ],
)
def test_models_that_cannot_be_taken(model, named):
    with pytest.raises(ModelError, match=named):
        load_model(model)


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
    path, weights = save_external(small(), tmp_path), tmp_path / "weights.bin"
    with pytest.raises(ModelError, match=r"weights\.bin"):
        load_model(path.read_bytes())
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(ModelError, match=r"weights\.bin.*truncated"):
        load_model(path)
    weights.unlink()
    with pytest.raises(ModelError, match=r"weights\.bin.*no such file"):
        load_model(path)


@pytest.mark.parametrize("listed", [False, True], ids=["constants", "constants that are listed as inputs"])
def test_prepare_keeps_inputs_outputs_and_results(listed):
    statistics = {
        name: np.full(4, value, np.float32) for name, value in zip("abcd", (2, 1, 0, 3), strict=True)
    }
    body = "c = Conv (images, w) n = BatchNormalization (c, a, b, c_, d) y = Identity (n)"
    statistics["c_"] = statistics.pop("c")
    model = parsed("float[N, 3, 16, 16] images", "float[] y", body, w=normal(4, 3, 3, 3), **statistics)
    wanted = run(model, images())
    if listed:
        for stored in model.graph.initializer:
            kind = helper.make_tensor_type_proto(stored.data_type, stored.dims)
            model.graph.input.add(name=stored.name).type.CopyFrom(kind)
    loaded = load_model(model)
    prepared = prepare(loaded)
    after = to_proto(prepared.graph_model)
    assert [node.op_type for node in after.graph.node] == ["Conv"]
    assert prepared.inputs == loaded.inputs and prepared.fingerprint == loaded.fingerprint
    ends = [value.name for value in (*after.graph.input, *after.graph.output)]
    assert ends == ["images", "y"] and len(loaded.graph_model.graph) == 3
    # Folded into the convolution, the statistics are gone, and so are the weights as they were.
    assert sorted(tuple(stored.dims) for stored in after.graph.initializer) == [(4,), (4, 3, 3, 3)]
    np.testing.assert_allclose(run(after, images()), wanted, rtol=1e-5, atol=1e-5)


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
    with pytest.raises(ModelError, match=r"^'model' .*2 GiB"):
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


def test_the_nodes_of_functions_take_the_place_of_those_that_call_them():
    """Otherwise no layer of a function could be quantized."""
    linear = function("Linear", "fx, fw", "fy", "product = MatMul (fx, fw) fy = Relu (product)")
    body = "[first] a = own.Linear (x, v) [second] y = own.Linear (a, w)"
    v, w, x = (normal(size, 4, seed=size) for size in (4, 4, 5))
    made = parsed("float[N, 4] x", "float[N, 4] y", body, linear, ir_version=9, domains=["own"], v=v, w=w)
    loaded = load_model(made)
    prepared = prepare(loaded)
    assert [node.op_type for node in prepared.graph_model.graph] == ["MatMul", "Relu"] * 2
    assert len({node.name for node in prepared.graph_model.graph}) == 4
    assert not loaded.graph_model.functions and not prepared.graph_model.functions
    assert prepared.fingerprint == loaded.fingerprint
    wanted = np.maximum(np.maximum(x @ v, 0) @ w, 0)
    session = open_session(to_proto(prepared.graph_model).SerializeToString(), optimize=True)
    np.testing.assert_allclose(session.run(None, {"x": x})[0], wanted, rtol=1e-5)


def test_pairs_inside_a_function_make_a_quantized_model():
    pair = function("Pair", "a, s", "b", "q = QuantizeLinear (a, s) b = DequantizeLinear (q, s)")
    ends = "float[N, 4] x", "float[N, 4] y"
    model = parsed(*ends, "y = own.Pair (x, s)", pair, domains=["own"], s=np.float32(0.1))
    assert load_model(model).is_quantized
    with pytest.raises(ModelError, match="Q/DQ"):
        load_float_model(model)


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
    changed = prepare(model).graph_model.clone()
    next(iter(changed.graph.initializers.values())).name += "_changed"
    again = rebuilt(changed, "changed")
    assert again.fingerprint != model.fingerprint
    assert again.graph_model.metadata_props[FLOAT_MODEL] == model.fingerprint


def test_a_changed_model_has_the_fingerprint_of_its_file():
    """Also if preparing it once more leaves out nodes, as one of two Casts of unknown types."""
    body = (
        "s = Shape (x) i = Gather (s, zero) j = Cast <to = 7> (i) k = Cast <to = 7> (j) "
        "n = Concat <axis = 0> (k, rest) y = Reshape (x, n)"
    )
    constants = {"zero": np.array([0]), "rest": np.array([-1])}
    once = prepare(load_model(parsed("float[N, 2, 3] x", "float[N, M] y", body, **constants))).graph_model
    again = rebuilt(once, "changed")
    assert len(again.graph_model.graph) < len(once.graph)
    assert again.fingerprint == load_model(to_proto(again.graph_model)).fingerprint


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
    for name in ("a/net.onx", "a/.onnx"):
        with pytest.raises(OutputError, match=re.escape(repr(name))):
            check_model_name(name)


#: Nodes that each make a constant of a megabyte of one that the model stores, or let it be made.
FROM_ONE = {
    "ConstantOfShape": "c{0} = ConstantOfShape (s) v{1} = Add (v{0}, c{0})",
    "Add": "c{0} = Add (k, k) v{1} = Add (v{0}, c{0})",
    "Expand": "c{0} = Expand (b, s) v{1} = Add (v{0}, c{0})",
    "Transpose": "c{0} = Transpose (k) v{1} = MatMul (v{0}, c{0})",
    "MatMul": "c{0} = MatMul (k, k) v{1} = Add (v{0}, c{0})",
    "Einsum": 'v{1} = Einsum <equation = "ij,kj->ik"> (v{0}, k)',
    "BatchNormalization": "r{0} = Reshape (v{0}, s4) c{0} = Conv (r{0}, k4) "
    "n{0} = BatchNormalization (c{0}, b, b, b, b) v{1} = Reshape (n{0}, s)",
    "function": "v{1} = own.F (v{0})",
    "Range": "c{0} = Range (zero, many, one) p{0} = ReduceMax (c{0}) v{1} = Add (v{0}, p{0})",
}


@pytest.mark.parametrize("nodes", FROM_ONE.values(), ids=FROM_ONE)
def test_what_the_nodes_of_a_model_make_is_bounded_as_a_whole(nodes):
    count, k = 200, normal(512, 512)
    body = " ".join(nodes.format(number, number + 1) for number in range(count))
    inner = function("F", "x", "y", "w = Constant <value = float[1] {0.0}> () y = MatMul (x, w)")
    constants = {"k": k, "k4": k.reshape(512, 512, 1, 1), "b": np.ones(512, np.float32)}
    constants |= {"s": np.array([512, 512]), "s4": np.array([1, 512, 512, 1])}
    constants |= {"zero": np.float32(0), "one": np.float32(1), "many": np.float32(1e6)}
    model = parsed(
        "float[512, 512] v0", f"float[512, 512] v{count}", body, inner, domains=["own"], **constants
    )
    model.functions[0].node[0].attribute[0].t.CopyFrom(onnx.numpy_helper.from_array(k))
    try:
        prepared = prepare(load_model(model)).graph_model
        FoldConstantsPass()(prepared)  # again, as other packages do
    except ModelError as error:
        assert re.search("[0-9,]+ bytes", str(error))
    else:
        assert weight_bytes(prepared) < 120 << 20
        assert len(prepared.graph) >= count  # nodes that were not computed are left as they are


def test_weights_in_constant_nodes_count_as_what_the_model_stores(monkeypatch):
    monkeypatch.setattr("trtint8.models.graph._ROOM", 0)
    body = "w = Constant () c = Conv (x, w) y = BatchNormalization (c, b, b, b, b)"
    model = parsed("float[1, 8, 4, 4] x", "float[] y", body, b=np.ones(8, np.float32))
    weights = onnx.numpy_helper.from_array(normal(8, 8, 3, 3))
    model.graph.node[0].attribute.append(helper.make_attribute("value", weights))
    assert [node.op_type for node in prepare(load_model(model)).graph_model.graph] == ["Conv"]
