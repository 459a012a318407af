"""Which operators compute each sample, along axis 0, from the same sample of what they read."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from trtint8.models.graph_constants import constant_input, constant_integers
from trtint8.models.samples.batch_sizes import BatchSizes, depends_on_batch

#: Operators that take the shape of what they compute as an input.
SHAPING = ("Expand", "Reshape")

#: Operators that compute every element from the elements at the same place, with broadcasting.
_ELEMENTWISE = (
    "Abs",
    "Add",
    "And",
    "Cast",
    "Ceil",
    "Celu",
    "Clip",
    "Cos",
    "Div",
    "Elu",
    "Equal",
    "Erf",
    "Exp",
    "Floor",
    "Gelu",
    "Greater",
    "GreaterOrEqual",
    "HardSigmoid",
    "HardSwish",
    "Identity",
    "LeakyRelu",
    "Less",
    "LessOrEqual",
    "Log",
    "Max",
    "Mean",
    "Min",
    "Mish",
    "Mod",
    "Mul",
    "Neg",
    "Not",
    "Or",
    "PRelu",
    "Pow",
    "Reciprocal",
    "Relu",
    "Round",
    "Selu",
    "Sigmoid",
    "Sign",
    "Sin",
    "Softplus",
    "Softsign",
    "Sqrt",
    "Sub",
    "Sum",
    "Tanh",
    "ThresholdedRelu",
    "Where",
    "Xor",
)

#: Operators whose axis 0 is the batch by definition; what else they read are weights.
_BATCHED = (
    "AveragePool",
    "Conv",
    "ConvTranspose",
    "DepthToSpace",
    "GlobalAveragePool",
    "GlobalLpPool",
    "GlobalMaxPool",
    "GroupNormalization",
    "InstanceNormalization",
    "LRN",
    "LpPool",
    "MaxPool",
    "SpaceToDepth",
)

#: Operators that work along the axis of an attribute, with its default.
_ALONG_AXIS = {
    "Hardmax": -1,
    "LayerNormalization": -1,
    "LogSoftmax": -1,
    "RMSNormalization": -1,
    "Softmax": -1,
    "Split": 0,
}

#: Operators that work along the axes of an attribute or a constant input, with the number of the input.
_ALONG_AXES = {"Slice": 3, "Squeeze": 1, "Unsqueeze": 1} | {
    f"Reduce{kind}": 1
    for kind in ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")
}


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
    axis = node.attributes.get_int("axis", _ALONG_AXIS[node.op_type])
    return _reads_only_first(node, found) and _is_other(axis, _rank(node.inputs[0]))


def _along_axes(node: ir.Node, found: Found) -> bool:
    axes = _axes(node, _ALONG_AXES[node.op_type])
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


def _samples_at_places(node: ir.Node, found: Found) -> bool:
    # Each sample has a map and places of its own.
    return all(value in found.samples for value in node.inputs)


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


#: Operator to whether a node of it keeps samples apart, given what the nodes before it have computed. At
#: least one of its inputs has samples, or its target shape was computed from shapes.
RULES: Mapping[str, Callable[[ir.Node, Found], bool]] = {
    **dict.fromkeys(_ELEMENTWISE, _elementwise),
    **dict.fromkeys(_BATCHED, _batched),
    **dict.fromkeys(_ALONG_AXIS, _along_axis),
    **dict.fromkeys(_ALONG_AXES, _along_axes),
    "BatchNormalization": _normalizes_batch,
    "Concat": _concatenates,
    "DequantizeLinear": _quantizes,
    "Expand": _expands,
    "Flatten": _flattens,
    "Gather": _gathers,
    "Gemm": _multiplies_matrices,
    "GridSample": _samples_at_places,
    "MatMul": _multiplies,
    "Pad": _pads,
    "QuantizeLinear": _quantizes,
    "Reshape": _reshapes,
    "Resize": _resizes,
    "Transpose": _transposes,
}
