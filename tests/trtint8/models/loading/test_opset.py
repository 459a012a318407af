"""Models in a newer opset."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

import trtint8
from calibrators.errors import ModelError
from tests.trtint8.models.float_models import images, small
from tests.trtint8.onnx_models import Shaped, save_external
from tests.trtint8.quantization.float16.half_models import network, run, weights
from trtint8.models.loading.opset import with_opset
from trtint8.models.model import load_model, prepare
from trtint8.models.serialization import to_proto


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


def test_a_newer_opset_while_an_array_of_weights_in_another_file_is_in_use(tmp_path):
    graph_model = load_model(save_external(small(), tmp_path)).graph_model
    name, value = next(iter(graph_model.graph.initializers.items()))
    held = value.const_value.numpy()
    new = with_opset(graph_model, 19, "model")
    assert np.array_equal(new.graph.initializers[name].const_value.numpy(), held)
    feed = {"images": images()}
    np.testing.assert_array_equal(run(to_proto(new), feed), run(small(), feed))


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


def with_function(opset, inner):
    """A product with weights, and a function of the model, whose nodes have an opset of their own."""
    body = [
        helper.make_node("Constant", [], ["two"], value_float=2.0),
        helper.make_node("Mul", ["a", "two"], ["b"]),
    ]
    twice = helper.make_function("own", "Twice", ["a"], ["b"], body, [helper.make_opsetid("", inner)])
    model = network(("MatMul", [weights(4, 4)], {}), ("Twice", [], {}), shape=("N", 4))
    model.graph.node[1].domain = "own"
    model.functions.append(twice)
    model.opset_import[0].version = opset
    model.opset_import.append(helper.make_opsetid("own", 1))
    return model


@pytest.mark.parametrize(("old", "new"), [(12, 17), (17, 19)])
def test_functions_of_the_model_are_kept(old, new):
    model = with_function(old, old)
    converted = with_opset(load_model(model).graph_model, new, "model")
    assert converted.opset_imports[""] == new
    x = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
    np.testing.assert_array_equal(run(to_proto(converted), {"x": x}), run(model, {"x": x}))


@pytest.mark.parametrize(("opset", "inner"), [(17, 16), (19, 13), (13, 19)])
def test_a_function_of_another_opset(opset, inner):
    model = with_function(opset, inner)
    x = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
    converted = with_opset(load_model(model).graph_model, 19, "model")
    np.testing.assert_array_equal(run(to_proto(converted), {"x": x}), run(model, {"x": x}))
    prepared = prepare(load_model(model)).graph_model
    np.testing.assert_array_equal(run(to_proto(prepared), {"x": x}), run(model, {"x": x}))


def test_a_function_of_operators_that_another_opset_changed_is_refused():
    model = with_function(18, 13)
    model.functions[0].node.append(helper.make_node("ReduceMean", ["b"], ["m"], axes=[1]))
    model.functions[0].output[0] = "m"
    with pytest.raises(ModelError, match=r"'model'.* 13 .*18"):
        load_model(model)


def test_a_domain_that_is_imported_under_both_names_is_imported_once():
    model = small()
    del model.opset_import[:]
    model.opset_import.extend(helper.make_opsetid(domain, 17) for domain in ("", "ai.onnx"))
    model.graph.node[0].domain = "ai.onnx"
    loaded = load_model(model)
    assert dict(loaded.graph_model.opset_imports) == {"": 17}
    feed = {"images": images()}
    np.testing.assert_array_equal(run(to_proto(loaded.graph_model), feed), run(small(), feed))


needs_opset_28 = pytest.mark.skipif(
    onnx.defs.onnx_opset_version() < 28, reason="this version of ONNX has no opset 28"
)


@needs_opset_28
@pytest.mark.parametrize("options", [{}, {"float16": True, "float32_io": True}])
def test_pairs_and_casts_are_of_an_opset_that_onnx_runtime_has(options):
    model = network(("MatMul", [weights(8, 8)], {}), ("Relu", [], {}), ("MatMul", [weights(8, 8)], {}))
    model.opset_import[0].version, model.ir_version = 28, 13
    x = {"x": np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32)}
    table = trtint8.calibrate(model, x, method="auto", progress=False)
    wanted, got = run(model, x), run(trtint8.quantize(model, table, progress=False, **options), x)
    assert np.abs(wanted - got).max() < 0.05 * np.abs(wanted).max()


def _remainders(kind):
    """The remainder of a layer's output and a divisor: as it is, in a branch, or in a function."""
    node = helper.make_node("Mod", ["a", "b"], ["r"], name="mod")
    g = Shaped(quantized=False)
    a = g.op("MatMul", ["x", g.constant(weights(8, 8))], "layer")
    if kind == "branch":
        values = [helper.make_tensor_value_info("r", TensorProto.FLOAT, None)]
        node.input[0] = a
        node.input[1] = "b"
        branch = helper.make_graph([node], "branch", [], values)
        rest = g.op("If", [g.constant(np.array(True))], "if", then_branch=branch, else_branch=branch)
    else:
        rest = g.op("Remainder" if kind == "function" else "Mod", [a, "b"], "rest")
    model = g.model({"x": ["N", 8], "b": ["N", 8]}, rest)
    model.opset_import[0].version, model.ir_version = 28, 13
    if kind == "function":
        model.graph.node[1].domain = "own"
        model.opset_import.append(helper.make_opsetid("own", 1))
        imports = [helper.make_opsetid("", 28)]
        model.functions.append(helper.make_function("own", "Remainder", ["a", "b"], ["r"], [node], imports))
    return model


@needs_opset_28
@pytest.mark.parametrize("kind", ["node", "branch", "function"])
def test_remainders_of_floats_keep_the_sign_of_the_divisor(kind):
    random = np.random.default_rng(3)
    x = random.standard_normal((16, 8)).astype(np.float32)
    divisors = random.choice(np.float32([-0.3, 0.3, 2, -2, np.inf]), (16, 8))
    prepared = to_proto(prepare(load_model(_remainders(kind))).graph_model)
    found = run(prepared, {"x": x, "b": divisors})
    layer = run(network(("MatMul", [weights(8, 8)], {})), {"x": x})
    np.testing.assert_allclose(found, np.mod(layer, divisors), rtol=1e-5, atol=1e-6)
