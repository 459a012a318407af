"""Removes what replaces NaN behind a softmax that makes none."""

from __future__ import annotations

import logging

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from trtint8.models.graph_constants import is_constant, read_constant

logger = logging.getLogger(__name__)

#: Operators whose output is finite where their inputs are.
_PRODUCTS = frozenset({"Conv", "Gemm", "MatMul"})

#: Values of a mask below this hide what they are added to.
_MASKED = -1e4

#: Operators that change no values.
_COPYING = frozenset({"Cast", "Dropout", "Identity", "Reshape"})


class RemoveNanGuardsPass(ir.passes.InPlacePass):
    """Replaces Where(IsNaN(p), 0, p) by p, where p is a softmax whose every row has a finite number.

    A softmax makes NaN of finite numbers and minus infinity only where a mask hides a whole row. PyTorch 2.13
    writes the guard behind every masked attention, also where the mask is a constant that hides none, and
    with it TensorRT does not fuse a quantized attention.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Removes the guards of the main graph."""
        removed = [_remove(model.graph, node) for node in list(model.graph) if node.op_type == "Where"]
        if any(removed):
            logger.debug("removed %d guards against NaN", sum(removed))
        return ir.passes.PassResult(model, modified=any(removed))


def _remove(graph: ir.Graph, where: ir.Node) -> bool:
    condition, replacement, softmax = where.inputs[:3]
    check = condition.producer() if condition is not None else None
    node = softmax.producer() if softmax is not None else None
    if softmax is None or node is None or check is None or where.outputs[0].is_graph_output():
        return False
    if check.op_type != "IsNaN" or check.inputs[0] is not softmax or node.op_type != "Softmax":
        return False
    zero = read_constant(replacement)
    if zero is None or zero.any() or not _is_along_last_axis(node) or _may_hide_a_row(node.inputs[0]):
        return False
    where.outputs[0].replace_all_uses_with(softmax)
    graph.remove(where, safe=True)
    return True


def _is_along_last_axis(softmax: ir.Node) -> bool:
    axis, shape = softmax.attributes.get_int("axis", -1), softmax.outputs[0].shape
    return axis == -1 or (shape is not None and axis == len(shape) - 1)


def _may_hide_a_row(value: ir.Value | None) -> bool:
    """Whether minus infinity may fill the last axis of a tensor, given finite activations."""
    masked = False
    while (node := value.producer() if value is not None else None) is not None and node.domain == "":
        if node.op_type in _PRODUCTS:
            return False
        if node.op_type in _COPYING:
            value = node.inputs[0]
            continue
        constants = [read_constant(operand) for operand in node.inputs if is_constant(operand)]
        others = [operand for operand in node.inputs if not is_constant(operand)]
        if len(constants) != 1 or len(others) != 1 or (constant := constants[0]) is None:
            return True
        (value,) = others
        if node.op_type == "Add":
            is_mask = bool((constant < _MASKED).any())
            # Two masks may hide the two parts of a row.
            if _hides_a_row(constant) or (masked and is_mask):
                return True
            masked |= is_mask
        elif node.op_type == "Mul" or (node.op_type == "Div" and value is node.inputs[0]):
            if not (np.isfinite(constant).all() and constant.all()):
                return True
        else:
            return True
    return True


def _hides_a_row(mask: NDArray[np.floating]) -> bool:
    """Whether a constant has no finite number in a row, or has one that no mask has."""
    if np.isnan(mask).any() or (mask == np.inf).any():
        return True
    return not np.isfinite(mask).any(axis=-1 if mask.ndim else None).all()
