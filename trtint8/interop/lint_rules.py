"""TensorRT's rules for Q/DQ pairs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from calibrators.errors import ModelError
from calibrators.operators import operator_of
from trtint8.interop.expand_qlinear import is_qlinear
from trtint8.interop.grids import HIGHEST, Grid, grid_of, weight_grid
from trtint8.interop.integer_models import Expanded
from trtint8.interop.integer_product import FLOAT_COUNTERPARTS
from trtint8.interop.pairs import (
    dequantizer_behind,
    feeds_integers,
    input_at,
    is_quantized_constant,
    quantized_type,
    quantizers_before,
    reads_integers,
)
from trtint8.interop.unquantize import activation_behind, quantized_nodes
from trtint8.models.graph_constants import read_constant
from trtint8.quantization.operators import lacks_kernel_shape, weight_axis


@dataclass(frozen=True)
class Finding:
    """A violation of one of TensorRT's rules.

    Attributes:
        rule: The name of the rule, like "bias-int32".
        node: The name of the node.
        message: What is wrong, and what TensorRT does about it.
        mendable: Whether :func:`trtint8.interop.mend.mend` corrects it.
    """

    rule: str
    node: str
    message: str
    mendable: bool = True


def rule_findings(expanded: Expanded) -> Iterator[Finding]:
    """Checks an expanded model against TensorRT's rules.

    Yields:
        The violated rules, in the order of the original graph behind those of nodes that were folded.
    """
    for name, operator in expanded.folded.items():
        message = (
            f"{operator} computes integers, a scale or a zero point of constants: TensorRT refuses some "
            "of that, and runs some layers in float"
        )
        yield Finding("computed-constant", name, message)
    for node in expanded.original.graph:
        obstacle = expanded.obstacles.get(node.name or "")
        if obstacle is None:
            yield from _expanded_finding(expanded, node)
        else:
            what = f"TensorRT has no {node.op_type}, and " if _is_integer(node) else ""
            rule = "integer-operator" if _is_integer(node) else "integer-data"
            message = f"{what}{obstacle}; export the model with Q/DQ pairs around float operators"
            yield Finding(rule, node.name or "", message, mendable=False)
        yield from _pair_findings(node)


def _expanded_finding(expanded: Expanded, node: ir.Node) -> Iterator[Finding]:
    name, operator = node.name or "", node.op_type
    if name in expanded.dynamic:
        advice = (
            "quantize the float model that it was made from"
            if quantized_nodes(expanded.graph_model)
            else "run `trtint8 calibrate` and `trtint8 quantize` on the mended model"
        )
        yield Finding(
            "dynamic-scale",
            name,
            "its input's scale is computed at run time, which TensorRT lacks, and no range is known: it "
            f"becomes a float {FLOAT_COUNTERPARTS[operator]}; for INT8, {advice}",
        )
    elif _is_integer(node):
        rule = "qlinear" if is_qlinear(node) else "integer-operator"
        yield Finding(rule, name, f"TensorRT has no {operator}; Q/DQ pairs express the same")
    elif name in expanded.moved:
        yield Finding(
            "integer-data", name, f"{operator} moves integers: TensorRT wants a pair on either side"
        )


def _is_integer(node: ir.Node) -> bool:
    return node.op_type in FLOAT_COUNTERPARTS or is_qlinear(node)


def _pair_findings(node: ir.Node) -> Iterator[Finding]:
    """Checks a node that quantizes or dequantizes, or that reads dequantized values.

    Args:
        node: A node of any operator; only QuantizeLinear, DequantizeLinear, weighted operators and Concat are
            checked.

    Yields:
        The violated rules.
    """
    name = node.name or ""
    if operator_of(node).half_of_pair:
        yield from _quantizer(node, name)
    elif operator_of(node).is_weighted:
        yield from _weighted(node, name)
    elif node.op_type == "Concat":
        yield from _concat(node, name)


def _quantizer(node: ir.Node, name: str) -> Iterator[Finding]:
    scale, point, stored = (read_constant(input_at(node, index)) for index in (1, 2, 0))
    activation = not _is_weight(node.inputs[0])
    if scale is None or (point is None and input_at(node, 2) is not None):
        what = "scale" if scale is None else "zero point"
        yield Finding("scale-computed", name, f"its {what} is computed at run time", mendable=False)
        return
    scale = scale.reshape(-1)
    yield from _scale(name, scale, activation)
    if misfit := _misfit(node, scale.size):
        yield Finding("axis", name, misfit, mendable=False)
        return
    if point is not None and point.any():
        message = f"its zero point is {point[point != 0][0]}, and TensorRT takes only 0"
        yield Finding("zero-point", name, message)
    yield from _type(node, name, activation)
    block_size = node.attributes.get_int("block_size", 0)
    if block_size and not activation:
        message = (
            f"it has one scale per block of {block_size} weights, which TensorRT takes for scales of output "
            "channels: its results are wrong"
        )
        yield Finding("block-scales", name, message)
    if activation and scale.size > 1:
        message = "an activation has one scale per channel: it runs in float"
        yield Finding("activation-per-channel", name, message)
    if stored is not None and stored.ndim == 0:
        yield Finding("scalar-constant", name, "it dequantizes a constant without dimensions")
    if node.op_type == "DequantizeLinear" and activation and activation_behind(node) is not None:
        yield Finding(
            "pair-before-activation", name, "a pair before an activation function prevents a fusion"
        )


def _scale(name: str, scale: NDArray[np.floating], activation: bool) -> Iterator[Finding]:
    wrong = scale[~((scale > 0) & np.isfinite(scale))]
    if wrong.size:
        # The steps below 0 are those above 0 of the positive scale, and what is 0 has any scale.
        mendable = bool(np.isfinite(wrong).all()) and not (activation and (wrong == 0).any())
        yield Finding("scale", name, f"a scale is {wrong[0]}; scales are positive and finite", mendable)


def _misfit(node: ir.Node, count: int) -> str | None:
    """Says how scales do not fit the tensor that they belong to; None where they do, or it is not known."""
    if count < 2 or node.attributes.get_int("block_size", 0) > 0 or node.inputs[0] is None:
        return None
    value, shape = node.inputs[0], _shape(node)
    axis = node.attributes.get_int("axis", 1)
    if shape is None or (-len(shape) <= axis < len(shape) and shape[axis] in (count, None)):
        return None
    sizes = [size if size is not None else "?" for size in shape]
    tensor = f"the tensor '{value.name}' of shape {sizes}"
    return f"it has {count} scales along axis {axis}, which do not fit {tensor}"


def _shape(node: ir.Node) -> list[int | None] | None:
    value = _stored(node.inputs[0])
    shape = value.shape if value is not None else None
    return None if shape is None else [size if isinstance(size, int) else None for size in shape]


def _type(node: ir.Node, name: str, activation: bool) -> Iterator[Finding]:
    dtype = quantized_type(node)
    if dtype is None or dtype == ir.DataType.INT8:
        return
    kind = dtype.name.lower()
    if dtype == ir.DataType.INT32:
        yield Finding("bias-int32", name, "it dequantizes an int32 bias, which TensorRT wants in float")
    elif activation and not dtype.is_integer():
        message = f"it quantizes to {kind}, which is no integer type; export the model with int8 or uint8"
        yield Finding("type", name, message, mendable=False)
    else:
        yield Finding("type", name, f"it quantizes to {kind}, and TensorRT takes int8")


def _weighted(node: ir.Node, name: str) -> Iterator[Finding]:
    sources = [dequantizer_behind(value) for value in node.inputs[:2]]
    one_sided = any(sources) and not all(map(reads_integers, node.inputs[:2]))
    if one_sided and not any(map(_is_empty, node.inputs[:2])):
        yield Finding(
            "one-sided", name, f"only one of its operands is quantized: it runs in float{_one_sided(node)}"
        )
    for index, source in enumerate(sources):
        if source is not None:
            yield from _weight_axis(node, name, index, *source)
    weights = sources[1] if len(sources) > 1 else None
    if weights is not None and _is_weight(weights[0].inputs[0]) and lacks_kernel_shape(node):
        message = "it does not tell kernel_shape, without which TensorRT 8.6 refuses quantized weights"
        yield Finding("kernel-shape", name, message)


def _is_empty(value: ir.Value | None) -> bool:
    """True of a constant without elements, as of an adapter of rank 0: there is nothing to quantize."""
    tensor = ir.convenience.get_const_tensor(value) if value is not None else None
    return tensor is not None and tensor.size == 0


def _weight_axis(
    node: ir.Node, name: str, index: int, weights: ir.Node, axes: tuple[int, ...] | None
) -> Iterator[Finding]:
    """Checks the scales of an operand, which is at that index and dequantized by ``weights``."""
    scale, rank = read_constant(input_at(weights, 1)), _rank(weights)
    if scale is None or scale.size < 2 or rank is None or not _is_weight(weights.inputs[0]):
        return
    if weights.attributes.get_int("block_size", 0) or _misfit(weights, scale.size):
        return  # a finding of its own
    stored = weights.attributes.get_int("axis", 1)
    stored += rank if stored < 0 else 0
    axis = axes.index(stored) if axes is not None and stored in axes else stored
    # The rank of what the node reads may be unknown, but that of the stored weights never is.
    operand = node.inputs[index] or weights.outputs[0]
    wanted = rank - 1 if node.op_type == "MatMul" and index else weight_axis(node, operand)
    if axis != wanted:
        instead = "one scale" if wanted is None else str(wanted)
        message = f"its weights have scales along axis {axis} instead of {instead}: it runs in float"
        yield Finding("weight-axis", name, message)


def _one_sided(node: ir.Node) -> str:
    """Says that a node stays in float, where its operand without a pair is not quantized in another way."""
    for value in node.inputs[:2]:
        if reads_integers(value) or is_quantized_constant(value):
            continue
        weights = read_constant(value)
        if weights is None or value is None:
            return ", and stays in float"
        if weight_grid(weights, weight_axis(node, value)) is None:
            return f", and stays in float: '{value.name}' lies on no steps of int8"
    return ""


def _stored(value: ir.Value | None) -> ir.Value | None:
    """What a QuantizeLinear reads whose integers a value is, or the value itself."""
    before = value.producer() if value is not None else None
    return before.inputs[0] if before is not None and before.op_type == "QuantizeLinear" else value


def _rank(weights: ir.Node) -> int | None:
    """The number of dimensions of the weights that a node dequantizes; None where it is not known."""
    stored = _stored(weights.inputs[0])
    tensor = ir.convenience.get_const_tensor(stored) if stored is not None else None
    return len(tensor.shape) or None if tensor is not None else None


def _concat(node: ir.Node, name: str) -> Iterator[Finding]:
    scales = sorted({float(np.float32(grid.amax / HIGHEST)) for grid in concat_grids(node).values()})
    if len(scales) > 1:
        shown = ", ".join(f"{scale:.4g}" for scale in scales)
        message = f"its inputs have the scales {shown}: it rescales in float instead of copying INT8"
        yield Finding("concat-scales", name, message)


def concat_grids(node: ir.Node) -> dict[str, Grid]:
    """The pairs before a Concat, where a layer or another pair reads what the Concat makes.

    Returns:
        Name of each QuantizeLinear to what its pair computes.
    """
    found: dict[str, Grid] = {}
    if node.op_type != "Concat" or not feeds_integers(node):
        return found
    for value in node.inputs:
        for quantize in quantizers_before(value):
            with contextlib.suppress(ModelError):  # a finding of its own
                found[quantize.name or ""] = grid_of(quantize)
    return found


def _is_weight(value: ir.Value | None) -> bool:
    """Whether a value is constant, or a quantized constant."""
    producer = value.producer() if value is not None else None
    if producer is not None and producer.op_type == "QuantizeLinear":
        value = producer.inputs[0]
    return read_constant(value) is not None
