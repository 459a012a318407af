"""The masks of an attention's scores, as far as they are constant or chosen between constants at run time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from calibrators.operators import Values, operator_of
from trtint8.models.graph_constants import is_constant, read_constant

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

    values: NDArray[np.floating]
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
    while (node := value.producer() if value is not None else None) is not None and node.domain == "":
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
    while (node := value.producer() if value is not None else None) is not None and node.domain == "":
        if node.op_type == "Where":
            return node if is_constant(node.inputs[1]) and is_constant(node.inputs[2]) else None
        operator = operator_of(node)
        if operator.values > Values.PLACED or operator.data != (0,):
            return None
        value = node.inputs[0]
    return None


def _chosen(choice: ir.Node) -> Iterator[NDArray[np.floating]]:
    for index in (1, 2):
        array = read_constant(choice.inputs[index])
        assert array is not None, "the choice is between constants"
        yield array


def _stays_finite(mask: NDArray[np.floating], factor: float) -> bool:
    """Whether the finite numbers of a mask stay finite when they are scaled, and none is infinite upwards."""
    finite = mask[np.isfinite(mask)].astype(np.float64)
    return not (mask == np.inf).any() and float(np.abs(finite).max(initial=0.0)) * factor <= _LARGEST
