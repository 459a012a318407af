"""Appends to a network the gradients of a sum of its outputs with respect to chosen tensors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import onnx_ir as ir

from trtint8.models.graph import values_read
from trtint8.models.graph_writer import GraphWriter, reached_from
from trtint8.sensitivity.gradients.elementwise import ELEMENTWISE, NORMALIZATIONS, REDUCTIONS
from trtint8.sensitivity.gradients.movement import MOVEMENT, PICKING, RESIZING, SAMPLING
from trtint8.sensitivity.gradients.rule import NoGradientError, Step
from trtint8.sensitivity.gradients.weighted import WEIGHTED_RULES

_RULES = {
    **ELEMENTWISE,
    **MOVEMENT,
    **NORMALIZATIONS,
    **PICKING,
    **REDUCTIONS,
    **RESIZING,
    **SAMPLING,
    **WEIGHTED_RULES,
}


def append_gradients(
    writer: GraphWriter,
    nodes: Iterable[ir.Node],
    starts: Mapping[ir.Value, ir.Value],
    tensors: Iterable[ir.Value],
) -> dict[ir.Value, ir.Value]:
    """Appends the nodes that compute gradients backwards through a network.

    Args:
        writer: Writes to the network's graph.
        nodes: The network's nodes, in graph order.
        starts: Output of the network to the gradient that it begins with: a value of the same shape.
        tensors: The tensors whose gradients are wanted.

    Returns:
        Tensor to its gradient, for the tensors that an output depends on.

    Raises:
        NoGradientError: The gradient of an operator on the way is not known.
    """
    nodes, wanted = list(nodes), set(tensors)
    reached = reached_from(nodes, wanted)
    gradients = {value: gradient for value, gradient in starts.items() if value in reached}
    found: dict[ir.Value, ir.Value] = {}
    for node in reversed(nodes):
        for output in node.outputs:
            if output in wanted and output in gradients:
                found[output] = gradients[output]
        if not any(output in gradients for output in node.outputs):
            continue
        for index, gradient in _of_inputs(writer, node, gradients, reached).items():
            value = node.inputs[index]
            assert value is not None
            before = gradients.get(value)
            gradients[value] = gradient if before is None else writer.op("Add", before, gradient, like=value)
        for output in node.outputs:
            gradients.pop(output, None)
    # What no node makes: inputs of the network.
    return found | {value: gradients[value] for value in wanted if value in gradients}


def _of_inputs(
    writer: GraphWriter, node: ir.Node, gradients: Mapping[ir.Value, ir.Value], reached: set[ir.Value]
) -> Mapping[int, ir.Value]:
    wanted = [index for index, value in enumerate(node.inputs) if value is not None and value in reached]
    inside = any(value in reached for value in set(values_read(node)) - set(node.inputs))
    if not wanted and not inside:
        return {}
    rule = None if inside or node.domain else _RULES.get(node.op_type)
    if rule is None:
        raise NoGradientError(f"{node.op_type} '{node.name}': the gradient of this operator is not known")
    step = Step(writer, node, [gradients.get(output) for output in node.outputs], wanted)
    found = rule(step)
    for index in wanted:
        if index not in found:
            raise step.refused(f"the gradient of its input {index} is not known")
    return found
