"""What models are checked for when they are read, and what is mended then."""

import warnings
from contextlib import nullcontext
from itertools import pairwise

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

import trtint8
from calibrators.errors import ModelError
from tests.trtint8.onnx_models import conv_relu_conv, function, normal, parsed, save_external, sqnr_in_int8
from tests.trtint8.quantization.float16.half_models import run
from trtint8.cli.main import main
from trtint8.models.checks import (
    check_names,
    name_graphs,
    name_nodes_apart,
    random_nodes,
    settle_ir_version,
    sort_nodes,
    switch_to_inference,
)
from trtint8.models.model import load_model, prepare
from trtint8.models.session import open_model

PLACES = {
    "node": b"first",
    "tensor": b"relu_out",
    "input": b"images",
    "constant": b"constant0",
    "operator": b"Relu",
    "attribute": b"pads",
    "dimension": b"M",
}


@pytest.mark.parametrize("name", PLACES.values(), ids=PLACES)
def test_a_name_that_is_no_text_is_refused(name):
    model = conv_relu_conv(False)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "M"
    damaged = bytes([0xFF]) + name[1:]
    content = model.SerializeToString()
    assert name in content
    content = content.replace(bytes([len(name)]) + name, bytes([len(name)]) + damaged)
    with pytest.raises(ModelError, match=r"'m\.onnx'.* b'\\xff"):
        check_names(onnx.ModelProto.FromString(content), "m.onnx")
    with pytest.raises(ModelError, match=r" b'\\xff"):
        load_model(content)


def test_text_passes():
    check_names(conv_relu_conv(names=("étage", "второй")), "m.onnx")


def test_a_place_of_weights_that_is_no_text_is_refused(tmp_path):
    path = save_external(conv_relu_conv(False), tmp_path)
    path.write_bytes(path.read_bytes().replace(b"weights.bin", b"weights.b\xffn", 1))
    with pytest.raises(ModelError, match=r"'m.*' .*b'weights.b\\xffn'"):
        load_model(path)


SQUARE = np.float32([[1, 2, 3, 4], [5, 6, 7, 8], [9, 1, 2, 3], [4, 5, 6, 7]])
ROWS, OUT = "float[N, 4] x", "float[N, 4] y"


def same_names():
    return parsed(
        f"{ROWS}, bool keep",
        OUT,
        """[product] a = MatMul(x, w)
        [MatMul_c] b = MatMul(a, w)
        [product] c = MatMul(b, w)
        d = Relu(c)
        e = Relu(d)
        [choice] y = If(keep) <
            then_branch = then () => (float[N, 4] t) { [product] s = Relu(e) [product] t = Relu(s) },
            else_branch = other () => (float[N, 4] o) { [product] o = Relu(e) }
        >""",
        w=SQUARE,
    )


def names(graph):
    return [node.name for node in graph.node]


def test_later_nodes_are_named_after_their_operator_and_output_once():
    message = same_names()
    name_nodes_apart(message)
    assert names(message.graph) == ["product", "MatMul_c", "MatMul_c_1", "", "", "choice"]
    branches = {attribute.name: names(attribute.g) for attribute in message.graph.node[-1].attribute}
    assert branches == {"then_branch": ["product", "Relu_t"], "else_branch": ["product"]}
    before = message.SerializeToString()
    name_nodes_apart(message)
    assert message.SerializeToString() == before


def test_a_model_with_such_nodes_is_its_own_reference():
    """ONNX Runtime refuses two nodes of one name, and calibration worked with others."""
    prepared = [node.name for node in prepare(load_model(same_names())).graph_model.graph]
    assert prepared[:3] == ["product", "MatMul_c", "MatMul_c_1"]
    assert sqnr_in_int8(same_names(), [{"x": normal(16, 4), "keep": np.array(True)}]) > 30
    body = "[same] t = MatMul (a, b) [same] c = Relu (t)"
    layer = function("Layer", "a, b", "c", body)
    called = parsed(ROWS, OUT, "y = own.Layer (x, w)", layer, domains=["own"], ir_version=9, w=SQUARE)
    assert sqnr_in_int8(called, normal(4, 4)) > 30


def test_graphs_without_a_name():
    message = same_names()
    message.graph.name = message.graph.node[-1].attribute[0].g.name = ""
    name_graphs(message)
    assert message.graph.name and message.graph.node[-1].attribute[0].g.name
    message.graph.name = ""
    assert load_model(message).graph_model.graph.name


