"""Einsum as MatMul."""

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper

from tests.trtint8.onnx_models import parsed
from trtint8.models.model import load_model, prepare
from trtint8.models.passes.einsum import in_lower_case
from trtint8.models.serialization import to_proto

SIZES = {letter: 2 + number for number, letter in enumerate("abcdefgh")}


def model_of(equation, first, second, *, weights=None, dims=None):
    """An Einsum of ``x`` and of ``z``, which is constant where ``weights`` is given."""
    shapes = {"x": dims or first} | ({"z": second} if weights is None else {})
    inputs = ", ".join(f"float[{', '.join(map(str, shape))}] {name}" for name, shape in shapes.items())
    names = "z, x" if equation.startswith("!") else "x, z"
    body = f'[product] y = Einsum <equation = "{equation.lstrip("!")}"> ({names})'
    return parsed(inputs, "float[] y", body, **({} if weights is None else {"z": weights}))


def prepared(model):
    return to_proto(prepare(load_model(model)).graph_model)


def operators(model):
    return [node.op_type for node in model.graph.node]


def run(model, feeds):
    onnx.checker.check_model(model, full_check=True)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, feeds)[0]


def integers(seed, letters):
    """Small integers, so that sums are exact in any order."""
    shape = [SIZES[letter] for letter in letters]
    return np.random.default_rng(seed).integers(-9, 9, shape).astype(np.float32)


@pytest.mark.parametrize(
    ("equation", "made"),
    [
        ("abc,cd->abd", ["MatMul"]),
        ("ab,bc", ["MatMul"]),
        ("ab , bc -> ac", ["MatMul"]),
        ("abc,acd->abd", ["MatMul"]),
        # The scores and the context of attention.
        ("aibd,ajbd->abij".replace("i", "c").replace("j", "e"), ["Transpose", "Transpose", "MatMul"]),
        ("abce,aebd->acbd", ["Transpose", "MatMul", "Transpose"]),
        ("abc,db->dac", ["Transpose", "Transpose", "MatMul", "Transpose"]),
        ("ab,cb->ca", ["Transpose", "MatMul"]),
    ],
)
def test_products_are_exact(equation, made):
    first, _, second = equation.replace(" ", "").partition("->")[0].partition(",")
    model = model_of(equation, first, second)
    changed = prepared(model)
    assert sorted(operators(changed)) == sorted(made)
    assert [node.name for node in changed.graph.node if node.op_type == "MatMul"] == ["product"]
    feeds = {"x": integers(0, first), "z": integers(1, second)}
    np.testing.assert_array_equal(run(changed, feeds), np.einsum(equation, *feeds.values()))


@pytest.mark.parametrize(
    ("equation", "made"),
    [
        ("abc,cde->abde", ["MatMul", "Reshape"]),
        ("abcd,cde->abe", ["Reshape", "MatMul"]),
        ("abc,dc->abd", ["MatMul"]),
        ("acb,cde->abde", ["Transpose", "MatMul", "Reshape"]),
        ("abc,bdc->abd", ["Transpose", "MatMul", "Transpose"]),
    ],
)
def test_weights_are_arranged_beforehand(equation, made):
    first, _, second = equation.partition("->")[0].partition(",")
    weights, x = integers(1, second), integers(0, first)
    # The batch is dynamic, and has no name that the equation's other axes have.
    dims = ["N", *(SIZES[letter] for letter in first[1:])]
    changed = prepared(model_of(equation, first, second, weights=weights, dims=dims))
    assert operators(changed) == made
    np.testing.assert_array_equal(run(changed, {"x": x}), np.einsum(equation, x, weights))


def test_weights_that_come_first_are_the_second_operand():
    weights, x = integers(1, "cd"), integers(0, "abc")
    changed = prepared(model_of("!cd,abc->abd", "abc", "cd", weights=weights))
    assert operators(changed) == ["MatMul"]
    assert changed.graph.node[0].input[0] == "x"
    np.testing.assert_array_equal(run(changed, {"x": x}), x @ weights)


def test_an_ellipsis_is_a_batch():
    x, weights = integers(0, "abcd"), integers(1, "de")
    changed = prepared(model_of("...d,de->...e", "abcd", "de", weights=weights))
    assert operators(changed) == ["MatMul"]
    np.testing.assert_array_equal(run(changed, {"x": x}), x @ weights)
    z = integers(1, "abde")
    changed = prepared(model_of("...ij,...jk->...ik", "abcd", "abde"))
    assert operators(changed) == ["MatMul"]
    np.testing.assert_array_equal(run(changed, {"x": x, "z": z}), x @ z)


@pytest.mark.parametrize(
    "equation",
    [
        "ab,bc->a",  # an axis of one operand alone is summed
        "ab,ab->ab",  # nothing is summed
        "a,b->ab",
        "ab,b->a",  # a vector
        "aab,bc->abc",  # a diagonal
    ],
)
def test_what_is_no_product_of_matrices_stays(equation):
    first, _, second = equation.partition("->")[0].partition(",")
    changed = prepared(model_of(equation, first, second))
    assert operators(changed) == ["Einsum"]


