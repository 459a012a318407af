"""Removes what replaces NaN behind a softmax, where the softmax makes none or can be kept from making any.

The masks of an attention's scores, as far as they are constant or chosen between constants at run time.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from calibrators.data.feeds import AnyFloats
from calibrators.operators import Values, operator_of
from trtint8.models.graph import (
    OperatorPass,
    add_initializer,
    is_along_last_axis,
    is_constant,
    made_by,
    read_constant,
    unused_name,
    value_names,
)
from trtint8.models.passes.simplify import InferShapesPass

_logger = logging.getLogger(__name__)

#: The first opset whose ReduceMax has its axes as an input.
_AXES_AS_INPUT = 18

_BOOL, _FLOAT = ir.DataType.BOOL, ir.DataType.FLOAT


class RemoveNanGuardsPass(OperatorPass):
    """Replaces Where(IsNaN(p), 0, p) behind a softmax p, so that TensorRT can fuse a quantized attention.

    A softmax makes NaN of finite numbers and minus infinity only where a mask hides a whole row. PyTorch 2.13
    writes the guard behind every attention with a boolean mask, also where every row has a finite number,
    and with it TensorRT does not fuse a quantized attention.

    - Every row has a finite number: the guard is removed. So it is for a constant mask that hides no whole
      row, and for any mask that hides by adding a large but finite number.
    - A Where adds minus infinity at run time: it adds the lowest finite number instead, which hides as well,
      and the output of the attention is multiplied by zero in the rows of which everything is hidden, and by
      one in the others. The guard made the same zeros.

    Attributes:
        sources: After the call, name of a tensor to that of the one of the same range that it took the place
            of: a softmax to a guard, an output with zeros to that of the product.
    """

    operators = frozenset({"IsNaN"})
    sources: Mapping[str, str] = MappingProxyType({})

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Removes the guards of the main graph."""
        nodes = list(model.graph)
        if any(node.op_type == "IsNaN" for node in nodes) and any(map(_lacks_rank, nodes)):
            InferShapesPass()(model)
        sources: dict[str, str] = {}
        self.sources = sources
        remover = _Remover(model.graph, model.opset_imports.get("", 1), sources)
        removed = [remover.remove(node) for node in nodes if node.op_type == "Where"]
        if any(removed):
            _logger.debug("removed %d guards against NaN", sum(removed))
        return ir.passes.PassResult(model, modified=any(removed))


