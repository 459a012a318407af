"""Removes what replaces NaN behind a softmax, where the softmax makes none or can be kept from making any."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from trtint8.models.graph_constants import add_initializer, read_constant, unused_name, value_names
from trtint8.models.kinds import is_along_last_axis
from trtint8.models.passes.infer_shapes import InferShapesPass
from trtint8.models.passes.score_masks import ScoreMask, score_masks

logger = logging.getLogger(__name__)

#: The first opset whose ReduceMax has its axes as an input.
_AXES_AS_INPUT = 18

_BOOL, _FLOAT = ir.DataType.BOOL, ir.DataType.FLOAT


class RemoveNanGuardsPass(ir.passes.InPlacePass):
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

    def __init__(self) -> None:
        self.sources: dict[str, str] = {}

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Removes the guards of the main graph."""
        nodes = list(model.graph)
        if any(node.op_type == "IsNaN" for node in nodes) and any(map(_lacks_rank, nodes)):
            InferShapesPass()(model)
        self.sources = {}
        remover = _Remover(model.graph, model.opset_imports.get("", 1), self.sources)
        removed = [remover.remove(node) for node in nodes if node.op_type == "Where"]
        if any(removed):
            logger.debug("removed %d guards against NaN", sum(removed))
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
    check = condition.producer() if condition is not None else None
    softmax = value.producer() if value is not None else None
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
    """The product that alone reads what a guard makes, as its first operand."""
    uses = list(where.outputs[0].uses())
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
