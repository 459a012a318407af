"""Equations of Einsum in lower case."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper

from trtint8.models.model import load_model, prepare
from trtint8.models.passes.lower_case_einsum import in_lower_case


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
    nodes = [helper.make_node("Einsum", ["x", "z"], ["y"], equation="BD,BD->D")]
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", 4]) for n in ("x", "z")]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, [4])
    graph = helper.make_graph(nodes, "g", infos, [output])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (node,) = prepare(load_model(model)).graph_model.graph
    assert node.attributes.get_string("equation") == "bd,bd->d"
