"""What decides by its values, and what leads up to that: a rounding may decide otherwise.

A comparison of two numbers that FP16 rounds to one is another comparison, and a pixel that is looked up half
a pixel further on is another pixel. So nodes that decide stay in FP32, with all that leads up to them since
the last layer. A layer's sums are rounded to FP16 like any noise. Only where values of one layer are compared
with one another, as a pixel with the largest around it, does its rounding make equal what was not, and where
they are coordinates, it moves them; there the layer stays in FP32 as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from calibrators.operators import operator_of
from trtint8.models.graph_constants import is_constant
from trtint8.models.inner_graphs import nodes_inside, values_read

_FLOAT = ir.DataType.FLOAT


@dataclass(frozen=True)
class Decisions:
    """What of a graph stays in FP32 because something is decided by it.

    Attributes:
        nodes: The nodes, each with the reason.
        outputs: The outputs of the model whose exact values are compared with one another. Who compares them
            again finds the same only in FP32.
    """

    nodes: Mapping[ir.Node, str]
    outputs: frozenset[ir.Value]


def find_decisions(model: ir.Model) -> Decisions:
    """Finds what decides, and what leads up to that.

    One walk from the outputs to the inputs: every decision is one bit of a number that travels along.

    Args:
        model: A model with named nodes, inferred types and constants lifted to initializers.
    """
    found: dict[ir.Node, str] = {}
    outputs: list[ir.Value] = []
    #: The decisions in the order of their bits, and the bits of those for which a layer's rounding matters.
    decisions: list[ir.Node] = []
    close = 0
    #: Value to the decisions that it reaches, and to those that it reaches through a layer.
    reached: dict[ir.Value, int] = {}
    behind: dict[ir.Value, int] = {}
    for node in reversed(model.graph):
        reaches = through = 0
        for value in node.outputs:
            bits, layered = reached.pop(value, 0), behind.pop(value, 0)
            reaches, through = reaches | bits, through | layered
            if bits & ~layered & close and value.is_graph_output():
                outputs.append(value)
        leads_to = reaches & ~through
        if _is_layer(node):
            leads_to &= close
            # What only filters each channel keeps values that are alike alike.
            through |= reaches & ~close if _is_filter(node) else reaches
        decides_by = dict.fromkeys(_decides_by(node))
        if decides_by:
            how = "looks up places by" if _looks_up(node) else "decides by"
            found[node] = f"it {how} '{next(iter(decides_by)).name}', which FP16 rounds"
        elif leads_to:
            first = decisions[(leads_to & -leads_to).bit_length() - 1]
            found[node] = f"'{first.name}' depends on its exact values"
        own = 0
        if decides_by or (leads_to and _compares(node)):
            own = 1 << len(decisions)
            decisions.append(node)
            close |= own if _is_close(node) else 0
        for value in _reads(node):
            if value.producer() is not None:
                mine = own if not decides_by or value in decides_by else 0
                reached[value] = reached.get(value, 0) | reaches | mine
                behind[value] = behind.get(value, 0) | through
    return Decisions(found, frozenset(outputs))


def _reads(node: ir.Node) -> Iterator[ir.Value]:
    """The float values that a node reads, those that only graphs inside it read included."""
    return (value for value in values_read(node) if value.dtype == _FLOAT)


def _decides_by(node: ir.Node) -> Iterator[ir.Value]:
    """The float values by which a node decides, no constants; none of a node that decides nothing."""
    if any(_indices(inner) for inner in nodes_inside(node)):
        yield from (value for value in _reads(node) if not is_constant(value))
    for index in _indices(node):
        value = node.inputs[index] if index < len(node.inputs) else None
        if value is not None and value.dtype == _FLOAT and not is_constant(value):
            yield value


def _indices(node: ir.Node) -> tuple[int, ...]:
    """The indices of the inputs by which a node decides, if they are floats and computed."""
    if node.domain != "":
        return ()
    if node.op_type == "Cast":
        return () if ir.DataType(node.attributes.get_int("to", 1)).is_floating_point() else (0,)
    if node.op_type == "MaxPool":
        return (0,) if len(node.outputs) > 1 and node.outputs[1].uses() else ()
    operator = operator_of(node)
    return (0,) if operator.periodic else operator.decides or operator.coordinates


def _looks_up(node: ir.Node) -> bool:
    operator = operator_of(node)
    return bool(operator.coordinates) or operator.periodic


def _compares(node: ir.Node) -> bool:
    """Whether a node takes computed values together whose difference matters."""
    operands = {value for value in node.inputs if value is not None and not is_constant(value)}
    compares = operator_of(node).compares or (node.domain, node.op_type) == ("", "Sub")
    return compares and len(operands) > 1


def _is_close(node: ir.Node) -> bool:
    """Whether the rounding of a layer's sums may matter to what a node decides by them."""
    return _compares(node) or node.op_type == "Equal" or bool(operator_of(node).coordinates)


def _is_layer(node: ir.Node) -> bool:
    """Whether what a node computes is no longer what a layer before it has computed."""
    if not operator_of(node).multiplies:
        return False
    if node.op_type == "Einsum":
        # A product without a sum, as of positions and frequencies, is a Mul.
        terms, _, result = node.attributes.get_string("equation", "").replace(" ", "").partition("->")
        return not result or bool(set(terms) - set(result) - {","})
    if node.op_type != "MatMul":
        return True
    first = node.inputs[0]
    return first is None or first.shape is None or not len(first.shape) or first.shape[-1] != 1


def _is_filter(node: ir.Node) -> bool:
    """Whether a node is a convolution that makes each channel of one channel, as to blur a map."""
    weights = node.inputs[1].shape if node.op_type == "Conv" and node.inputs[1] is not None else None
    return weights is not None and tuple(weights[:2]) == (node.attributes.get_int("group", 1), 1)
