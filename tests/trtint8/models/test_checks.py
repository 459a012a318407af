"""Nodes that have the name of another."""

import warnings

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

import trtint8
from calibrators.errors import ModelError
from calibrators.host.weights import LightModel
from tests.trtint8.onnx_models import conv_relu_conv, save_external
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
    message = onnx.ModelProto.FromString(content)
    with pytest.raises(
        ModelError, match=r"'m.onnx' holds the name b'.*', which is not UTF-8; export it again"
    ):
        check_names(message, "m.onnx")
    with pytest.raises(ModelError, match="which is not UTF-8"):
        load_model(content)


def test_text_passes():
    model = conv_relu_conv(names=("étage", "второй"))
    check_names(model, "m.onnx")


def test_a_place_of_weights_that_is_no_text_is_refused(tmp_path):
    path = save_external(conv_relu_conv(False), tmp_path)
    path.write_bytes(path.read_bytes().replace(b"weights.bin", b"weights.b\xffn", 1))
    with pytest.raises(ModelError, match=r"'m.*' holds the name b'weights.b\\xffn', which is not UTF-8"):
        load_model(path)


MODEL = """
    <ir_version: 8, opset_import: ["": 17]>
    g (float[N, 4] x, bool keep) => (float[N, 4] y)
    <float[4, 4] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6, 7}>
    {
        [product] a = MatMul(x, w)
        [MatMul_c] b = MatMul(a, w)
        [product] c = MatMul(b, w)
        d = Relu(c)
        e = Relu(d)
        [choice] y = If(keep) <
            then_branch = then () => (float[N, 4] t) { [product] s = Relu(e) [product] t = Relu(s) },
            else_branch = other () => (float[N, 4] o) { [product] o = Relu(e) }
        >
    }
"""


def names(graph):
    return [node.name for node in graph.node]


def test_later_nodes_are_named_after_their_operator_and_output():
    message = onnx.parser.parse_model(MODEL)
    name_nodes_apart(message)
    assert names(message.graph) == ["product", "MatMul_c", "MatMul_c_1", "", "", "choice"]
    branches = {attribute.name: names(attribute.g) for attribute in message.graph.node[-1].attribute}
    assert branches == {"then_branch": ["product", "Relu_t"], "else_branch": ["product"]}


def test_names_that_are_unique_stay():
    message = onnx.parser.parse_model(MODEL)
    name_nodes_apart(message)
    before = message.SerializeToString()
    name_nodes_apart(message)
    assert message.SerializeToString() == before


def test_a_model_with_such_nodes_is_its_own_reference():
    """ONNX Runtime refuses two nodes of one name, and calibration worked with others."""
    source = onnx.parser.parse_model(MODEL)
    data = {"x": np.random.default_rng(0).standard_normal((16, 4)).astype(np.float32), "keep": np.array(True)}
    prepared = [node.name for node in prepare(load_model(source)).graph_model.graph]
    assert prepared[:3] == ["product", "MatMul_c", "MatMul_c_1"]
    quantized = trtint8.quantize(source, trtint8.calibrate(source, [data], progress=False))
    accuracy = trtint8.validate(quantized, [data], reference=source, progress=False)
    assert accuracy.outputs[0].sqnr_db > 30


def test_nodes_of_functions_as_well():
    body = [
        onnx.helper.make_node("MatMul", ["a", "b"], ["t"], "same"),
        onnx.helper.make_node("Relu", ["t"], ["c"], "same"),
    ]
    opset = onnx.helper.make_opsetid("", 17)
    message = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["": 17, "my": 1]> '
        "g (float[N, 4] x) => (float[N, 4] y) <float[4, 4] w = "
        "{1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6, 7}> { y = my.Layer(x, w) }"
    )
    message.functions.append(onnx.helper.make_function("my", "Layer", ["a", "b"], ["c"], body, [opset]))
    data = np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32)
    quantized = trtint8.quantize(message, trtint8.calibrate(message, data, progress=False), progress=False)
    (result,) = trtint8.validate(quantized, data, reference=message, progress=False).outputs
    assert result.sqnr_db > 30


def test_graphs_without_a_name():
    message = onnx.parser.parse_model(MODEL)
    message.graph.name = message.graph.node[-1].attribute[0].g.name = ""
    name_graphs(message)
    assert message.graph.name and message.graph.node[-1].attribute[0].g.name
    message.graph.name = ""
    assert load_model(message).graph_model.graph.name


