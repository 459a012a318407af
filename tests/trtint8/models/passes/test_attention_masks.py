"""Guards against NaN behind a softmax: removed where the softmax makes none."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from tests.trtint8.integer_models import run
from tests.trtint8.onnx_models import normal, parsed
from trtint8.models.model import load_model, prepare
from trtint8.models.passes.attention_masks import RemoveNanGuardsPass, score_masks
from trtint8.models.serialization import to_proto

LOW = -np.inf
MASKED = "m = Add (h, k)"
CHOSEN = "chosen = Where (condition, a, b)"
EXPANDED = "first = Where (condition, a, b) chosen = Expand (first, shape)"


def model_of(inputs, body, **constants):
    """A model whose output is ``y``; numbers of Python are float32."""
    arrays = {name: np.asarray(value, np.float32) for name, value in constants.items()}
    arrays |= {"shape": np.array([1, 2, 3, 3]), "w": 0.1 * normal(3, 3), "u": 0.1 * normal(3, 3, seed=1)}
    return onnx.shape_inference.infer_shapes(parsed(inputs, "float[] y", body, **arrays))


def guarded(mask="m = Identity (h)", axis=-1, scores="s = MatMul (x, w)", zero=0.0, **constants):
    """Scores, what masks them, their softmax, and a Where behind it."""
    body = f"""{scores} h = Mul (s, half) {mask} p = Softmax <axis = {axis}> (m) nan = IsNaN (p)
        where = Where (nan, zero, p) y = MatMul (where, w)"""
    inputs = "float[N, 2, 3, 3] x" + (", float[N, 1, 1, 3] mask" if "mask" in mask else "")
    return model_of(inputs, body, half=0.5, zero=zero, **constants)


def attention(a=0.0, b=0.0, chosen=CHOSEN, opset=17):
    """Two guarded attentions behind one mask, which is ``chosen`` by the input ``mask``, ones and zeros."""
    body = f"condition = Cast <to = 9> (mask) {chosen} "
    for number, value, weights in ((1, "x", "w"), (2, "context1", "u")):
        body += f"""scores{number} = MatMul ({value}, {weights}) add{number} = Add (chosen, scores{number})
            softmax{number} = Softmax <axis = -1> (add{number}) nan{number} = IsNaN (softmax{number})
            where{number} = Where (nan{number}, zero, softmax{number})
            context{number} = MatMul (where{number}, x) """
    inputs = "float[N, 2, 3, 3] x, float[N, 1, 3, 3] mask"
    model = model_of(inputs, body + "y = Add (context2, x)", a=a, b=b, zero=0.0)
    model.opset_import[0].version = opset
    return model


def outputs(*models):
    """What models make of the same inputs, with one row of the mask hidden as a whole, and one sample."""
    mask = (np.random.default_rng(0).random((4, 1, 3, 3)) < 0.7).astype(np.float32)
    mask[0, 0, 1], mask[1] = 0, 0
    return [run(model, optimize=False, x=normal(4, 2, 3, 3), mask=mask) for model in models]


def operators(model):
    return [node.op_type for node in prepare(load_model(model)).graph_model.graph]


@pytest.mark.parametrize(
    "model",
    [
        guarded(),
        *(
            guarded(MASKED, k=mask)
            for mask in (
                [0, LOW, LOW],
                np.triu(np.full((3, 3), LOW), 1),
                np.full((1, 1, 3, 3), -1e9),
                [[0.0]],
            )
        ),
    ],
)
def test_a_guard_that_guards_nothing_is_removed(model):
    assert not {"Where", "IsNaN"} & set(operators(model))
    after = to_proto(prepare(load_model(model)).graph_model)
    wanted, found = (run(one, optimize=False, x=normal(2, 2, 3, 3)) for one in (model, after))
    assert np.isfinite(wanted).all() and (wanted == found).all()


def test_what_took_the_place_of_a_tensor_is_told():
    graph_pass = RemoveNanGuardsPass()
    graph_pass(load_model(attention(b=LOW)).graph_model.clone())
    assert graph_pass.sources == {
        "softmax1": "where1",
        "context1_shown": "context1",
        "softmax2": "where2",
        "context2_shown": "context2",
    }


def test_a_guard_is_removed_where_only_inference_tells_which_axis_is_the_last():
    model = guarded(axis=3)
    del model.graph.value_info[:]
    assert not {"Where", "IsNaN"} & set(operators(model))


@pytest.mark.parametrize(
    "kept",
    [
        guarded(MASKED, k=[[0, 0, 0], [LOW] * 3, [0, 0, 0]]),
        guarded(MASKED, k=[[0], [LOW], [0]]),
        guarded(MASKED, k=[np.nan, 0, 0]),
        guarded(MASKED, k=[np.inf, 0, 0]),
        guarded("m = Add (h, mask)"),
        guarded("m = Div (h, k)", k=[0, 0, LOW]),
        guarded(MASKED, k=[0, LOW, LOW], axis=1),
        guarded(zero=1.0),
        guarded(scores="s = Identity (x)"),
        guarded(scores="s = Log (x)"),
        guarded(MASKED, k=[0, LOW, LOW], scores="q = MatMul (x, w) s = Add (q, first)", first=[LOW, 0, 0]),
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
    "model",
    [
        attention(b=np.finfo(np.float32).min),
        attention(-1e9),
        attention([[0.0], [0], [1]], -3e38),
        attention(b=-1e9, chosen=EXPANDED),
    ],
    ids=["lowest", "inverted", "array", "expanded"],
)
def test_a_mask_chosen_of_finite_numbers_needs_no_guard(model):
    prepared = prepare(load_model(model)).graph_model
    assert [node.op_type for node in prepared.graph].count("Where") == 1
    before, after = outputs(model, to_proto(prepared))
    assert np.isfinite(before).all() and (before == after).all()


@pytest.mark.parametrize(
    "model",
    [attention(b=LOW), attention(0.5, LOW, opset=18), attention(LOW), attention(b=[LOW], opset=18)],
    ids=["opset 17", "opset 18", "inverted", "array of one"],
)
def test_a_mask_of_infinity_becomes_finite_and_hidden_rows_stay_zero(model):
    prepared = prepare(load_model(model)).graph_model
    kinds = [node.op_type for node in prepared.graph]
    # One mask for both attentions, and a product behind each.
    assert [kinds.count(kind) for kind in ("Where", "ReduceMax", "Mul", "IsNaN")] == [1, 1, 2, 0]
    before, after = outputs(model, to_proto(prepared))
    np.testing.assert_allclose(after, before, rtol=0, atol=1e-6)
    # The hidden row and the hidden sample get what a context of zeros leaves.
    assert np.isfinite(before).all()


@pytest.mark.parametrize(
    "model",
    [
        attention(b=LOW, chosen=EXPANDED),
        attention(LOW, LOW),
        attention(b=np.inf),
        attention(b=np.nan),
        attention([[0.0], [LOW], [0]], LOW),
        attention(chosen="chosen = Identity (mask)"),
        attention(b=LOW, chosen="chosen = Where (condition, mask, b)"),
    ],
    ids=["expanded infinity", "all hidden", "infinity", "NaN", "array", "input", "chosen input"],
)
def test_masks_that_are_not_known_keep_the_guard(model):
    assert operators(model).count("IsNaN") == 2


def test_an_output_of_the_model_keeps_the_guard():
    model = attention(b=LOW)
    model.graph.output.append(onnx.helper.make_tensor_value_info("context2", 1, ["N", 2, 3, 3]))
    assert operators(model).count("IsNaN") == 1


def test_a_second_reader_of_the_check_stays():
    body = """s = MatMul (x, w) p = Softmax <axis = -1> (s) nan = IsNaN (p) where = Where (nan, zero, p)
        c = Cast <to = 1> (nan) y = Add (where, c)"""
    graph_model = load_model(model_of("float[2, 3] x", body, zero=0.0)).graph_model.clone()
    assert RemoveNanGuardsPass()(graph_model).modified
    assert [node.op_type for node in graph_model.graph] == ["MatMul", "Softmax", "IsNaN", "Cast", "Add"]
    assert not RemoveNanGuardsPass()(graph_model).modified


LOWEST = np.finfo(np.float32).min


def masks_before(model):
    return score_masks(ir.from_proto(model).graph.outputs[0].producer().inputs[0])


def masks_of(*steps):
    """The masks behind a product; a step is an operator, a constant and whether the constant comes first."""
    body, value = "v = MatMul (x, w)", "v"
    for number, (operator, _, *first) in enumerate(steps):
        operands = [value, f"k{number}"][:: -1 if first else 1]
        value = f"s{number}"
        body += f" {value} = {operator} ({'seen, ' * (operator == 'Where')}{', '.join(operands)})"
    constants = {f"k{number}": step[1] for number, step in enumerate(steps)}
    return masks_before(
        model_of("float[2, 3] x, bool[2, 3] seen", f"{body} y = Softmax <axis = -1> ({value})", **constants)
    )


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
    (found,) = masks_before(made)
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
