"""Gradients of operators that move, join, repeat or add up elements."""

import numpy as np
import pytest

from tests.trtint8.sensitivity.gradients.differences import (
    assert_gradients,
    integers,
    network,
    run,
    with_gradients,
)
from trtint8.sensitivity.gradients.movement import MOVEMENT, PICKING, SAMPLING
from trtint8.sensitivity.gradients.rule import NoGradientError

X = {"x": ["N", 4, 6]}


CASES = {
    "Reshape": ([("Reshape", ["x", "to"], "y", {})], integers(to=[0, 3, 8])),
    "Flatten": ([("Flatten", ["x"], "y", {})], {}),
    "Unsqueeze": ([("Unsqueeze", ["x", "axes"], "y", {})], integers(axes=[1])),
    "Squeeze": (
        [("ReduceMean", ["x"], "m", {"axes": [1]}), ("Squeeze", ["m", "axes"], "y", {})],
        integers(axes=[1]),
    ),
    "Transpose": ([("Transpose", ["x"], "y", {"perm": [2, 0, 1]})], {}),
    "Concat": ([("Relu", ["x"], "r", {}), ("Concat", ["x", "r", "x"], "y", {"axis": 2})], {}),
    "Pad": ([("Pad", ["x", "pads"], "y", {})], integers(pads=[0, 1, 0, 0, 2, 3])),
    "Split": (
        [("Split", ["x", "sizes"], "a b c", {"axis": 1}), ("Mul", ["a", "c"], "y", {})],
        integers(sizes=[1, 2, 1]),
    ),
    "Expand": (
        [("ReduceMean", ["x"], "m", {"axes": [1]}), ("Expand", ["m", "to"], "y", {})],
        integers(to=[5, 1, 4, 1]),
    ),
    "CumSum": ([("CumSum", ["x", "axis"], "y", {})], integers(axis=1)),
    "Tile": ([("Tile", ["x", "times"], "y", {})], integers(times=[1, 2, 3])),
    "DepthToSpace": (
        [("Reshape", ["x", "to"], "r", {}), ("DepthToSpace", ["r"], "y", {"blocksize": 2})],
        integers(to=[0, 4, 2, 3]),
    ),
    "SpaceToDepth": (
        [("Reshape", ["x", "to"], "r", {}), ("SpaceToDepth", ["r"], "y", {"blocksize": 2})],
        integers(to=[0, 1, 4, 6]),
    ),
}


@pytest.mark.parametrize("kind", CASES)
def test_gradient(kind):
    nodes, constants = CASES[kind]
    assert_gradients(nodes, X, constants)


def test_pixels_from_channels_that_are_ordered_by_channel():
    nodes = [("Reshape", ["x", "to"], "r", {}), ("DepthToSpace", ["r"], "y", {"blocksize": 2, "mode": "CRD"})]
    assert_gradients(nodes, X, integers(to=[0, 8, 1, 3]))


def test_every_rule_is_tested():
    assert set(CASES) == set(MOVEMENT)


@pytest.mark.parametrize("reverse", [0, 1])
@pytest.mark.parametrize("exclusive", [0, 1])
def test_sums_up_to_every_element(reverse, exclusive):
    nodes = [("CumSum", ["x", "axis"], "y", {"reverse": reverse, "exclusive": exclusive})]
    assert_gradients(nodes, X, integers(axis=-1))


def test_a_pad_that_cuts_off():
    assert_gradients([("Pad", ["x", "pads"], "y", {})], X, integers(pads=[0, -1, 2, 0, -1, -3]))


def test_a_pad_whose_sizes_are_computed():
    nodes = [("Neg", ["less"], "pads", {}), ("Pad", ["x", "pads"], "y", {})]
    assert_gradients(nodes, X, integers(less=[0, -1, 0, 0, -2, -3]))


def test_copies_whose_number_is_computed():
    nodes = [("Neg", ["less"], "times", {}), ("Tile", ["x", "times"], "y", {})]
    assert_gradients(nodes, X, integers(less=[-1, -3, -2]))


def test_a_pad_of_some_axes():
    nodes = [("Pad", ["x", "pads", "", "axes"], "y", {})]
    assert_gradients(nodes, X, integers(pads=[1, 2], axes=[-1]), opset=18)


@pytest.mark.parametrize("mode", ["reflect", "edge"])
def test_a_pad_that_repeats_elements_and_has_a_number_to_pad_with(mode):
    nodes = [("Pad", ["x", "pads", "zero", "axes"], "y", {"mode": mode})]
    assert_gradients(nodes, X, {**integers(pads=[1, 2, 0, 3], axes=[1, 2]), "zero": np.float32(0)}, opset=18)


@pytest.mark.parametrize("mode", ["reflect", "edge"])
def test_a_pad_that_repeats_elements(mode):
    nodes = [("Pad", ["x", "pads"], "y", {"mode": mode})]
    assert_gradients(nodes, X, integers(pads=[0, 1, 2, 0, 2, 3]))


BOTH = {"x": [2, 4, 6], "new": [2, 2, 6]}


