"""What a pair of QuantizeLinear and DequantizeLinear computes, and how pairs are read, inserted and replaced.

A pair rounds to multiples of its scale and clips at its ends. Counted in steps from the value 0, there is
neither a zero point nor an element type: a pair is a scale, a lowest and a highest number of steps. A Clip of
the integers between both nodes moves the ends. TensorRT has one kind of pair, from -128 to 127 steps. A pair
whose ends lie within these is that pair behind a Clip in float. All others have more steps than TensorRT, or
one scale per channel: their steps cannot be kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from calibrators.data.feeds import AnyFloats, Array, Flags, Float32s, Floats, Ints
from calibrators.errors import ModelError
from calibrators.operators import operator_of
from trtint8.models.graph import (
    constant_input,
    constant_tensor,
    holds_graphs,
    is_constant,
    made_by,
    read_constant,
)
from trtint8.quantization.targets import TARGETS

#: Operators behind which a layer still reads the integers of a pair, where that was seen.
_READ_THROUGH = frozenset[str]().union(*(target.reads_through for target in TARGETS.values()))

#: Values that are followed from weights back to constants; from an activation it would be all of a model.
_MOST_BEHIND_WEIGHTS = 64


def input_at(node: ir.Node, index: int) -> ir.Value | None:
    """An input of a node, or None where the node has fewer inputs or leaves this one out."""
    return node.inputs[index] if index < len(node.inputs) else None


def quantized_type(node: ir.Node) -> ir.DataType | None:
    """The type of the data that a QuantizeLinear writes or a DequantizeLinear reads.

    Args:
        node: A QuantizeLinear or DequantizeLinear.

    Returns:
        The type; None where a DequantizeLinear has no zero point and the graph does not say what it reads.
    """
    zero_point = input_at(node, 2)
    if zero_point is not None:
        tensor = constant_tensor(zero_point)
        return zero_point.dtype if tensor is None else tensor.dtype
    if node.op_type == "DequantizeLinear":
        return data_type(node.inputs[0])
    return ir.DataType(node.attributes.get_int("output_dtype", 0) or ir.DataType.UINT8)


def data_type(data: ir.Value | None) -> ir.DataType | None:
    """The type of integers; None where the graph does not say it."""
    if quantize := made_by(data, "QuantizeLinear"):
        return quantized_type(quantize)
    return data.dtype if data is not None else None


def dequantizer_behind(value: ir.Value | None) -> tuple[ir.Node, tuple[int, ...] | None] | None:
    """The DequantizeLinear that computes a value, where only Transposes and Casts to floats are between.

    A Transpose moves integers. Before opset 19 a DequantizeLinear gives out FP32, which models in FP16 cast;
    TensorRT for RTX reads the integers before the Cast.

    Args:
        value: A value that a node reads.

    Returns:
        The node, and the axis of its output that each axis of the value is; None in its place where no
        Transpose is between. None where the value is not dequantized.
    """
    axes: tuple[int, ...] | None = None
    node = made_by(value)
    while node is not None and node.domain == "" and node.op_type in ("Cast", "Transpose"):
        if node.op_type == "Transpose":
            perm = tuple(node.attributes.get_ints("perm", ()))
            # Without perm it turns the axes round, and how many there are may not be known.
            if not perm or sorted(perm) != list(range(len(perm))) or len(axes or perm) != len(perm):
                return None
            axes = perm if axes is None else tuple(perm[axis] for axis in axes)
        elif not ir.DataType(node.attributes["to"].as_int()).is_floating_point():
            return None
        node = made_by(node.inputs[0])
    return (node, axes) if node is not None and node.op_type == "DequantizeLinear" else None


def reads_integers(value: ir.Value | None) -> bool:
    """Whether a layer that reads a value has the integers of pairs, also through operators that move values.

    Args:
        value: A value that a node reads. Weights are followed through Transposes only.
    """
    if dequantizer_behind(value) is not None:
        return True
    return all(node is not None and constant_input(node, 0) is None for node in _moved_from(value))


def _moved_from(value: ir.Value | None) -> list[ir.Node | None]:
    """The DequantizeLinear nodes whose values a value has; None among them for whatever is no such node."""
    found: list[ir.Node | None] = []
    for each in walk_back([value], _before_movement):
        if not _before_movement(each):
            behind = dequantizer_behind(each)
            found.append(None if behind is None else behind[0])
    return found


def _before_movement(value: ir.Value | None) -> Sequence[ir.Value | None]:
    """The values that a value has where layers read integers through a movement; none of other values."""
    node = made_by(value, *_READ_THROUGH) if dequantizer_behind(value) is None else None
    if node is None or node.domain != "":
        return ()
    return node.inputs if node.op_type == "Concat" else node.inputs[:1]


def walk_back(
    values: Iterable[ir.Value | None], before: Callable[[ir.Value | None], Iterable[ir.Value | None]]
) -> Iterator[ir.Value | None]:
    """Goes from values to those that they are made of.

    Args:
        values: Where to begin.
        before: Gives the values to go on with from one of them.

    Yields:
        Each value once.
    """
    pending, seen = list(values), set[ir.Value | None]()
    while pending:
        value = pending.pop()
        if value not in seen:
            seen.add(value)
            yield value
            pending += before(value)


def quantizers_before(value: ir.Value | None) -> list[ir.Node]:
    """The QuantizeLinear nodes of the pairs whose values a value has, also through movements of values."""
    quantizers = (
        made_by(node.inputs[0], "QuantizeLinear") for node in _moved_from(value) if node is not None
    )
    return [node for node in quantizers if node is not None]


def feeds_integers(node: ir.Node) -> bool:
    """Whether a layer or a QuantizeLinear reads what a node computes, also through movements of values."""
    pending, seen = [node], {node}
    while pending:
        for output in pending.pop().outputs:
            for reader, _ in output.uses():
                if reader.op_type == "QuantizeLinear" or operator_of(reader).is_weighted:
                    return True
                if reader.op_type in _READ_THROUGH and reader.domain == "" and reader not in seen:
                    seen.add(reader)
                    pending.append(reader)
    return False


def stored_in(value: ir.Value | None) -> ir.Value | None:
    """What a QuantizeLinear reads whose integers a value is, or the value itself."""
    quantize = made_by(value, "QuantizeLinear")
    return value if quantize is None else quantize.inputs[0]


def is_weight(value: ir.Value | None) -> bool:
    """Whether a value is constant, or a quantized constant."""
    return read_constant(stored_in(value)) is not None


def is_quantized_constant(value: ir.Value | None) -> bool:
    """Whether a value is computed of constants alone, of which a pair represents one at least."""
    return bool(constant_scales(value))


def constant_scales(value: ir.Value | None) -> list[Float32s]:
    """The flat scales of the pairs that a value is computed of; none where it is not of constants alone."""
    found = []
    for count, each in enumerate(walk_back([value], _before_constant)):
        node = made_by(each)
        if each is None or is_constant(each):
            continue
        if node is None or not node.inputs or holds_graphs(node) or count > _MOST_BEHIND_WEIGHTS:
            return []
        if node.op_type == "DequantizeLinear" and (scale := constant_input(node, 1)) is not None:
            found.append(np.asarray(scale, np.float32).reshape(-1))
    return found


def _before_constant(value: ir.Value | None) -> Sequence[ir.Value | None]:
    node = None if is_constant(value) else made_by(value)
    return [] if node is None else [each for each in node.inputs if not is_constant(each)]


def replace_value(old: ir.Value, new: ir.Value) -> None:
    """Replaces a value by another, which gets its name, shape and readers."""
    old.replace_all_uses_with(new, replace_graph_outputs=True)
    name, old.name = old.name, f"{old.name}_replaced"
    new.name = name
    new.shape = new.shape if old.shape is None else old.shape


def graph_of(node: ir.Node) -> ir.Graph:
    """The graph that a node is in."""
    assert isinstance(node.graph, ir.Graph)
    return node.graph


#: The ends of TensorRT's pairs, in steps.
LOWEST, HIGHEST = -128, 127

#: By how much of a step weights may lie beside it: some roundings to float32 of up to 127 steps.
_NEAR = 5e-4

#: Values of a channel that are looked at before all of them are.
_GLANCE = 64


@dataclass(frozen=True)
class Grid:
    """What a pair computes: ``scale * clip(round(x / scale), low, high)``.

    Attributes:
        scale: Positive, flat float32: one, or one per channel.
        low: The lowest number of steps, flat int64, as many as there are scales.
        high: The highest number of steps.
    """

    scale: Float32s
    low: Ints
    high: Ints

    @property
    def fits(self) -> bool:
        """Whether a pair of TensorRT has all these steps."""
        return self.scale.size == 1 and bool((self.low >= LOWEST).all() and (self.high <= HIGHEST).all())

    @property
    def ends(self) -> tuple[Floats, Floats]:
        """The lowest and the highest values, each flat, in float64."""
        scale = self.scale.astype(np.float64)
        return self.low * scale, self.high * scale

    @property
    def amax(self) -> float:
        """The range of the pair of TensorRT that has these ends, or these steps where that is possible."""
        if self.fits:
            return HIGHEST * float(self.scale[0])
        low, high = self.ends
        return float(max(-low.min(), high.max()))

    def within(self, low: float, high: float) -> Grid:
        """The pair for values between two ends; what is less than half a step outside is rounded inside."""
        scale = self.scale.astype(np.float64)
        least, most = (np.clip(np.rint(end / scale), self.low, self.high) for end in (low, high))
        return Grid(self.scale, least.astype(np.int64), most.astype(np.int64))


def grid_of(node: ir.Node) -> Grid:
    """What the pair of a QuantizeLinear computes.

    Raises:
        ModelError: The scale or zero point is not constant, a scale is 0 or not finite, or the node quantizes
            to no integer type.
    """
    scale, point = parameters(node)
    if not scale.all():
        raise ModelError(f"a scale of node '{node.name}' is 0; only weights that are 0 can have such a scale")
    low, high = (end - np.broadcast_to(point, scale.shape) for end in integer_ends(node))
    low, high = np.where(scale < 0, -high, low), np.where(scale < 0, -low, high)
    scale = np.abs(scale)
    if all((part == part[0]).all() for part in (scale, low, high)):
        scale, low, high = scale[:1], low[:1], high[:1]
    return Grid(scale, low, high)


def parameters(node: ir.Node) -> tuple[Float32s, Ints]:
    """The scales and zero points of a QuantizeLinear or DequantizeLinear.

    Returns:
        Scales, float32, and zero points, int64, both flat; the zero points are 0 where the node gives none.

    Raises:
        ModelError: They are not constant, a scale is not finite, or there is no scale, or another number of
            zero points.
    """
    given, zero = constant_input(node, 1), constant_input(node, 2)
    if given is None or (zero is None and input_at(node, 2) is not None):
        raise ModelError(f"the scale or zero point of node '{node.name}' is computed at run time")
    scale = np.asarray(given, np.float32).reshape(-1)
    if not np.isfinite(scale).all():
        bad = scale[~np.isfinite(scale)][0]
        raise ModelError(f"a scale of node '{node.name}' is {bad}; scales must be finite")
    point = np.zeros(scale.shape, np.int64) if zero is None else zero.reshape(-1).astype(np.int64)
    if not scale.size or point.size not in (1, scale.size):
        name = node.inputs[1].name if node.inputs[1] is not None else ""
        raise ModelError(
            f"node '{node.name}' has {scale.size} scales in the tensor '{name}' and {point.size} zero "
            "points; give one of each, or one of each per channel"
        )
    return scale, point


def integer_ends(node: ir.Node) -> tuple[int, int]:
    """The smallest and the largest integer that a QuantizeLinear writes.

    Raises:
        ModelError: The node quantizes to no integer type.
    """
    dtype = quantized_type(node)
    assert dtype is not None, "a QuantizeLinear has a type"
    if not dtype.is_integer():
        raise ModelError(
            f"node '{node.name}' quantizes to {dtype.name}, which is no integer type; export the model with "
            "int8 or uint8"
        )
    return type_ends(dtype)


def type_ends(dtype: ir.DataType) -> tuple[int, int]:
    """The smallest and the largest integer of an integer type."""
    smallest = -(2 ** (dtype.bitwidth - 1)) if dtype.is_signed() else 0
    return smallest, smallest + 2**dtype.bitwidth - 1


def weight_grid(weights: AnyFloats, axis: int | None, scales: Iterable[Float32s] = ()) -> Float32s | None:
    """Finds scales of which weights are whole multiples, of up to 127, so that INT8 keeps them as they are.

    It does not matter what made the weights: pairs of any kind, movements and products of constants, or an
    exporter that computed the pairs and left floats.

    Args:
        weights: Weights of any shape.
        axis: The axis of the channels that may have a scale each; None where there can be one scale only.
        scales: Scales that the model gives for the weights, each flat, which are taken where they fit.

    Returns:
        Scales, float32, of shape (channels,), or () without an axis; None where there are none.
    """
    if not weights.size:
        return None
    rows = weights.reshape(1, -1) if axis is None else np.moveaxis(weights, axis, 0)
    rows = rows.reshape(len(rows), -1)
    ends = np.abs(rows).max(axis=1, keepdims=True)
    found = next(
        (
            one
            for one in map(np.abs, scales)
            if one.size in (1, len(rows)) and _near(rows, one[:, None]).all()
        ),
        None,
    )
    if found is None:
        found = _greatest_step(rows.reshape(1, -1), ends.max(keepdims=True))
    if found is None and axis is not None:
        found = _greatest_step(rows, ends)
    if found is None:
        return None
    # Of a channel that is 0 any scale is right.
    found = np.where(found == 0, np.float32(1), found)
    return np.broadcast_to(found, (len(rows),)).copy() if axis is not None else found.reshape(())


def _near(rows: AnyFloats, scale: AnyFloats) -> Flags:
    """True for each row whose values are whole multiples; scales have the shape (rows, 1) or (1, 1)."""
    with np.errstate(all="ignore"):
        steps = rows / np.where(scale < np.finfo(np.float32).tiny, np.nan, scale)
        whole = np.rint(steps)
        near = (np.abs(steps - whole) <= _NEAR) & (whole >= LOWEST) & (whole <= HIGHEST)
    fitting: Flags = (near | (rows == 0)).all(axis=1)
    return fitting


def _greatest_step(rows: AnyFloats, ends: AnyFloats) -> Float32s | None:
    """The greatest scale of each row of which all its values are multiples; None where a row has none.

    Args:
        rows: The values.
        ends: The largest magnitude of each row, of shape (rows, 1).
    """
    if not np.isfinite(ends).all():
        return None
    found = np.where(ends == 0, np.float32(1), np.float32(0)).astype(np.float32)
    for steps in range(1, -LOWEST + 1):
        open_rows = np.flatnonzero(found == 0)
        scale = (ends[open_rows] / steps).astype(np.float32)
        fit = _near(rows[open_rows, :_GLANCE], scale)
        open_rows, scale = open_rows[fit], scale[fit]
        fit = _near(rows[open_rows], scale)
        found[open_rows[fit]] = scale[fit]
        if found.all():
            return found.reshape(-1)
    return None


def quantized_values(node: ir.Node, weights: Array) -> Ints:
    """Quantizes a constant as a QuantizeLinear does.

    Args:
        node: The QuantizeLinear that reads the constant.
        weights: The constant, of any shape.

    Returns:
        int64, of the constant's shape.

    Raises:
        ModelError: The scales do not fit the shape, or a scale is 0 where the constant is not.
    """
    scale, point = parameters(node)
    smallest, largest = integer_ends(node)
    scales, points = (_spread(node, numbers, weights.shape) for numbers in (scale, point))
    values = weights.astype(np.float32)
    # Any scale is right for a channel that was pruned.
    if bool(((scales == 0) & (values != 0)).any()):
        raise ModelError(f"a scale of node '{node.name}' is 0, and its weights are not")
    with np.errstate(over="ignore"):  # a quotient beyond float32 is clipped as any other
        whole = np.rint(values / np.where(scales == 0, np.float32(1), scales)).astype(np.float64) + points
    clipped: Ints = np.clip(np.nan_to_num(whole), smallest, largest).astype(np.int64)
    return clipped.reshape(weights.shape)


def float_values(node: ir.Node, stored: Array, scale: AnyFloats, zero_point: NDArray[np.integer]) -> Float32s:
    """Dequantizes a constant.

    Args:
        node: The DequantizeLinear that reads the constant.
        stored: The constant, of any shape and type.
        scale: The node's scales, flat: one, one per channel, or one per block.
        zero_point: The node's zero points, flat: one, or as many as there are scales.

    Returns:
        float32, of the constant's shape.

    Raises:
        ModelError: The scales do not fit the shape.
    """
    scales, points = (_spread(node, one.astype(np.float32), stored.shape) for one in (scale, zero_point))
    values: Float32s = ((stored.astype(np.float32) - points) * scales).astype(np.float32)
    return values.reshape(stored.shape)


def _spread(node: ir.Node, numbers: Array, shape: tuple[int, ...]) -> Array:
    """Flat numbers, one, or one per channel or per block, in a shape that broadcasts against ``shape``."""
    if numbers.size == 1:
        return numbers
    axis, block_size = node.attributes.get_int("axis", 1), node.attributes.get_int("block_size", 0)
    name = node.inputs[0].name if node.inputs[0] is not None else ""
    size, along = shape[axis] if -len(shape) <= axis < len(shape) else None, [1] * len(shape)
    if block_size > 0 and size is not None:
        given, blocks = constant_input(node, 1), list(shape)
        blocks[axis] = -(-size // block_size)
        assert given is not None, "flat scales were read from it"
        if list(given.shape) != blocks:
            raise ModelError(
                f"node '{node.name}' has scales of shape {list(given.shape)}, and the tensor '{name}' of "
                f"shape {list(shape)} in blocks of {block_size} along axis {axis} needs {blocks}; "
                "give one scale per block"
            )
        return np.repeat(numbers.reshape(blocks), block_size, axis).take(range(size), axis)
    if size != numbers.size:
        raise ModelError(
            f"node '{node.name}' has {numbers.size} scales along axis {axis}, which do not fit the "
            f"tensor '{name}' of shape {list(shape)}; give one scale per channel"
        )
    along[axis] = -1
    return numbers.reshape(along)
