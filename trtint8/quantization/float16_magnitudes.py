"""How large the values of float tensors become, and what constants and scales lose when rounded to FP16.

Magnitudes are as calibration saw them, or as far as a graph bounds them. A table may lack tensors: one of
placed tensors has only those with Q/DQ pairs, and a model that came with its pairs has no table at all. What
a pair lets through is bounded by its scale, and most operators bound what they give out by what they read: a
convolution by the sum of its weights' magnitudes, an activation function by its input. Bounds are wider than
what is seen, so they only decide where nothing was seen.

Above FP16's smallest normal number a number loses at most a two-thousandth of itself, below more and more.
What is lost is judged for an array as a whole: weights of trained networks always have single numbers, and
channels that training has let die, which FP16 makes zero and which add nothing to a sum.
"""

from __future__ import annotations

import math
from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from calibrators.data.feeds import AnyFloats, Array, Float32s
from calibrators.operators import Values, operator_of
from trtint8.models.graph import constant_input, made_by, read_constant

#: Element types to the largest magnitude of their numbers, where FP16 has it.
_OF_TYPES = {ir.DataType.BOOL: 1.0, ir.DataType.INT8: 128.0, ir.DataType.UINT8: 255.0}

#: How far cubic interpolation may go beyond its input.
_OVERSHOOT = 2.0


@dataclass(frozen=True)
class Magnitudes:
    """The largest magnitudes of the float tensors of a graph.

    Attributes:
        seen: Tensor name to what calibration saw, or to what the graph fixes: a pair by its scale, a mask by
            the constant that a Where chooses.
        bounds: Names of further tensors, of which nothing was seen, to what the graph bounds.
    """

    seen: Mapping[str, float]
    bounds: Mapping[str, float]

    def __contains__(self, name: str) -> bool:
        return name in self.seen or name in self.bounds

    @classmethod
    def of(cls, model: ir.Model, peaks: Mapping[str, float]) -> Magnitudes:
        """The magnitudes in one graph.

        Args:
            model: A model with constants lifted to initializers.
            peaks: Tensor name to the largest magnitude seen in it; may lack tensors.
        """
        seen, bounds = dict(peaks), dict[str, float]()
        both = ChainMap(seen, bounds)
        for node in model.graph:
            names = [value.name or "" for value in node.outputs if value.dtype == ir.DataType.FLOAT]
            if not names:
                continue
            if node.op_type == "DequantizeLinear":
                if (bound := _of_integers(node)) is not None:
                    seen[names[0]] = bound
            elif (chosen := _beyond_half(node, seen)) is not None:
                seen[names[0]] = max(chosen, seen.get(names[0], 0.0))
            elif operator_of(node).rearranges and names[0] not in seen and _name(node.inputs[0]) in seen:
                seen[names[0]] = seen[_name(node.inputs[0])]
            elif any(name not in seen for name in names) and (bound := _bound(node, both)) is not None:
                # The states of an LSTM's cells are sums without bounds. What cannot be large is small.
                for name in names[: 2 if node.op_type == "LSTM" else None]:
                    (seen if bound < SMALLEST_NORMAL else bounds).setdefault(name, bound)
        return cls(seen, {name: bound for name, bound in bounds.items() if name not in seen})


def _name(value: ir.Value | None) -> str:
    return "" if value is None else value.name or ""


def _of_integers(node: ir.Node) -> float | None:
    """The largest number that a DequantizeLinear gives out."""
    scale, source = read_constant(node.inputs[1]), node.inputs[0]
    if scale is None or source is None or source.dtype is None or source.dtype.is_floating_point():
        return None
    zero_point = read_constant(node.inputs[2]) if len(node.inputs) > 2 else None
    moved = source.dtype.name.startswith("UINT") or (zero_point is not None and bool(zero_point.any()))
    stored = None if moved else read_constant(source)
    steps = 2.0**source.dtype.bitwidth if moved else 2.0 ** (source.dtype.bitwidth - 1)
    return (steps if stored is None else _largest(stored)) * _largest(scale)


def _beyond_half(node: ir.Node, found: Mapping[str, float]) -> float | None:
    """The size of a node's output where it may be a constant that FP16 cannot hold, chosen by a Where.

    Calibration may not have seen it, and a cast to FP16 would make it infinite. Masks of PyTorch's attentions
    are such constants: with infinite ones the softmax of a row that is hidden as a whole is not a number.
    """
    if not keeps_size(node):
        return None
    sizes = [found.get(_name(value), 0.0) for value in node.inputs]
    if node.op_type == "Where":
        arrays = [read_constant(value) for value in node.inputs[1:]]
        sizes += [_largest(array) for array in arrays if array is not None]
    largest = max(sizes, default=0.0)
    return largest if largest > LARGEST else None


