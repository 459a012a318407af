"""The cost of leaving layers in float: their share of the network's arithmetic."""

from __future__ import annotations

import math
from collections.abc import Iterable

import onnx_ir as ir

from trtint8.quantization.operators import WEIGHTED

#: The size that an unknown dimension, usually the batch, is taken to have.
_UNKNOWN = 1


def float_cost(model: ir.Model, names: Iterable[str]) -> float:
    """The share of the network's multiplications and additions that some nodes take.

    Args:
        model: From :func:`trtint8.models.model.prepare`.
        names: Names of the nodes.

    Returns:
        The share, in [0, 1].
    """
    chosen = set(names)
    costs = {node.name: _operations(node) for node in model.graph}
    return sum(cost for name, cost in costs.items() if name in chosen) / (sum(costs.values()) or 1.0)


def _operations(node: ir.Node) -> float:
    """Multiplications and additions per sample; for nodes without weights, the elements of the output."""
    output = _size(node.outputs[0]) if node.outputs else 0.0
    if node.op_type not in WEIGHTED or len(node.inputs) < 2 or node.inputs[1] is None:
        return output
    second = node.inputs[1]
    if node.op_type == "Conv":
        return output * _size(second) / max(1, _dimensions(second)[0])
    if node.op_type == "ConvTranspose" and node.inputs[0] is not None:
        return _size(node.inputs[0]) * _size(second) / max(1, _dimensions(second)[0])
    first = node.inputs[0]
    inner = _dimensions(first)[-1] if first is not None and _dimensions(first) else 1
    return output * inner


def _size(value: ir.Value) -> float:
    return float(math.prod(_dimensions(value)))


def _dimensions(value: ir.Value) -> list[int]:
    return (
        [dim if isinstance(dim, int) else _UNKNOWN for dim in value.shape] if value.shape is not None else []
    )
