"""Models in a newer opset."""

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

import trtint8
from calibrators.errors import ModelError
from tests.trtint8.models.float_models import images, small
from tests.trtint8.onnx_models import Shaped, save_external
from tests.trtint8.quantization.float16.half_models import network, run, weights
from trtint8.models.model import load_model, prepare
from trtint8.models.opset import settle_domains, with_opset, write_zero_points
from trtint8.models.serialization import to_proto
from trtint8.models.session import open_model


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


DATA = np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32)


def model(domains=("", "", ""), imports=(("", 17),), middle="Relu"):
    g = Shaped()
    x = g.op("MatMul", ["x", g.weights(8, 8)], "first")
    x = g.op(middle, [x], "middle")
    made = g.model({"x": ["N", 8]}, g.op("MatMul", [x, g.weights(8, 8)], "last"))
    for node, domain in zip(made.graph.node, domains, strict=True):
        node.domain = domain
    del made.opset_import[:]
    made.opset_import.extend(helper.make_opsetid(*opset) for opset in imports)
    return made


def opsets(message):
    return {opset.domain: opset.version for opset in message.opset_import}


@pytest.mark.parametrize(
    ("domains", "imports"),
    [
        (("ai.onnx",) * 3, [("", 17)]),
        (("", "ai.onnx", ""), [("", 17)]),
        (("",) * 3, [("ai.onnx", 17)]),
        (("ai.onnx",) * 3, [("ai.onnx", 17)]),
        (("",) * 3, [("", 17), ("ai.onnx", 17)]),
    ],
)
def test_onnx_has_one_domain_under_two_names(domains, imports):
    source, plain = model(domains, imports), model()
    quantized, expected = (
        trtint8.quantize(one, trtint8.calibrate(one, DATA, method="minmax", progress=False), progress=False)
        for one in (source, plain)
    )
    assert opsets(quantized) == {"": 17}
    assert [node.domain for node in quantized.graph.node] == [""] * len(expected.graph.node)
    assert load_model(source).fingerprint == load_model(plain).fingerprint


def test_functions_as_well():
    body = [helper.make_node("Relu", ["a"], ["b"], domain="ai.onnx")]
    function = helper.make_function("my", "Mine", ["a"], ["b"], body, [helper.make_opsetid("ai.onnx", 17)])
    source = model(("", "my", ""), [("", 17), ("my", 1)], middle="Mine")
    source.functions.append(function)
    settle_domains(source, "model")
    assert opsets(source.functions[0]) == {"": 17}
    assert source.functions[0].node[0].domain == ""


def test_two_versions_of_one_domain():
    with pytest.raises(ModelError, match="opset 17, and of opset 13"):
        load_model(model(imports=[("", 17), ("ai.onnx", 13)]))


def test_operators_of_onnx_runtime_need_no_import():
    source = model(("", "com.microsoft", ""), middle="Gelu")
    assert opsets(to_proto(load_model(source).graph_model)) == {"": 17, "com.microsoft": 1}
    table = trtint8.calibrate(source, DATA, method="minmax", progress=False)
    assert "middle_out" in table.amax


def test_onnx_needs_none_beside_others():
    source = model(("", "com.microsoft", ""), [("com.microsoft", 1)], middle="Gelu")
    assert load_model(source).graph_model.opset_imports[""] >= 17
    with pytest.raises(ModelError, match="opset"):
        load_model(model(imports=()))


def test_other_domains_need_one():
    with pytest.raises(ModelError, match="my"):
        load_model(model(("", "my", ""), middle="Mine"))
    onnx.checker.check_model(to_proto(load_model(model()).graph_model))


DOUBLED, HALVED, SHRUNK, UNEVEN = ([1, 1, 2, 2], [1, 1, 0.5, 0.5], [1, 1, 1 / 3, 0.6], [1, 1, 1.3, 1.7])
RESHAPED = ["Shape", "Flatten", "Hardmax", "Reshape"]