def _bound(node: ir.Node, found: Mapping[str, float]) -> float | None:
    """The largest magnitude that the outputs of a node may have; None where that is not known."""
    if node.domain != "":
        return None
    operator, sizes = operator_of(node), [_size(value, found) for value in node.inputs]
    largest_end = max(map(abs, operator.ends))
    if largest_end < math.inf:
        return largest_end
    if node.op_type in _SPECIAL:
        return _SPECIAL[node.op_type](node, sizes)
    if operator.values is not Values.COMPUTED:
        # What is an element of one of the inputs, or lies between them.
        among = [sizes[index] for index in operator.data_among(len(sizes))]
        largest = _of_all(lambda known: max(known, default=0.0), among)
        cubic = "cubic" in node.attributes.get_string("mode", "")
        return largest if largest is None or not cubic else _OVERSHOOT * largest
    if operator.bound is None or not sizes or sizes[0] is None:
        return None
    alpha = abs(node.attributes.get_float("alpha", 0.0)) if operator.bound.alpha else 0.0
    return max(operator.bound.factor, alpha) * sizes[0] + max(operator.bound.added, alpha)


def keeps_size(node: ir.Node) -> bool:
    """True if the output of a node is about as large as the largest of its inputs."""
    operator = operator_of(node)
    return operator.moves or (node.domain, node.op_type) == ("", "Add")


def _of_all(combine: Callable[[list[float]], float], sizes: _Sizes) -> float | None:
    """What is combined of the magnitudes of all inputs; None where one is not known."""
    known = [size for size in sizes if size is not None]
    return combine(known) if len(known) == len(sizes) else None


def _of_sum(_node: ir.Node, sizes: _Sizes) -> float | None:
    return _of_all(sum, sizes)


def _of_clip(node: ir.Node, sizes: _Sizes) -> float | None:
    low, high = (constant_input(node, index) for index in (1, 2))
    if low is not None and high is not None and (between := max(_largest(low), _largest(high))) <= LARGEST:
        return between
    given = (value is not None for value in node.inputs[1:])
    if sizes[0] is None or sum(given) != sum(bound is not None for bound in (low, high)):
        return None
    # A bound beyond 0 is given out where the input is 0.
    beyond = (0.0 if low is None else float(low), 0.0 if high is None else -float(high))
    return max(sizes[0], *beyond)


def _size(value: ir.Value | None, found: Mapping[str, float]) -> float | None:
    """The largest magnitude of what a node reads; 0 of what it leaves out."""
    if value is None:
        return 0.0
    known = found.get(_name(value))
    if known is not None:
        return known
    array = read_constant(value)
    if array is not None:
        return _largest(array)
    return _OF_TYPES.get(value.dtype) if value.dtype is not None else None


def _largest(array: NDArray[np.generic]) -> float:
    if array.dtype.kind not in "fiub":
        return 0.0
    finite = array[np.isfinite(array)]
    return float(np.abs(finite.astype(np.float64)).max(initial=0.0))


def _of_product(node: ir.Node, sizes: _Sizes) -> float | None:
    """The largest sum of products of a layer, with its bias."""
    (first, second), bias = sizes[:2], sizes[2] if len(sizes) > 2 else 0.0
    if first is not None and (weights := _weights(node.inputs[1])) is not None:
        product = first * _sum_of_weights(node, weights)
    elif node.op_type != "MatMul" or second is None:
        return None
    elif (weights := _weights(node.inputs[0])) is not None:
        product = second * _largest_sum(weights, (weights.ndim - 1,))
    elif first is not None and (terms := _terms(node)) is not None:
        product = terms * first * second
    else:
        return None
    if bias is None:
        return None
    if node.op_type == "Gemm":
        alpha, beta = (abs(node.attributes.get_float(name, 1.0)) for name in ("alpha", "beta"))
        return alpha * product + beta * bias
    return product + bias


def _weights(value: ir.Value | None) -> AnyFloats | None:
    """The magnitudes of constant weights that a layer reads as they are or through a Q/DQ pair, or more."""
    array = read_constant(value)
    if array is not None:
        return np.asarray(np.abs(array))
    dequantize = made_by(value, "DequantizeLinear")
    if dequantize is None:
        return None
    scale, source = read_constant(dequantize.inputs[1]), dequantize.inputs[0]
    if scale is None or source is None:
        return None
    largest = np.abs(scale).max(initial=0)
    if (stored := read_constant(source)) is not None:
        zero_point = read_constant(dequantize.inputs[2]) if len(dequantize.inputs) > 2 else None
        added = 0.0 if zero_point is None else _largest(zero_point)
        return np.asarray((np.abs(stored.astype(np.float32)) + added) * largest)
    quantize = source.producer()
    rounded = read_constant(quantize.inputs[0]) if quantize is not None else None
    # Rounding moves each weight by half a step.
    return None if rounded is None else np.abs(rounded) + largest / 2


def _sum_of_weights(node: ir.Node, weights: AnyFloats) -> float:
    """The largest sum of the magnitudes of the weights that make one element of what a layer gives out."""
    if node.op_type == "Conv":
        return _largest_sum(weights, range(1, weights.ndim))
    if node.op_type == "ConvTranspose":
        groups = weights.reshape(node.attributes.get_int("group", 1), -1, *weights.shape[1:])
        return _largest_sum(groups, (1, *range(3, groups.ndim)))
    if node.op_type == "Gemm":
        return _largest_sum(weights, (1,) if node.attributes.get_int("transB", 0) else (0,))
    return _largest_sum(weights, (max(0, weights.ndim - 2),))


