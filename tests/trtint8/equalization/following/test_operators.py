"""Properties of operators."""

import numpy as np
import pytest

from tests.trtint8.onnx_models import Shaped
from tests.trtint8.tuning.networks import prepared
from trtint8.equalization.following.operators import is_spatial, reduced_axes


def node(operator, constants=(), **attributes):
    g = Shaped(quantized=False)
    inputs = ["x", *(g.constant(one) if one is not None else "" for one in constants)]
    g.op(operator, inputs, "node", **attributes)
    model = g.model({"x": ["N", 2, 4, 4]}, "node_out")
    return next(one for one in prepared(model).graph if one.name == "node")


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (lambda: node("MaxPool", kernel_shape=[2, 2]), True),
        (lambda: node("Pad", [np.int64([0, 0, 1, 1, 0, 0, 1, 1])]), True),
        (lambda: node("Pad", [np.int64([0, 1, 0, 0, 0, 0, 0, 0])]), False),
        (lambda: node("Pad", [np.int64([0, 0, 1, 1, 0, 0, 1, 1]), np.float32(3)]), False),
        (lambda: node("Resize", [None, np.float32([1, 1, 2, 2])], mode="linear"), True),
        (
            lambda: node(
                "Resize",
                [np.float32([0, 0, 0, 0, 1, 1, 1, 1]), np.float32([1, 1, 2, 2])],
                mode="linear",
                coordinate_transformation_mode="tf_crop_and_resize",
            ),
            False,
        ),
        (lambda: node("Softmax"), False),
    ],
)
def test_spatial_operators(made, expected):
    assert is_spatial(made()) is expected


def test_reduced_axes():
    assert reduced_axes(node("ReduceMean", axes=[-1, 2]), 4) == (2, 3)
    assert reduced_axes(node("ReduceSum", [np.int64([1])]), 4) == (1,)
    assert reduced_axes(node("ReduceMax"), 4) == (0, 1, 2, 3)
    assert reduced_axes(node("ReduceSum", noop_with_empty_axes=1), 4) == ()