PICKING_CASES = {
    "Slice": (
        [("Slice", ["x", "from", "to", "axes", "steps"], "y", {})],
        integers(**{"from": [1, 5], "to": [4, -7], "axes": [1, 2], "steps": [2, -2]}),
    ),
    "Gather": ([("Gather", ["x", "places"], "y", {"axis": 1})], integers(places=[[0, 3], [3, -1]])),
    "GatherElements": (
        [("GatherElements", ["x", "places"], "y", {"axis": 2})],
        integers(places=[[[0, 5], [1, 1]], [[-1, 2], [3, 3]]]),
    ),
    "GatherND": ([("GatherND", ["x", "places"], "y", {})], integers(places=[[0, 3], [1, -1], [0, 3]])),
    "TopK": ([("TopK", ["x", "k"], "y places", {"axis": 1})], integers(k=[3])),
    "ScatterND": (
        [("ScatterND", ["x", "places", "picked"], "y", {})],
        {**integers(places=[[0, 3], [1, 1]]), "picked": np.ones((2, 6), np.float32)},
    ),
    "ScatterElements": (
        [("ScatterElements", ["x", "places", "picked"], "y", {"axis": 1})],
        {**integers(places=np.full((2, 1, 6), 2)), "picked": np.ones((2, 1, 6), np.float32)},
    ),
}

PICKED = {
    "one element": ([("Gather", ["x", "place"], "y", {"axis": 2})], integers(place=-2)),
    "elements in another order": (
        [("Gather", ["x", "places"], "y", {"axis": -1})],
        integers(places=[4, 0, 2]),
    ),
    "neighbours": ([("Gather", ["x", "places"], "y", {"axis": 1})], integers(places=[1, 2])),
    "an element twice": ([("Gather", ["x", "places"], "y", {"axis": 1})], integers(places=[1, 1, 0])),
    "every other element": (
        [("Slice", ["x", "from", "to", "axes", "steps"], "y", {})],
        integers(**{"from": [0, 0], "to": [1 << 62, 1 << 62], "axes": [-1, -2], "steps": [2, 2]}),
    ),
    "backwards to the first": (
        [("Slice", ["x", "from", "to", "axes", "steps"], "y", {})],
        integers(**{"from": [-1], "to": [-(1 << 62)], "axes": [1], "steps": [-1]}),
    ),
    "beyond the end": (
        [("Slice", ["x", "from", "to", "axes"], "y", {})],
        integers(**{"from": [-3], "to": [100], "axes": [2]}),
    ),
    "some samples": ([("Slice", ["x", "from", "to"], "y", {})], integers(**{"from": [1], "to": [100]})),
}


@pytest.mark.parametrize(
    ("nodes", "constants"),
    [
        ([("Gather", ["x", "places"], "y", {"axis": 1})], integers(places=[0, 4])),
        (
            [("Slice", ["x", "from", "to", "axes", "steps"], "y", {})],
            integers(**{"from": [0], "to": [2], "axes": [1], "steps": [0]}),
        ),
    ],
)
def test_what_cannot_be_picked_is_left_to_onnx_runtime_to_refuse(nodes, constants):
    model = with_gradients(network(nodes, X, constants), list(X))
    assert "ScatterElements" in [node.op_type for node in model.graph]


@pytest.mark.parametrize("kind", PICKING_CASES)
def test_picking_gradient(kind):
    nodes, constants = PICKING_CASES[kind]
    assert_gradients(nodes, X, constants)


def test_picking_every_rule_is_tested():
    assert set(PICKING_CASES) == set(PICKING)


@pytest.mark.parametrize("picked", PICKED)
def test_gradients_of_elements_that_are_picked(picked):
    nodes, constants = PICKED[picked]
    assert_gradients(nodes, X, constants)


def test_elements_that_are_picked_along_samples():
    """As the last token of every sample, whose place is computed."""
    places = integers(places=[[3], [1]])
    assert_gradients([("GatherND", ["x", "places"], "y", {"batch_dims": 1})], {"x": [2, 4, 6]}, places)


@pytest.mark.parametrize("reduction", ["none", "add"])
@pytest.mark.parametrize(
    ("kind", "places", "attributes"),
    [
        ("ScatterND", [[[0, 3], [0, 1]], [[1, 0], [1, 2]]], {}),
        ("ScatterElements", np.array([[[3], [1]], [[0], [2]]]).repeat(6, axis=2), {"axis": 1}),
    ],
)
def test_what_is_replaced_and_what_comes_in_its_place(kind, places, attributes, reduction):
    nodes = [(kind, ["x", "places", "new"], "y", {**attributes, "reduction": reduction})]
    assert_gradients(nodes, BOTH, integers(places=places), opset=18)


def test_elements_that_are_multiplied_in_place_have_no_gradient():
    nodes = [("ScatterND", ["x", "places", "new"], "y", {"reduction": "mul"})]
    places = integers(places=[[[0, 3], [0, 1]], [[1, 0], [1, 2]]])
    with pytest.raises(NoGradientError, match="its reduction is 'mul'"):
        with_gradients(network(nodes, BOTH, places, opset=18), list(BOTH))


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


def test_sampling_every_rule_is_tested():
    assert set(SAMPLING) == {"GridSample"}


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
