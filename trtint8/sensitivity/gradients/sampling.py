"""Gradients of GridSample, by which attention of deformable kind reads feature maps at computed places."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from trtint8.models.graph_writer import GraphWriter
from trtint8.sensitivity.gradients.rule import Rule, Step

#: Names of the interpolation between the four pixels around a place, in older and newer operators.
_LINEAR = ("bilinear", "linear")

#: The four pixels around a place, from the one with the lowest coordinates on: x and y.
_CORNERS = np.array([[0, 0], [1, 0], [0, 1], [1, 1]], np.float32)


def _grid_sample(step: Step) -> Mapping[int, ir.Value]:
    attributes = step.attributes
    mode, padding = attributes.get("mode", "bilinear"), attributes.get("padding_mode", "zeros")
    if mode not in _LINEAR or padding != "zeros":
        raise step.refused(f"its mode is '{mode}' and its padding '{padding}'")
    if len(step.shape(step.input(0))) != 4:
        raise step.refused("what it samples are no images")
    places = _Places.of(step)
    gradients = {}
    if 0 in step.wanted:
        gradients[0] = _of_images(step, places)
    if 1 in step.wanted:
        gradients[1] = _of_grid(step, places)
    return gradients


@dataclass(frozen=True)
class _Places:
    """Where values are read.

    Attributes:
        sizes: Width and height of the images.
        half: What a grid's 1 is in pixels, along x and y.
        centre: The middle of the images in pixels, x and y.
        pixels: The places in pixels: x and y along the last axis.
        lower: The pixel with the lowest coordinates of the four around each place.
        share: How far the place is from that pixel.
    """

    sizes: tuple[int, int]
    half: tuple[float, float]
    centre: ir.Value
    pixels: ir.Value
    lower: ir.Value
    share: ir.Value

    @classmethod
    def of(cls, step: Step) -> _Places:
        writer = step.writer
        height, width = step.sizes(step.input(0), [2, 3])
        reach = 1 if step.attributes.get("align_corners", 0) else 0
        half = ((width - reach) / 2, (height - reach) / 2)
        if not all(half):
            raise step.refused("its images are one pixel wide or high")
        scaled = writer.op("Mul", step.input(1), _numbers(writer, *half))
        centre = _numbers(writer, (width - 1) / 2, (height - 1) / 2)
        pixels = writer.op("Add", scaled, centre)
        lower = writer.op("Floor", pixels)
        return cls((width, height), half, centre, pixels, lower, writer.op("Sub", pixels, lower))

    def as_grid(self, step: Step, pixels: ir.Value) -> ir.Value:
        """Places in pixels as GridSample takes them."""
        writer = step.writer
        return writer.op("Div", writer.op("Sub", pixels, self.centre), _numbers(writer, *self.half))


def _of_images(step: Step, places: _Places) -> ir.Value:
    """Every gradient goes to the four pixels around its place, as much as each was weighed."""
    writer, x = step.writer, step.input(0)
    width, height = places.sizes
    # One axis more, before x and y, for the four pixels.
    four = writer.integers([-2])
    share = writer.op("Unsqueeze", places.share, four)
    corners = writer.op("Add", writer.op("Unsqueeze", places.lower, four), writer.constant(_CORNERS))
    nearest = writer.op(
        "Min",
        writer.op("Max", corners, writer.number(0.0)),
        _numbers(writer, width - 1, height - 1),
    )
    inside = writer.op("Cast", writer.op("Equal", corners, nearest), to=ir.DataType.FLOAT.value)
    weight = writer.op("Abs", writer.op("Sub", share, writer.constant(1 - _CORNERS)))
    weights = writer.reduced("ReduceProd", writer.op("Mul", weight, inside), [-1], keep=False)
    index = writer.op("Mul", nearest, _numbers(writer, 1, width))
    flat = writer.reduced("ReduceSum", index, [-1], keep=False)
    shared = writer.op(
        "Mul",
        writer.op("Unsqueeze", step.gradient, writer.integers([-1])),
        writer.op("Unsqueeze", weights, writer.integers([1])),
    )
    values = writer.op("Reshape", shared, writer.integers([0, 0, -1]))
    positions = writer.op(
        "Expand",
        writer.op(
            "Reshape",
            writer.op("Cast", writer.op("Unsqueeze", flat, writer.integers([1])), to=ir.DataType.INT64.value),
            writer.integers([0, 1, -1]),
        ),
        writer.op("Shape", values),
    )
    images = writer.op("Shape", x, start=0, end=2)
    shape = writer.op("Concat", images, writer.integers([width * height]), axis=0)
    nothing = writer.op("ConstantOfShape", shape, value=ir.tensor(np.zeros(1, np.float32)))
    summed = writer.op("ScatterElements", nothing, positions, values, axis=2, reduction="add")
    return writer.op("Reshape", summed, writer.op("Shape", x), like=x)


def _of_grid(step: Step, places: _Places) -> ir.Value:
    """Between two pixels the value is linear along each axis: its slope is the difference at their ends."""
    writer = step.writer
    slopes = []
    for axis, half in enumerate(places.half):
        along = _numbers(writer, axis == 0, axis == 1)
        below = writer.op("Sub", places.pixels, writer.op("Mul", places.share, along))
        above = writer.op("Add", below, along)
        ends = [
            writer.copy(step.node, [step.input(0), places.as_grid(step, pixels)]) for pixels in (above, below)
        ]
        slope = writer.op("Mul", writer.op("Sub", *ends), step.gradient)
        summed = writer.reduced("ReduceSum", slope, [1], keep=False)
        scaled = writer.op("Mul", summed, writer.number(half))
        slopes.append(writer.op("Unsqueeze", scaled, writer.integers([-1])))
    return writer.op("Concat", *slopes, axis=-1, like=step.input(1))


def _numbers(writer: GraphWriter, *values: float) -> ir.Value:
    """A constant of float32, shape (values,)."""
    return writer.constant(np.array(values, np.float32))


SAMPLING: Mapping[str, Rule] = {"GridSample": _grid_sample}
