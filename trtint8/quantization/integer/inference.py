"""Integer inference of a Q/DQ model, as a reference for what hardware computes.

Where a weighted operator reads two quantized tensors, integers are multiplied: int8 times int8, summed in an
accumulator of 32 bits, multiplied by the two scales, and the float bias is added, as in TensorRT and ncnn.
Pooling, Relu, Concat, Add and operators that copy values are computed on integers too, where their inputs
have one scale. Everything else is computed in float32, one operator after another, by ONNX's reference
evaluator.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from calibrators.errors import ModelError
from trtint8.quantization.config import Policy, TensorQuantConfig
from trtint8.quantization.integer.arithmetic import quantize
from trtint8.quantization.integer.nodes import Quantized, compute_on_integers
from trtint8.quantization.integer.products import Window, convolve, convolve_transposed, multiply, padding
from trtint8.quantization.integer.rounding import Rounding

_ACCUMULATOR_MAX = 2**31 - 1


@dataclass(frozen=True)
class IntegerRun:
    """The results of an integer inference.

    Attributes:
        outputs: Output name to array.
        quantized: Name of a QuantizeLinear's output to its int8 values.
        largest_sums: Name of a weighted node computed on integers to the largest magnitude in its
            accumulator.
    """

    outputs: Mapping[str, NDArray[Any]]
    quantized: Mapping[str, NDArray[np.int8]]
    largest_sums: Mapping[str, int]


@dataclass(frozen=True)
class Agreement:
    """How two quantized versions of one tensor compare.

    Attributes:
        tensor: The name of the tensor.
        largest: The largest difference between two integers.
        share: The share of values that differ, 0 to 1.
    """

    tensor: str
    largest: int
    share: float


def run_integer(
    model: onnx.ModelProto,
    feeds: Mapping[str, NDArray[Any]],
    *,
    rounding: Rounding = Rounding.HALF_EVEN,
    follow: Mapping[str, NDArray[np.int8]] | None = None,
) -> IntegerRun:
    """Runs a Q/DQ model with integer arithmetic.

    Args:
        model: A model with Q/DQ pairs of int8 and zero points of 0.
        feeds: Input name to array, of the input's shape and dtype.
        rounding: How the target rounds when it quantizes.
        follow: Name of a QuantizeLinear's output to its int8 values in another run. Later nodes read these
            instead of this run's own, so that a difference between the runs in one tensor does not cause
            differences in the next ones.

    Returns:
        The outputs, the quantized tensors and the largest sums.

    Raises:
        ModelError: A sum does not fit the accumulator of 32 bits.
    """
    return _Runner(model, rounding, follow or {}).run(feeds)


def compare_quantized(
    first: Mapping[str, NDArray[np.integer]], second: Mapping[str, NDArray[np.integer]]
) -> list[Agreement]:
    """Compares the quantized tensors that two runs have in common.

    Args:
        first: Tensor name to integers of any shape.
        second: Tensor name to integers; a common tensor has the same shape in both.

    Returns:
        One agreement per common tensor, the largest difference first.
    """
    agreements = []
    for name in first.keys() & second.keys():
        difference = np.abs(first[name].astype(np.int64) - second[name].astype(np.int64))
        largest = int(difference.max(initial=0))
        share = float((difference > 0).mean()) if difference.size else 0.0
        agreements.append(Agreement(name, largest, share))
    return sorted(agreements, key=lambda agreement: (-agreement.largest, -agreement.share, agreement.tensor))


@dataclass
class _Runner:
    model: onnx.ModelProto
    rounding: Rounding
    follow: Mapping[str, NDArray[np.int8]]
    values: dict[str, Any] = field(default_factory=dict)
    quantized: dict[str, NDArray[np.int8]] = field(default_factory=dict)
    largest_sums: dict[str, int] = field(default_factory=dict)

    def run(self, feeds: Mapping[str, NDArray[Any]]) -> IntegerRun:
        self.values = {tensor.name: numpy_helper.to_array(tensor) for tensor in self.model.graph.initializer}
        self.values |= feeds
        for node in self.model.graph.node:
            self._run(node)
        outputs = {output.name: self._float(output.name) for output in self.model.graph.output}
        return IntegerRun(outputs, self.quantized, self.largest_sums)

    def _run(self, node: onnx.NodeProto) -> None:
        if node.op_type == "QuantizeLinear":
            integers = quantize(self._float(node.input[0]), self._config(node)).astype(np.int8)
            self.quantized[node.output[0]] = integers
            self.values[node.output[0]] = self.follow.get(node.output[0], integers)
        elif node.op_type == "DequantizeLinear":
            integers = np.asarray(self.values[node.input[0]])
            self.values[node.output[0]] = Quantized(integers, self._config(node))
        elif node.op_type in _WEIGHTED and self._is_quantized(node):
            self.values[node.output[0]] = self._multiply(node)
        else:
            self._compute_unweighted(node)

    def _config(self, node: onnx.NodeProto) -> TensorQuantConfig:
        scale = np.asarray(self.values[node.input[1]], np.float32)
        axis = _attribute(node, "axis", 1) if scale.size > 1 else None
        scale = scale.reshape(()) if axis is None else scale
        return TensorQuantConfig(policy=Policy(axis=axis), rounding=self.rounding).with_scale(scale)

    def _is_quantized(self, node: onnx.NodeProto) -> bool:
        return all(isinstance(self.values[name], Quantized) for name in node.input[:2])

    def _multiply(self, node: onnx.NodeProto) -> NDArray[np.float32]:
        first, second = (self.values[name] for name in node.input[:2])
        sums, axis = _SUMS[node.op_type](node, first.integers, second.integers)
        largest = int(np.abs(sums).max(initial=0))
        self.largest_sums[node.name] = largest
        if largest > _ACCUMULATOR_MAX:
            raise ModelError(
                f"a sum in node '{node.name}' reaches {largest}, which an accumulator of 32 bits cannot "
                "hold; keep the node in float"
            )
        scale = first.scale_along(axis, sums.ndim) * second.scale_along(axis, sums.ndim)
        result = sums.astype(np.float32) * scale
        if node.op_type == "Gemm":
            result = result * np.float32(_attribute(node, "alpha", 1.0))
        if len(node.input) > 2 and node.input[2]:
            bias = self._float(node.input[2])
            if node.op_type == "Gemm":
                result = result + np.float32(_attribute(node, "beta", 1.0)) * bias
            else:
                result = result + bias.reshape(-1, *[1] * (sums.ndim - 2))
        return np.asarray(result, np.float32)

    def _compute_unweighted(self, node: onnx.NodeProto) -> None:
        names = [name for name in node.input if name]
        evaluate = partial(_evaluate, node, names, self.model)
        outputs = [name for name in node.output if name]
        if len(outputs) == 1:
            inputs = [self.values[name] for name in names]
            result = compute_on_integers(node.op_type, inputs, lambda arrays: evaluate(arrays)[0])
            if result is not None:
                self.values[outputs[0]] = result
                return
        self.values |= zip(outputs, evaluate([self._float(name) for name in names]), strict=True)

    def _float(self, name: str) -> NDArray[Any]:
        value = self.values[name]
        return value.values if isinstance(value, Quantized) else np.asarray(value)


def _evaluate(
    node: onnx.NodeProto, names: Sequence[str], model: onnx.ModelProto, arrays: Sequence[NDArray[Any]]
) -> list[NDArray[Any]]:
    """Computes one node of a model with ONNX's reference evaluator."""
    graph = helper.make_graph(
        [node],
        "node",
        [_typed(name, array) for name, array in zip(names, arrays, strict=True)],
        [helper.make_empty_tensor_value_info(name) for name in node.output if name],
    )
    alone = helper.make_model(graph, opset_imports=model.opset_import, functions=model.functions)
    evaluator = ReferenceEvaluator(alone)
    return [np.asarray(result) for result in evaluator.run(None, dict(zip(names, arrays, strict=True)))]