def old_operators_model(opset, operator, constants=(), outputs=1, branch=False, **attributes):
    """The operator on the absolute values of images, also as the branch of an If."""
    names = [f"constant{index}" for index in range(len(constants))]
    results = ["y", "z"][:outputs]
    nodes = [
        helper.make_node("Abs", ["x"], ["a"], "abs"),
        helper.make_node(operator, ["a", *names], results, "op", **attributes),
    ]
    initializers = [
        numpy_helper.from_array(np.asarray(value), name) for name, value in zip(names, constants, strict=True)
    ]
    if branch:
        inside = [helper.make_node(operator, ["a", *names], ["inside"], "op", **attributes)]
        result = [helper.make_tensor_value_info("inside", TensorProto.FLOAT, None)]
        graphs = [helper.make_graph(inside, f"branch{index}", [], result) for index in range(2)]
        initializers.append(numpy_helper.from_array(np.asarray(True), "choice"))
        nodes[1] = helper.make_node("If", ["choice"], ["y"], then_branch=graphs[0], else_branch=graphs[1])
    shape = [2, 4, 5, 6]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in results],
        initializers,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=6)


def old_operators_run(proto):
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, {"x": np.random.default_rng(0).standard_normal((2, 4, 5, 6)).astype(np.float32)})


def converted(proto):
    new = to_proto(prepare(load_model(proto)).graph_model)
    onnx.checker.check_model(new, full_check=True)
    assert new.opset_import[0].version == 17
    return new


def check(proto):
    """Compares with ONNX Runtime on the model as it was; returns the operators of the new one."""
    new = converted(proto)
    for got, wanted in zip(old_operators_run(new), old_operators_run(proto), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)
    return [node.op_type for node in new.graph.node[1:]]


def scales(*values):
    return [np.array(*values, np.float32)]


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("factors", [DOUBLED, UNEVEN, [1, 1, 2.5, 1]])
def test_upsample(mode, factors):
    for opset in (7, 8):
        assert check(
            old_operators_model(opset, "Upsample", mode=mode, scales=[float(each) for each in factors])
        ) == ["Resize"]
    assert check(old_operators_model(9, "Upsample", scales(factors), mode=mode)) == ["Resize"]


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("factors", [DOUBLED, HALVED, SHRUNK, UNEVEN, [1, 1, 2.5, 1]])
def test_resize_of_opset_10(mode, factors):
    assert check(old_operators_model(10, "Resize", scales(factors), mode=mode)) == ["Resize"]


def test_upsample_and_resize_choose_the_nearest_element_by_default():
    check(old_operators_model(9, "Upsample", scales(UNEVEN)))
    check(old_operators_model(10, "Resize", scales(SHRUNK)))


def test_a_resize_of_opset_10_that_enlarges_and_shrinks():
    mixed = [1, 1, 2.3, 0.6]
    check(old_operators_model(10, "Resize", scales(mixed), mode="linear"))
    with pytest.raises(ModelError, match="that makes 'y' enlarges one axis and shrinks another one"):
        converted(old_operators_model(10, "Resize", scales(mixed)))


def test_a_resize_of_opset_11_keeps_its_coordinates():
    empty = np.zeros(0, np.float32)
    for coordinates in ("half_pixel", "align_corners", "asymmetric"):
        given = old_operators_model(
            11, "Resize", [empty, *scales(UNEVEN)], mode="linear", coordinate_transformation_mode=coordinates
        )
        assert check(given) == ["Resize"]


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_hardmax_among_the_elements_of_several_axes(axis):
    for opset in (7, 12):
        assert check(old_operators_model(opset, "Hardmax", axis=axis)) == RESHAPED


def test_hardmax_along_the_last_axis_or_along_none_that_is_named():
    assert check(old_operators_model(7, "Hardmax", axis=3)) == ["Hardmax"]
    assert check(old_operators_model(11, "Hardmax", axis=-1)) == ["Hardmax"]
    assert check(old_operators_model(11, "Hardmax", axis=-2)) == RESHAPED
    assert check(old_operators_model(9, "Hardmax")) == RESHAPED


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge"])
def test_pad_with_a_value(mode):
    for opset in (7, 10):
        assert check(
            old_operators_model(opset, "Pad", mode=mode, pads=[0, 0, 1, 1, 0, 0, 2, 2], value=0.3)
        ) == ["Pad"]


def test_operators_in_branches():
    for given in (
        old_operators_model(9, "Upsample", scales(DOUBLED), branch=True, mode="linear"),
        old_operators_model(10, "Resize", scales(HALVED), branch=True, mode="linear"),
        old_operators_model(9, "Hardmax", branch=True, axis=1),
    ):
        check(given)


