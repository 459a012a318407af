"""What constants and scales lose when they are rounded to FP16.

Above FP16's smallest normal number a number loses at most a two-thousandth of itself, below more and more.
What is lost is judged for an array as a whole: weights of trained networks always have single numbers, and
channels that training has let die, which FP16 makes zero and which add nothing to a sum.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from trtint8.models.graph_constants import read_constant

#: The largest FP16 number.
LARGEST = float(np.finfo(np.float16).max)

#: The smallest FP16 number with full precision. Where a tensor's largest magnitude is this, its values are
#: rounded to steps an eighth of INT8's; where it is smaller, to coarser ones.
SMALLEST_NORMAL = float(np.finfo(np.float16).smallest_normal)

#: The largest relative error of an array that is rounded to FP16. For an INT8 scale it makes the range wider
#: by as much: nothing that is seen in an output.
_LARGEST_ERROR = 0.01


def within_range(array: NDArray[Any]) -> bool:
    """Whether no finite number of an array is beyond the largest FP16 number; infinity is in FP16, too."""
    return bool(np.abs(array[np.isfinite(array)]).max(initial=0.0) <= LARGEST)


def loses_little(array: NDArray[Any]) -> bool:
    """Whether an array is about the same in FP16, whose range it is within."""
    exact = array[np.isfinite(array)].astype(np.float32)
    return _relative_error(exact, exact.astype(np.float16).astype(np.float32)) <= _LARGEST_ERROR


def scale_fits(node: ir.Node) -> bool:
    """Whether FP16 can hold the scale of a QuantizeLinear or DequantizeLinear; one that is computed may."""
    scale = read_constant(node.inputs[1])
    if scale is None:
        return True
    # Channels of zeros have the scale 1, which says nothing about the others.
    exact = scale[scale != 1].astype(np.float32)
    return within_range(exact) and _relative_error(exact, round_scale(exact)) <= _LARGEST_ERROR


def round_scale(scale: NDArray[np.floating]) -> NDArray[np.float32]:
    """Rounds scales up to FP16 numbers, so that no range becomes narrower and no scale becomes zero.

    Args:
        scale: Positive scales of any shape, none beyond the largest FP16 number.

    Returns:
        The smallest FP16 numbers that are not below the scales, as float32 of the same shape.
    """
    exact = scale.astype(np.float32)
    near = exact.astype(np.float16)
    up = np.where(near.astype(np.float32) < exact, np.nextafter(near, np.float16(LARGEST)), near)
    return np.asarray(up, np.float32)


def _relative_error(exact: NDArray[np.float32], rounded: NDArray[np.float32]) -> float:
    """The root of the squared error over the sum of squares; 0 for zeros."""
    largest = float(np.abs(exact).max(initial=0.0))
    if largest == 0:
        return 0.0
    # Squares of float32 numbers as small as these may be beyond float32.
    exact = exact / largest
    return float(np.linalg.norm(rounded / largest - exact) / np.linalg.norm(exact))
