"""Which integers an input takes, by what the graph does with it."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import trtint8
from calibrators.errors import CalibrationDataError
from trtint8.models.model import load_model


def bounds(nodes, *, initializers=(), outputs=("y",), dtype=TensorProto.INT64):
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("ids", dtype, ["N", 6])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in dict(initializers).items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    return [spec.bound for spec in load_model(model).inputs]


TABLE = {"table": np.zeros((50, 4), np.float32)}


def test_tokens_are_rows_of_the_table():
    assert bounds([helper.make_node("Gather", ["table", "ids"], ["y"])], initializers=TABLE) == [50]


def test_tokens_may_be_converted_and_reshaped_first():
    nodes = [
        helper.make_node("Cast", ["ids"], ["c"], to=TensorProto.INT32),
        helper.make_node("Reshape", ["c", "shape"], ["r"]),
        helper.make_node("Gather", ["table", "r"], ["y"]),
    ]
    assert bounds(nodes, initializers=TABLE | {"shape": np.array([-1])}) == [50]


def test_tokens_may_be_cut_first():
    nodes = [
        helper.make_node("Slice", ["ids", "from", "to", "axis"], ["first"]),
        helper.make_node("Gather", ["table", "first"], ["y"]),
    ]
    cut = {"from": np.array([0]), "to": np.array([4]), "axis": np.array([1])}
    assert bounds(nodes, initializers=TABLE | cut) == [50]


def test_the_smallest_of_several_tables_counts():
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["y"]),
        helper.make_node("Gather", ["small", "ids"], ["z"]),
    ]
    tables = TABLE | {"small": np.zeros((7, 2), np.float32)}
    assert bounds(nodes, initializers=tables, outputs=("y", "z")) == [7]


@pytest.mark.parametrize(
    ("operator", "others", "attributes"),
    [
        ("Slice", {"starts": [1], "ends": [3]}, {}),
        ("Gather", {"columns": [0, 2]}, {"axis": 1}),
        ("Tile", {"repeats": [1, 2]}, {}),
        ("DepthToSpace", None, {}),
        ("ReverseSequence", {"lengths": [2] * 6}, {"time_axis": 0, "batch_axis": 1}),
        ("Concat", {"padding": [[0] * 6]}, {"axis": 0}),
    ],
)
def test_tokens_may_be_moved_first(operator, others, attributes):
    if others is None:
        nodes = [
            helper.make_node("Reshape", ["ids", "images"], ["i"]),
            helper.make_node(operator, ["i"], ["m"], blocksize=1),
        ]
        constants = {"images": np.array([-1, 1, 1, 6])}
    else:
        nodes = [helper.make_node(operator, ["ids", *others], ["m"], **attributes)]
        constants = {name: np.array(values) for name, values in others.items()}
    nodes.append(helper.make_node("Gather", ["table", "m"], ["y"]))
    assert bounds(nodes, initializers=TABLE | constants) == [50]


@pytest.mark.parametrize("axis", [1, -1])
def test_columns_are_no_rows(axis):
    nodes = [helper.make_node("Gather", ["table", "ids"], ["y"], axis=axis)]
    assert bounds(nodes, initializers=TABLE) == [None]


def test_a_mask_is_converted_to_booleans_or_subtracted_from_one():
    to_bool = [
        helper.make_node("Unsqueeze", ["ids", "axes"], ["u"]),
        helper.make_node("Cast", ["u"], ["b"], to=TensorProto.BOOL),
        helper.make_node("Where", ["b", "one", "one"], ["y"]),
    ]
    constants = {"axes": np.array([1]), "one": np.ones((), np.float32)}
    assert bounds(to_bool, initializers=constants) == [2]
    subtracted = [
        helper.make_node("Cast", ["ids"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Sub", ["one", "f"], ["y"]),
    ]
    assert bounds(subtracted, initializers={"one": np.ones((1, 1), np.float32)}) == [2]
    assert bounds(subtracted, initializers={"one": np.full((), 3, np.float32)}) == [None]


def test_nothing_is_said_of_floats_and_of_other_integers():
    assert bounds([helper.make_node("Cast", ["ids"], ["y"], to=TensorProto.FLOAT)]) == [None]
    relu = [helper.make_node("Relu", ["ids"], ["y"])]
    assert bounds(relu, dtype=TensorProto.FLOAT) == [None]


W = np.eye(8, dtype=np.float32)


def attention(*mask_nodes, mask="mask", shape=("N", 1, 4), opset=17, softmax=True):
    """Scores, a mask that is an input, and values."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["q"]),
        helper.make_node("Transpose", ["x"], ["k"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["q", "k"], ["s"]),
        *mask_nodes,
        helper.make_node("Add", ["s", mask], ["m"]),
        helper.make_node("Softmax" if softmax else "Relu", ["m"], ["p"]),
        helper.make_node("MatMul", ["p", "x"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 4, 8]),
            helper.make_tensor_value_info("mask", TensorProto.FLOAT, shape),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 4, 8])],
        [
            numpy_helper.from_array(W, "w"),
            *(
                numpy_helper.from_array(np.array([number]), name)
                for name, number in (("zero", 0), ("one", 1), ("last", 2), ("four", 4))
            ),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def masked(model):
    return {spec.name: spec.hides_scores for spec in load_model(model).inputs}


def test_masks_of_scores_are_known_by_the_softmax_behind_them():
    assert masked(attention()) == {"x": False, "mask": True}
    unsqueezed = helper.make_node("Unsqueeze", ["mask", "one"], ["wide"])
    assert masked(attention(unsqueezed, mask="wide", shape=("N", 4)))["mask"]
    cut = helper.make_node("Slice", ["mask", "zero", "four", "last"], ["part"])
    assert masked(attention(cut, mask="part", shape=("N", 1, 6)))["mask"]
    assert not masked(attention(helper.make_node("Clip", ["mask"], ["c"]), mask="c"))["mask"]
    assert not masked(attention(softmax=False))["mask"]
    assert not masked(attention(helper.make_node("Exp", ["mask"], ["e"]), mask="e"))["mask"]
    assert not masked(attention(helper.make_node("MatMul", ["mask", "k"], ["also"])))["mask"]


def test_minus_infinity_is_taken_in_a_mask_of_scores_and_nowhere_else():
    x = np.random.default_rng(0).standard_normal((8, 4, 8)).astype(np.float32)
    mask = np.zeros((8, 1, 4), np.float32)
    mask[:, :, 3] = -np.inf
    model = attention()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        table = trtint8.calibrate(model, {"x": x, "mask": mask}, progress=False)
    least = np.where(mask < 0, np.finfo(np.float32).min, mask)
    assert "mask" not in table.amax, "no pair or range may stand where values are infinite"
    of_least = trtint8.calibrate(model, {"x": x, "mask": least}, progress=False)
    assert table.amax["q"] == of_least.amax["q"]
    quantized = trtint8.quantize(model, table, progress=False)
    data = {"x": x, "mask": mask}
    (result,) = trtint8.validate(quantized, data, reference=model, progress=False).outputs
    assert result.sqnr_db > 25
    for wrong in ({"x": x, "mask": -mask}, {"x": np.where(x > 2, -np.inf, x), "mask": mask}):
        with pytest.raises(CalibrationDataError, match="infinite"):
            trtint8.calibrate(model, wrong, progress=False)
