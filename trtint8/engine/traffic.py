"""How many bytes each kernel of an engine reads and writes: from the tensors that the builder lists."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from calibrators.records import Count, Line
from trtint8.engine.layers import Dimensions, Layer, LayerReport
from trtint8.engine.parts import PARTS, moves_only, operations, parts_of

#: Bytes per element of the datatypes, as the builder spells them.
_BYTES = {
    "Int8": 1,
    "UInt8": 1,
    "Uint8": 1,
    "FP8": 1,
    "Bool": 1,
    "Half": 2,
    "BFloat16": 2,
    "Float": 4,
    "Int32": 4,
    "Int64": 8,
}

#: The operation of a generated kernel that selects rows of a table.
_GATHER = "Gath"


@dataclass(frozen=True)
class Traffic:
    """What one kernel reads and writes per inference, or several together.

    Attributes:
        read: Bytes that are read, weights included.
        written: Bytes that are written.
    """

    read: Count
    written: Count

    @property
    def total(self) -> int:
        """Bytes that are read or written."""
        return self.read + self.written

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(self.read + other.read, self.written + other.written)


@dataclass(frozen=True)
class PartTotal:
    """All kernels of one part of an engine, with its first optimization profile.

    Attributes:
        part: What the kernels are for; see :data:`trtint8.engine.parts.Part`.
        kernels: The number of kernels.
        traffic: What they read and write per inference; None where shapes are dynamic or not listed.
    """

    part: Line
    kernels: Count
    traffic: Traffic | None


def traffic_of(layer: Layer) -> Traffic | None:
    """The bytes that a kernel reads and writes per inference.

    Every tensor counts once, as if nothing stayed in a cache. A kernel that only moves values reads no more
    elements than it writes, and one that selects rows of a table reads no more of it than it writes.

    Args:
        layer: The kernel.

    Returns:
        The bytes; None where a shape or a datatype is not known.
    """
    inputs = _sizes(layer.inputs, layer.input_shapes)
    constants = _sizes(layer.constants, layer.constant_shapes)
    outputs = _sizes(layer.outputs, layer.output_shapes)
    if inputs is None or constants is None or outputs is None:
        return None
    largest = max((elements for elements, _ in outputs), default=0)
    if _GATHER in operations(layer):
        constants = [(min(elements, largest), width) for elements, width in constants]
    read = _bytes(inputs) + _bytes(constants)
    if moves_only(layer) and outputs:
        moved = sum(elements for elements, _ in outputs) * max((width for _, width in inputs), default=0)
        read = min(read, moved)
    return Traffic(read, _bytes(outputs))


def activation_sizes(layer: Layer) -> tuple[int, ...]:
    """The bytes of each tensor that a kernel reads or writes, without constants.

    Args:
        layer: The kernel.

    Returns:
        One number per tensor; empty where the shape or the type of one is not known.
    """
    sizes = _sizes((*layer.inputs, *layer.outputs), (*layer.input_shapes, *layer.output_shapes))
    return tuple(elements * width for elements, width in sizes or ())


def part_totals(report: LayerReport) -> tuple[PartTotal, ...]:
    """The kernels of an engine by part, with what they read and write.

    One optimization profile runs at a time, so of several only the first is counted.

    Args:
        report: The engine's layers.

    Returns:
        One entry per part that the engine has, in the order of :data:`trtint8.engine.parts.PARTS`.
    """
    report = report.of_first_profile
    parts = parts_of(report)
    totals = []
    for part in PARTS:
        layers = [layer for layer, of in zip(report.layers, parts, strict=True) if of == part]
        if layers:
            totals.append(PartTotal(part, len(layers), total_traffic(map(traffic_of, layers))))
    return tuple(totals)


def total_traffic(parts: Iterable[Traffic | None]) -> Traffic | None:
    """The sum of what several kernels read and write; None where that of one is not known."""
    total = Traffic(0, 0)
    for traffic in parts:
        if traffic is None:
            return None
        total += traffic
    return total


def _sizes(datatypes: Sequence[str], shapes: Sequence[Dimensions]) -> list[tuple[int, int]] | None:
    """The number of elements and the bytes per element of each tensor; None where one is not known."""
    if len(datatypes) != len(shapes):
        return None
    sizes = []
    for datatype, shape in zip(datatypes, shapes, strict=True):
        if datatype not in _BYTES or any(dimension < 0 for dimension in shape):
            return None
        sizes.append((math.prod(shape), _BYTES[datatype]))
    return sizes


def _bytes(sizes: Iterable[tuple[int, int]]) -> int:
    return sum(elements * width for elements, width in sizes)