def _largest_sum(magnitudes: AnyFloats, axes: Iterable[int]) -> float:
    return float(magnitudes.sum(axis=tuple(axes), dtype=np.float64).max(initial=0.0))


def _terms(node: ir.Node) -> int | None:
    """The number of products that a product of two activations adds up; None where it is open."""
    for value, axis in zip(node.inputs, (-1, -2), strict=True):
        if value is not None and value.shape is not None and len(value.shape) >= -axis:
            size = value.shape[axis]
            if isinstance(size, int):
                return size
    return None


def _of_normalization(node: ir.Node, sizes: _Sizes) -> float | None:
    """What is divided by its own standard deviation or root mean square is at most the root of its size."""
    shape = node.inputs[0].shape if node.inputs[0] is not None else None
    scale, bias = sizes[1] if len(sizes) > 1 else 1.0, sizes[2] if len(sizes) > 2 else 0.0
    if scale is None or bias is None or shape is None:
        return None
    axis = {"InstanceNormalization": 2, "GroupNormalization": 1}.get(node.op_type)
    together = list(shape)[node.attributes.get_int("axis", -1) if axis is None else axis :]
    if not all(isinstance(size, int) for size in together):
        return None
    return math.sqrt(math.prod(size for size in together if isinstance(size, int))) * scale + bias


def _of_batch_normalization(node: ir.Node, sizes: _Sizes) -> float | None:
    parameters = [read_constant(value) for value in node.inputs[1:5]]
    if sizes[0] is None or any(array is None for array in parameters):
        return None
    scale, bias, mean, variance = (array.astype(np.float64) for array in parameters if array is not None)
    factor = scale / np.sqrt(variance + node.attributes.get_float("epsilon", 1e-5))
    return float((np.abs(factor) * sizes[0] + np.abs(bias - factor * mean)).max(initial=0.0))


def _of_quotient(node: ir.Node, sizes: _Sizes) -> float | None:
    divisor = read_constant(node.inputs[1])
    smallest = 0.0 if divisor is None else float(np.abs(divisor).min(initial=np.inf))
    return sizes[0] / smallest if sizes[0] is not None and smallest > 0 else None


def _of_recurrent(node: ir.Node, sizes: _Sizes) -> float | None:
    """What a recurrent layer gives out lies between -1 and 1, or between its first state and those."""
    initial = sizes[5] if len(sizes) > 5 else 0.0
    return None if initial is None or "activations" in node.attributes else max(1.0, initial)


#: What each element of the list is: the largest magnitude of an input; None where it is not known.
_Sizes = Sequence[float | None]

#: Operators to what bounds their outputs.
_SPECIAL: Mapping[str, Callable[[ir.Node, _Sizes], float | None]] = {
    "Add": _of_sum,
    "BatchNormalization": _of_batch_normalization,
    "Clip": _of_clip,
    "Conv": _of_product,
    "ConvTranspose": _of_product,
    "Div": _of_quotient,
    "GRU": _of_recurrent,
    "Gemm": _of_product,
    "GroupNormalization": _of_normalization,
    "InstanceNormalization": _of_normalization,
    "LSTM": _of_recurrent,
    "LayerNormalization": _of_normalization,
    "MatMul": _of_product,
    "Mul": lambda _node, sizes: _of_all(math.prod, sizes),
    "PRelu": lambda _node, sizes: _of_all(lambda both: both[0] * max(1.0, both[1]), sizes),
    "RMSNormalization": _of_normalization,
    "RNN": _of_recurrent,
    "Sub": _of_sum,
    "Sum": _of_sum,
}


#: The largest FP16 number.
LARGEST = float(np.finfo(np.float16).max)

#: The smallest FP16 number with full precision. Where a tensor's largest magnitude is this, its values are
#: rounded to steps an eighth of INT8's; where it is smaller, to coarser ones.
SMALLEST_NORMAL = float(np.finfo(np.float16).smallest_normal)

#: The largest relative error of an array that is rounded to FP16. For an INT8 scale it makes the range wider
#: by as much: nothing that is seen in an output.
_LARGEST_ERROR = 0.01


def within_range(array: Array) -> bool:
    """Whether no finite number of an array is beyond the largest FP16 number; infinity is in FP16, too."""
    return bool(np.abs(array[np.isfinite(array)]).max(initial=0.0) <= LARGEST)


def loses_little(array: Array) -> bool:
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


def round_scale(scale: AnyFloats) -> Float32s:
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


def _relative_error(exact: Float32s, rounded: Float32s) -> float:
    """The root of the squared error over the sum of squares; 0 for zeros."""
    largest = float(np.abs(exact).max(initial=0.0))
    if largest == 0:
        return 0.0
    # Squares of float32 numbers as small as these may be beyond float32.
    exact = exact / largest
    return float(np.linalg.norm(rounded / largest - exact) / np.linalg.norm(exact))
