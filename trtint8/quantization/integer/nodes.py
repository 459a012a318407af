"""Operators without weights on whole numbers: what stays whole, and what is a sum of whole numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtint8.quantization.config import TensorQuantConfig
from trtint8.quantization.integer.arithmetic import dequantize

#: An operator as ONNX defines it: arrays for its inputs to its first output.
Evaluate = Callable[[Sequence[NDArray[Any]]], NDArray[Any]]

#: Operators that copy or choose values of their first input.
_COPIES = frozenset(
    {
        "DepthToSpace",
        "Expand",
        "Flatten",
        "Gather",
        "GlobalMaxPool",
        "Identity",
        "MaxPool",
        "Relu",
        "Reshape",
        "Slice",
        "SpaceToDepth",
        "Squeeze",
        "Tile",
        "Transpose",
        "Unsqueeze",
    }
)

_AVERAGES = frozenset({"AveragePool", "GlobalAveragePool"})


@dataclass(frozen=True)
class Quantized:
    """Whole numbers and what they mean; float only when somebody asks."""

    whole: NDArray[np.integer]
    config: TensorQuantConfig

    @property
    def values(self) -> NDArray[np.float32]:
        """The numbers that the whole ones stand for."""
        return dequantize(self.whole, self.config)

    def scale_along(self, axis: int, rank: int) -> NDArray[np.float32]:
        """The scale, to be broadcast over a tensor of ``rank`` whose channels lie along ``axis``."""
        assert self.config.scale is not None
        if self.config.policy.axis is None:
            return self.config.scale
        shape = [1] * rank
        shape[axis] = -1
        return self.config.scale.reshape(shape)


def compute_whole(
    operator: str, inputs: Sequence[Quantized | NDArray[Any]], evaluate: Evaluate
) -> Quantized | NDArray[np.float32] | None:
    """An operator without weights, computed on the whole numbers themselves.

    Copies (MaxPool, Reshape, Relu, Concat of one scale) stay whole. Averages and sums of tensors of one scale
    are sums of whole numbers, multiplied by the scale once. Tensors of different scales have no common
    whole numbers: hardware multiplies each by its scale and adds in float, which is what the caller's own
    float arithmetic does.

    Args:
        operator: The ONNX operator.
        inputs: What it reads, in order.
        evaluate: Computes it on arrays in place of the inputs; whole numbers come as float64, which holds
            their sums exactly.

    Returns:
        The output; None where it has to be computed in float.
    """
    first = inputs[0] if inputs else None
    if not isinstance(first, Quantized) or first.config.policy.axis is not None:
        return None
    others = [value.whole.astype(np.float64) if isinstance(value, Quantized) else value for value in inputs]
    if operator in _COPIES:
        return Quantized(np.asarray(evaluate(others)).astype(first.whole.dtype), first.config)
    if operator in _AVERAGES:
        return (np.asarray(evaluate(others)) * first.scale_along(0, 0)).astype(np.float32)
    if operator in ("Concat", "Add") and all(_same_scale(first, value) for value in inputs):
        result = np.asarray(evaluate(others))
        if operator == "Concat":
            return Quantized(result.astype(first.whole.dtype), first.config)
        return (result * first.scale_along(0, 0)).astype(np.float32)
    return None


def _same_scale(first: Quantized, other: Quantized | NDArray[Any]) -> bool:
    if not isinstance(other, Quantized) or other.config.policy.axis is not None:
        return False
    return bool(other.config.scale == first.config.scale)
