"""Guards against NaN behind a softmax: removed where the softmax makes none."""

import numpy as np
import pytest

from calibrators.host.onnx_session import open_session
from tests.trtint8.onnx_models import Shaped
from trtint8.models.model import load_model, prepare, to_proto
from trtint8.models.passes.nan_guards import RemoveNanGuardsPass

LOW = -np.inf


def guarded(mask=None, operator="Add", scores=None, axis=-1, replacement=0.0):
    """Scores with a mask, their softmax, and a Where behind it."""
    g = Shaped()
    inputs = {"x": ["N", 2, 3, 3]}
    value = g.op("MatMul", ["x", g.weights(3, 3)], "product") if scores is None else scores(g, inputs)
    value = g.op("Mul", [value, g.constant(np.float32(0.5))], "scale")
    if isinstance(mask, str):
        inputs[mask] = ["N", 1, 1, 3]
        value = g.op(operator, [value, mask], "masked")
    elif mask is not None:
        value = g.op(operator, [value, g.constant(np.array(mask, np.float32))], "masked")
    softmax = g.op("Softmax", [value], "softmax", axis=axis)
    where = g.op(
        "Where", [g.op("IsNaN", [softmax], "nan"), g.constant(np.float32(replacement)), softmax], "where"
    )
    return g.model(inputs, g.op("MatMul", [where, g.weights(3, 3)], "last"))


def masked_product(g, mask):
    """A product with a mask of its own."""
    product = g.op("MatMul", ["x", g.weights(3, 3)], "product")
    return g.op("Add", [product, g.constant(np.array(mask, np.float32))], "first_mask")


def operators(model):
    return [node.op_type for node in prepare(load_model(model)).graph_model.graph]


@pytest.mark.parametrize(
    "mask", [None, [0.0, LOW, LOW], np.triu(np.full((3, 3), LOW), 1), np.full((1, 1, 3, 3), -1e9), [[0.0]]]
)
def test_a_guard_that_guards_nothing_is_removed(mask):
    model = guarded(mask)
    assert not {"Where", "IsNaN"} & set(operators(model))
    x = {"x": np.random.default_rng(0).standard_normal((2, 2, 3, 3)).astype(np.float32)}
    before, after = (
        open_session(serialized.SerializeToString(), optimize=False).run(None, x)[0]
        for serialized in (model, to_proto(prepare(load_model(model)).graph_model))
    )
    assert np.isfinite(before).all() and (before == after).all()


@pytest.mark.parametrize(
    "kept",
    [
        guarded([[0.0, 0, 0], [LOW] * 3, [0, 0, 0]]),
        guarded([[0.0], [LOW], [0]]),
        guarded([np.nan, 0, 0]),
        guarded([np.inf, 0, 0]),
        guarded("mask"),
        guarded([0.0, 0, LOW], operator="Div"),
        guarded([0.0, LOW, LOW], axis=1),
        guarded(replacement=1.0),
        guarded(scores=lambda g, inputs: "x"),
        guarded(scores=lambda g, inputs: g.op("Log", ["x"], "log")),
        guarded([0.0, LOW, LOW], scores=lambda g, inputs: masked_product(g, [LOW, 0.0, 0.0])),
    ],
    ids=[
        "row",
        "broadcast row",
        "NaN",
        "infinity",
        "input",
        "divided",
        "axis",
        "one",
        "bare",
        "log",
        "two masks that hide a row together",
    ],
)
def test_guards_that_may_guard_stay(kept):
    assert {"Where", "IsNaN"} <= set(operators(kept))


def test_a_second_reader_of_the_check_stays():
    g = Shaped()
    softmax = g.op("Softmax", [g.op("MatMul", ["x", g.weights(3, 3)], "product")], "softmax", axis=-1)
    check = g.op("IsNaN", [softmax], "nan")
    where = g.op("Where", [check, g.constant(np.float32(0)), softmax], "where")
    y = g.op("Add", [where, g.op("Cast", [check], "cast", to=1)], "add")
    graph_model = load_model(g.model({"x": [2, 3]}, y)).graph_model.clone()
    assert RemoveNanGuardsPass()(graph_model).modified
    assert [node.op_type for node in graph_model.graph] == ["MatMul", "Softmax", "IsNaN", "Cast", "Add"]
    assert not RemoveNanGuardsPass()(graph_model).modified
