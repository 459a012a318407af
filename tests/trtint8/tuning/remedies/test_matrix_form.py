"""Rows times weights against the operators themselves."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.trtint8.onnx_models import Shaped
from tests.trtint8.tuning.networks import array, normal, prepared, run
from trtint8.tuning.remedies.rounding import MatrixForm

EVERYWHERE = 10**6


def layer(size, operator, weights, **attributes):
    g = Shaped(quantized=False)
    return prepared(g.model({"x": size}, g.op(operator, ["x", g.weights(*weights)], "layer", **attributes)))


def form_and_weights(graph_model):
    (node,) = graph_model.graph
    weights = array(graph_model, node.name, 1)
    return MatrixForm.of(node, weights.shape), weights


def by_matrices(form, weights, values):
    """The output with its places in a row: (places, channels)."""
    rows = form.rows(values, EVERYWHERE, (0,), 0)
    products = np.einsum("pgi,goi->pgo", rows, weights.reshape(-1)[form.order])
    return products.reshape(len(rows), -1)


@st.composite
def convolutions(draw):
    rank = draw(st.integers(1, 3))
    groups = draw(st.integers(1, 3))

    def per_axis(low, high):
        return [draw(st.integers(low, high)) for _ in range(rank)]

    operator = draw(st.sampled_from(["Conv", "ConvTranspose"]))
    kernel, strides, dilations = per_axis(1, 3), per_axis(1, 3), per_axis(1, 2)
    attributes = {"group": groups, "strides": strides, "dilations": dilations}
    if operator == "Conv" and draw(st.booleans()):
        attributes["auto_pad"] = draw(st.sampled_from(["SAME_UPPER", "SAME_LOWER", "VALID"]))
        attributes["dilations"] = [1] * rank  # ONNX Runtime does not pad for others by itself
    else:
        attributes["pads"] = per_axis(0, 1) + per_axis(0, 1)
    if operator == "ConvTranspose":
        attributes["output_padding"] = [draw(st.integers(0, stride - 1)) for stride in strides]
    # Of both sides' channels, one count is that of a group.
    shape = [groups * draw(st.integers(1, 3)), draw(st.integers(1, 3)), *kernel]
    channels = shape[1] * groups if operator == "Conv" else shape[0]
    return operator, attributes, shape, [draw(st.integers(1, 3)), channels, *per_axis(6, 8)]


def assert_same_outputs(graph_model, size, channel=1):
    values = normal(*size)
    (expected,) = run(graph_model, {"x": values})
    got = by_matrices(*form_and_weights(graph_model), values)
    wanted = np.moveaxis(expected, channel, -1).reshape(got.shape)
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)


@given(convolutions())
def test_convolutions(case):
    operator, attributes, shape, size = case
    assert_same_outputs(layer(size, operator, shape, **attributes), size)


@pytest.mark.parametrize(
    ("size", "operator", "weights", "attributes"),
    [
        ([5, 3], "Gemm", (3, 4), {}),
        ([5, 3], "Gemm", (4, 3), {"transB": 1}),
        ([3, 5], "Gemm", (3, 4), {"transA": 1, "alpha": 0.5}),
        ([2, 5, 3], "MatMul", (3, 4), {}),
    ],
)
def test_products_of_matrices(size, operator, weights, attributes):
    assert_same_outputs(layer(size, operator, weights, **attributes), size, -1)


def test_what_is_no_product_of_two_matrices():
    many = layer([2, 5, 3], "MatMul", (2, 3, 4))
    assert form_and_weights(many)[0] is None
    for attributes in ({"auto_pad": "SAME_UPPER"}, {"output_shape": [8, 8]}):
        up = layer([1, 2, 4, 4], "ConvTranspose", (2, 2, 2, 2), strides=[2, 2], **attributes)
        assert form_and_weights(up)[0] is None


def places_of(size, places, seed=(0,), first=0):
    """Which places of a 1x1 convolution of running numbers are chosen."""
    numbers = np.arange(math.prod(size), dtype=np.float32).reshape(size)
    return (
        form_and_weights(layer(size, "Conv", (1, 1, 1, 1)))[0]
        .rows(numbers, places, seed, first)
        .reshape(size[0], -1)
    )


def test_places_are_chosen_at_random_without_repetition():
    chosen = places_of([3, 1, 8, 8], 10)
    assert chosen.shape == (3, 10)
    for sample, row in enumerate(chosen):
        assert len(set(row)) == 10
        assert ((row >= 64 * sample) & (row < 64 * (sample + 1))).all()
    assert len({tuple(row % 64) for row in chosen}) == 3
    assert (places_of([3, 1, 8, 8], 10, seed=(1,)) != chosen).any()


def test_places_go_with_the_number_of_the_sample():
    chosen = places_of([3, 1, 8, 8], 10)
    np.testing.assert_array_equal(places_of([1, 1, 8, 8], 10, first=2)[0], chosen[2] - 128)