def _typed(name: str, array: NDArray[Any]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)


def _attribute(node: onnx.NodeProto, name: str, default: Any) -> Any:
    for attribute in node.attribute:
        if attribute.name == name:
            value = helper.get_attribute_value(attribute)
            return value.decode() if isinstance(value, bytes) else value
    return default


def _window(node: onnx.NodeProto, spatial: tuple[int, ...], kernel: tuple[int, ...]) -> Window:
    ones = [1] * len(kernel)
    window = Window(tuple(_attribute(node, "strides", ones)), tuple(_attribute(node, "dilations", ones)), ())
    auto_pad, pads = _attribute(node, "auto_pad", "NOTSET"), _attribute(node, "pads", [])
    return padding(auto_pad, pads, spatial, kernel, window)


_Sums = tuple[NDArray[np.float64], int]


def _conv(node: onnx.NodeProto, values: NDArray[np.integer], weights: NDArray[np.integer]) -> _Sums:
    window = _window(node, values.shape[2:], weights.shape[2:])
    return convolve(values, weights, window, _attribute(node, "group", 1)), 1


def _conv_transpose(node: onnx.NodeProto, values: NDArray[np.integer], weights: NDArray[np.integer]) -> _Sums:
    if _attribute(node, "auto_pad", "NOTSET") not in ("NOTSET", "VALID") or _attribute(
        node, "output_shape", None
    ):
        raise ModelError(f"node '{node.name}' pads by output shape, which the integer reference does not do")
    rank = values.ndim - 2
    window = _window(node, values.shape[2:], weights.shape[2:])
    more = _attribute(node, "output_padding", [0] * rank)
    return convolve_transposed(values, weights, window, _attribute(node, "group", 1), more), 1


def _gemm(node: onnx.NodeProto, first: NDArray[np.integer], second: NDArray[np.integer]) -> _Sums:
    first = first.T if _attribute(node, "transA", 0) else first
    second = second.T if _attribute(node, "transB", 0) else second
    return multiply(first, second), 1


def _matmul(_node: onnx.NodeProto, first: NDArray[np.integer], second: NDArray[np.integer]) -> _Sums:
    sums = multiply(first, second)
    return sums, sums.ndim - 1


_SUMS = {"Conv": _conv, "ConvTranspose": _conv_transpose, "Gemm": _gemm, "MatMul": _matmul}
_WEIGHTED = frozenset(_SUMS)
