"""Models in a newer opset."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

import trtint8
from calibrators.errors import ModelError
from calibrators.host.session import open_session
from tests.trtint8.models.float_models import images, small
from tests.trtint8.onnx_models import function, normal, parsed, save_external
from tests.trtint8.quantization.float16.half_models import network, run, weights
from trtint8.models.model import load_model, prepare
from trtint8.models.opset import settle_domains, with_opset, write_zero_points
from trtint8.models.serialization import to_proto
from trtint8.models.session import open_model


@pytest.mark.parametrize("external", [False, True])
def test_an_old_opset_is_converted(external, tmp_path, monkeypatch):
    model, feed = small(), {"images": images()}
    model.opset_import[0].version = 11
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    wanted = run(model, feed)
    prepared = prepare(load_model(save_external(model, tmp_path) if external else model))
    assert prepared.graph_model.opset_imports[""] >= 13
    np.testing.assert_allclose(run(to_proto(prepared.graph_model), feed), wanted, rtol=1e-5, atol=1e-5)


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
    x = normal(3, 64)
    assert np.allclose(run(to_proto(new), {"x": x}), run(source, {"x": x}))
    assert with_opset(new, 17, "model") is new


def test_an_opset_that_onnx_cannot_reach_is_named():
    source = network(("Relu", [], {}))
    source.graph.node[0].op_type = "Upsample"
    source.opset_import[0].version = 7
    with pytest.raises(ModelError, match=r"'model'.* 7, 19 "):
        with_opset(ir.from_proto(source), 19, "model")


def with_function(opset, inner, more="", output="b"):
    """A product with weights, and a function of the model, whose nodes have an opset of their own."""
    body = f"two = Constant <value_float = 2.0> () b = Mul (a, two) {more}"
    twice = function("Twice", "a", output, body, opset=inner)
    nodes = "m = MatMul (x, w) y = own.Twice (m)"
    ends = "float[N, 4] x", "float[] y"
    return parsed(*ends, nodes, twice, opset=opset, ir_version=10, domains=["own"], w=weights(4, 4))


@pytest.mark.parametrize(
    ("opset", "inner", "new"), [(12, 12, 17), (17, 17, 19), (17, 16, 19), (19, 13, 19), (13, 19, 19)]
)
def test_functions_of_the_model_are_kept(opset, inner, new):
    model, x = with_function(opset, inner), normal(3, 4)
    converted = with_opset(load_model(model).graph_model, new, "model")
    assert converted.opset_imports[""] == new
    for one in (converted, prepare(load_model(model)).graph_model):
        np.testing.assert_array_equal(run(to_proto(one), {"x": x}), run(model, {"x": x}))


def test_a_function_of_operators_that_another_opset_changed_is_refused():
    with pytest.raises(ModelError, match=r"'model'.* 13 .*18"):
        load_model(with_function(18, 13, "m = ReduceMean <axes = [1]> (b)", "m"))


def test_a_function_of_an_opset_that_there_cannot_be_is_refused():
    with pytest.raises(ModelError, match=rf"'model'.* {1 << 40} "):
        load_model(with_function(18, 1 << 40))


needs_opset_28 = pytest.mark.skipif(
    onnx.defs.onnx_opset_version() < 28, reason="this version of ONNX has no opset 28"
)


@needs_opset_28
@pytest.mark.parametrize("options", [{}, {"float16": True, "float32_io": True}])
def test_pairs_and_casts_are_of_an_opset_that_onnx_runtime_has(options):
    model = network(("MatMul", [weights(8, 8)], {}), ("Relu", [], {}), ("MatMul", [weights(8, 8)], {}))
    model.opset_import[0].version, model.ir_version = 28, 13
    x = {"x": normal(4, 8)}
    table = trtint8.calibrate(model, x, method="auto", progress=False)
    wanted, got = run(model, x), run(trtint8.quantize(model, table, progress=False, **options), x)
    assert np.abs(wanted - got).max() < 0.05 * np.abs(wanted).max()


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


@needs_opset_28
@pytest.mark.parametrize(
    ("opset", "operator", "compute"),
    [
        (25, "Swish <alpha = 1.5> (a)", lambda a, x: a * sigmoid(1.5 * a)),
        (28, "Swish (a)", lambda a, x: a * sigmoid(a)),
        (28, "SwiGLU <alpha = 1.5> (a, x)", lambda a, x: a * sigmoid(1.5 * a) * x),
        (28, "SwiGLU (a, x)", lambda a, x: a * sigmoid(a) * x),
    ],
)
def test_operators_that_onnx_runtime_has_in_one_opset(opset, operator, compute):
    body = f"a = MatMul (x, w) g = {operator} y = MatMul (g, w)"
    model = parsed(
        "float[N, 8] x", "float[N, 8] y", body, opset=opset, ir_version=13, w=np.eye(8, dtype=np.float32)
    )
    x = normal(16, 8)
    table = trtint8.calibrate(model, {"x": x}, method="minmax", progress=False)
    found = run(trtint8.quantize(model, table, progress=False), {"x": x})
    np.testing.assert_allclose(found, compute(x, x), atol=0.02 * np.abs(compute(x, x)).max())


@needs_opset_28
def test_pairs_of_an_opset_that_onnx_runtime_lacks_are_measured():
    model = network(("MatMul", [weights(8, 8)], {}))
    model.opset_import[0].version, model.ir_version = 28, 13
    x = {"x": normal(4, 8)}
    table = trtint8.calibrate(model, x, method="minmax", progress=False)
    quantized = trtint8.quantize(model, table, progress=False)
    quantized.opset_import[0].version = 28
    assert trtint8.validate(quantized, x, reference=model, progress=False).outputs[0].sqnr_db > 30


@needs_opset_28
@pytest.mark.parametrize("attributes", ["blocksize = 2", 'blocksize = 2, mode = "CRD"'])
def test_an_operator_of_no_older_opset_is_named(attributes, recwarn):
    model = parsed(
        "float[1, 4, 4, 4] x", "float[1, 16, 2, 2] y",
        f"a = Conv (x, w) [moved] y = SpaceToDepth <{attributes}> (a)",
        opset=28, ir_version=13, w=weights(4, 4, 1, 1),
    )  # fmt: skip
    loaded = load_model(model)
    is_new = "CRD" in attributes
    assert loaded.graph_model.opset_imports[""] == (28 if is_new else 27)
    assert any("'moved'" in str(one.message) for one in recwarn) == is_new


#: The remainder of a layer's output and a divisor: as it is, in a branch, or in a function.
REMAINDERS = {
    "node": "y = Mod (a, b)",
    "branch": """y = If (yes) <then_branch = t () => (float[] r) { r = Mod (a, b) },
        else_branch = e () => (float[] s) { s = Mod (a, b) }>""",
    "function": "y = own.Remainder (a, b)",
}


@needs_opset_28
@pytest.mark.parametrize("kind", REMAINDERS)
def test_remainders_of_floats_keep_the_sign_of_the_divisor(kind):
    remainder = function("Remainder", "a, b", "r", "r = Mod (a, b)", opset=28)
    model = parsed(
        "float[N, 8] x, float[N, 8] b",
        "float[N, 8] y",
        f"a = MatMul (x, w) {REMAINDERS[kind]}",
        remainder if kind == "function" else "",
        opset=28,
        ir_version=13,
        domains=["own"],
        w=weights(8, 8),
        yes=np.array(True),
    )
    x = normal(16, 8)
    divisors = np.random.default_rng(3).choice(np.float32([-0.3, 0.3, 2, -2, np.inf]), (16, 8))
    found = run(to_proto(prepare(load_model(model)).graph_model), {"x": x, "b": divisors})
    layer = run(network(("MatMul", [weights(8, 8)], {})), {"x": x})
    np.testing.assert_allclose(found, np.mod(layer, divisors), rtol=1e-5, atol=1e-6)


DATA = normal(4, 8)


def model(domains=("", "", ""), imports=(("", 17),), middle="Relu", functions=""):
    w = normal(8, 8, seed=2) * np.float32(0.1)
    body = f"[first] m = MatMul (x, w) [middle] middle_out = {middle} (m) [last] y = MatMul (middle_out, w)"
    made = parsed("float[N, 8] x", "float[] y", body, functions, w=w)
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
    source = model(domains, imports)
    table = trtint8.calibrate(source, DATA, method="minmax", progress=False)
    quantized = trtint8.quantize(source, table, progress=False)
    assert opsets(quantized) == {"": 17}
    assert {node.domain for node in quantized.graph.node} == {""}
    assert load_model(source).fingerprint == load_model(model()).fingerprint
    np.testing.assert_array_equal(
        run(to_proto(load_model(source).graph_model), {"x": DATA}), run(model(), {"x": DATA})
    )


def test_functions_as_well():
    mine = function("Mine", "a", "b", "b = ai.onnx.Relu (a)").replace('"": 17', '"ai.onnx": 17')
    source = model(("", "own", ""), [("", 17), ("own", 1)], "Mine", mine)
    settle_domains(source, "model")
    assert opsets(source.functions[0]) == {"": 17}
    assert source.functions[0].node[0].domain == ""


@pytest.mark.parametrize(
    ("domains", "imports", "middle", "named"),
    [
        (("",) * 3, [("", 17), ("ai.onnx", 13)], "Relu", "17.* 13"),
        (("",) * 3, [], "Relu", "opset"),
        (("", "my", ""), [("", 17)], "Mine", "my"),
    ],
)
def test_domains_without_a_version_of_their_own_are_named(domains, imports, middle, named):
    with pytest.raises(ModelError, match=named):
        load_model(model(domains, imports, middle))


@pytest.mark.filterwarnings("ignore:ONNX Runtime's optimizer")
def test_operators_of_onnx_runtime_need_no_import_and_onnx_none_beside_them():
    source = model(("", "com.microsoft", ""), middle="Gelu")
    assert opsets(to_proto(load_model(source).graph_model)) == {"": 17, "com.microsoft": 1}
    table = trtint8.calibrate(source, DATA, method="minmax", progress=False)
    assert "middle_out" in table.amax
    alone = model(("", "com.microsoft", ""), [("com.microsoft", 1)], middle="Gelu")
    assert load_model(alone).graph_model.opset_imports[""] >= 17


DOUBLED, HALVED, SHRUNK, UNEVEN = ([1, 1, 2, 2], [1, 1, 0.5, 0.5], [1, 1, 1 / 3, 0.6], [1, 1, 1.3, 1.7])
RESHAPED = ["Shape", "Flatten", "Hardmax", "Reshape"]


def old_operators_model(opset, operator, constants=(), outputs=1, branch=False, **attributes):
    """The operator on the absolute values of images, also as the branch of an If."""
    arrays = {f"constant{index}": np.asarray(value) for index, value in enumerate(constants)}
    results = ["y", "z"][:outputs]
    ends = "float[2, 4, 5, 6] x", ", ".join(f"float[] {name}" for name in results)
    made = parsed(*ends, "[abs] a = Abs (x)", opset=opset, ir_version=6, choice=np.array(True), **arrays)
    node = helper.make_node(operator, ["a", *arrays], results, "op", **attributes)
    if branch:
        node.output[0] = "inside"
        result = [helper.make_tensor_value_info("inside", TensorProto.FLOAT, None)]
        graphs = [helper.make_graph([node], f"branch{index}", [], result) for index in range(2)]
        node = helper.make_node("If", ["choice"], ["y"], then_branch=graphs[0], else_branch=graphs[1])
    made.graph.node.append(node)
    return made


def old_operators_run(proto):
    session = open_session(proto.SerializeToString(), optimize=False)
    return session.run(None, {"x": normal(2, 4, 5, 6)})


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


def scales(values):
    return [np.array(values, np.float32)]


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("factors", [DOUBLED, HALVED, SHRUNK, UNEVEN, [1, 1, 2.5, 1]])
def test_upsample_and_resize_of_opset_10(mode, factors):
    assert check(old_operators_model(10, "Resize", scales(factors), mode=mode)) == ["Resize"]
    if min(factors) >= 1:
        stored = {"mode": mode, "scales": [float(each) for each in factors]}
        for opset in (7, 8):
            assert check(old_operators_model(opset, "Upsample", **stored)) == ["Resize"]
        assert check(old_operators_model(9, "Upsample", scales(factors), mode=mode)) == ["Resize"]


def test_upsample_and_resize_choose_the_nearest_element_by_default():
    check(old_operators_model(9, "Upsample", scales(UNEVEN)))
    check(old_operators_model(10, "Resize", scales(SHRUNK)))


def test_a_resize_of_opset_10_that_enlarges_and_shrinks():
    mixed = [1, 1, 2.3, 0.6]
    check(old_operators_model(10, "Resize", scales(mixed), mode="linear"))
    with pytest.raises(ModelError, match="'y'"):
        converted(old_operators_model(10, "Resize", scales(mixed)))


@pytest.mark.parametrize("coordinates", ["half_pixel", "align_corners", "asymmetric"])
def test_a_resize_of_opset_11_keeps_its_coordinates(coordinates):
    constants = [np.zeros(0, np.float32), *scales(UNEVEN)]
    attributes = {"mode": "linear", "coordinate_transformation_mode": coordinates}
    assert check(old_operators_model(11, "Resize", constants, **attributes)) == ["Resize"]


@pytest.mark.parametrize(
    ("opset", "attributes", "made"),
    [
        *((opset, {"axis": axis}, RESHAPED) for opset in (7, 12) for axis in (0, 1, 2)),
        (7, {"axis": 3}, ["Hardmax"]),
        (11, {"axis": -1}, ["Hardmax"]),
        (11, {"axis": -2}, RESHAPED),
        (9, {}, RESHAPED),
    ],
)
def test_hardmax_among_the_elements_of_one_axis_or_several(opset, attributes, made):
    assert check(old_operators_model(opset, "Hardmax", **attributes)) == made


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge"])
@pytest.mark.parametrize("opset", [7, 10])
def test_pad_with_a_value(mode, opset):
    attributes = {"mode": mode, "pads": [0, 0, 1, 1, 0, 0, 2, 2], "value": 0.3}
    assert check(old_operators_model(opset, "Pad", **attributes)) == ["Pad"]


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


BODY = onnx.parser.parse_graph("body (float[] one) => (float[] same) { same = Identity (one) }")
SCAN = helper.make_node("Scan", ["", "a"], ["y"], body=BODY, num_scan_inputs=1)


def test_what_no_newer_opset_has_is_refused():
    statistics = [np.ones((4, 5, 6), np.float32)] * 4
    scan = old_operators_model(8, "Abs")
    scan.graph.node[-1].CopyFrom(SCAN)
    for old in (
        *(old_operators_model(opset, "BatchNormalization", statistics, spatial=0) for opset in (7, 8)),
        scan,
    ):
        with pytest.raises(ModelError, match=rf"{old.graph.node[-1].op_type} .*'model' .*'y'"):
            prepare(load_model(old))


WEIGHTS = np.random.default_rng(1).integers(-127, 128, (64, 8)).astype(np.int8)
X = np.random.default_rng(0).integers(0, 256, (16, 64)).astype(np.float32)

ZERO_POINT = "weight_zero_point"
#: Kind to a network of products of integers, whose weights have the scale 1 / 64, and the product's inputs.
NETWORKS = {
    "MatMulInteger": ("i = MatMulInteger (q, w) f = Cast <to = 1> (i) y = Mul (f, scale)", ["q", "w", ""]),
    "with an empty name": (
        "i = MatMulInteger (q, w, zero, ) f = Cast <to = 1> (i) y = Mul (f, scale)",
        ["q", "w", "zero"],
    ),
    "transposed": (
        """v = Transpose <perm = [1, 0]> (w) t = Transpose <perm = [1, 0]> (v)
        i = MatMulInteger (q, t) f = Cast <to = 1> (i) y = Mul (f, scale)""",
        ["q", "t", ""],
    ),
    "cut off": (
        """t = Slice (w, start, end) i = MatMulInteger (q, t)
        f = Cast <to = 1> (i) y = Mul (f, scale)""",
        ["q", "t", ""],
    ),
    "MatMulIntegerToFloat": (
        "y = com.microsoft.MatMulIntegerToFloat (q, w, one, scale)",
        ["q", "w", "one", "scale", ""],
    ),
    "DynamicQuantizeMatMul": (
        "y = com.microsoft.DynamicQuantizeMatMul (x, w, scale)",
        ["x", "w", "scale"],
    ),
}


def weight_zero_points_model(body, weights=WEIGHTS, **constants):
    constants |= {"w": weights, "one": np.float32(1), "zero": np.uint8(0), "scale": np.float32(1 / 64)}
    constants |= {"start": np.array([0]), "end": np.array([64])} if "start" in body else {}
    ends = "float[N, 64] x", "float[N, 8] y"
    return parsed(*ends, f"q = Cast <to = 2> (x) {body}", domains=["com.microsoft"], **constants)


def with_zero_points(made):
    graph_model = ir.from_proto(made)
    write_zero_points(graph_model)
    return ir.to_proto(graph_model)


def written(made):
    """The inputs of the products after zero points were written, and the names of the constants."""
    made = with_zero_points(made)
    graphs = [made.graph, *(one.g for node in made.graph.node for one in node.attribute if one.HasField("g"))]
    nodes = [node for graph in graphs for node in graph.node if "MatMul" in node.op_type]
    return [list(node.input) for node in nodes], [tensor.name for tensor in made.graph.initializer]


@pytest.mark.parametrize("kind", NETWORKS)
def test_sums_are_exact_with_a_zero_point_where_it_was_missing(kind):
    body, inputs = NETWORKS[kind]
    made = weight_zero_points_model(body)
    (found,) = open_model(load_model(made)).run({"x": X})
    np.testing.assert_array_equal(found, X @ WEIGHTS.astype(np.float32) / 64)
    before = [tensor.name for tensor in made.graph.initializer]
    assert written(made) == ([[*inputs, ZERO_POINT]], [*before, ZERO_POINT])
    assert onnx.numpy_helper.to_array(with_zero_points(made).graph.initializer[-1]) == np.int8(0)


def test_an_attention_of_integers():
    made = weight_zero_points_model("y = com.microsoft.QAttention <num_heads = 1> (q, w, bias, one, scale)")
    made = with_zero_points(made)
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
    assert inputs == [["q", "w", "", "weight_zero_point_1"], ["q", "inner", "zero", "weight_zero_point_1"]]
    assert constants == ["w", "one", "zero", "scale", "weight_zero_point_1"]


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
    assert with_zero_points(made) == ir.to_proto(ir.from_proto(made))


@pytest.mark.filterwarnings("ignore:input 'x' has only integers from 0 to 255")
def test_a_model_without_zero_points_is_calibrated():
    source = weight_zero_points_model(NETWORKS["MatMulInteger"][0])
    table = trtint8.calibrate(source, X, method="minmax", progress=False)
    assert table.amax["y"] == np.abs(X @ WEIGHTS.astype(np.float32) / 64).max()
