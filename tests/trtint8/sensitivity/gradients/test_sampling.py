"""Gradients of GridSample."""

import numpy as np
import pytest

from tests.trtint8.sensitivity.gradients.differences import assert_gradients, network, run, with_gradients
from trtint8.sensitivity.gradients.rule import NoGradientError
from trtint8.sensitivity.gradients.sampling import SAMPLING

HEIGHT, WIDTH = 5, 7
SHAPES = {"x": ["N", 3, HEIGHT, WIDTH], "grid": ["N", 4, 6, 2]}


def grid_of(pixels, align_corners):
    """Places in pixels, x and y along the last axis, as GridSample takes them."""
    sizes = np.float32([WIDTH, HEIGHT])
    reach = sizes - 1 if align_corners else sizes
    return ((pixels - (sizes - 1) / 2) / (reach / 2)).astype(np.float32)


@pytest.mark.parametrize(("opset", "mode"), [(16, "bilinear"), (20, "linear")])
@pytest.mark.parametrize("align_corners", [0, 1])
def test_images_and_places(opset, mode, align_corners):
    random = np.random.default_rng(1)
    # Between two pixels and as far as two outside of the image, but not close to where the slope changes.
    pixels = random.integers(-2, [WIDTH + 1, HEIGHT + 1], (2, 4, 6, 2)) + random.uniform(
        0.3, 0.7, (2, 4, 6, 2)
    )
    feed = {
        "x": random.standard_normal((2, 3, HEIGHT, WIDTH)).astype(np.float32),
        "grid": grid_of(pixels, align_corners),
    }
    attributes = {"mode": mode, "padding_mode": "zeros", "align_corners": align_corners}
    nodes = [("GridSample", ["x", "grid"], "y", attributes)]
    assert_gradients(nodes, SHAPES, opset=opset, feed=feed)


def test_a_place_between_four_pixels_by_hand():
    feed = {
        "x": np.arange(HEIGHT * WIDTH, dtype=np.float32).reshape(1, 1, HEIGHT, WIDTH),
        "grid": grid_of(np.float32([[[[2.25, 3.5]]]]), 0),
        "direction": np.full((1, 1, 1, 1), 2, np.float32),
    }
    shapes = {"x": [1, 1, HEIGHT, WIDTH], "grid": [1, 1, 1, 2]}
    model = network([("GridSample", ["x", "grid"], "y", {})], shapes, opset=16)
    value, images, places = run(with_gradients(model, ["x", "grid"]), feed)
    assert value.item() == pytest.approx(2.25 + 3.5 * WIDTH)
    expected = np.zeros((HEIGHT, WIDTH))
    expected[3:5, 2:4] = 2 * np.outer([0.5, 0.5], [0.75, 0.25])
    np.testing.assert_allclose(images[0, 0], expected, atol=1e-5)
    # A step of one pixel to the right adds 1, one down adds the width.
    np.testing.assert_allclose(places.ravel(), [2 * WIDTH / 2, 2 * WIDTH * HEIGHT / 2], rtol=1e-4)


@pytest.mark.parametrize(
    "attributes", [{"mode": "nearest"}, {"padding_mode": "border"}, {"padding_mode": "reflection"}]
)
def test_other_modes_and_paddings_have_no_gradient(attributes):
    with pytest.raises(NoGradientError, match="GridSample 'y': its mode is"):
        assert_gradients([("GridSample", ["x", "grid"], "y", attributes)], SHAPES, opset=16)


def test_volumes_have_no_gradient():
    shapes = {"x": ["N", 3, 2, 5, 7], "grid": ["N", 1, 4, 6, 3]}
    with pytest.raises(NoGradientError, match="what it samples are no images"):
        assert_gradients([("GridSample", ["x", "grid"], "y", {})], shapes, opset=20)


def test_images_of_one_pixel_have_no_scale():
    shapes = {"x": ["N", 3, 1, 7], "grid": ["N", 4, 6, 2]}
    with pytest.raises(NoGradientError, match="one pixel wide or high"):
        assert_gradients([("GridSample", ["x", "grid"], "y", {"align_corners": 1})], shapes, opset=16)


def test_every_rule_is_tested():
    assert set(SAMPLING) == {"GridSample"}
