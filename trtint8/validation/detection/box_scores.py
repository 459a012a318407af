"""Scores of boxes from a detector's outputs that are logits, as those of DETR and its kin."""

from __future__ import annotations

from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrators.data.feeds import is_float

#: How far scores of the float network may be from what they should be, such as beyond 0 and 1.
ROUNDING = 1e-3


class Activation(Enum):
    """What turns an output into scores of classes."""

    NONE = "none"
    SIGMOID = "sigmoid"
    SOFTMAX = "softmax"
    SOFTMAX_WITHOUT_LAST = "softmax, the last class being none"

    def apply(self, scores: NDArray[Any]) -> NDArray[Any]:
        """The scores of each class.

        Args:
            scores: The output, classes along the last axis, of which one may be left out.
        """
        if self is Activation.NONE:
            return scores
        values = scores.astype(np.float64)
        if self is Activation.SIGMOID:
            return np.asarray(0.5 * (1 + np.tanh(values / 2)))
        powers = np.exp(values - values.max(axis=-1, keepdims=True))
        shares = np.asarray(powers / powers.sum(axis=-1, keepdims=True))
        return shares[..., :-1] if self is Activation.SOFTMAX_WITHOUT_LAST else shares


def are_shares(scores: NDArray[Any]) -> bool:
    """Whether scores of the float network lie between 0 and 1.

    Args:
        scores: Floating-point numbers, of any shape.
    """
    return bool(not scores.size or (scores.min() >= -ROUNDING and scores.max() <= 1 + ROUNDING))


def activation_of(array: NDArray[Any]) -> Activation:
    """Which function is missing behind an output that holds one number for each box and class.

    Most boxes of a detector show nothing. Where classes are independent, as in Deformable DETR and RT-DETR,
    all numbers of such a box are below zero. Else one class stands for none, and is the largest: the first as
    in SSD, or the last as in DETR.

    Args:
        array: An output of the float network, classes along the last axis.
    """
    if not is_float(array.dtype) or array.ndim not in (2, 3) or not array.size:
        return Activation.NONE
    if are_shares(array):
        return Activation.NONE
    largest, kinds = array.max(axis=-1), array.argmax(axis=-1)
    if array.shape[-1] > 1 and np.median(largest) > 0:
        if (kinds == array.shape[-1] - 1).mean() > 0.5:
            return Activation.SOFTMAX_WITHOUT_LAST
        if (kinds == 0).mean() > 0.5:
            return Activation.SOFTMAX
    return Activation.SIGMOID