def test_a_reshape_of_unknown_sizes_is_not_made():
    model = model_of("abcd,aed->abce", "abcd", "aed")
    assert operators(prepared(model)) == ["Einsum"], "b and c are one axis of the product"
    fixed = model_of("abcd,aed->abce", "abcd", "aed", dims=["a", 3, 4, 5])
    changed = prepared(fixed)
    assert operators(changed).count("MatMul") == 1
    feeds = {"x": integers(0, "abcd"), "z": integers(1, "aed")}
    np.testing.assert_array_equal(run(changed, feeds), np.einsum("abcd,aed->abce", *feeds.values()))


def test_types_and_sizes_may_be_missing():
    model = model_of("abcd,aed->abce", "abcd", "aed", dims=["a", 3, 4, 5])
    model.graph.node[0].input[0] = "r"
    model.graph.node.insert(0, helper.make_node("Relu", ["x"], ["r"], "relu"))
    changed = prepared(model)
    assert "MatMul" in operators(changed)
    feeds = {"x": integers(0, "abcd"), "z": integers(1, "aed")}
    expected = np.einsum("abcd,aed->abce", np.maximum(feeds["x"], 0), feeds["z"])
    np.testing.assert_array_equal(run(changed, feeds), expected)


def test_integers_stay():
    model = model_of("ab,bc->ac", "ab", "bc")
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = TensorProto.INT64
    assert operators(prepared(model)) == ["Einsum"]


def test_a_size_of_one_that_is_repeated_stays():
    weights, x = np.ones((1, 3), np.float32), integers(0, "ad")
    changed = prepared(model_of("ab,bc->ac", "ab", "bc", weights=weights, dims=["N", 5]))
    assert operators(changed) == ["Einsum"]
    np.testing.assert_array_equal(run(changed, {"x": x}), np.repeat(x.sum(1, keepdims=True), 3, axis=1))


@given(st.data())
def test_any_equation_keeps_its_values(data):
    letters = data.draw(st.lists(st.sampled_from("abcdef"), min_size=2, max_size=6, unique=True))
    first = "".join(data.draw(st.permutations(letters)))[: data.draw(st.integers(1, len(letters)))]
    rest = [letter for letter in letters if letter not in first]
    shared = data.draw(st.lists(st.sampled_from(first), min_size=1, max_size=3, unique=True))
    second = "".join(data.draw(st.permutations(rest + shared)))
    output = "".join(data.draw(st.permutations(letters)))[: data.draw(st.integers(0, len(letters)))]
    fixed = data.draw(st.booleans())
    dims = [SIZES[letter] for letter in first] if fixed else None
    equation = f"{first},{second}->{output}"
    weights = integers(1, second) if data.draw(st.booleans()) else None
    x = integers(0, first)
    changed = prepared(model_of(equation, first, second, weights=weights, dims=dims))
    feeds = {"x": x} if weights is not None else {"x": x, "z": integers(1, second)}
    np.testing.assert_array_equal(run(changed, feeds), np.einsum(equation, x, integers(1, second)))


@pytest.mark.parametrize(
    ("equation", "expected"),
    [
        ("BSD,DE->BSE", "bsd,de->bse"),
        ("bsd,de->bse", "bsd,de->bse"),
        ("bB,Bc->bc", "ba,ac->bc"),
        ("...Ij,jK->...IK", "...ij,jk->...ik"),
    ],
)
def test_letters(equation, expected):
    assert in_lower_case(equation) == expected


@given(st.lists(st.sampled_from("aAbBcCdD"), min_size=1, max_size=4, unique=True), st.data())
def test_the_product_stays_the_same(axes, data):
    kept = data.draw(st.lists(st.sampled_from(axes), unique=True))
    first = data.draw(st.lists(st.sampled_from(axes), min_size=1, unique=True))
    second = [axis for axis in axes if axis not in first] or first
    equation = f"{''.join(first)},{''.join(second)}->{''.join(kept)}"
    sizes = {axis: 2 + number for number, axis in enumerate(axes)}
    random = np.random.default_rng(0)
    arrays = [random.integers(-9, 9, [sizes[axis] for axis in part]) for part in (first, second)]
    changed = in_lower_case(equation)
    assert changed == changed.lower()
    np.testing.assert_array_equal(np.einsum(equation, *arrays), np.einsum(changed, *arrays))


def test_a_prepared_model_has_no_upper_case():
    body = 'y = Einsum <equation = "BD,BD->D"> (x, z)'
    (node,) = prepare(
        load_model(parsed("float[n, 4] x, float[n, 4] z", "float[4] y", body))
    ).graph_model.graph
    assert node.attributes.get_string("equation") == "bd,bd->d"