@pytest.mark.parametrize("nested", [False, True])
def test_outputs_that_are_left_out_amid_a_list_are_named(nested):
    """ONNX Runtime ends the process with such a Split."""
    split = "a, , b = Split <axis = 1> (m, sizes) d = Sub (a, b)"
    if nested:
        branches = ", ".join(
            f"{kind}_branch = b () => (float[] d) {{ {split} }}" for kind in ("then", "else")
        )
        split = f"d_ = If (c) <{branches}>"
    weights, last, x = normal(8, 8), normal(3, 4, seed=1), normal(16, 8, seed=2)
    constants = {"weights": weights, "last": last, "sizes": np.array([3, 2, 3]), "c": np.array(True)}
    body = f"m = MatMul (x, weights) {split} y = MatMul ({'d_' if nested else 'd'}, last)"
    model = parsed("float[N, 8] x", OUT, body, **constants)
    table = trtint8.calibrate(model, {"x": x}, method="minmax", progress=False)
    quantized = trtint8.quantize(model, table, progress=False)
    wanted = ((x @ weights)[:, :3] - (x @ weights)[:, 5:]) @ last
    assert np.abs(run(quantized, {"x": x}) - wanted).max() < 0.05 * np.abs(wanted).max()


@given(st.permutations(range(6)))
def test_a_chain_in_any_order_is_put_in_order(order):
    tensors = ["x", "a", "b", "c", "d", "e", "y"]
    nodes = [f"[relu{i}] {tensors[i + 1]} = Relu ({tensors[i]})" for i in range(6)]
    message = parsed(ROWS, OUT, " ".join(nodes[i] for i in order))
    sort_nodes(message)
    assert names(message.graph) == [f"relu{i}" for i in range(6)]
    onnx.checker.check_model(message)


@pytest.mark.parametrize(
    ("body", "order"),
    [
        ("[later] b = Relu (x) [earlier] a = Neg (x) [sum] y = Add (a, b)", ["later", "earlier", "sum"]),
        (
            """[if] y = If (c) <then_branch = t () => (float[] s) { s = Identity (a) },
                else_branch = e () => (float[] o) { o = Neg (a) }>
            [relu] a = Relu (x)""",
            ["relu", "if"],
        ),
        ("[first] a = Add (x, b) [second] b = Relu (a) [third] y = Relu (b)", ["first", "second", "third"]),
        ("[b] , q = Two (p) [a] , p = Two (x) [c] y = Relu (q)", ["a", "b", "c"]),
    ],
    ids=["in order", "read in a branch", "a cycle", "first outputs that are left out"],
)
def test_nodes_are_put_in_order_only_where_they_must(body, order):
    message = parsed(ROWS, OUT, body, c=np.array(True))
    sort_nodes(message)
    assert names(message.graph) == order
    if "third" in order:
        with pytest.raises(ModelError):
            trtint8.quantize(message, trtint8.CalibrationTable({}))


def test_a_cast_at_the_end_of_the_graph_is_no_obstacle(tmp_path):
    body = "product = MatMul (half, w) half = Cast <to = 10> (x) y = Cast <to = 1> (product)"
    onnx.save(parsed(ROWS, OUT, body, w=np.eye(4, dtype=np.float16)), tmp_path / "half.onnx")
    assert sqnr_in_int8(tmp_path / "half.onnx", normal(8, 4)) > 30


def ir_versions_model(version, *opsets):
    weights = np.eye(4, 3, dtype=np.float32)
    message = parsed(ROWS, "float[N, 3] y", "[matmul] y = MatMul (x, w)", ir_version=version, w=weights)
    del message.opset_import[:]
    message.opset_import.extend(helper.make_opsetid(*opset) for opset in opsets)
    return message


@pytest.mark.parametrize(
    ("declared", "opsets", "version"),
    [
        (99, [("", 17)], 10),
        (10, [("", 17)], 10),
        (8, [("", 17)], 8),
        (4, [("", 21)], 4),
        (99, [("", 17), ("of.no.one", 3)], 10),
        (99, [("", 23)], 11),
    ],
)
def test_a_version_is_lowered_as_far_as_the_operators_allow(declared, opsets, version):
    message = ir_versions_model(declared, *opsets)
    settle_ir_version(message)
    assert message.ir_version == version


