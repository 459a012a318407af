"""How many multiply-adds a node computes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypeAlias

import onnx_ir as ir

from calibrators.operators import Product, operator_of

#: Gives the dimensions of a tensor; None where they are not known.
Sizes: TypeAlias = Callable[[ir.Value | None], tuple[int, ...] | None]

_EINSUM_OPERANDS = 2

#: Operator to the fewest dimensions that its first operand has.
_SMALLEST_RANK = {"Gemm": 2, "MatMul": 1}


def multiply_adds(node: ir.Node, sizes: Sizes) -> int | None:
    """How many multiply-adds a node computes.

    Args:
        node: The node.
        sizes: Gives the dimensions of a tensor; None where they are not known.

    Returns:
        The number; None for a node that computes no products, whose dimensions are not known, or that has
        graphs of its own.
    """
    if operator_of(node).product is Product.RECURRENT:
        return _recurrent(node, sizes)
    operands = [sizes(value) for value in node.inputs[:2]]
    output = sizes(node.outputs[0]) if node.outputs else None
    if len(operands) != 2 or operands[0] is None or operands[1] is None or output is None:
        return None
    first, second = operands[0], operands[1]
    if len(first) < _SMALLEST_RANK.get(node.op_type, 0):
        return None  # such a node is invalid, and TensorRT refuses it
    if node.op_type in ("Conv", "DeformConv"):
        return math.prod(output) * math.prod(second[1:])
    if node.op_type == "ConvTranspose":
        return math.prod(first) * math.prod(second[1:])
    if node.op_type == "Gemm":
        return math.prod(output) * first[0 if node.attributes.get_int("transA", 0) else 1]
    if node.op_type == "MatMul":
        return math.prod(output) * first[-1]
    if node.op_type == "Einsum" and len(node.inputs) == _EINSUM_OPERANDS:
        return _einsum(node.attributes.get_string("equation", ""), first, second)
    return None


def _recurrent(node: ir.Node, sizes: Sizes) -> int | None:
    """The products of all steps of a sequence with the weights of the input and of the hidden state."""
    sequence, weights, recurrence = map(sizes, node.inputs[:3])
    if sequence is None or weights is None or recurrence is None:
        return None
    return math.prod(sequence[:2]) * (math.prod(weights) + math.prod(recurrence))


def _einsum(equation: str, first: Sequence[int], second: Sequence[int]) -> int | None:
    """The product of the sizes of all letters; None for an equation with an ellipsis."""
    terms = equation.replace(" ", "").partition("->")[0].split(",")
    if len(terms) != _EINSUM_OPERANDS or "." in equation:
        return None
    sizes: Counter[str] = Counter()
    for term, shape in zip(terms, (first, second), strict=True):
        for letter, size in zip(term, shape, strict=False):
            sizes[letter] = max(sizes[letter], size)
    return math.prod(sizes.values())
