"""Nodes that leave out what their operators need are refused by name."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from calibrators.errors import ModelError
from trtint8.cli.main import main
from trtint8.models.model import load_model


def model(operator, inputs, domain="", **attributes):
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
        load_model(model(operator, inputs, domain, **attributes))


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
    assert load_model(model(operator, inputs, domain)).inputs[0].name == "x"


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
    faulty = model("MatMul", ["x", "w"])
    for value in (*faulty.graph.input, *faulty.graph.output):
        value.type.tensor_type.elem_type = dtype
    values = [1.0] * 14 + [float("nan")] * 2
    faulty.graph.initializer[0].CopyFrom(helper.make_tensor("w", dtype, (4, 4), values))
    with pytest.raises(ModelError, match=r"'w' .* NaN 2 times among 16 "):
        load_model(faulty)


def test_weights_that_a_function_is_given_are_named():
    body = [helper.make_node("MatMul", ["a", "b"], ["c"], "inner")]
    faulty = model("Layer", ["x", "w"], domain="own")
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
