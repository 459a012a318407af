"""TensorRT's rules for Q/DQ pairs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from trtint8.interop.pairs import dequantizer_behind, input_at, quantized_type, reads_integers
from trtint8.models.graph_constants import read_constant
from trtint8.quantization.operators import WEIGHTED, lacks_kernel_shape, weight_axis


@dataclass(frozen=True)
class Finding:
    """A violation of one of TensorRT's rules.

    Attributes:
        rule: The name of the rule, like "bias-int32".
        node: The name of the node.
        message: What is wrong, and what TensorRT does about it.
        mendable: Whether :func:`trtint8.interop.lint.mend` corrects it.
    """

    rule: str
    node: str
    message: str
    mendable: bool = True


def pair_findings(node: ir.Node) -> Iterator[Finding]:
    """Checks a node that quantizes or dequantizes, or that reads dequantized values.

    Args:
        node: A node of any operator; only QuantizeLinear, DequantizeLinear, weighted operators and Concat are
            checked.

    Yields:
        The violated rules.
    """
    name = node.name or ""
    if node.op_type in ("QuantizeLinear", "DequantizeLinear"):
        yield from _quantizer(node, name)
    elif node.op_type in WEIGHTED:
        yield from _weighted(node, name)
    elif node.op_type == "Concat":
        yield from _concat(node, name)


def _quantizer(node: ir.Node, name: str) -> Iterator[Finding]:
    scale, point, stored = (read_constant(input_at(node, index)) for index in (1, 2, 0))
    activation = not _is_weight(node.inputs[0])
    if scale is None:
        yield Finding("scale-computed", name, "its scale is computed at run time", mendable=False)
        return
    if not ((scale > 0) & np.isfinite(scale)).all():
        bad = scale.reshape(-1)[~((scale > 0) & np.isfinite(scale)).reshape(-1)][0]
        yield Finding("scale", name, f"a scale is {bad}; scales are positive and finite", mendable=False)
    if point is not None and point.any():
        yield Finding(
            "zero-point", name, f"its zero point is {point[point != 0][0]}, and TensorRT takes only 0"
        )
    yield from _type(node, name, activation)
    block_size = node.attributes.get_int("block_size", 0)
    if block_size and not activation:
        message = (
            f"it has one scale per block of {block_size} weights, which TensorRT takes for scales of output "
            "channels: its results are wrong"
        )
        yield Finding("block-scales", name, message)
    if activation and scale.size > 1:
        yield Finding(
            "activation-per-channel", name, "an activation has one scale per channel: it runs in float"
        )
    if stored is not None and stored.ndim == 0:
        yield Finding("scalar-constant", name, "it dequantizes a constant without dimensions")
    if node.op_type == "DequantizeLinear" and activation and _feeds_activation(node):
        yield Finding(
            "pair-before-activation", name, "a pair before an activation function prevents a fusion"
        )


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
    if any(sources) and not all(map(reads_integers, node.inputs[:2])):
        yield Finding("one-sided", name, "only one of its operands is quantized: it runs in float")
    for index, source in enumerate(sources):
        if source is not None:
            yield from _weight_axis(node, name, index, *source)
    if len(sources) > 1 and sources[1] is not None and lacks_kernel_shape(node):
        message = "it does not tell kernel_shape, without which TensorRT 8.6 refuses quantized weights"
        yield Finding("kernel-shape", name, message)


def _weight_axis(
    node: ir.Node, name: str, index: int, weights: ir.Node, axes: tuple[int, ...] | None
) -> Iterator[Finding]:
    """Checks the scales of an operand, which is at that index and dequantized by ``weights``."""
    scale, rank = read_constant(input_at(weights, 1)), _rank(weights)
    if scale is None or scale.size < 2 or rank is None or not _is_weight(weights.inputs[0]):
        return
    if weights.attributes.get_int("block_size", 0):
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


def _rank(weights: ir.Node) -> int | None:
    """The number of dimensions of the weights that a node dequantizes; None where it is not known."""
    value = weights.inputs[0]
    before = value.producer() if value is not None else None
    stored = before.inputs[0] if before is not None and before.op_type == "QuantizeLinear" else value
    tensor = ir.convenience.get_const_tensor(stored) if stored is not None else None
    return len(tensor.shape) or None if tensor is not None else None


def _concat(node: ir.Node, name: str) -> Iterator[Finding]:
    producers = [value.producer() if value is not None else None for value in node.inputs]
    scales = {
        float(scale.reshape(-1)[0])
        for producer in producers
        if producer is not None and producer.op_type == "DequantizeLinear"
        if (scale := read_constant(input_at(producer, 1))) is not None and scale.size == 1
    }
    if len(scales) > 1 and any(reader.op_type == "QuantizeLinear" for reader, _ in node.outputs[0].uses()):
        shown = ", ".join(f"{scale:.4g}" for scale in sorted(scales))
        yield Finding(
            "concat-scales",
            name,
            f"its inputs have the scales {shown}: it rescales in float instead of copying INT8",
        )


def _feeds_activation(node: ir.Node) -> bool:
    source = node.inputs[0].producer() if node.inputs[0] is not None else None
    value = source.inputs[0] if source is not None and source.op_type == "QuantizeLinear" else None
    before = value.producer() if value is not None else None
    after = [user.op_type for user, _ in node.outputs[0].uses()]
    return before is not None and before.op_type in WEIGHTED and after == ["Relu"]


def _is_weight(value: ir.Value | None) -> bool:
    """Whether a value is constant, or a quantized constant."""
    producer = value.producer() if value is not None else None
    if producer is not None and producer.op_type == "QuantizeLinear":
        value = producer.inputs[0]
    return read_constant(value) is not None
