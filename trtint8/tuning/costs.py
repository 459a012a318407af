"""The cost of leaving layers in float: their share of the network's arithmetic."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

import onnx_ir as ir

from calibrators.data.samples import SampleSizes
from trtint8.models.multiply_adds import multiply_adds
from trtint8.models.static_shapes import StaticShapes, declared_sizes

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

    def sizes_of(value: ir.Value | None) -> tuple[int, ...]:
        return tuple(_UNKNOWN if size is None else size for size in shapes.of(value) or ())

    costs = {node.name or "": _operations(node, sizes_of) for node in model.graph}
    total = sum(costs.values()) or 1
    return {name: cost / total for name, cost in costs.items()}


def _operations(node: ir.Node, sizes_of: Callable[[ir.Value | None], tuple[int, ...]]) -> int:
    """Multiply-adds per sample; for nodes without products, the elements of the output."""
    products = multiply_adds(node, sizes_of)
    if products is not None:
        return products
    return math.prod(sizes_of(node.outputs[0])) if node.outputs else 0