def test_a_model_as_the_newest_onnx_writes_it_is_calibrated_and_validated():
    source = ir_versions_model(onnx.IR_VERSION, ("", 17))
    assert load_model(source).light.message.ir_version == 10
    assert sqnr_in_int8(source, normal(10, 4)) > 30


@pytest.mark.parametrize("opset", [11, 17])
def test_weights_that_old_exporters_listed_as_inputs_become_constants(opset, tmp_path):
    """As version 3 of the format wanted it, which onnx's checker takes in this form only."""
    source = ir_versions_model(3, ("", opset))
    source.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [4, 3]))
    onnx.checker.check_model(source)
    table = trtint8.calibrate(source, normal(10, 4), progress=False)
    quantized = trtint8.quantize(source, table)
    migrated = trtint8.migrate(source, table).save(tmp_path / "migrated.onnx")
    mended = trtint8.mend(migrated).save(tmp_path / "mended.onnx")
    for made in (quantized, onnx.load(migrated), onnx.load(mended)):
        onnx.checker.check_model(made, full_check=True)
        assert [value.name for value in made.graph.input] == ["x"]
    accuracy = trtint8.validate(mended, normal(10, 4), reference=source, progress=False)
    assert accuracy.outputs[0].sqnr_db > 30


def complete_nodes_model(operator, inputs, domain="", **attributes):
    made = parsed(ROWS, OUT, "y = Relu (x)", domains=["com.microsoft"], w=np.ones((4, 4), np.float32))
    node = helper.make_node(operator, inputs, ["y"], "n", domain=domain, **attributes)
    made.graph.node[0].CopyFrom(node)
    return made


@pytest.mark.parametrize(
    ("operator", "inputs", "domain", "attributes"),
    [
        ("MatMul", ["x", ""], "", {}),
        ("MatMul", ["x"], "", {}),
        ("Relu", [], "", {}),
        ("Sum", ["x", ""], "", {}),
        ("Max", [""], "", {}),
        ("Concat", ["x", "", "x"], "", {"axis": 0}),
        ("Einsum", [""], "", {"equation": "ij->ij"}),
        ("QuantizeLinear", ["x", ""], "", {}),
        ("QuantizeLinear", ["x"], "com.microsoft", {}),
        ("DequantizeLinear", ["x", ""], "com.microsoft", {}),
    ],
)
def test_inputs_that_are_left_out(operator, inputs, domain, attributes):
    with pytest.raises(ModelError, match=operator):
        load_model(complete_nodes_model(operator, inputs, domain, **attributes))


@pytest.mark.parametrize("version", [0, 7, 8, 10])
@pytest.mark.parametrize("inner", ["c = Relu (a)", "d = Relu (a)", "c = Relu (d)"])
def test_functions_are_checked_in_models_of_any_version(version, inner):
    branch = f"graph = branch () => (float[4] c) {{ {inner} }}"
    body = f"k = Constant <value = bool {{1}}> () b = If (k) <then_branch: {branch}, else_branch: {branch}>"
    source = parsed(ROWS, OUT, "y = own.F (x)", function("F", "a", "b", body), domains=["own"])
    source.ir_version = version
    with nullcontext() if inner == "c = Relu (a)" else pytest.raises(ModelError, match="'model'"):
        load_model(source)


@pytest.mark.parametrize(
    ("operator", "inputs", "domain"),
    [
        ("MatMul", ["x", "w"], ""),
        ("Gemm", ["x", "w", ""], ""),
        ("Clip", ["x", "", ""], ""),
        ("Sum", ["x", "x", "w"], ""),
        ("BiasGelu", ["x"], "com.microsoft"),
    ],
)
def test_inputs_that_nobody_needs(operator, inputs, domain):
    assert load_model(complete_nodes_model(operator, inputs, domain)).inputs[0].name == "x"


