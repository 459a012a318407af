"""Attention written as two matrix products around a softmax, which TensorRT fuses into one kernel.

The fused kernel exists in floating point and, within limits, in INT8; then the queries, the keys, the values,
the softmax and the output are all quantized. An attention of which only a part is quantized runs as several
kernels that store the matrix of all queries and keys, so it is quantized whole or not at all.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from calibrators.data.inputs import InputShapes
from calibrators.operators import operator_of
from trtint8.models.graph import is_along_last_axis, is_constant
from trtint8.models.shapes import StaticShapes, declared_sizes
from trtint8.quantization.targets import AttentionLimits

#: Heads that TensorRT fuses in floating point. Layer dump of TensorRT for RTX: 12 to 256 are fused, padded
#: where need be, and 8 and 264 are not.
_SMALLEST_HEAD, _LARGEST_HEAD = 9, 256

#: Two sizes that are tried in place of those that are open: what stays the same does not depend on them.
_TRIAL_SIZES = (96, 160)


@dataclass(frozen=True)
class Attention:
    """One attention.

    Attributes:
        scores: The product of queries and keys.
        context: The product of the softmax and the values.
        guarded: Whether a Where between the two replaces what is no number.
        queries: The number of queries; None where it is not fixed.
        keys: The number of keys; None where it is not fixed.
        head: The number of channels per head; None where it is not known.
        heads: The number of heads; None where there is no such dimension, or where it is not known.
        matrices: The number of matrices of scores: samples times heads, as far as they are fixed.
    """

    scores: ir.Node
    context: ir.Node
    guarded: bool
    queries: int | None
    keys: int | None
    head: int | None
    heads: int | None
    matrices: int

    @property
    def nodes(self) -> tuple[ir.Node, ir.Node]:
        """The two products, in graph order."""
        return self.scores, self.context

    def obstacle(self, limits: AttentionLimits | None) -> str | None:
        """The reason why the attention has no INT8 kernel, in words for the user; None where it has one.

        Args:
            limits: Those of the target; None where it has no such kernel.
        """
        if limits is None:
            return "this target has no fused attention in INT8"
        if self.guarded:
            return "a Where replaces NaN behind its softmax"
        if self.head is None:
            return "its number of channels per head is not known"
        if self.head not in limits.head_sizes:
            *most, last = map(str, limits.head_sizes)
            return f"it has {self.head} channels per head, and INT8 takes {', '.join(most)} or {last}"
        if limits.several_heads and self.heads == 1:
            return "it has one head, and INT8 takes two or more"
        if limits.most_vectors is not None and self.queries == 1 and self.matrices > limits.most_vectors:
            return f"it has one query, and INT8 takes that with at most {limits.most_vectors} heads"
        for size, longest, words in (
            (self.keys, limits.longest_keys, "keys"),
            (self.queries, limits.longest_queries, "queries"),
        ):
            if longest is not None and size is None:
                return (
                    f"its number of {words} is not fixed, and INT8 takes at most {longest}: fix it in the "
                    "model, or build the float model with a profile"
                )
            if longest is not None and size is not None and size > longest:
                return f"it has {size} {words}, and INT8 takes at most {longest}"
        return None


def find_attentions(model: ir.Model, largest: InputShapes | None = None) -> list[Attention]:
    """Finds the attentions that TensorRT runs as one kernel in floating point.

    Recognized are all that are made of MatMul, Softmax along the last axis and MatMul, with scales before or
    after the first product and any mask that an Add, a Sub or a Where applies to it. An attention whose keys
    and values have different numbers of channels, or whose softmax is read by other nodes, is not fused, so
    its products are quantized like any others.

    Args:
        model: A prepared model with inferred shapes.
        largest: Input name to its largest shape, where that is known.

    Returns:
        The attentions, in graph order.
    """
    shapes = StaticShapes(model, largest)
    closed = [StaticShapes(model, _closed(model, largest or {}, size)) for size in _TRIAL_SIZES]
    found = (_around(node, shapes, closed) for node in model.graph if _is_softmax(node))
    return [attention for attention in found if attention is not None]


def output_readers(attention: Attention) -> tuple[tuple[ir.Node, int], ...]:
    """The inputs that read the values of an attention's output: nodes and indices."""
    uses = attention.context.outputs[0].uses()
    return tuple((node, index) for node, index in uses if not operator_of(node).reads_shape)


