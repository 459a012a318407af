"""What the operators compute with which exporters write paddings and shapes, of constant integers.

PyTorch writes a padding as a chain of these. onnx's reference evaluator knows all operators, but takes a
twentieth of a second to load, so it is left to the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

#: Arrays in the order of a node's inputs; None for one that is left out.
_Inputs = Sequence[NDArray[Any] | None]


def compute_integers(node: ir.Node, inputs: _Inputs) -> NDArray[Any] | None:
    """Computes a node of the standard domain.

    Args:
        node: The node, of an operator set of 13 or later.
        inputs: Its inputs.

    Returns:
        Its output; None where it is another operator, or an input does not hold integers.
    """
    compute = _OPERATORS.get(node.op_type)
    given = [array for array in inputs if array is not None]
    if compute is None or any(not np.issubdtype(array.dtype, np.integer) for array in given):
        return None
    return compute(node, inputs)


def _cast(node: ir.Node, inputs: _Inputs) -> NDArray[Any] | None:
    kind = node.attributes["to"].as_int()
    if kind not in (ir.DataType.INT32, ir.DataType.INT64):
        return None
    return _given(inputs[0]).astype(np.int32 if kind == ir.DataType.INT32 else np.int64)


def _concat(node: ir.Node, inputs: _Inputs) -> NDArray[Any]:
    return np.concatenate([_given(array) for array in inputs], node.attributes["axis"].as_int())


def _constant_of_shape(node: ir.Node, inputs: _Inputs) -> NDArray[Any]:
    value = node.attributes.get("value")
    filling = value.as_tensor().numpy() if value else np.zeros(1, np.float32)
    return np.full(_given(inputs[0]), filling.reshape(()), filling.dtype)


def _reshape(node: ir.Node, inputs: _Inputs) -> NDArray[Any]:
    data, shape = _given(inputs[0]), _given(inputs[1]).tolist()
    allow_zero = node.attributes.get("allowzero")
    if not (allow_zero and allow_zero.as_int()):
        shape = [size or data.shape[index] for index, size in enumerate(shape)]
    reshaped: NDArray[Any] = data.reshape(shape)
    return reshaped


def _slice(_node: ir.Node, inputs: _Inputs) -> NDArray[Any]:
    data, starts, ends, axes, steps = (*inputs, None, None)[:5]
    data, starts, ends = _given(data), _given(starts), _given(ends)
    axes = np.arange(len(starts)) if axes is None else axes
    steps = np.ones(len(starts), np.int64) if steps is None else steps
    places = [slice(None)] * data.ndim
    for axis, *bounds in zip(*(array.tolist() for array in (axes, starts, ends, steps)), strict=True):
        places[axis] = slice(*bounds)
    part: NDArray[Any] = data[tuple(places)]
    return part


def _transpose(node: ir.Node, inputs: _Inputs) -> NDArray[Any]:
    permutation = node.attributes.get("perm")
    return np.transpose(_given(inputs[0]), permutation.as_ints() if permutation else None)


def _gather(node: ir.Node, inputs: _Inputs) -> NDArray[Any]:
    axis = node.attributes.get("axis")
    return np.take(_given(inputs[0]), _given(inputs[1]), axis.as_int() if axis else 0)


def _unsqueeze(_node: ir.Node, inputs: _Inputs) -> NDArray[Any]:
    return np.expand_dims(_given(inputs[0]), tuple(_given(inputs[1]).tolist()))


def _elementwise(compute: np.ufunc) -> Callable[[ir.Node, _Inputs], NDArray[Any]]:
    def computed(_node: ir.Node, inputs: _Inputs) -> NDArray[Any]:
        first, second = map(_given, inputs)
        return np.asarray(compute(first, second))

    return computed


def _given(array: NDArray[Any] | None) -> NDArray[Any]:
    if array is None:
        raise ValueError("an input that must be there is left out")
    return array


_OPERATORS: Mapping[str, Callable[[ir.Node, _Inputs], NDArray[Any] | None]] = {
    "Add": _elementwise(np.add),
    "Cast": _cast,
    "Concat": _concat,
    "ConstantOfShape": _constant_of_shape,
    "Gather": _gather,
    "Mul": _elementwise(np.multiply),
    "Reshape": _reshape,
    "Slice": _slice,
    "Sub": _elementwise(np.subtract),
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
}
