"""Which operators compute each sample, along axis 0, from the same sample of what they read."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import onnx_ir as ir

from calibrators.operators import Axes, operator_of
from trtint8.models.graph_constants import constant_input, constant_integers
from trtint8.models.samples.batch_sizes import BatchSizes, depends_on_batch

#: Operators that take the shape of what they compute as an input.
SHAPING = ("Expand", "Reshape")


@dataclass(frozen=True)
class Found:
    """What the nodes so far have computed.

    Attributes:
        samples: Values that have samples along axis 0.
        sizes: Values that were computed from shapes. All others are constants.
        shape_of: Gives the sizes of a tensor, None in place of one that is open; None where not even the rank
            is known.
    """

    samples: set[ir.Value | None]
    sizes: BatchSizes
    shape_of: Callable[[ir.Value | None], tuple[int | None, ...] | None]


#: Whether a node keeps samples apart, given what the nodes before it have computed.
Rule: TypeAlias = Callable[[ir.Node, Found], bool]


def _elementwise(node: ir.Node, found: Found) -> bool:
    ranks = [_rank(value) for value in node.inputs if value is not None]
    if None in ranks:
        return False
    most = max(rank for rank in ranks if rank is not None)
    return all(
        _rank(value) == most if value in found.samples else _broadcasts(value, most)
        for value in node.inputs
        if value is not None
    )


def _batched(node: ir.Node, found: Found) -> bool:
    # The second output of MaxPool counts places from the first sample of the batch on.
    return _reads_only_first(node, found) and len(node.outputs) == 1


def _normalizes_batch(node: ir.Node, found: Found) -> bool:
    return _reads_only_first(node, found) and not node.attributes.get_int("training_mode", 0)


def _along_axis(node: ir.Node, found: Found) -> bool:
    axis = node.attributes.get_int("axis", operator_of(node).axis)
    return _reads_only_first(node, found) and _is_other(axis, _rank(node.inputs[0]))


def _along_axes(node: ir.Node, found: Found) -> bool:
    axes = _axes(node, operator_of(node).axes_input)
    # New axes are counted among those of the output.
    rank = _rank(node.outputs[0] if node.op_type == "Unsqueeze" else node.inputs[0])
    return _reads_only_first(node, found) and bool(axes) and all(_is_other(axis, rank) for axis in axes)


def _concatenates(node: ir.Node, found: Found) -> bool:
    axis = node.attributes.get_int("axis", 0)
    return all(value in found.samples for value in node.inputs) and _is_other(axis, _rank(node.inputs[0]))


def _flattens(node: ir.Node, found: Found) -> bool:
    return _reads_only_first(node, found) and node.attributes.get_int("axis", 1) == 1


def _gathers(node: ir.Node, found: Found) -> bool:
    axis, (data, indices) = node.attributes.get_int("axis", 0), node.inputs
    if data in found.samples:
        return indices not in found.samples and _is_other(axis, _rank(data))
    return axis == 0  # rows of a table


def _looks_up(node: ir.Node, found: Found) -> bool:
    """Whether each sample is looked up at places of its own."""
    return all(value in found.samples for value in node.inputs)


def _multiplies(node: ir.Node, found: Found) -> bool:
    first, second = (_rank(value) or 0 for value in node.inputs)
    if node.inputs[0] not in found.samples:
        return first == 2 and second > 2
    return first == second > 2 if node.inputs[1] in found.samples else first >= second == 2


def _multiplies_matrices(node: ir.Node, found: Found) -> bool:
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    return (
        _reads_only_first(node, found)
        and not node.attributes.get_int("transA", 0)
        and (bias is None or _broadcasts(bias, 2))
    )


def _pads(node: ir.Node, found: Found) -> bool:
    pads = constant_integers(node.inputs[1]) if len(node.inputs) > 1 else None
    if not pads or any(value is not None for value in node.inputs[3:]):
        return False
    return _reads_only_first(node, found) and pads[0] == pads[len(pads) // 2] == 0


def _expands(node: ir.Node, found: Found) -> bool:
    data, wanted = node.inputs[0], found.sizes.of(node.inputs[1])
    if not wanted or wanted[0] is not None or any(map(depends_on_batch, wanted[1:])):
        return False
    return _rank(data) == len(wanted) if data in found.samples else _broadcasts(data, len(wanted))


def _reshapes(node: ir.Node, found: Found) -> bool:
    wanted = found.sizes.of(node.inputs[1])
    if node.inputs[0] not in found.samples or not wanted:
        return False
    if 0 in wanted and node.attributes.get_int("allowzero", False):  # else it changes nothing
        return False
    if any(map(depends_on_batch, wanted[1:])):
        return False
    # Elements keep their order, so samples stay where their number stays.
    if wanted[0] in (None, 0):
        return True
    elements = _elements(wanted[1:])
    return wanted[0] == -1 and elements is not None and elements == _sample_elements(node, found)


def _resizes(node: ir.Node, found: Found) -> bool:
    scales = constant_input(node, 2)
    if node.attributes.get_ints("axes", ()) or any(value is not None for value in node.inputs[3:]):
        return False
    return _reads_only_first(node, found) and scales is not None and scales.size > 0 and scales[0] == 1


def _transposes(node: ir.Node, found: Found) -> bool:
    return _reads_only_first(node, found) and list(node.attributes.get_ints("perm", ()))[:1] == [0]


def _quantizes(node: ir.Node, found: Found) -> bool:
    # One scale for all, or one for each place along an axis.
    scales, axis = _rank(node.inputs[1]), node.attributes.get_int("axis", 1)
    return _reads_only_first(node, found) and (
        scales == 0 or (scales == 1 and _is_other(axis, _rank(node.inputs[0])))
    )


def _reads_only_first(node: ir.Node, found: Found) -> bool:
    """Whether samples are in the first input only."""
    return node.inputs[0] in found.samples and not any(value in found.samples for value in node.inputs[1:])


def _rank(value: ir.Value | None) -> int | None:
    return None if value is None or value.shape is None else len(value.shape)


def _sample_elements(node: ir.Node, found: Found) -> int | None:
    """How many elements a sample of the first input has, where that is known."""
    shape = found.shape_of(node.inputs[0])
    return None if shape is None else _elements(shape[1:])


def _elements(sizes: Sequence[object]) -> int | None:
    known = [size for size in sizes if isinstance(size, int) and size > 0]
    return math.prod(known) if len(known) == len(sizes) else None


def _broadcasts(value: ir.Value | None, rank: int) -> bool:
    """Whether a constant has no axis along the samples of a tensor of some rank, or one of size 1."""
    own = _rank(value)
    if own is None or value is None or value.shape is None:
        return False
    return own < rank or (own == rank and value.shape[0] == 1)


def _axes(node: ir.Node, index: int) -> list[int]:
    """The axes of an attribute, or of a constant input; none where they are left out or not constant."""
    if "axes" in node.attributes:
        return list(node.attributes.get_ints("axes", ()))
    return list(constant_integers(node.inputs[index]) or ()) if len(node.inputs) > index else []


def _is_other(axis: int, rank: int | None) -> bool:
    """Whether an axis is not the first one."""
    return axis > 0 or (rank is not None and -rank < axis < 0)


#: Operators whose nodes keep samples apart under conditions of their own, and these.
_RULES: Mapping[str, Rule] = {
    "BatchNormalization": _normalizes_batch,
    "Concat": _concatenates,
    "DequantizeLinear": _quantizes,
    "Expand": _expands,
    "Flatten": _flattens,
    "Gather": _gathers,
    "Gemm": _multiplies_matrices,
    "GridSample": _looks_up,
    "MatMul": _multiplies,
    "Pad": _pads,
    "QuantizeLinear": _quantizes,
    "Reshape": _reshapes,
    "Resize": _resizes,
    "Transpose": _transposes,
}

#: The same for all other operators, by what axes mean to them.
_RULES_OF_AXES: Mapping[Axes, Rule] = {
    Axes.ELEMENTWISE: _elementwise,
    Axes.IMAGES: _batched,
    Axes.ONE: _along_axis,
    Axes.SEVERAL: _along_axes,
}


def keeps_samples_apart(node: ir.Node, found: Found) -> bool:
    """True if a node computes each sample from the same sample of what it reads, as far as that is known.

    Args:
        node: The node. At least one of its inputs has samples, or its target shape was computed from shapes.
        found: What the nodes before it have computed.
    """
    if node.domain != "":
        return False
    rule, axes = _RULES.get(node.op_type), operator_of(node).axes
    if rule is None and axes is not None:
        rule = _RULES_OF_AXES[axes]
    return rule is not None and rule(node, found)