def _conv_and_more(constants, guarded=False, weights="weights"):
    """A convolution, a normalization, a layer and a sum, with constants by name."""
    ones = {name: np.ones(4) for name in ("scale", "shift", "mean", "variance", "added", "table")}
    arrays = {"kernel": normal(4, 3, 3, 3), "bias": normal(4), **ones, "weights": normal(4, 4)}
    arrays = {name: constants.get(name, array).astype(np.float32) for name, array in arrays.items()}
    pair = "[w_q] q = QuantizeLinear (weights, step, zero) [w_dq] w_dq = DequantizeLinear (q, step, zero)"
    return parsed(
        "float[N, 3, 8, 8] x",
        OUT,
        f"""{pair if weights == "w_dq" else ""}
        [conv] c = Conv (x, kernel, bias)
        [norm] n = BatchNormalization (c, scale, shift, mean, variance)
        p = GlobalAveragePool (n)
        f = Flatten (p)
        [layer] m = MatMul (f, {weights})
        [sum] a = Add (m, added)
        lost = {"IsNaN" if guarded else "IsInf"} (a)
        y = Where (lost, table, a)""",
        step=np.float32(0.1),
        zero=np.int8(0),
        **arrays,
    )


@pytest.mark.parametrize(
    ("name", "shape", "node"),
    [
        ("kernel", (4, 3, 3, 3), "conv"),
        ("bias", (4,), "conv"),
        ("scale", (4,), "norm"),
        ("variance", (4,), "norm"),
        ("weights", (4, 4), "layer"),
        ("added", (4,), "sum"),
    ],
)
def test_weights_that_are_not_numbers_are_named_with_how_many(name, shape, node):
    array = np.ones(shape, np.float32)
    array.reshape(-1)[1:4] = np.nan
    with pytest.raises(ModelError, match=f"'{name}'.*'{node}'.*NaN 3 .*{array.size}"):
        load_model(_conv_and_more({name: array}))


@pytest.mark.parametrize(
    ("name", "value", "taken"),
    [
        ("kernel", np.inf, False),
        ("kernel", -np.inf, False),
        ("bias", np.inf, False),
        ("bias", -np.inf, True),
        ("scale", np.inf, False),
        ("weights", -np.inf, False),
        ("added", -np.inf, True),
        ("added", np.inf, True),
        ("table", np.nan, True),
        ("table", np.inf, True),
        ("added", 3e38, True),
    ],
)
def test_infinity_is_taken_where_it_may_be_meant(name, value, taken):
    shapes = {"kernel": (4, 3, 3, 3), "weights": (4, 4)}
    model = _conv_and_more({name: np.full(shapes.get(name, (4,)), value)})
    with nullcontext() if taken else pytest.raises(ModelError, match=f"'{name}'.*infinity"):
        load_model(model)


def test_nan_that_a_network_looks_for_is_taken():
    assert load_model(_conv_and_more({"added": np.array([0, 1, np.nan, 2])}, guarded=True))


@pytest.mark.parametrize("dtype", [TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE])
def test_weights_of_other_types_that_are_not_numbers(dtype):
    faulty = complete_nodes_model("MatMul", ["x", "w"])
    for value in (*faulty.graph.input, *faulty.graph.output):
        value.type.tensor_type.elem_type = dtype
    values = [1.0] * 14 + [float("nan")] * 2
    faulty.graph.initializer[0].CopyFrom(helper.make_tensor("w", dtype, (4, 4), values))
    with pytest.raises(ModelError, match=r"'w'.*NaN 2 .*16"):
        load_model(faulty)


def test_weights_that_a_function_is_given_are_named():
    layer = function("Layer", "a, b", "c", "[inner] c = MatMul (a, b)")
    made = [
        parsed(ROWS, OUT, "y = own.Layer (x, w)", layer, domains=["own"], w=weights)
        for weights in (SQUARE, SQUARE * np.float32(np.nan))
    ]
    assert load_model(made[0])
    with pytest.raises(ModelError, match=r"'w'.*NaN 16 "):
        load_model(made[1])


def test_weights_of_a_quantized_model_that_are_not_numbers(tmp_path, capsys):
    source, output = str(tmp_path / "m.onnx"), tmp_path / "n.onnx"
    onnx.save(_conv_and_more({}, weights="w_dq"), source)
    assert main(["lint", source]) == 0
    onnx.save(_conv_and_more({"weights": np.full((4, 4), np.nan)}, weights="w_dq"), source)
    capsys.readouterr()
    for options in ([], ["--fix", "-o", str(output)]):
        assert main(["lint", source, *options]) == 2
        error = capsys.readouterr().err
        assert "'weights'" in error and "'w_q'" in error and "16" in error
    assert not output.exists()


X = normal(32, 3, 8, 8)


