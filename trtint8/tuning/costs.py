"""The cost of leaving layers in float: their share of the network's arithmetic."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import onnx_ir as ir

from calibrators.data.sample_sizes import SampleSizes
from trtint8.models.static_shapes import StaticShapes, declared_sizes
from trtint8.quantization.operators import WEIGHTED

#: The size that an unknown dimension, usually the batch, is taken to have.
_UNKNOWN = 1


def float_cost(model: ir.Model, names: Iterable[str], sizes: Mapping[str, SampleSizes]) -> float:
    """The share of the network's multiplications and additions that some nodes take.

    Args:
        model: From :func:`trtint8.models.model.prepare`.
        names: Names of the nodes.
        sizes: Input name to the sizes that samples had, the largest of which count; may lack inputs.

    Returns:
        The share, in [0, 1].
    """
    shares = cost_shares(model, sizes)
    return sum(shares.get(name, 0.0) for name in set(names))


def cost_shares(model: ir.Model, sizes: Mapping[str, SampleSizes]) -> dict[str, float]:
    """The share of the network's multiplications and additions that every node takes.

    Args:
        model: From :func:`trtint8.models.model.prepare`.
        sizes: Input name to the sizes that samples had, the largest of which count; may lack inputs.

    Returns:
        Name of each node to its share, in [0, 1].
    """
    inputs = {}
    for value in model.graph.inputs:
        declared, sampled = declared_sizes(value), sizes.get(value.name or "")
        if declared and sampled:
            inputs[value.name or ""] = (declared[0] or _UNKNOWN, *sampled.largest)
    shapes = StaticShapes(model, inputs)
    costs = {node.name or "": _operations(node, shapes) for node in model.graph}
    total = sum(costs.values()) or 1.0
    return {name: cost / total for name, cost in costs.items()}


def _operations(node: ir.Node, shapes: StaticShapes) -> float:
    """Multiplications and additions per sample; for nodes without weights, the elements of the output."""
    output = _size(node.outputs[0], shapes) if node.outputs else 0.0
    if node.op_type not in WEIGHTED or len(node.inputs) < 2 or node.inputs[1] is None:
        return output
    second = node.inputs[1]
    if node.op_type == "Conv":
        return output * _size(second, shapes) / max(1, _dimensions(second, shapes)[0])
    if node.op_type == "ConvTranspose" and node.inputs[0] is not None:
        weights = _size(second, shapes) / max(1, _dimensions(second, shapes)[0])
        return _size(node.inputs[0], shapes) * weights
    inner = _dimensions(node.inputs[0], shapes)[-1:] or [1]
    return output * inner[0]


def _size(value: ir.Value, shapes: StaticShapes) -> float:
    return float(math.prod(_dimensions(value, shapes)))


def _dimensions(value: ir.Value | None, shapes: StaticShapes) -> list[int]:
    return [_UNKNOWN if size is None else size for size in shapes.of(value) or ()]