@pytest.mark.parametrize(
    ("opset", "operator", "constants", "outputs", "attributes"),
    [
        (7, "Softmax", [], 1, {"axis": 1}),
        (12, "LogSoftmax", [], 1, {"axis": 2}),
        (7, "Clip", [], 1, {"max": 0.5}),
        (9, "Slice", [], 1, {"starts": [1, -3], "ends": [3, 1000], "axes": [1, 2]}),
        (9, "Dropout", [], 1, {"ratio": 0.3}),
        (11, "Unsqueeze", [], 1, {"axes": [0, -1]}),
        (7, "Split", [], 2, {"axis": 1, "split": [1, 3]}),
        (11, "ReduceSum", [], 1, {"axes": [1, -1], "keepdims": 0}),
        (8, "BatchNormalization", [np.full(4, each, np.float32) for each in (2, 1, 0.5, 3)], 1, {}),
        (8, "Flatten", [], 1, {"axis": 2}),
        (9, "Cast", [], 1, {"to": TensorProto.FLOAT}),
        (7, "Pow", [np.float32(1.7)], 1, {}),
        (10, "Mod", [np.float32(0.3)], 1, {"fmod": 1}),
    ],
)
def test_operators_that_the_converter_mends_itself(opset, operator, constants, outputs, attributes):
    check(old_operators_model(opset, operator, constants, outputs, **attributes))


@pytest.mark.parametrize("opset", [7, 8])
def test_statistics_for_each_position_are_refused(opset):
    statistics = [np.ones((4, 5, 6), np.float32)] * 4
    attributes = {"spatial": 0}
    old = old_operators_model(opset, "BatchNormalization", statistics, **attributes)
    with pytest.raises(
        ModelError, match=r"BatchNormalization of 'model' that makes 'y' has statistics for each"
    ):
        prepare(load_model(old))


def _scan(states, sequences, lengths, directions, *, nested=False, dtype=TensorProto.FLOAT, sizes=(3, 5)):
    """A Scan of opset 8: sums of what it reads and of a value around it, after operators of old opsets."""
    dims = ["n", "t", 4] if nested else [*sizes, 4]
    names = [f"s{index}" for index in range(states)], [f"x{index}" for index in range(sequences)]
    inner = [helper.make_tensor_value_info(f"{name}_in", dtype, [4]) for group in names for name in group]
    body = [
        helper.make_node("Unsqueeze", ["x0_in"], ["row"], axes=[0]),
        helper.make_node("Squeeze", ["row"], ["flat"], axes=[0]),
        helper.make_node("Sum", ["flat", "around", *(value.name for value in inner)], ["sum"]),
        *(helper.make_node("Add", [f"{name}_in", "sum"], [f"{name}_out"]) for name in names[0]),
        helper.make_node("Mul", ["sum", "sum"], ["square"]),
    ]
    made = [*(f"{name}_out" for name in names[0]), "sum", "square"]
    values = [helper.make_tensor_value_info(name, dtype, [4]) for name in made]
    attributes = {"num_scan_inputs": sequences, "body": helper.make_graph(body, "body", inner, values)}
    if directions:
        attributes["directions"] = directions
    read = ["lengths" if lengths else "", *names[0], *names[1]]
    outputs = [*(f"{name}_last" for name in names[0]), "sums", "squares"]
    nodes = [helper.make_node("Scan", read, outputs, "scan", **attributes)]
    results = [helper.make_tensor_value_info(name, dtype, None) for name in outputs]
    if nested:
        branch = [helper.make_graph(nodes, f"branch{index}", [], results) for index in range(2)]
        copy = [f"{name}_chosen" for name in outputs]
        nodes = [helper.make_node("If", ["choice"], copy, then_branch=branch[0], else_branch=branch[1])]
        results = [helper.make_tensor_value_info(name, dtype, None) for name in copy]
    inputs = [helper.make_tensor_value_info(name, dtype, [dims[0], 4]) for name in names[0]]
    inputs += [helper.make_tensor_value_info(name, dtype, dims) for name in names[1]]
    if lengths:
        inputs.append(helper.make_tensor_value_info("lengths", TensorProto.INT64, [dims[0]]))
    constants = [
        numpy_helper.from_array(np.arange(4, dtype=helper.tensor_dtype_to_np_dtype(dtype)), "around"),
        numpy_helper.from_array(np.array(True), "choice"),
    ]
    graph = helper.make_graph(nodes, "g", inputs, results, constants)
    random, element = np.random.default_rng(0), helper.tensor_dtype_to_np_dtype(dtype)
    feed = {name: random.integers(-3, 4, (sizes[0], 4)).astype(element) for name in names[0]}
    feed |= {name: random.integers(-3, 4, (*sizes, 4)).astype(element) for name in names[1]}
    if lengths:
        feed["lengths"] = np.array(lengths)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 8)], ir_version=4), feed


