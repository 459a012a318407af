"""Gradients of convolutions, matrix products and pooling."""

import re

import numpy as np
import pytest

from tests.trtint8.sensitivity.gradients.differences import assert_gradients
from trtint8.sensitivity.gradients.backward import WEIGHTED_RULES
from trtint8.sensitivity.gradients.rule import NoGradientError

RANDOM = np.random.default_rng(2)
IMAGES = {"x": ["N", 4, 7, 6]}


def weights(*shape):
    return {"w": RANDOM.standard_normal(shape).astype(np.float32)}


@pytest.mark.parametrize(
    ("kernel", "attributes"),
    [
        ((6, 4, 3, 3), {"pads": [1, 1, 1, 1]}),
        ((6, 4, 3, 3), {"pads": [0, 1, 2, 0]}),
        ((6, 4, 1, 1), {"strides": [2, 2]}),
        ((6, 4, 3, 3), {"strides": [2, 3], "pads": [1, 1, 1, 1]}),
        ((4, 1, 3, 3), {"group": 4, "pads": [1, 1, 1, 1]}),
        ((6, 2, 3, 3), {"group": 2, "strides": [2, 2]}),
        ((6, 4, 2, 2), {"dilations": [2, 3]}),
        ((6, 4, 1, 1), {"pads": [1, 1, 1, 1]}),
        ((6, 4, 3, 3), {"auto_pad": "VALID"}),
        ((6, 4, 3, 3), {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
        ((6, 4, 2, 4), {"auto_pad": "SAME_UPPER"}),
        ((6, 4, 2, 4), {"auto_pad": "SAME_LOWER", "strides": [1, 2]}),
    ],
)
def test_conv(kernel, attributes):
    assert_gradients([("Conv", ["x", "w"], "y", attributes)], IMAGES, weights(*kernel))


@pytest.mark.parametrize(
    ("kernel", "attributes"),
    [
        ((4, 3, 2, 2), {"strides": [2, 2]}),
        ((4, 3, 3, 3), {"strides": [2, 2], "pads": [1, 1, 1, 1], "output_padding": [1, 1]}),
        ((4, 1, 3, 3), {"group": 4}),
    ],
)
def test_conv_transpose(kernel, attributes):
    assert_gradients([("ConvTranspose", ["x", "w"], "y", attributes)], IMAGES, weights(*kernel))


@pytest.mark.parametrize(
    ("equation", "second"),
    [("nchw,ck->nkhw", [4, 5]), ("nchw, nchv -> nhwv", ["N", 4, 7, 3]), ("nchw,h->nwc", [7])],
)
def test_einsum(equation, second):
    nodes = [("Einsum", ["x", "z"], "y", {"equation": equation})]
    assert_gradients(nodes, {**IMAGES, "z": second})


@pytest.mark.parametrize("equation", ["nchw,ck->nkh", "nccw,ck->nkw", "...hw,kw->...hk"])
def test_einsum_whose_gradient_is_not_one_sum_of_products(equation):
    nodes = [("Einsum", ["x", "w"], "y", {"equation": equation})]
    with pytest.raises(NoGradientError, match=re.escape(f"'{equation}'")):
        assert_gradients(nodes, {"x": ["N", 4, 4, 6]}, weights(4, 6))


def test_einsum_with_an_axis_that_is_broadcast():
    nodes = [("Einsum", ["x", "w"], "y", {"equation": "bc,bc->bc"})]
    with pytest.raises(NoGradientError, match="it broadcasts 'b'"):
        assert_gradients(nodes, {"x": [1, 3]}, weights(4, 3))


@pytest.mark.parametrize("transposed", [0, 1])
def test_gemm(transposed):
    attributes = {"transB": transposed, "alpha": 0.5}
    constants = weights(*((3, 5) if transposed else (5, 3))) | {"b": np.ones(3, np.float32)}
    assert_gradients([("Gemm", ["x", "w", "b"], "y", attributes)], {"x": ["N", 5]}, constants)


def test_matmul_with_a_constant():
    nodes = [("MatMul", ["x", "w"], "y", {})]
    assert_gradients(nodes, {"x": ["N", 3, 5]}, weights(5, 4))


def test_matmul_of_two_activations():
    nodes = [("MatMul", ["x", "z"], "y", {})]
    assert_gradients(nodes, {"x": ["N", 2, 3, 5], "z": ["N", 2, 5, 4]})


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ([2, 4, 3, 5], [1, 4, 5, 6]),
        (["N", 4, 3, 5], [4, 5, 6]),
        (["N", 4, 3, 5], [5, 6]),
        ([3, 5], ["N", 4, 5, 6]),
        ([2, 1, 3, 5], [1, 4, 5, 6]),
    ],
)
def test_matmul_of_activations_that_are_broadcast(first, second):
    assert_gradients([("MatMul", ["x", "z"], "y", {})], {"x": first, "z": second})


def test_matmul_that_may_be_broadcast():
    with pytest.raises(NoGradientError, match=r"'y'.*'x'"):
        assert_gradients([("MatMul", ["x", "z"], "y", {})], {"x": ["N", "K", 3, 5], "z": ["N", 1, 5, 6]})


@pytest.mark.parametrize(
    "attributes",
    [
        {"kernel_shape": [7, 6]},
        {"kernel_shape": [2, 2], "strides": [2, 2]},
        {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]},
        {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "count_include_pad": 1},
    ],
)
def test_average_pool(attributes):
    assert_gradients([("AveragePool", ["x"], "y", attributes)], IMAGES)


def test_global_average_pool():
    assert_gradients([("GlobalAveragePool", ["x"], "y", {})], IMAGES)


def test_global_max_pool():
    assert_gradients([("GlobalMaxPool", ["x"], "y", {})], IMAGES, step=1e-3)


def test_max_pool_with_windows_that_overlap():
    attributes = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}
    # The largest of a window stays the largest.
    feed = {"x": RANDOM.permutation(2 * 4 * 7 * 6).reshape(2, 4, 7, 6).astype(np.float32)}
    for order in (0, 1):
        given = {**attributes, "storage_order": order}
        assert_gradients([("MaxPool", ["x"], "y", given)], IMAGES, feed=feed)


@pytest.mark.parametrize(
    ("node", "reason"),
    [
        (
            ("ConvTranspose", ["x", "w"], "y", {"auto_pad": "SAME_UPPER"}),
            "its padding is chosen when it runs",
        ),
        (("Gemm", ["x", "w"], "y", {"transA": 1}), "its first operand is transposed"),
    ],
)
def test_what_has_no_gradient(node, reason):
    shapes = {"x": [2, 5]} if node[0] == "Gemm" else IMAGES
    constants = weights(2, 3) if node[0] == "Gemm" else weights(4, 6, 3, 3)
    with pytest.raises(NoGradientError, match=f"{node[0]} 'y': {reason}"):
        assert_gradients([node], shapes, constants)


def test_a_size_that_is_not_known_before_the_run():
    nodes = [("Conv", ["x", "w"], "y", {"strides": [2, 2]})]
    with pytest.raises(NoGradientError, match="the shape of 'x' depends on the data"):
        assert_gradients(
            nodes,
            {"x": ["N", 4, "h", "w"]},
            weights(6, 4, 1, 1),
            feed={"x": np.ones((1, 4, 6, 6), np.float32)},
        )


def test_every_rule_is_tested():
    assert set(WEIGHTED_RULES) == {
        "AveragePool",
        "Conv",
        "ConvTranspose",
        "Einsum",
        "Gemm",
        "GlobalAveragePool",
        "GlobalMaxPool",
        "MatMul",
        "MaxPool",
    }
