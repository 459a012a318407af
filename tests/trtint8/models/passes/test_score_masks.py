"""What is known of the masks between a product and a softmax."""

import numpy as np
import onnx_ir as ir
import pytest

from tests.trtint8.onnx_models import Shaped
from trtint8.models.passes.score_masks import score_masks

LOW = -np.inf
LOWEST = np.finfo(np.float32).min


def masks_of(*steps):
    """The masks behind a product; a step is an operator, a constant and whether the constant comes first."""
    g = Shaped()
    value = g.op("MatMul", ["x", g.weights(3, 3)], "product")
    for number, (operator, constant, *first) in enumerate(steps):
        operands = [value, g.constant(np.asarray(constant, np.float32))]
        if operator == "Where":
            operands = ["seen", *operands]
        value = g.op(operator, operands[::-1] if first else operands, f"step{number}")
    model = g.model({"x": [2, 3], "seen": [2, 3]}, g.op("Softmax", [value], "softmax", axis=-1))
    graph = ir.from_proto(model).graph
    return score_masks(graph.outputs[0].producer().inputs[0])


def test_no_mask():
    assert masks_of(("Mul", 0.5), ("Div", 2.0)) == ()


@pytest.mark.parametrize("operator", ["Slice", "Tile", "Flatten", "Transpose"])
def test_a_chosen_mask_may_be_moved(operator):
    g = Shaped()
    product = g.op("MatMul", ["x", g.weights(3, 3)], "product")
    mask = g.op("Where", ["seen", g.constant(np.float32(0)), g.constant(np.float32(LOW))], "choice")
    others = {"Slice": [[0], [3], [1]], "Tile": [[1, 1]]}.get(operator, [])
    mask = g.op(operator, [mask, *(g.constant(np.array(values)) for values in others)], "moved")
    scores = g.op("Add", [product, mask], "masked")
    model = g.model({"x": [3, 3], "seen": [3, 3]}, g.op("Softmax", [scores], "softmax", axis=-1))
    graph = ir.from_proto(model).graph
    (found,) = score_masks(graph.outputs[0].producer().inputs[0])
    assert found.choice.name == "choice" and found.values.tolist() == [0, LOW]


@pytest.mark.parametrize(("operator", "first"), [("Div", [True]), ("Pow", []), ("Sub", [])])
def test_other_operators_are_not_followed(operator, first):
    assert masks_of((operator, 2.0, *first)) is None


@pytest.mark.parametrize("factor", [0.0, np.inf, np.nan])
def test_factors_that_lose_the_scores(factor):
    assert masks_of(("Mul", factor)) is None


@pytest.mark.parametrize(
    ("mask", "hides"),
    [
        ([0, LOW, LOW], False),
        ([LOW] * 3, True),
        ([[0, 0, LOW], [LOW] * 3], True),
        ([[LOW]], True),
        (-1e9, False),
    ],
)
def test_constant_masks(mask, hides):
    (found,) = masks_of(("Add", mask))
    assert (found.may_hide_a_row, found.choice, found.addition.op_type) == (hides, None, "Add")


def test_biases_are_no_masks():
    assert masks_of(("Add", [1.0, 2, 3]), ("Add", [LOW, 0, 0]), ("Add", -5000.0))[0].values.tolist() == [
        LOW,
        0,
        0,
    ]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_masks_that_are_no_masks(bad):
    assert masks_of(("Add", [0, 0, bad])) is None


def test_a_mask_that_is_scaled_beyond_float32():
    assert len(masks_of(("Add", [0, 0, LOWEST]), ("Mul", 0.5))) == 1
    assert masks_of(("Add", [0, 0, LOWEST]), ("Mul", 2.0)) is None
    assert masks_of(("Add", [0, 0, LOWEST]), ("Div", 0.5)) is None
    assert len(masks_of(("Mul", 8.0), ("Add", [0, 0, LOWEST]))) == 1


@pytest.mark.parametrize(("constant", "hides"), [(LOW, True), (-1e9, False)])
def test_scores_that_a_where_replaces(constant, hides):
    (found,) = masks_of(("Where", constant))
    assert found.choice is found.addition and found.may_hide_a_row == hides
    assert found.values.tolist() == [np.float32(constant)]