def _is_softmax(node: ir.Node) -> bool:
    return node.domain == "" and node.op_type == "Softmax" and is_along_last_axis(node)


def _closed(model: ir.Model, largest: InputShapes, size: int) -> dict[str, Sequence[int]]:
    """The shapes of the inputs with one size in place of all that are open."""
    declared = {value.name or "": declared_sizes(value) for value in model.graph.inputs}
    closed = {
        name: [size if dim is None else dim for dim in sizes] for name, sizes in declared.items() if sizes
    }
    return {**closed, **largest}


def _channels(
    value: ir.Value | None, place: int, shapes: StaticShapes, closed: Sequence[StaticShapes]
) -> int | None:
    """The size of a dimension of channels, which sizes that are open do not change; None where unknown."""
    known = _last(shapes.of(value), place)
    if known is not None:
        return known
    tried = {_last(one.of(value), place) for one in closed}
    return tried.pop() if len(tried) == 1 else None


def _around(softmax: ir.Node, shapes: StaticShapes, closed: Sequence[StaticShapes]) -> Attention | None:
    source = softmax.inputs[0]
    scores = _product_before(source) if source is not None else None
    behind = _product_behind(softmax.outputs[0])
    if scores is None or behind is None:
        return None
    context, guarded = behind
    queries, keys, values = scores.inputs[0], scores.inputs[1], context.inputs[1]
    query_shape, key_shape, value_shape = (shapes.of(value) for value in (queries, keys, values))
    head = _channels(queries, 1, shapes, closed) or _channels(keys, 2, shapes, closed)
    value_head = _channels(values, 1, shapes, closed)
    if None not in (head, value_head) and head != value_head:
        return None
    head = head or value_head
    if head is not None and not _SMALLEST_HEAD <= head <= _LARGEST_HEAD:
        return None
    return Attention(
        scores,
        context,
        guarded,
        queries=_last(query_shape, 2),
        keys=_last(key_shape) or _last(value_shape, 2),
        head=head,
        heads=_last(query_shape, 3) if query_shape is not None and len(query_shape) > 3 else None,
        matrices=math.prod(size or 1 for size in (query_shape or ())[:-2]),
    )


def _product_before(value: ir.Value) -> ir.Node | None:
    """The product of queries and keys whose scaled and masked result a value is."""
    products, pending = [], [value]
    while pending:
        before = pending.pop()
        node = before.producer()
        if node is None or node.domain != "" or len(before.uses()) != 1 or before.is_graph_output():
            continue
        if node.op_type == "MatMul":
            products += [] if is_constant(node.inputs[1]) else [node]
        else:
            pending += _scored_operands(node)
    return products[0] if len(products) == 1 else None


def _scored_operands(node: ir.Node) -> Iterator[ir.Value]:
    """The inputs of a node in a fused kernel that may hold the scores of queries and keys.

    TensorRT takes scales, masks, conversions and reshapings of the scores into the kernel.
    """
    operator = operator_of(node)
    if operator.keeps_order or node.op_type == "Div":
        operands = node.inputs[:1]
    elif node.op_type == "Where":
        operands = node.inputs[1:]
    elif node.op_type == "Mul" or operator.addends == (
        0,
        1,
    ):  # a scale, or a mask that is added or subtracted
        operands = node.inputs
    else:
        operands = ()
    yield from (value for value in operands if value is not None and not is_constant(value))


def _product_behind(value: ir.Value) -> tuple[ir.Node, bool] | None:
    """The product of a softmax and the values, and whether a Where stands between the two."""
    guarded = False
    while not value.is_graph_output():
        uses = list(value.uses())
        if not guarded and {node.op_type for node, _ in uses} == {"IsNaN", "Where"} and len(uses) == 2:
            guarded = True
            value = next(node for node, _ in uses if node.op_type == "Where").outputs[0]
            continue
        if len(uses) != 1:
            return None
        ((node, index),) = uses
        if node.op_type == "MatMul" and index == 0 and node.domain == "":
            return (node, guarded) if not is_constant(node.inputs[1]) else None
        if not operator_of(node).keeps_order or index != 0:
            return None
        value = node.outputs[0]
    return None


def _last(shape: tuple[int | None, ...] | None, place: int = 1) -> int | None:
    """The size of the last dimension, or of the one that many places before the end; None where unknown."""
    return shape[-place] if shape is not None and len(shape) >= place else None