@dataclass
class _Remover:
    """Removes the guards of one graph, in place."""

    graph: ir.Graph
    opset: int
    #: See :class:`RemoveNanGuardsPass`.
    sources: dict[str, str]
    #: Where that adds minus infinity, to the mask that adds a finite number instead. Attentions share masks.
    finite: dict[ir.Node, ir.Value] = field(default_factory=dict)
    #: The same Where, to one for each of its rows of which anything is visible, and zero for the others.
    visible: dict[ir.Node, ir.Value] = field(default_factory=dict)

    def remove(self, where: ir.Node) -> bool:
        """Removes one guard where that changes no output."""
        softmax = _guarded_softmax(where)
        masks = score_masks(softmax.inputs[0]) if softmax is not None else None
        # Two masks may hide the two parts of a row.
        if softmax is None or masks is None or len(masks) > 1:
            return False
        if masks and masks[0].may_hide_a_row:
            product = _product_of(where)
            if product is None or not _is_rewritable(masks[0], softmax):
                return False
            self._hide_by_a_finite_number(masks[0], product)
        where.outputs[0].replace_all_uses_with(softmax.outputs[0])
        self.sources[softmax.outputs[0].name or ""] = where.outputs[0].name or ""
        self.graph.remove(where, safe=True)
        return True

    def _hide_by_a_finite_number(self, mask: ScoreMask, product: ir.Node) -> None:
        """Adds the lowest finite number where a mask hides, and restores the zeros of hidden rows."""
        choice, output = mask.choice, product.outputs[0]
        assert choice is not None, "a constant mask is not rewritten"
        if choice not in self.finite:
            self.visible[choice], self.finite[choice] = self._visible_rows(choice), self._finite_mask(choice)
        index = list(mask.addition.inputs).index(choice.outputs[0])
        mask.addition.replace_input_with(index, self.finite[choice])
        readers = list(output.uses())
        shown = self._insert(product, "Mul", [output, self.visible[choice]], f"{output.name}_shown")
        shown.shape = output.shape
        self.sources[shown.name or ""] = output.name or ""
        for node, place in readers:
            node.replace_input_with(place, shown)

    def _finite_mask(self, choice: ir.Node) -> ir.Value:
        name = choice.outputs[0].name
        lowest = self._constant(f"{name}_lowest", np.asarray(np.finfo(np.float32).min, np.float32))
        inputs = [choice.inputs[0], *(lowest if _is_low(value) else value for value in choice.inputs[1:])]
        mask = self._insert(choice, "Where", inputs, f"{name}_finite")
        mask.shape = choice.outputs[0].shape
        return mask

    def _visible_rows(self, choice: ir.Node) -> ir.Value:
        name, seen = choice.outputs[0].name, choice.inputs[0]
        assert seen is not None, "a Where has a condition"
        anchor = choice
        if _is_low(choice.inputs[1]):
            seen = self._insert(anchor, "Not", [seen], f"{name}_seen", dtype=_BOOL)
            anchor = _maker(seen)
        number = self._insert(anchor, "Cast", [seen], f"{name}_number", [ir.AttrInt64("to", _FLOAT)])
        inputs, attributes = [number], [ir.AttrInt64("keepdims", 1)]
        if self.opset < _AXES_AS_INPUT:
            attributes.append(ir.AttrInt64s("axes", [-1]))
        else:
            inputs.append(self._constant(f"{name}_axes", np.array([-1])))
        return self._insert(_maker(number), "ReduceMax", inputs, f"{name}_rows", attributes)

    def _insert(
        self,
        anchor: ir.Node,
        operator: str,
        inputs: Sequence[ir.Value | None],
        name: str,
        attributes: Sequence[ir.Attr] = (),
        dtype: ir.DataType = _FLOAT,
    ) -> ir.Value:
        """Adds a node behind another one; the value that it makes."""
        name = unused_name(name, value_names(self.graph))
        node = ir.Node("", operator, inputs, attributes, name=name)
        node.outputs[0].name = name
        node.outputs[0].dtype = dtype
        self.graph.insert_after(anchor, node)
        return node.outputs[0]

    def _constant(self, name: str, array: NDArray[np.generic]) -> ir.Value:
        return add_initializer(self.graph, unused_name(name, value_names(self.graph)), array)


def _guarded_softmax(where: ir.Node) -> ir.Node | None:
    """The softmax along the last axis whose NaN a Where replaces by zero, if it does."""
    condition, replacement, value = where.inputs[:3]
    check = made_by(condition)
    softmax = made_by(value)
    if softmax is None or check is None or where.outputs[0].is_graph_output():
        return None
    if check.op_type != "IsNaN" or check.inputs[0] is not value or softmax.op_type != "Softmax":
        return None
    zero = read_constant(replacement)
    if zero is None or zero.any() or not is_along_last_axis(softmax):
        return None
    return softmax


def _lacks_rank(node: ir.Node) -> bool:
    """Whether only the rank of its output tells whether a node is a softmax along the last axis."""
    return (
        node.op_type == "Softmax"
        and node.attributes.get_int("axis", -1) >= 0
        and node.outputs[0].shape is None
    )


def _product_of(where: ir.Node) -> ir.Node | None:
    """The product that alone reads what a guard makes, or its Q/DQ pair, as its first operand."""
    output, uses = where.outputs[0], list(where.outputs[0].uses())
    while len(uses) == 1 and operator_of(uses[0][0]).half_of_pair and not output.is_graph_output():
        output = uses[0][0].outputs[0]
        uses = list(output.uses())
    if len(uses) != 1 or uses[0][1] != 0 or uses[0][0].op_identifier() != ("", "MatMul", ""):
        return None
    product = uses[0][0]
    return None if product.outputs[0].is_graph_output() else product


def _is_rewritable(mask: ScoreMask, softmax: ir.Node) -> bool:
    """Whether a mask is added last and is a Where of a number and minus infinity, in whichever order."""
    choice, addition = mask.choice, mask.addition
    if choice is None or addition.op_type != "Add" or softmax.inputs[0] is not addition.outputs[0]:
        return False
    constants = [read_constant(value) for value in choice.inputs[1:]]
    return (
        choice.outputs[0] in addition.inputs
        and all(constant is not None and constant.size == 1 for constant in constants)
        and sum(_is_low(value) for value in choice.inputs[1:]) == 1
        and any(constant is not None and np.isfinite(constant).all() for constant in constants)
    )


