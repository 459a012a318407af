"""Scores of the classes of boxes, from outputs that hold them, with a background or as logits."""

from __future__ import annotations

from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrators.data.feeds import is_float

#: How far scores of the float network may be from what they should be, such as beyond 0 and 1.
ROUNDING = 1e-3

#: How far the sum of shares may be from 1. The reference may be a model in INT8 too, which rounds them.
_ROUNDED_SUM = 0.02


class Activation(Enum):
    """What turns an output into scores of classes, which are numbered from 0 without the background."""

    NONE = "none"
    WITHOUT_FIRST = "none, the first class being the background"
    SIGMOID = "sigmoid"
    SOFTMAX_WITHOUT_FIRST = "softmax, the first class being the background"
    SOFTMAX_WITHOUT_LAST = "softmax, the last class being none"

    def apply(self, scores: NDArray[Any]) -> NDArray[Any]:
        """The scores of each class.

        Args:
            scores: The output, classes along the last axis, of which one may be left out.
        """
        if self is Activation.NONE:
            return scores
        if self is Activation.WITHOUT_FIRST:
            return scores[..., 1:]
        values = scores.astype(np.float64)
        if self is Activation.SIGMOID:
            return np.asarray(0.5 * (1 + np.tanh(values / 2)))
        powers = np.exp(values - values.max(axis=-1, keepdims=True))
        shares = np.asarray(powers / powers.sum(axis=-1, keepdims=True))
        return shares[..., :-1] if self is Activation.SOFTMAX_WITHOUT_LAST else shares[..., 1:]

    def class_count(self, columns: int) -> int:
        """How many classes an output has, the background left out.

        Args:
            columns: The length of the output's last axis.
        """
        has_background = self not in (Activation.NONE, Activation.SIGMOID)
        return columns - has_background


def are_shares(scores: NDArray[Any]) -> bool:
    """Whether scores of the float network lie between 0 and 1.

    Args:
        scores: Floating-point numbers, of any shape.
    """
    return bool(not scores.size or (scores.min() >= -ROUNDING and scores.max() <= 1 + ROUNDING))


def activation_of(array: NDArray[Any]) -> Activation:
    """What is missing behind an output that holds one number for each box and class.

    Where scores between 0 and 1 add up to 1 for most boxes, the first class is the background, as in SSD.

    Numbers beyond 0 and 1 are logits. Most boxes of a detector show nothing. Where classes are independent,
    as in Deformable DETR and RT-DETR, all numbers of such a box are below zero. Else one class stands for
    none, and is the largest: the first as in SSD, or the last as in DETR.

    Args:
        array: An output of the float network, classes along the last axis.
    """
    if not is_float(array.dtype) or array.ndim not in (2, 3) or not array.size:
        return Activation.NONE
    if are_shares(array):
        return Activation.WITHOUT_FIRST if _add_up(array) else Activation.NONE
    largest, kinds = array.max(axis=-1), array.argmax(axis=-1)
    if array.shape[-1] > 1 and np.median(largest) > 0:
        if (kinds == array.shape[-1] - 1).mean() > 0.5:
            return Activation.SOFTMAX_WITHOUT_LAST
        if (kinds == 0).mean() > 0.5:
            return Activation.SOFTMAX_WITHOUT_FIRST
    return Activation.SIGMOID


def _add_up(scores: NDArray[Any]) -> bool:
    """Whether there are two classes or more, and the scores of most boxes add up to 1."""
    sums = scores.sum(axis=-1, dtype=np.float64)
    return bool(scores.shape[-1] > 1 and np.median(np.abs(sums - 1)) < _ROUNDED_SUM)
