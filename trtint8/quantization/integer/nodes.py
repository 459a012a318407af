"""Operators without weights, computed on integers: copies of values, averages and sums."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtint8.quantization.config import TensorQuantConfig
from trtint8.quantization.integer.arithmetic import dequantize
from trtint8.quantization.operators import COPYING

#: An operator as ONNX defines it: from arrays for its inputs to its first output.
Evaluate = Callable[[Sequence[NDArray[Any]]], NDArray[Any]]

#: With zero point 0 a Relu of integers is the Relu of the values that they represent.
_COPIES = COPYING | {"Relu"}

_AVERAGES = frozenset({"AveragePool", "GlobalAveragePool"})


@dataclass(frozen=True)
class Quantized:
    """A quantized tensor, which is dequantized only when its values are asked for.

    Attributes:
        integers: The integers, of any shape.
        config: The config with which they were quantized.
    """

    integers: NDArray[np.integer]
    config: TensorQuantConfig

    @property
    def values(self) -> NDArray[np.float32]:
        """The values that the integers represent, of the same shape."""
        return dequantize(self.integers, self.config)

    def scale_along(self, axis: int, rank: int) -> NDArray[np.float32]:
        """The scale, in a shape that broadcasts over a tensor of a rank whose channels lie along an axis."""
        assert self.config.scale is not None
        if self.config.policy.axis is None:
            return self.config.scale
        shape = [1] * rank
        shape[axis] = -1
        return self.config.scale.reshape(shape)


def compute_on_integers(
    operator: str, inputs: Sequence[Quantized | NDArray[Any]], evaluate: Evaluate
) -> Quantized | NDArray[np.float32] | None:
    """Computes an operator without weights on the integers themselves.

    Operators that copy values (MaxPool, Reshape, Relu, Concat of one scale) give integers. Averages, and sums
    of tensors of one scale, are sums of integers that are multiplied by the scale once. Tensors of different
    scales cannot be added as integers: hardware multiplies each by its scale and adds in float, and so does
    the caller.

    Args:
        operator: The ONNX operator.
        inputs: The inputs of the operator, in order.
        evaluate: Computes the operator on arrays that take the place of the inputs; integers are passed as
            float64, which holds their sums exactly.

    Returns:
        The output; None where it has to be computed in float.
    """
    first = inputs[0] if inputs else None
    if not isinstance(first, Quantized) or first.config.policy.axis is not None:
        return None
    arrays = [
        value.integers.astype(np.float64) if isinstance(value, Quantized) else value for value in inputs
    ]
    if operator in _COPIES:
        return Quantized(np.asarray(evaluate(arrays)).astype(first.integers.dtype), first.config)
    if operator in _AVERAGES:
        return (np.asarray(evaluate(arrays)) * first.scale_along(0, 0)).astype(np.float32)
    if operator in ("Concat", "Add") and all(_same_scale(first, value) for value in inputs):
        result = np.asarray(evaluate(arrays))
        if operator == "Concat":
            return Quantized(result.astype(first.integers.dtype), first.config)
        return (result * first.scale_along(0, 0)).astype(np.float32)
    return None


def _same_scale(first: Quantized, other: Quantized | NDArray[Any]) -> bool:
    if not isinstance(other, Quantized) or other.config.policy.axis is not None:
        return False
    return bool(other.config.scale == first.config.scale)