@pytest.mark.parametrize("nested", [False, True])
def test_outputs_that_are_left_out_amid_a_list_are_named(nested):
    """ONNX Runtime ends the process with such a Split."""
    random = np.random.default_rng(0)
    weights, last = (random.standard_normal(shape).astype(np.float32) for shape in ((8, 8), (3, 4)))
    split = [
        onnx.helper.make_node("Split", ["m", "sizes"], ["a", "", "b"], "split", axis=1),
        onnx.helper.make_node("Sub", ["a", "b"], ["d"], "difference"),
    ]
    if nested:
        value = onnx.helper.make_tensor_value_info("d", onnx.TensorProto.FLOAT, None)
        branch = onnx.helper.make_graph(split, "branch", [], [value])
        split = [onnx.helper.make_node("If", ["c"], ["d_"], "if", then_branch=branch, else_branch=branch)]
    nodes = [
        onnx.helper.make_node("MatMul", ["x", "weights"], ["m"], "layer"),
        *split,
        onnx.helper.make_node("MatMul", [split[-1].output[0], "last"], ["y"], "last"),
    ]
    constants = {
        "weights": weights,
        "last": last,
        "sizes": np.array([3, 2, 3]),
        "c": np.array(True),
    }
    graph = onnx.helper.make_graph(
        nodes,
        "g",
        [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["N", 8])],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["N", 4])],
        [onnx.numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    x = random.standard_normal((16, 8)).astype(np.float32)
    table = trtint8.calibrate(model, {"x": x}, method="minmax", progress=False)
    quantized = trtint8.quantize(model, table, progress=False)
    wanted = ((x @ weights)[:, :3] - (x @ weights)[:, 5:]) @ last
    assert np.abs(run(quantized, {"x": x}) - wanted).max() < 0.05 * np.abs(wanted).max()


def model(nodes, weights=()):
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 4])],
        list(weights),
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def chain(length):
    names = ["x", *(f"t{i}" for i in range(length - 1)), "y"]
    return [helper.make_node("Relu", [names[i]], [names[i + 1]], name=f"relu{i}") for i in range(length)]


@settings(max_examples=50)
@given(st.permutations(range(6)))
def test_a_chain_in_any_order_is_put_in_order(order):
    nodes = chain(6)
    message = model([nodes[i] for i in order])
    sort_nodes(message)
    assert names(message.graph) == [f"relu{i}" for i in range(6)]
    onnx.checker.check_model(message)


def test_nodes_that_are_in_order_stay_where_they_are():
    nodes = [
        helper.make_node("Relu", ["x"], ["b"], name="later"),
        helper.make_node("Neg", ["x"], ["a"], name="earlier"),
        helper.make_node("Add", ["a", "b"], ["y"], name="sum"),
    ]
    message = model(nodes)
    sort_nodes(message)
    assert names(message.graph) == ["later", "earlier", "sum"]


def test_what_a_branch_reads_comes_before_its_node():
    kinds = {"then_branch": "Identity", "else_branch": "Neg"}
    branches = {
        key: helper.make_graph(
            [helper.make_node(kind, ["a"], [f"{kind}_out"])],
            kind,
            [],
            [helper.make_tensor_value_info(f"{kind}_out", TensorProto.FLOAT, None)],
        )
        for key, kind in kinds.items()
    }
    condition = onnx.numpy_helper.from_array(np.array(True), "condition")
    message = model(
        [
            helper.make_node("If", ["condition"], ["y"], name="if", **branches),
            helper.make_node("Relu", ["x"], ["a"], name="relu"),
        ],
        [condition],
    )
    sort_nodes(message)
    assert names(message.graph) == ["relu", "if"]


def test_a_cycle_is_left_to_the_checker():
    nodes = [
        helper.make_node("Add", ["x", "b"], ["a"], name="first"),
        helper.make_node("Relu", ["a"], ["b"], name="second"),
        helper.make_node("Relu", ["b"], ["y"], name="third"),
    ]
    message = model(nodes)
    sort_nodes(message)
    assert names(message.graph) == ["first", "second", "third"]
    with pytest.raises(trtint8.ModelError, match="is not a valid ONNX model"):
        trtint8.quantize(message, trtint8.CalibrationTable({}))