def _is_low(value: ir.Value | None) -> bool:
    constant = read_constant(value)
    return constant is not None and bool((constant == -np.inf).all())


def _maker(value: ir.Value) -> ir.Node:
    node = value.producer()
    assert node is not None, "a node made the value"
    return node


#: Values of a mask below this hide what they are added to.
_MASKED = -1e4

_LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class ScoreMask:
    """A mask of which some values hide scores.

    Attributes:
        values: The constant mask; or the constants that a Where chooses between, one after the other.
        addition: The node that adds the mask, or the Where that puts a constant in the place of scores.
        choice: The Where that chooses between the constants; None where the mask is constant.
    """

    values: AnyFloats
    addition: ir.Node
    choice: ir.Node | None

    @property
    def may_hide_a_row(self) -> bool:
        """Whether all numbers of a row may be minus infinity."""
        if self.choice is not None:
            return not bool(np.isfinite(self.values).all())
        return not np.isfinite(self.values).any(axis=-1 if self.values.ndim else None).all()


def score_masks(value: ir.Value | None) -> tuple[ScoreMask, ...] | None:
    """Finds what hides scores between a product and a softmax.

    Args:
        value: The softmax's input.

    Returns:
        The masks, the last one first. None where the scores may be infinite or undefined for another reason
        than one of these masks, given finite activations.
    """
    masks: list[ScoreMask] = []
    factor = 1.0
    while (node := made_by(value)) is not None and node.domain == "":
        if operator_of(node).is_weighted:  # its output is finite where its inputs are
            return tuple(masks)
        if operator_of(node).keeps_order:
            value = node.inputs[0]
            continue
        step = _step(node)
        if step is None:
            return None
        value, mask, scale = step
        factor *= scale
        if mask is None:
            continue
        if np.isnan(mask.values).any() or not _stays_finite(mask.values, factor):
            return None
        masks += [mask] if (mask.values < _MASKED).any() else []
    return None


def _step(node: ir.Node) -> tuple[ir.Value | None, ScoreMask | None, float] | None:
    """What comes before a node on the way to the product: a value, a mask, and the factor of the value."""
    constants = [read_constant(operand) for operand in node.inputs if is_constant(operand)]
    others = [operand for operand in node.inputs if not is_constant(operand)]
    constant = constants[0] if len(constants) == 1 else None
    if node.op_type == "Add":
        if constant is not None and len(others) == 1:
            return others[0], ScoreMask(constant, node, None), 1.0
        for index, operand in enumerate(node.inputs):
            if (choice := _choice(operand)) is not None:
                values = np.concatenate([np.ravel(array) for array in _chosen(choice)])
                return node.inputs[1 - index], ScoreMask(values, node, choice), 1.0
    if node.op_type == "Where" and constant is not None and not is_constant(node.inputs[0]):
        return others[1], ScoreMask(np.ravel(constant), node, node), 1.0
    if constant is None or len(others) != 1 or not (np.isfinite(constant).all() and constant.all()):
        return None
    if node.op_type == "Mul":
        return others[0], None, float(np.abs(constant).max())
    if node.op_type == "Div" and others[0] is node.inputs[0]:
        return others[0], None, 1.0 / float(np.abs(constant).min())
    return None


def _choice(value: ir.Value | None) -> ir.Node | None:
    """The Where between two constants that makes a value."""
    while (node := made_by(value)) is not None and node.domain == "":
        if node.op_type == "Where":
            return node if is_constant(node.inputs[1]) and is_constant(node.inputs[2]) else None
        operator = operator_of(node)
        if operator.values > Values.PLACED or operator.data != (0,):
            return None
        value = node.inputs[0]
    return None


def _chosen(choice: ir.Node) -> Iterator[AnyFloats]:
    for index in (1, 2):
        array = read_constant(choice.inputs[index])
        assert array is not None, "the choice is between constants"
        yield array


def _stays_finite(mask: AnyFloats, factor: float) -> bool:
    """Whether the finite numbers of a mask stay finite when they are scaled, and none is infinite upwards."""
    finite = mask[np.isfinite(mask)].astype(np.float64)
    return not (mask == np.inf).any() and float(np.abs(finite).max(initial=0.0)) * factor <= _LARGEST
