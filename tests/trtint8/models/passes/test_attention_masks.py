"""Guards against NaN behind a softmax: removed where the softmax makes none."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from calibrators.host.session import open_session
from tests.trtint8.onnx_models import Shaped, parsed
from trtint8.models.model import load_model, prepare
from trtint8.models.passes.attention_masks import RemoveNanGuardsPass, score_masks
from trtint8.models.serialization import to_proto

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


def attention(choose, axes_as_input=False):
    """Two guarded attentions behind one mask; ``choose`` makes it of the input ``mask``, ones and zeros."""
    g = Shaped()
    mask = choose(g)
    value = "x"
    for number in (1, 2):
        scores = g.op("MatMul", [value, g.weights(3, 3)], f"scores{number}")
        softmax = g.op("Softmax", [g.op("Add", [mask, scores], f"add{number}")], f"softmax{number}", axis=-1)
        check = g.op("IsNaN", [softmax], f"nan{number}")
        where = g.op("Where", [check, g.constant(np.float32(0)), softmax], f"where{number}")
        value = g.op("MatMul", [where, "x"], f"context{number}")
    model = g.model({"x": ["N", 2, 3, 3], "mask": ["N", 1, 3, 3]}, g.op("Add", [value, "x"], "last"))
    if axes_as_input:
        model.opset_import[0].version = 18
    return model


def where(*constants, expanded=False):
    """A mask that a Where chooses between two constants."""

    def choose(g):
        condition = g.op("Cast", ["mask"], "condition", to=9)
        first, second = (g.constant(np.asarray(number, np.float32)) for number in constants)
        chosen = g.op("Where", [condition, first, second], "chosen")
        return g.op("Expand", [chosen, g.constant(np.array([1, 2, 3, 3]))], "expand") if expanded else chosen

    return choose


def outputs(*models):
    """What models make of the same inputs, with one row of the mask hidden as a whole, and one sample."""
    random = np.random.default_rng(0)
    mask = (random.random((4, 1, 3, 3)) < 0.7).astype(np.float32)
    mask[0, 0, 1], mask[1] = 0, 0
    feed = {"x": random.standard_normal((4, 2, 3, 3)).astype(np.float32), "mask": mask}
    sessions = [open_session(model.SerializeToString(), optimize=False) for model in models]
    return [session.run(None, feed)[0] for session in sessions]


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


def test_what_took_the_place_of_a_tensor_is_told():
    graph_pass = RemoveNanGuardsPass()
    graph_pass(load_model(attention(where(0, LOW))).graph_model.clone())
    assert graph_pass.sources == {
        "softmax1_out": "where1_out",
        "context1_out_shown": "context1_out",
        "softmax2_out": "where2_out",
        "context2_out_shown": "context2_out",
    }


def test_a_guard_is_removed_where_only_inference_tells_which_axis_is_the_last():
    model = guarded(axis=3)
    del model.graph.value_info[:]
    assert not {"Where", "IsNaN"} & set(operators(model))


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


@pytest.mark.parametrize(
    "choose",
    [
        where(0, np.finfo(np.float32).min),
        where(-1e9, 0),
        where([[0.0], [0], [1]], -3e38),
        where(0, -1e9, expanded=True),
    ],
    ids=["lowest", "inverted", "array", "expanded"],
)
def test_a_mask_chosen_of_finite_numbers_needs_no_guard(choose):
    model = attention(choose)
    prepared = prepare(load_model(model)).graph_model
    assert [node.op_type for node in prepared.graph].count("Where") == 1
    before, after = outputs(model, to_proto(prepared))
    assert np.isfinite(before).all() and (before == after).all()


@pytest.mark.parametrize(
    ("choose", "axes_as_input"),
    [(where(0, LOW), False), (where(0.5, LOW), True), (where(LOW, 0), False), (where(0, [LOW]), True)],
    ids=["opset 17", "opset 18", "inverted", "array of one"],
)
def test_a_mask_of_infinity_becomes_finite_and_hidden_rows_stay_zero(choose, axes_as_input):
    model = attention(choose, axes_as_input)
    prepared = prepare(load_model(model)).graph_model
    kinds = [node.op_type for node in prepared.graph]
    # One mask for both attentions, and a product behind each.
    assert [kinds.count(kind) for kind in ("Where", "ReduceMax", "Mul", "IsNaN")] == [1, 1, 2, 0]
    before, after = outputs(model, to_proto(prepared))
    np.testing.assert_allclose(after, before, rtol=0, atol=1e-6)
    # The hidden row and the hidden sample get what a context of zeros leaves.
    assert np.isfinite(before).all()


@pytest.mark.parametrize(
    "choose",
    [
        where(0, LOW, expanded=True),
        where(LOW, LOW),
        where(0, np.inf),
        where(0, np.nan),
        where([[0.0], [LOW], [0]], LOW),
        lambda g: "mask",
        lambda g: g.op(
            "Where", [g.op("Cast", ["mask"], "c", to=9), "mask", g.constant(np.float32(LOW))], "w"
        ),
    ],
    ids=["expanded infinity", "all hidden", "infinity", "NaN", "array", "input", "chosen input"],
)
def test_masks_that_are_not_known_keep_the_guard(choose):
    assert operators(attention(choose)).count("IsNaN") == 2


def test_an_output_of_the_model_keeps_the_guard():
    model = attention(where(0, LOW))
    model.graph.output.append(onnx.helper.make_tensor_value_info("context2_out", 1, ["N", 2, 3, 3]))
    assert operators(model).count("IsNaN") == 1


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


@pytest.mark.parametrize(
    "moved",
    ["Slice (c, zero, three, one)", "Tile (c, twice)", "Flatten (c)", "Transpose (c)"],
)
def test_a_chosen_mask_may_be_moved(moved):
    body = f"p = MatMul (x, w) c = Where (seen, no, low) m = {moved} s = Add (p, m) y = Softmax (s)"
    constants = {"w": np.eye(3, dtype=np.float32), "no": np.float32(0), "low": np.float32(LOW)}
    vectors = {"zero": [0], "one": [1], "three": [3], "twice": [1, 1]}
    constants |= {name: np.array(values) for name, values in vectors.items()}
    made = parsed("float[3, 3] x, bool[3, 3] seen", "float[3, 3] y", body, **constants)
    (found,) = score_masks(ir.from_proto(made).graph.outputs[0].producer().inputs[0])
    assert found.choice.outputs[0].name == "c" and found.values.tolist() == [0, LOW]


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


@pytest.mark.parametrize(
    ("steps", "count"),
    [
        ([("Mul", 0.5), ("Div", 2.0)], 0),
        ([("Add", [0, 0, LOWEST]), ("Mul", 0.5)], 1),
        ([("Mul", 8.0), ("Add", [0, 0, LOWEST])], 1),
        # Scaled beyond FP32.
        ([("Add", [0, 0, LOWEST]), ("Mul", 2.0)], None),
        ([("Add", [0, 0, LOWEST]), ("Div", 0.5)], None),
        # Operators that are not followed, factors that lose the scores, and masks that are none.
        *(([step], None) for step in (("Div", 2.0, True), ("Pow", 2.0), ("Sub", 2.0))),
        *(([("Mul", factor)], None) for factor in (0.0, np.inf, np.nan)),
        *(([("Add", [0, 0, bad])], None) for bad in (np.nan, np.inf)),
    ],
)
def test_how_many_masks_there_are_where_they_are_known(steps, count):
    found = masks_of(*steps)
    assert found is None if count is None else len(found) == count


@pytest.mark.parametrize(("constant", "hides"), [(LOW, True), (-1e9, False)])
def test_scores_that_a_where_replaces(constant, hides):
    (found,) = masks_of(("Where", constant))
    assert found.choice is found.addition and found.may_hide_a_row == hides
    assert found.values.tolist() == [np.float32(constant)]