def test_a_cast_at_the_end_of_the_graph_is_no_obstacle(tmp_path):
    weights = onnx.numpy_helper.from_array(np.eye(4, dtype=np.float16), "w")
    nodes = [
        helper.make_node("MatMul", ["half", "w"], ["product"], name="matmul"),
        helper.make_node("Cast", ["x"], ["half"], name="cast_in", to=TensorProto.FLOAT16),
        helper.make_node("Cast", ["product"], ["y"], name="cast_out", to=TensorProto.FLOAT),
    ]
    path = tmp_path / "half.onnx"
    onnx.save(model(nodes, [weights]), path)
    data = np.random.default_rng(0).standard_normal((8, 4)).astype(np.float32)
    table = trtint8.calibrate(path, data, progress=False)
    accuracy = trtint8.validate(trtint8.quantize(path, table), data, reference=path, progress=False)
    assert accuracy.outputs[0].sqnr_db > 30


def ir_versions_model(version, *opsets):
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"], name="matmul")],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 3])],
        [onnx.numpy_helper.from_array(np.eye(4, 3, dtype=np.float32), "w")],
    )
    imports = [helper.make_opsetid(*opset) for opset in opsets]
    return helper.make_model(graph, opset_imports=imports, ir_version=version)


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
    data = np.random.default_rng(0).standard_normal((10, 4)).astype(np.float32)
    source = ir_versions_model(onnx.IR_VERSION, ("", 17))
    quantized = trtint8.quantize(source, trtint8.calibrate(source, data, progress=False))
    assert quantized.ir_version == 10
    assert trtint8.validate(quantized, data, reference=source, progress=False).samples == 10


def with_listed_weights(*opsets):
    """A model as exporters wrote it for version 3, which onnx's checker takes in this form only."""
    message = ir_versions_model(3, *opsets)
    weight = helper.make_tensor_value_info("w", TensorProto.FLOAT, [4, 3])
    message.graph.input.append(weight)
    onnx.checker.check_model(message)
    return message


@pytest.mark.parametrize("opset", [11, 17])
def test_weights_that_old_exporters_listed_as_inputs_become_constants(opset, tmp_path):
    data = np.random.default_rng(0).standard_normal((10, 4)).astype(np.float32)
    source = with_listed_weights(("", opset))
    table = trtint8.calibrate(source, data, progress=False)
    quantized = trtint8.quantize(source, table)
    onnx.checker.check_model(quantized, full_check=True)
    assert [value.name for value in quantized.graph.input] == ["x"]
    migrated = trtint8.migrate(source, table).save(tmp_path / "migrated.onnx")
    mended = trtint8.mend(migrated).save(tmp_path / "mended.onnx")
    for path in (migrated, mended):
        onnx.checker.check_model(onnx.load(path), full_check=True)
    assert trtint8.validate(mended, data, reference=source, progress=False).outputs[0].sqnr_db > 30


def complete_nodes_model(operator, inputs, domain="", **attributes):
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 4]) for name in "xy"]
    node = helper.make_node(operator, inputs, ["y"], "n", domain=domain, **attributes)
    weights = [numpy_helper.from_array(np.ones((4, 4), np.float32), "w")]
    graph = helper.make_graph([node], "g", ends[:1], ends[1:], weights)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


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


