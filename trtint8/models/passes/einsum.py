"""Writes each Einsum that multiplies matrices as a MatMul, which is quantized and recognized in attention.

Writes the equations of Einsum in lower case, because TensorRT's parser refuses other letters.
"""

from __future__ import annotations

import logging
import math
import string
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from trtint8.models.graph import (
    OperatorPass,
    add_initializer,
    is_constant,
    read_constant,
    take_name,
    value_names,
)
from trtint8.models.passes.simplify import InferShapesPass

_logger = logging.getLogger(__name__)

_EINSUM = frozenset({"Einsum"})

#: Letters of axes in groups that are one axis of a tensor each.
_Groups = tuple[str, ...]


class EinsumProductsPass(OperatorPass):
    """Replaces an Einsum of two operands by Transpose, Reshape, MatMul, Reshape and Transpose, as needed.

    The MatMul keeps the node's name, and the output its name. An Einsum that sums over an axis of one operand
    alone, takes a diagonal, or has no axis to sum over or of one operand alone stays, and so does one that
    needs a Reshape whose sizes are not known.
    """

    operators = _EINSUM

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Rewrites the nodes of the main graph."""
        graph = model.graph
        nodes = [node for node in graph if node.domain == "" and node.op_type == "Einsum"]
        # Exporters may leave types and sizes out.
        InferShapesPass()(model)
        taken = value_names(graph) | {node.name for node in graph if node.name}
        rewritten = [node for node in nodes if _rewrite(node, graph, taken)]
        if rewritten:
            _logger.debug("wrote %d Einsum as MatMul", len(rewritten))
        return ir.passes.PassResult(model, modified=bool(rewritten))


def _rewrite(node: ir.Node, graph: ir.Graph, taken: set[str]) -> bool:
    """Rewrites one Einsum; returns whether it did."""
    operands = [value for value in node.inputs if value is not None and value.dtype == ir.DataType.FLOAT]
    if len(operands) != 2 or len(node.inputs) != 2:
        return False
    letters = _letters(node.attributes.get_string("equation", ""), operands)
    sizes = _sizes(letters, [*operands, node.outputs[0]])
    if sizes is None:
        return False
    first, second, output = letters
    # The operand with the output's last axis is the second, so that the output need not be transposed; a
    # constant is always the second, as the weights of a layer are.
    if is_constant(operands[0]) != is_constant(operands[1]):
        is_swapped = is_constant(operands[0])
    else:
        is_swapped = bool(output) and output[-1] in first and output[-1] not in second
    pairs = list(zip(operands, (first, second), strict=True))
    return any(
        _write(node, graph, taken, order, output, sizes)
        for order in ((pairs[::-1], pairs) if is_swapped else (pairs, pairs[::-1]))
    )


def _write(
    node: ir.Node,
    graph: ir.Graph,
    taken: set[str],
    operands: Sequence[tuple[ir.Value, str]],
    output: str,
    sizes: Mapping[str, int],
) -> bool:
    """Writes ``batch + rows + sums`` by ``batch + sums + columns``, unless it is no such product.

    Args:
        node: The Einsum.
        graph: Its graph.
        taken: The names in use.
        operands: Both operands, in the order of the product, with the letters of their axes.
        output: The letters of the output's axes.
        sizes: Letter to its size where that is fixed.

    Returns:
        Whether it was written: it stays also where it needs sizes that are not known.
    """
    roles: dict[tuple[bool, bool, bool], str] = defaultdict(str)
    (_, left), (_, right) = operands
    for letter in dict.fromkeys(output + left + right):
        roles[letter in left, letter in right, letter in output] += letter
    batch, rows = roles.pop((True, True, True), ""), roles.pop((True, False, True), "")
    columns, sums = roles.pop((False, True, True), ""), roles.pop((True, True, False), "")
    if roles or not (rows and columns and sums):
        return False
    # Without a batch axis in the second operand, all rows but the last act as a batch.
    ahead = (*batch, rows) if batch else tuple(rows)
    groups = [(*ahead, sums), (*batch, sums, columns)]
    made = (*ahead, columns)
    shapes = [_shape(tuple("".join(each)), each, sizes) for each in groups]
    split = _shape(made, tuple("".join(made)), sizes)
    if any(shape is not None and shape.count(-1) > 1 for shape in (*shapes, split)):
        return False

    stem = node.name or node.outputs[0].name or "Einsum"
    new: list[ir.Node] = []

    def add(operator: str, *inputs: ir.Value, **attributes: Any) -> ir.Value:
        new.append(ir.node(operator, inputs, attributes, name=take_name(f"{stem}_{operator}", taken)))
        value = new[-1].outputs[0]
        value.name, value.dtype = take_name(f"{stem}_{operator}_output", taken), ir.DataType.FLOAT
        return value

    def transposed(value: ir.Value, axes: str, wanted: str) -> ir.Value:
        return value if axes == wanted else add("Transpose", value, perm=list(map(axes.index, wanted)))

    def reshaped(value: ir.Value, shape: list[int] | None) -> ir.Value:
        if shape is None:
            return value
        name = take_name(f"{stem}_shape", taken)
        return add("Reshape", value, add_initializer(graph, name, np.array(shape, np.int64)))

    arranged: list[ir.Value] = []
    for (value, axes), each, shape in zip(operands, groups, shapes, strict=True):
        wanted, constant = "".join(each), read_constant(value)
        if constant is None or (axes == wanted and shape is None):
            arranged.append(reshaped(transposed(value, axes, wanted), shape))
        else:
            array = np.ascontiguousarray(constant.transpose(list(map(axes.index, wanted))))
            if shape is not None:
                array = array.reshape([size or array.shape[axis] for axis, size in enumerate(shape)])
            arranged.append(add_initializer(graph, take_name(f"{value.name}_matrix", taken), array))
    product = add("MatMul", *arranged)
    new[-1].name = node.name
    result = transposed(reshaped(product, split), "".join(made), output)
    ir.convenience.replace_nodes_and_values(graph, node, [node], new, node.outputs, [result])
    return True


def _shape(before: _Groups, after: _Groups, sizes: Mapping[str, int]) -> list[int] | None:
    """What makes other axes of some: 0 for one that stays, the size where it is known, else -1.

    None where all stay.
    """
    if before == after:
        return None
    return [
        0
        if before[: index + 1] == after[: index + 1]
        else math.prod(map(sizes.__getitem__, axis))
        if sizes.keys() >= set(axis)
        else -1
        for index, axis in enumerate(after)
    ]


def _letters(equation: str, operands: Sequence[ir.Value]) -> list[str]:
    """The letters of both operands and of the output; nothing where the equation is no such.

    The axes of an ellipsis, which are counted from the last, get letters of their own.
    """
    inputs, arrow, output = equation.replace(" ", "").partition("->")
    parts = inputs.split(",")
    if len(parts) != 2 or ("." in equation and not arrow):
        return []
    if not arrow:
        output = "".join(sorted(letter for letter in set("".join(parts)) if inputs.count(letter) == 1))
    counts: list[int] = []
    for part, value in zip(parts, operands, strict=True):
        if "..." in part and value.shape is None:
            return []
        counts.append(len(value.shape or ()) - len(part) + 3 if "..." in part else 0)
    wide = [letter for letter in string.ascii_letters if letter not in equation][: max(counts)]
    found = [
        part.replace("...", "".join(wide[len(wide) - count :]))
        for part, count in zip((*parts, output), (*counts, len(wide)), strict=True)
    ]
    return [] if any(len(set(part)) < len(part) for part in found) else found


def _sizes(parts: Sequence[str], values: Sequence[ir.Value]) -> dict[str, int] | None:
    """Letter to its size where that is fixed; None where ranks do not fit or sizes differ."""
    found: dict[str, int] = {}
    for letters, value in zip(parts, values, strict=False):
        if value.shape is None:
            continue
        if len(value.shape) != len(letters):
            return None
        for letter, size in zip(letters, value.shape, strict=True):
            if isinstance(size, int) and found.setdefault(letter, size) != size:
                return None  # an axis of size 1 that is repeated, which a product does not do
    return found if parts else None


class LowerCaseEinsumPass(OperatorPass):
    """Gives every axis of an Einsum a lower-case letter; which one means nothing."""

    operators = _EINSUM

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Rewrites the equations that have upper-case letters."""
        changed = False
        for node in ir.traversal.RecursiveGraphIterator(model.graph):
            equation = node.attributes.get_string("equation") if node.op_type == "Einsum" else None
            if equation and (other := in_lower_case(equation)) != equation:
                node.attributes["equation"] = ir.AttrString("equation", other)
                changed = True
        return ir.passes.PassResult(model, changed)


def in_lower_case(equation: str) -> str:
    """The equation with a lower-case letter in place of each upper-case one; as it is with too many axes.

    Args:
        equation: Like ``BSD,DE->BSE``.
    """
    letters = {letter for letter in equation if letter.isascii() and letter.isalpha()}
    free = [letter for letter in string.ascii_lowercase if letter not in letters]
    upper = sorted(letter for letter in letters if letter.isupper())
    if len(upper) > len(free):
        return equation
    # The letter's own lower case where it is free, so that equations stay readable.
    upper.sort(key=lambda letter: letter.lower() in letters)
    for letter in upper:
        own = letter.lower()
        equation = equation.replace(letter, free.pop(free.index(own) if own in free else 0))
    return equation