@pytest.mark.parametrize(
    ("states", "sequences", "lengths", "directions"),
    [
        (1, 1, None, None),
        (0, 1, None, [1]),
        (2, 2, None, [0, 1]),
        (1, 2, [5, 2, 1], None),
        (2, 1, [1, 5, 3], [1]),
        (0, 2, [4, 4, 2], [1, 0]),
    ],
)
@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("dtype", [TensorProto.FLOAT, TensorProto.DOUBLE])
def test_scan_of_opset_8_runs_along_the_samples(states, sequences, lengths, directions, nested, dtype):
    model, feed = _scan(states, sequences, lengths, directions, nested=nested, dtype=dtype)
    found = ort.InferenceSession(converted(model).SerializeToString()).run(None, feed)
    wanted = ort.InferenceSession(model.SerializeToString()).run(None, feed)
    assert len(found) == states + 2
    for mine, right in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(mine, right)


def test_a_scan_of_opset_8_is_calibrated_and_quantized_with_its_sequences():
    random = np.random.default_rng(0)
    model, feed = _scan(1, 1, None, None)
    weights = numpy_helper.from_array(np.eye(4, dtype=np.float32), "weights")
    model.graph.initializer.append(weights)
    model.graph.node.append(helper.make_node("MatMul", ["sums", "weights"], ["y"], "layer"))
    model.graph.output.append(helper.make_tensor_value_info("y", TensorProto.FLOAT, [3, 5, 4]))
    feed = {name: random.standard_normal(array.shape).astype(np.float32) for name, array in feed.items()}
    table = trtint8.calibrate(model, [feed], method="minmax", progress=False)
    quantized = trtint8.quantize(model, table, progress=False)
    wanted = ort.InferenceSession(model.SerializeToString()).run(None, feed)
    found = ort.InferenceSession(quantized.SerializeToString()).run(None, feed)
    for mine, right in zip(found, wanted, strict=True):
        assert np.abs(mine - right).max() < 0.02 * np.abs(right).max()


WEIGHTS = np.random.default_rng(1).integers(-127, 128, (64, 8)).astype(np.int8)
X = np.random.default_rng(0).integers(0, 256, (16, 64)).astype(np.float32)

#: Operator to a network of it, whose weights have the scale 1 / 64.
NETWORKS = {
    "MatMulInteger": "i = MatMulInteger (q, w)\nf = Cast <to = 1> (i)\ny = Mul (f, scale)",
    "with an empty name": "i = MatMulInteger (q, w, zero, )\nf = Cast <to = 1> (i)\ny = Mul (f, scale)",
    "transposed": """v = Transpose <perm = [1, 0]> (w)
        t = Transpose <perm = [1, 0]> (v)
        i = MatMulInteger (q, t)
        f = Cast <to = 1> (i)
        y = Mul (f, scale)""",
    "cut off": """t = Slice (w, start, end)
        i = MatMulInteger (q, t)
        f = Cast <to = 1> (i)
        y = Mul (f, scale)""",
    "MatMulIntegerToFloat": "y = com.microsoft.MatMulIntegerToFloat (q, w, one, scale)",
    "DynamicQuantizeMatMul": "y = com.microsoft.DynamicQuantizeMatMul (x, w, scale)",
}


def weight_zero_points_model(body, weights=WEIGHTS, **constants):
    made = onnx.parser.parse_model(f"""<ir_version: 9, opset_import: ["": 17, "com.microsoft": 1]>
        integers (float[N, 64] x) => (float[N, 8] y) {{
            q = Cast <to = 2> (x)
            {body}
        }}""")
    constants |= {"w": weights, "one": np.float32(1), "zero": np.uint8(0), "scale": np.float32(1 / 64)}
    constants |= {"start": np.array([0]), "end": np.array([64])} if "start" in body else {}
    for name, array in constants.items():
        made.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(array), name))
    return made


