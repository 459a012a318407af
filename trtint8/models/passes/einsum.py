"""Writes each Einsum that multiplies matrices as a MatMul, which is quantized and recognized in attention.

Writes the equations of Einsum in lower case, because TensorRT's parser refuses other letters.
"""

from __future__ import annotations

import logging
import math
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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

#: Letters of axes in one operand or in the output of a product, in groups that are one axis of it each.
_Groups = tuple[str, ...]


@dataclass(frozen=True)
class _Product:
    """An equation as a product of matrices: ``batch + rows + sums`` by ``batch + sums + columns``.

    Attributes:
        left: Letters of the first operand's axes.
        right: Letters of the second operand's axes.
        output: Letters of the output's axes.
        batch: Letters that both operands and the output have.
        rows: Letters that only the first operand and the output have.
        columns: Letters that only the second operand and the output have.
        sums: Letters that both operands have and the output has not.
    """

    left: str
    right: str
    output: str
    batch: str
    rows: str
    columns: str
    sums: str


class EinsumProductsPass(OperatorPass):
    """Replaces an Einsum of two operands by Transpose, Reshape, MatMul, Reshape and Transpose, as needed.

    The MatMul keeps the node's name, and the output its name. An Einsum that sums over an axis of one operand
    alone, takes a diagonal, or has no axis to sum over or of one operand alone stays, and so does one that
    needs a Reshape whose sizes are not known.
    """

    operators = _EINSUM

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Rewrites the nodes of the main graph."""
        nodes = [node for node in model.graph if node.domain == "" and node.op_type == "Einsum"]
        # Exporters may leave types and sizes out.
        InferShapesPass()(model)
        writer = _Writer(model.graph)
        rewritten = [node for node in nodes if writer.rewrite(node)]
        if rewritten:
            _logger.debug("wrote %d Einsum as MatMul", len(rewritten))
        return ir.passes.PassResult(model, modified=bool(rewritten))


class _Writer:
    def __init__(self, graph: ir.Graph) -> None:
        self._graph = graph
        self._names = value_names(graph) | {node.name for node in graph if node.name}

    def rewrite(self, node: ir.Node) -> bool:
        """Rewrites one Einsum; returns whether it did."""
        equation = node.attributes.get_string("equation")
        left, right = node.inputs if len(node.inputs) == 2 else (None, None)
        if equation is None or left is None or right is None:
            return False
        if left.dtype != ir.DataType.FLOAT or right.dtype != ir.DataType.FLOAT:
            return False
        letters = _letters(equation, left, right)
        if letters is None:
            return False
        first, second, output = letters
        sizes = _sizes([(first, left), (second, right), (output, node.outputs[0])])
        if sizes is None:
            return False
        # The operand with the output's last axis is the second, so that the output need not be transposed; a
        # constant is always the second, as the weights of a layer are.
        if is_constant(left) != is_constant(right):
            is_swapped = is_constant(left)
        else:
            is_swapped = bool(output) and output[-1] in first and output[-1] not in second
        orders = [((left, first), (right, second)), ((right, second), (left, first))]
        for one, other in reversed(orders) if is_swapped else orders:
            product = _product(one[1], other[1], output)
            plan = _Plan.of(product, sizes) if product is not None else None
            if product is not None and plan is not None:
                self._write(node, one[0], other[0], product, plan)
                return True
        return False

    def _write(self, node: ir.Node, left: ir.Value, right: ir.Value, product: _Product, plan: _Plan) -> None:
        name, result = node.name or "", node.outputs[0]
        stem = name or result.name or "Einsum"
        added: list[ir.Node] = []
        operands = []
        for value, letters, groups, shape in (
            (left, product.left, plan.left, plan.left_shape),
            (right, product.right, plan.right, plan.right_shape),
        ):
            order = [letters.index(letter) for letter in "".join(groups)]
            operands.append(self._arranged(added, value, order, shape, stem))
        multiply = ir.Node("", "MatMul", operands, name=name or None)
        added.append(multiply)
        value = multiply.outputs[0]
        if plan.output_shape is not None:
            value = self._reshape(added, self._named(value, stem), plan.output_shape, stem)
        computed = product.batch + product.rows + product.columns
        if computed != product.output:
            order = [computed.index(letter) for letter in product.output]
            value = self._transpose(added, self._named(value, stem), order, stem)
        value.name, value.type, value.shape = result.name, result.type, result.shape
        self._graph.insert_before(node, added)
        result.name = take_name(f"{stem}_replaced", self._names)
        result.replace_all_uses_with(value, replace_graph_outputs=True)
        self._graph.remove(node, safe=True)

    def _arranged(
        self, added: list[ir.Node], value: ir.Value, order: list[int], shape: list[int] | None, stem: str
    ) -> ir.Value:
        """An operand with its axes in an order and a shape."""
        in_order = order == sorted(order)
        constant = read_constant(value)
        if constant is not None and not (in_order and shape is None):
            array = np.ascontiguousarray(constant.transpose(order))
            array = (
                array
                if shape is None
                else array.reshape(
                    [array.shape[axis] if size == 0 else size for axis, size in enumerate(shape)]
                )
            )
            return add_initializer(self._graph, take_name(f"{value.name}_matrix", self._names), array)
        if not in_order:
            value = self._named(self._transpose(added, value, order, stem), stem)
        return value if shape is None else self._named(self._reshape(added, value, shape, stem), stem)

    def _transpose(self, added: list[ir.Node], value: ir.Value, order: list[int], stem: str) -> ir.Value:
        node = ir.Node(
            "",
            "Transpose",
            [value],
            [ir.AttrInt64s("perm", order)],
            name=take_name(f"{stem}_Transpose", self._names),
        )
        added.append(node)
        return node.outputs[0]

    def _reshape(self, added: list[ir.Node], value: ir.Value, shape: list[int], stem: str) -> ir.Value:
        constant = add_initializer(
            self._graph, take_name(f"{stem}_shape", self._names), np.asarray(shape, dtype=np.int64)
        )
        node = ir.Node("", "Reshape", [value, constant], name=take_name(f"{stem}_Reshape", self._names))
        added.append(node)
        return node.outputs[0]

    def _named(self, value: ir.Value, stem: str) -> ir.Value:
        node = value.producer()
        assert node is not None
        value.name = take_name(f"{stem}_{node.op_type}_output", self._names)
        value.type = ir.TensorType(ir.DataType.FLOAT)
        return value


@dataclass(frozen=True)
class _Plan:
    """How operands and output are arranged.

    Attributes:
        left: The first operand's letters in the order that the product needs, in groups that become one axis.
        right: The second operand's letters in the order that the product needs, in such groups.
        left_shape: What the first operand is reshaped to; None where every group is one letter.
        right_shape: What the second operand is reshaped to; None where every group is one letter.
        output_shape: What the product is reshaped to; None where every group is one letter.
    """

    left: _Groups
    right: _Groups
    left_shape: list[int] | None
    right_shape: list[int] | None
    output_shape: list[int] | None

    @classmethod
    def of(cls, product: _Product, sizes: Mapping[str, int]) -> _Plan | None:
        """The arrangement of a product; None where it needs sizes that are not known."""
        batch = tuple(product.batch)
        # Without a batch axis in the second operand, all rows but the last act as a batch.
        rows = (product.rows,) if batch else tuple(product.rows)
        left, right = (*batch, *rows, product.sums), (*batch, product.sums, product.columns)
        made = (*batch, *rows, product.columns)
        shapes = [
            _merged(left, sizes),
            _merged(right, sizes),
            _split(made, sizes),
        ]
        if any(shape is not None and shape.count(-1) > 1 for shape in shapes):
            return None
        return cls(left, right, *shapes)


def _merged(groups: _Groups, sizes: Mapping[str, int]) -> list[int] | None:
    """The shape that makes one axis of every group; None where every group is one letter."""
    if all(len(group) == 1 for group in groups):
        return None
    return _shape(groups, groups, sizes)


def _split(groups: _Groups, sizes: Mapping[str, int]) -> list[int] | None:
    """The shape that makes one axis of every letter; None where every group is one letter."""
    if all(len(group) == 1 for group in groups):
        return None
    return _shape(groups, tuple("".join(groups)), sizes)


def _shape(groups: _Groups, axes: _Groups, sizes: Mapping[str, int]) -> list[int]:
    """A shape for Reshape: 0 for an axis that stays, the size where it is known, else -1."""
    shape = []
    for index, axis in enumerate(axes):
        stays = index < len(groups) and groups[: index + 1] == axes[: index + 1]
        stays = stays and all(len(group) == 1 for group in groups[: index + 1])
        known = [sizes[letter] for letter in axis if letter in sizes]
        shape.append(0 if stays else math.prod(known) if len(known) == len(axis) else -1)
    return shape


def _letters(equation: str, left: ir.Value, right: ir.Value) -> tuple[str, str, str] | None:
    """The letters of both operands and of the output; None where the equation is no such."""
    operands, arrow, output = equation.replace(" ", "").partition("->")
    first, comma, second = operands.partition(",")
    if not comma or "," in second:
        return None
    if "." in equation:
        expanded = _without_ellipsis((first, second, output), (left, right)) if arrow else None
        if expanded is None:
            return None
        first, second, output = expanded
    elif not arrow:
        joined = first + second
        output = "".join(sorted(letter for letter in set(joined) if joined.count(letter) == 1))
    parts = (first, second, output)
    if any(len(set(part)) < len(part) for part in parts):
        return None
    return parts


def _without_ellipsis(
    parts: tuple[str, str, str], operands: Sequence[ir.Value]
) -> tuple[str, str, str] | None:
    """The letters with letters of their own for the axes of an ellipsis; None where a rank is not known."""
    used = set("".join(parts))
    free = [letter for letter in string.ascii_letters if letter not in used]
    counts = []
    for part, value in zip(parts, operands, strict=False):
        if "..." in part:
            if value.shape is None:
                return None
            counts.append(len(value.shape) - len(part) + 3)
    longest = "".join(free[: max(counts, default=0)])
    # Axes of an ellipsis are counted from the last.
    found = []
    for index, part in enumerate(parts):
        shape = operands[index].shape if index < 2 else None
        own = longest if shape is None else longest[len(longest) - (len(shape) - len(part) + 3) :]
        found.append(part.replace("...", own) if "..." in part else part)
    return found[0], found[1], found[2]


def _sizes(parts: Sequence[tuple[str, ir.Value]]) -> dict[str, int] | None:
    """Letter to its size where that is fixed; None where ranks do not fit or sizes differ."""
    found: dict[str, int] = {}
    for letters, value in parts:
        if value.shape is None:
            continue
        if len(value.shape) != len(letters):
            return None
        for letter, size in zip(letters, value.shape, strict=True):
            if isinstance(size, int) and found.setdefault(letter, size) != size:
                return None  # an axis of size 1 that is repeated, which a product does not do
    return found


def _product(left: str, right: str, output: str) -> _Product | None:
    """The roles of letters; None where the equation is no product of matrices."""
    every = set(left) | set(right)
    if not set(output) <= every:
        return None
    batch = "".join(letter for letter in output if letter in left and letter in right)
    rows = "".join(letter for letter in output if letter in left and letter not in right)
    columns = "".join(letter for letter in output if letter in right and letter not in left)
    # In the order of the first operand, which is the one that is more often computed.
    sums = "".join(letter for letter in left if letter in right and letter not in output)
    if not (rows and columns and sums) or set(batch + rows + columns + sums) != every:
        return None
    return _Product(left, right, output, batch, rows, columns, sums)


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
    chosen: dict[str, str | int | None] = {
        letter: letter.lower() for letter in upper if letter.lower() in free
    }
    rest = [letter for letter in free if letter not in chosen.values()]
    chosen |= dict(zip((letter for letter in upper if letter not in chosen), rest, strict=False))
    return equation.translate(str.maketrans(chosen))
