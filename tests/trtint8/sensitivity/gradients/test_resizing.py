"""The gradient of a Resize."""

import numpy as np
import pytest

from tests.trtint8.sensitivity.gradients.differences import assert_gradients, network, with_gradients
from trtint8.sensitivity.gradients.rule import NoGradientError

IMAGES = {"x": ["N", 3, 4, 5]}


def resized(attributes, scales=None, sizes=None, opset=17):
    """One Resize, by factors or to sizes."""
    constants = {"r": np.zeros(0, np.float32), "s": np.array([] if scales is None else scales, np.float32)}
    inputs = ["x", "r", "s"]
    if sizes is not None:
        constants["z"] = np.array(sizes, np.int64)
        inputs.append("z")
    shapes = IMAGES if sizes is None else {"x": [2, 3, 4, 5]}
    return [("Resize", inputs, "y", attributes)], shapes, constants, opset


@pytest.mark.parametrize(
    "transformation", ["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"]
)
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("scales", [(2, 3), (1, 2), (1.5, 2.4), (0.5, 1)])
def test_by_factors(transformation, mode, scales):
    attributes = {"mode": mode, "coordinate_transformation_mode": transformation}
    assert_gradients(*resized(attributes, (1, 1, *scales)))


@pytest.mark.parametrize("nearest", ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
@pytest.mark.parametrize("transformation", ["half_pixel", "asymmetric", "pytorch_half_pixel"])
@pytest.mark.parametrize("scales", [(2, 3), (4, 1)])
def test_the_nearest_element(nearest, transformation, scales):
    attributes = {"nearest_mode": nearest, "coordinate_transformation_mode": transformation}
    assert_gradients(*resized(attributes, (1, 1, *scales)))


@pytest.mark.parametrize("scales", [(2.1, 2.1), (2.2, 3)])
def test_sizes_are_whole_multiples_by_scales_that_are_not(scales):
    attributes = {"nearest_mode": "floor", "coordinate_transformation_mode": "asymmetric"}
    assert_gradients(*resized(attributes, (1, 1, *scales)))


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("size", [(8, 15), (7, 5), (2, 3)])
def test_to_sizes(mode, size):
    assert_gradients(*resized({"mode": mode}, sizes=(2, 3, *size)))


def test_to_the_size_of_another_tensor():
    """As PyTorch exports an interpolation to the size of another tensor: computed, but known."""
    nodes = [
        ("AveragePool", ["x"], "half", {"kernel_shape": [2, 2], "strides": [2, 2]}),
        ("Shape", ["x"], "whole", {}),
        ("Resize", ["half", "r", "s", "whole"], "y", {"mode": "linear"}),
    ]
    empty = np.zeros(0, np.float32)
    assert_gradients(nodes, {"x": ["N", 3, 4, 6]}, {"r": empty, "s": empty})


def test_blocks_of_equal_elements_are_averaged():
    model = with_gradients(network(*resized({"mode": "nearest"}, (1, 1, 2, 3))), ["x"])
    assert [node.op_type for node in model.graph][1:] == ["AveragePool", "Mul"]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (({"mode": "linear", "antialias": 1}, (1, 1, 0.5, 0.5), None, 18), "it smooths it"),
        (({"keep_aspect_ratio_policy": "not_larger"}, None, (2, 3, 8, 8), 18), "it keeps the ratio"),
        (({"coordinate_transformation_mode": "tf_crop_and_resize"}, (1, 1, 2, 2)), "resizes a part"),
    ],
)
def test_what_is_not_resized_along_one_axis_after_another(arguments, reason):
    with pytest.raises(NoGradientError, match=reason):
        with_gradients(network(*resized(*arguments)), ["x"])