def _conv_and_more(constants, guarded=False):
    """A convolution, a normalization, a layer and a sum, with constants by name."""
    random = np.random.default_rng(0)
    arrays = {
        "kernel": random.standard_normal((4, 3, 3, 3)),
        "bias": random.standard_normal(4),
        **{name: np.ones(4) for name in ("scale", "shift", "mean", "variance", "added", "table")},
        "weights": random.standard_normal((4, 4)),
    }
    arrays = {name: constants.get(name, array).astype(np.float32) for name, array in arrays.items()}
    nodes = [
        helper.make_node("Conv", ["x", "kernel", "bias"], ["c"], "conv"),
        helper.make_node("BatchNormalization", ["c", "scale", "shift", "mean", "variance"], ["n"], "norm"),
        helper.make_node("GlobalAveragePool", ["n"], ["p"], "pool"),
        helper.make_node("Flatten", ["p"], ["f"], "flat"),
        helper.make_node("MatMul", ["f", "weights"], ["m"], "layer"),
        helper.make_node("Add", ["m", "added"], ["a"], "sum"),
        helper.make_node("IsNaN" if guarded else "IsInf", ["a"], ["lost"], "lost"),
        helper.make_node("Where", ["lost", "table", "a"], ["y"], "chosen"),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 4])],
        [numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


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
    with pytest.raises(ModelError, match=f"'{name}' .*'{node}' .* NaN 3 times among {array.size} "):
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
    if taken:
        assert load_model(model).name == "model"
    else:
        with pytest.raises(ModelError, match=f"'{name}' .* infinity "):
            load_model(model)


def test_nan_that_a_network_looks_for_is_taken():
    constants = {"added": np.array([0, 1, np.nan, 2])}
    assert load_model(_conv_and_more(constants, guarded=True)).name == "model"


@pytest.mark.parametrize("dtype", [TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE])
def test_weights_of_other_types_that_are_not_numbers(dtype):
    faulty = complete_nodes_model("MatMul", ["x", "w"])
    for value in (*faulty.graph.input, *faulty.graph.output):
        value.type.tensor_type.elem_type = dtype
    values = [1.0] * 14 + [float("nan")] * 2
    faulty.graph.initializer[0].CopyFrom(helper.make_tensor("w", dtype, (4, 4), values))
    with pytest.raises(ModelError, match=r"'w' .* NaN 2 times among 16 "):
        load_model(faulty)


def test_weights_that_a_function_is_given_are_named():
    body = [helper.make_node("MatMul", ["a", "b"], ["c"], "inner")]
    faulty = complete_nodes_model("Layer", ["x", "w"], domain="own")
    imports = [helper.make_opsetid("", 17)]
    faulty.functions.append(helper.make_function("own", "Layer", ["a", "b"], ["c"], body, imports))
    faulty.opset_import.append(helper.make_opsetid("own", 1))
    assert load_model(faulty).name == "model"
    faulty.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.full((4, 4), np.nan, np.float32), "w"))
    with pytest.raises(ModelError, match=r"'w' .* NaN 16 times"):
        load_model(faulty)


def test_weights_of_a_quantized_model_that_are_not_numbers(tmp_path, capsys):
    faulty = _conv_and_more({})
    constants = {one.name: one for one in faulty.graph.initializer}
    faulty.graph.initializer.extend(
        [
            numpy_helper.from_array(np.float32(0.1), "step"),
            numpy_helper.from_array(np.int8(0), "zero"),
        ]
    )
    faulty.graph.node[4].input[1] = "w_dq"
    pair = [
        helper.make_node("QuantizeLinear", ["weights", "step", "zero"], ["w_q"], "w_q"),
        helper.make_node("DequantizeLinear", ["w_q", "step", "zero"], ["w_dq"], "w_dq"),
    ]
    nodes = [*pair, *faulty.graph.node]
    del faulty.graph.node[:]
    faulty.graph.node.extend(nodes)
    onnx.save(faulty, tmp_path / "m.onnx")
    assert main(["lint", str(tmp_path / "m.onnx")]) == 0
    constants["weights"].CopyFrom(numpy_helper.from_array(np.full((4, 4), np.nan, np.float32), "weights"))
    onnx.save(faulty, tmp_path / "m.onnx")
    capsys.readouterr()
    for verb in (["lint"], ["lint", "--fix", "-o", str(tmp_path / "n.onnx")]):
        assert main([verb[0], str(tmp_path / "m.onnx"), *verb[1:]]) == 2
        error = capsys.readouterr().err
        assert "'weights'" in error and "'w_q'" in error and "16" in error
    assert not (tmp_path / "n.onnx").exists()


X = np.random.default_rng(0).standard_normal((32, 3, 8, 8)).astype(np.float32)