def training_mode_model(*, trains=True, as_node=False, outputs=("y",)):
    """A convolution, a normalization and a Dropout, which a second convolution reads."""
    constants = {
        "w": 0.2 * normal(4, 3, 3, 3, seed=1),
        "v": 0.2 * normal(4, 4, 1, 1, seed=2),
        "scale": np.float32([1, 2, 3, 4]),
        "shift": np.zeros(4, np.float32),
        "mean": np.full(4, 0.1, np.float32),
        "variance": np.full(4, 2, np.float32),
        "share": np.float32(0.5),
    }
    if not as_node:
        constants["trains"] = np.array(trains)
    return parsed(
        "float[N, 3, 8, 8] x",
        ", ".join(f"float[{'N, 4, 6, 6' if name == 'y' else 4}] {name}" for name in outputs),
        f"""{f"trains = Constant <value = bool {{{int(trains)}}}> ()" if as_node else ""}
        c = Conv (x, w)
        [norm] n{", new_mean, new_variance" if trains else ""} =
            BatchNormalization <training_mode = {int(trains)}> (c, scale, shift, mean, variance)
        [drop] d = Dropout (n, share, trains)
        y = Conv (d, v)""",
        opset=15,
        **constants,
    )


def switched(message):
    """The operators of the nodes that were switched, and the model."""
    graph_model = ir.from_proto(message)
    return switch_to_inference(graph_model), ir.to_proto(graph_model)


def node(message, name):
    return next(node for node in message.graph.node if node.name == name)


@pytest.mark.parametrize("as_node", [False, True])
def test_nodes_in_training_mode_are_switched(as_node):
    message, wanted = training_mode_model(as_node=as_node), training_mode_model(trains=False)
    found, message = switched(message)
    assert sorted(found) == ["BatchNormalization", "Dropout"]
    assert list(node(message, "drop").input) == ["n", "share"]
    assert list(node(message, "norm").output) == ["n"]
    assert not node(message, "norm").attribute
    np.testing.assert_array_equal(run(message, {"x": X}), run(wanted, {"x": X}))


def test_a_model_in_inference_mode_stays_as_it_is():
    message = training_mode_model(trains=False)
    found, same = switched(message)
    assert found == [] and same == ir.to_proto(ir.from_proto(message))


def test_what_is_computed_or_read_stays():
    message = training_mode_model(outputs=("y", "new_mean"))
    node(message, "drop").input[2] = "asked"
    message.graph.input.append(helper.make_tensor_value_info("asked", TensorProto.BOOL, []))
    assert switched(message)[0] == []


def test_a_normalization_without_statistics_of_its_own_stays():
    message = training_mode_model()
    for tensor in message.graph.initializer:
        if tensor.name in ("mean", "variance"):
            array = np.full(4, tensor.name == "variance", np.float32)
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    found, message = switched(message)
    assert found == ["Dropout"]
    assert list(node(message, "norm").output) == ["n", "new_mean", "new_variance"]