def written(made):
    """The inputs of the products after zero points were written, and the names of the constants."""
    write_zero_points(made)
    graphs = [made.graph, *(one.g for node in made.graph.node for one in node.attribute if one.HasField("g"))]
    nodes = [node for graph in graphs for node in graph.node if "MatMul" in node.op_type]
    return [list(node.input) for node in nodes], [tensor.name for tensor in made.graph.initializer]


@pytest.mark.parametrize("network", NETWORKS)
def test_sums_are_exact(network):
    (found,) = open_model(load_model(weight_zero_points_model(NETWORKS[network]))).run({"x": X})
    np.testing.assert_array_equal(found, X @ WEIGHTS.astype(np.float32) / 64)


def test_the_zero_point_is_written_where_it_is_missing():
    constants = ["w", "one", "zero", "scale", "weight_zero_point"]
    places = {
        "MatMulInteger": ["q", "w", "", "weight_zero_point"],
        "with an empty name": ["q", "w", "zero", "weight_zero_point"],
        "transposed": ["q", "t", "", "weight_zero_point"],
        "cut off": ["q", "t", "", "weight_zero_point"],
        "MatMulIntegerToFloat": ["q", "w", "one", "scale", "", "weight_zero_point"],
        "DynamicQuantizeMatMul": ["x", "w", "scale", "weight_zero_point"],
    }
    for kind, inputs in places.items():
        made = weight_zero_points_model(NETWORKS[kind])
        parts = ["start", "end"] if kind == "cut off" else []
        assert written(made) == ([inputs], [*constants[:-1], *parts, constants[-1]])
        assert onnx.numpy_helper.to_array(made.graph.initializer[-1]) == np.int8(0)


def test_an_attention_of_integers():
    made = weight_zero_points_model("y = com.microsoft.QAttention <num_heads = 1> (q, w, bias, one, scale)")
    write_zero_points(made)
    assert list(made.graph.node[1].input) == ["q", "w", "bias", "one", "scale", "", "", "weight_zero_point"]


def test_one_zero_point_serves_branches_and_constant_nodes_too_under_a_free_name():
    made = weight_zero_points_model("""yes = Constant <value = bool {1}> ()
        inner = Constant <value = int8[64, 8] {0}> ()
        i = If (yes) <
            then_branch = first () => (int32[N, 8] a) { a = MatMulInteger (q, w) },
            else_branch = second () => (int32[N, 8] b) { b = MatMulInteger (q, inner, zero) }>
        weight_zero_point = Cast <to = 1> (i)
        y = Mul (weight_zero_point, scale)""")
    inputs, constants = written(made)
    assert inputs == [["q", "w", "", "weight_zero_point_"], ["q", "inner", "zero", "weight_zero_point_"]]
    assert constants == ["w", "one", "zero", "scale", "weight_zero_point_"]


@pytest.mark.parametrize(
    ("body", "weights"),
    [
        ("i = MatMulInteger (q, w, zero, known)\ny = Cast <to = 1> (i)", WEIGHTS),
        ("i = MatMulInteger (q, w)\ny = Cast <to = 1> (i)", WEIGHTS.view(np.uint8)),
        ("i = MatMulInteger (w, q)\ny = Cast <to = 1> (i)", WEIGHTS),
        ("y = Cast <to = 1> (q)", WEIGHTS),
    ],
    ids=["a zero point", "uint8", "computed", "no product"],
)
def test_other_models_stay_as_they_are(body, weights):
    made = weight_zero_points_model(body, weights, known=np.int8(3))
    before = made.SerializeToString()
    write_zero_points(made)
    assert made.SerializeToString() == before


@pytest.mark.filterwarnings("ignore:input 'x' has only integers from 0 to 255")
def test_a_model_without_zero_points_is_calibrated():
    table = trtint8.calibrate(
        weight_zero_points_model(NETWORKS["MatMulInteger"]), X, method="minmax", progress=False
    )
    assert table.amax["y"] == np.abs(X @ WEIGHTS.astype(np.float32) / 64).max()