def training_mode_model(*, trains=True, as_node=False, outputs=("y",), statistics=False):
    """A convolution, a normalization and a Dropout, which a second convolution reads."""
    random = np.random.default_rng(1)
    constants = {
        "w": 0.2 * random.standard_normal((4, 3, 3, 3)),
        "v": 0.2 * random.standard_normal((4, 4, 1, 1)),
        "scale": np.arange(1, 5),
        "shift": np.zeros(4),
        "mean": np.full(4, 0.1),
        "variance": np.full(4, 2.0),
        "share": np.array(0.5),
    }
    tensors = [numpy_helper.from_array(array.astype(np.float32), name) for name, array in constants.items()]
    mode = numpy_helper.from_array(np.array(trains), "trains")
    normalized = ["n", "new_mean", "new_variance"] if trains else ["n"]
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node(
            "BatchNormalization",
            ["c", "scale", "shift", "mean", "variance"],
            normalized,
            name="norm",
            training_mode=int(trains),
        ),
        helper.make_node("Dropout", ["n", "share", "trains"], ["d"], name="drop"),
        helper.make_node("Conv", ["d", "v"], ["y"]),
    ]
    if as_node:
        nodes.insert(0, helper.make_node("Constant", [], ["trains"], value=mode))
    else:
        tensors.append(mode)
    info = helper.make_tensor_value_info
    declared = [info(name, TensorProto.FLOAT, ["N", 4, 6, 6] if name == "y" else [4]) for name in outputs]
    graph = helper.make_graph(nodes, "g", [info("x", TensorProto.FLOAT, ["N", 3, 8, 8])], declared, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 15)], ir_version=8)


def switched(message, weights=None):
    return switch_to_inference(LightModel(message, weights or {}))


def node(message, name):
    return next(node for node in message.graph.node if node.name == name)


@pytest.mark.parametrize("as_node", [False, True])
def test_nodes_in_training_mode_are_switched(as_node):
    message = training_mode_model(as_node=as_node)
    assert switched(message) == ["BatchNormalization", "Dropout"]
    assert list(node(message, "drop").input) == ["n", "share"]
    assert list(node(message, "norm").output) == ["n"]
    assert not node(message, "norm").attribute
    wanted = onnxruntime.InferenceSession(training_mode_model(trains=False).SerializeToString()).run(
        None, {"x": X}
    )
    found = onnxruntime.InferenceSession(message.SerializeToString()).run(None, {"x": X})
    np.testing.assert_array_equal(found[0], wanted[0])


def test_a_model_in_inference_mode_stays_as_it_is():
    message = training_mode_model(trains=False)
    before = message.SerializeToString()
    assert switched(message) == []
    assert message.SerializeToString() == before


def test_what_is_computed_or_read_stays():
    message = training_mode_model(outputs=("y", "new_mean"))
    node(message, "drop").input[2] = "asked"
    message.graph.input.append(helper.make_tensor_value_info("asked", TensorProto.BOOL, []))
    assert switched(message) == []


def test_a_normalization_without_statistics_of_its_own_stays():
    message = training_mode_model()
    for tensor in message.graph.initializer:
        if tensor.name in ("mean", "variance"):
            array = np.full(4, tensor.name == "variance", np.float32)
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    assert switched(message) == ["Dropout"]
    assert list(node(message, "norm").output) == ["n", "new_mean", "new_variance"]


@pytest.mark.parametrize(("mean", "found"), [(0.1, ["BatchNormalization", "Dropout"]), (0.0, ["Dropout"])])
def test_statistics_that_lie_apart_from_the_message(mean, found):
    light = LightModel.parse(training_mode_model().SerializeToString())
    weights = {"mean": np.full(4, mean, np.float32), "variance": np.ones(4, np.float32)}
    for tensor in light.message.graph.initializer:
        if tensor.name in weights:
            tensor.ClearField("raw_data")
            tensor.data_location = TensorProto.EXTERNAL
    assert switched(light.message, weights) == found


def test_statistics_in_another_file_are_not_read():
    message = training_mode_model()
    for tensor in message.graph.initializer:
        if tensor.name == "mean":
            tensor.data_location = TensorProto.EXTERNAL
    assert switched(message) == ["Dropout"]


def test_ranges_are_those_of_inference_and_a_warning_says_so():
    with pytest.warns(UserWarning, match="'model' was exported in training mode, and 1 BatchNormalization "):
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
    with pytest.warns(UserWarning, match="1 BatchNormalization and 2 Dropout nodes compute as in inference"):
        load_model(message)