def test_ranges_are_those_of_inference_and_a_warning_says_so():
    with pytest.warns(UserWarning, match="'model'.* 1 BatchNormalization "):
        table = trtint8.calibrate(training_mode_model(), X, method="minmax", progress=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        wanted = trtint8.calibrate(training_mode_model(trains=False), X, method="minmax", progress=False)
    # The second convolution reads the tensor that the Dropout passes on.
    assert table.amax == wanted.amax


def test_the_warning_names_each_operator_once():
    message = training_mode_model()
    message.graph.node.append(helper.make_node("Dropout", ["y", "share", "trains"], ["z"], name="last"))
    message.graph.output[0].name = "z"
    with pytest.warns(UserWarning, match="1 BatchNormalization .*2 Dropout "):
        load_model(message)


def in_functions(trains, *, calls=1, nested=False, inside=False):
    """A Dropout in a function, which gets its mode from each call, or from within."""
    first = f"mode = Constant <value = bool {{{int(bool(trains))}}}> ()" if inside else ""
    parameters = "a, share" if inside else "a, share, mode"
    functions = [function("Drop", parameters, "b", f"{first} [drop] b = Dropout (a, share, mode)")]
    if nested:
        functions.append(function("Outer", parameters, "b", f"b = own.Drop ({parameters})", domains=["own"]))
    mode = "" if inside else ", computed" if trains is None else ", trains"
    tensors = ["x", *(f"d{number}" for number in range(calls))]
    body = ["computed = Not (trains)"] if trains is None else []
    for source, target in pairwise(tensors):
        body.append(f"{target} = own.{'Outer' if nested else 'Drop'} ({source}, share{mode})")
    return parsed(
        "float[N, 8] x",
        "float[N, 8] y",
        f"{' '.join(body)} y = MatMul ({tensors[-1]}, w)",
        " ".join(functions),
        ir_version=9,
        domains=["own"],
        w=np.eye(8, dtype=np.float32),
        share=np.float32(0.5),
        trains=np.array(bool(trains)),
    )


@pytest.mark.parametrize(
    "options", [{}, {"calls": 3}, {"nested": True}, {"nested": True, "calls": 2}, {"inside": True}]
)
def test_a_dropout_in_a_function_drops_nothing(options):
    source, x = in_functions(True, **options), normal(4, 8)
    with pytest.warns(UserWarning, match=rf"{options.get('calls', 1)} Dropout"):
        loaded = load_model(source)
    np.testing.assert_array_equal(open_model(loaded).run({"x": x})[0], x)


@pytest.mark.parametrize("trains", [False, None])
def test_a_dropout_in_a_function_whose_mode_is_off_or_computed_stays(trains):
    nodes = load_model(in_functions(trains)).graph_model.graph
    assert [len(node.inputs) for node in nodes if node.op_type == "Dropout"] == [3]


RANDOM_NODES_X = normal(16, 8)


def random_nodes_model(body, functions=""):
    """Noise is added to what a product reads."""
    body = f"{body} sum = Add (x, noise) y = MatMul (sum, w)"
    ends = "float[N, 8] x", "float[N, 8] y"
    return parsed(*ends, body, functions, ir_version=9, domains=["own"], w=normal(8, 8, seed=1))


PLAIN = random_nodes_model("noise = RandomNormalLike (x)")
BRANCH = """yes = Constant <value = bool {1}> ()
    noise = If (yes) <
        then_branch = drawn () => (float[N, 8] a) { a = RandomUniformLike (x) },
        else_branch = kept () => (float[N, 8] b) { b = Identity (x) }>"""
FUNCTION = function("Noise", "value", "out", "out = RandomNormalLike (value)")


@pytest.mark.parametrize(
    ("made", "found"),
    [
        (PLAIN, ["noise"]),
        (random_nodes_model(BRANCH), ["a"]),
        (random_nodes_model("noise = own.Noise (x)", FUNCTION), ["noise"]),
        (random_nodes_model("p = Sigmoid (x)\nnoise = Bernoulli (p)\nb = Bernoulli (p)"), ["noise"]),
        (random_nodes_model("noise = RandomNormal <shape = [8]> ()\nb = Add (noise, x)"), ["noise"]),
        (random_nodes_model("unread = RandomNormalLike (x)\nnoise = Dropout (x)"), []),
    ],
    ids=["plain", "branch", "function", "unread too", "no input", "none"],
)
@pytest.mark.filterwarnings("ignore:.* draws random numbers")
def test_nodes_whose_random_numbers_are_read_are_found(made, found):
    assert [node.outputs[0].name for node in random_nodes(load_model(made).graph_model)] == found


def test_a_random_model_is_said_to_be_one():
    with pytest.warns(UserWarning, match=r"'model' .*\('noise', from RandomNormalLike\)"):
        trtint8.calibrate(PLAIN, RANDOM_NODES_X, method="minmax", progress=False)
    two = random_nodes_model("a = RandomUniformLike (x)\nb = RandomUniformLike (x)\nnoise = Add (a, b)")
    with pytest.warns(UserWarning, match=r"\('a', from RandomUniformLike, and 1 more\)"):
        load_model(two)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_model(random_nodes_model("noise = Dropout (x)"))


def test_it_is_said_once_in_a_command(tmp_path, capsys):
    onnx.save(PLAIN, tmp_path / "m.onnx")
    np.savez(tmp_path / "x.npz", x=RANDOM_NODES_X)
    names = {name: str(tmp_path / name) for name in ("m.onnx", "x.npz", "t.json", "q.onnx")}
    calibrate = ["calibrate", names["m.onnx"], names["x.npz"], "-o", names["t.json"]]
    quantize = ["quantize", names["m.onnx"], names["t.json"], "-o", names["q.onnx"]]
    validate = ["validate", names["q.onnx"], names["x.npz"], "--reference", names["m.onnx"]]
    for command in (calibrate, quantize, validate):
        assert main(command) == 0
        assert capsys.readouterr().err.count("'m.onnx' draws random numbers") == 1