def in_functions(trains, *, calls=1, nested=False, inside=False):
    """A Dropout in a function, which gets its mode from each call, or from within."""
    drop = helper.make_node("Dropout", ["a", "share", "mode"], ["b"], name="drop")
    nodes = [drop]
    if inside:
        mode = numpy_helper.from_array(np.array(trains), "mode")
        nodes.insert(0, helper.make_node("Constant", [], ["mode"], value=mode))
    parameters = ["a", "share"] if inside else ["a", "share", "mode"]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("my", 1)]
    functions = [helper.make_function("my", "Drop", parameters, ["b"], nodes, opsets)]
    called = "Drop"
    if nested:
        call = helper.make_node("Drop", parameters, ["b"], domain="my")
        functions.append(helper.make_function("my", "Outer", parameters, ["b"], [call], opsets))
        called = "Outer"
    last, body = "x", []
    for number in range(calls):
        arguments = [last, "share"] if inside else [last, "share", "computed" if trains is None else "trains"]
        last = f"d{number}"
        body.append(helper.make_node(called, arguments, [last], domain="my"))
    if trains is None:
        body.insert(0, helper.make_node("Not", ["trains"], ["computed"]))
    body.append(helper.make_node("MatMul", [last, "w"], ["y"]))
    constants = {"w": np.eye(8, dtype=np.float32), "share": np.float32(0.5), "trains": np.array(bool(trains))}
    tensors = [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()]
    info = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 8]) for name in "xy"]
    graph = helper.make_graph(body, "g", info[:1], info[1:], tensors)
    return helper.make_model(graph, opset_imports=opsets, ir_version=9, functions=functions)


@pytest.mark.parametrize(
    "options", [{}, {"calls": 3}, {"nested": True}, {"nested": True, "calls": 2}, {"inside": True}]
)
def test_a_dropout_in_a_function_drops_nothing(options):
    source = in_functions(True, **options)
    assert switched(source) == ["Dropout"]
    x = np.ones((4, 8), np.float32)
    session = onnxruntime.InferenceSession(source.SerializeToString())
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], x)
    with pytest.warns(UserWarning, match="exported in training mode, and 1 Dropout"):
        trtint8.model_inputs(in_functions(True, **options))


@pytest.mark.parametrize("trains", [False, None])
def test_a_dropout_in_a_function_whose_mode_is_off_or_computed_stays(trains):
    source = in_functions(trains)
    before = source.SerializeToString()
    assert switched(source) == [] and source.SerializeToString() == before


def test_functions_that_call_each_other_end():
    source = in_functions(True, nested=True)
    source.functions[0].node.append(helper.make_node("Outer", ["b", "share", "mode"], ["more"], domain="my"))
    assert switched(source) == ["Dropout"]


RANDOM_NODES_X = np.random.default_rng(0).standard_normal((16, 8)).astype(np.float32)


def random_nodes_model(body, functions=""):
    """Noise is added to what a product reads."""
    made = onnx.parser.parse_model(
        f"""<ir_version: 9, opset_import: ["": 17, "own": 1]>
        noisy (float[N, 8] x) => (float[N, 8] y) {{
            {body}
            sum = Add (x, noise)
            y = MatMul (sum, w)
        }}{functions}"""
    )
    weights = np.random.default_rng(1).standard_normal((8, 8)).astype(np.float32)
    made.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    return made


PLAIN = random_nodes_model("noise = RandomNormalLike (x)")
BRANCH = """yes = Constant <value = bool {1}> ()
    noise = If (yes) <
        then_branch = drawn () => (float[N, 8] a) { a = RandomUniformLike (x) },
        else_branch = kept () => (float[N, 8] b) { b = Identity (x) }>"""
FUNCTION = """
    <domain: "own", opset_import: ["": 17]>
    Noise (value) => (out) { out = RandomNormalLike (value) }"""


@pytest.mark.parametrize(
    ("made", "found"),
    [
        (PLAIN, ["noise"]),
        (random_nodes_model(BRANCH), ["a"]),
        (random_nodes_model("noise = own.Noise (x)", FUNCTION), ["out"]),
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
    said = r"'model' draws random numbers \('noise', from RandomNormalLike\), so two runs on the same samples"
    with pytest.warns(UserWarning, match=said):
        trtint8.calibrate(PLAIN, RANDOM_NODES_X, method="minmax", progress=False)
    two = random_nodes_model("a = RandomUniformLike (x)\nb = RandomUniformLike (x)\nnoise = Add (a, b)")
    with pytest.warns(UserWarning, match=r"\('a', from RandomUniformLike, and 1 more\)"):
        load_model(two)


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


def test_a_model_without_random_numbers_gets_no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_model(random_nodes_model("noise = Dropout (x)"))
