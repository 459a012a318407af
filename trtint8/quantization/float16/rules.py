"""Which nodes cannot compute in FP16 without losing what they compute, and why."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from trtint8.models.graph_constants import constant

#: FP16 ends at 65504. Inputs unlike those of calibration reach further than theirs, by up to this factor.
_MARGIN = 2.0
LARGEST = float(np.finfo(np.float16).max)

#: Squares, sums and exponentials of ordinary values leave FP16's range, above or below; roots, quotients and
#: logarithms of what is nearly zero turn that into infinities.
_DELICATE = {
    "CumSum": "sums",
    "Div": "divides",
    "Exp": "exponentiates",
    "GroupNormalization": "sums squares",
    "InstanceNormalization": "sums squares",
    "LayerNormalization": "sums squares",
    "Log": "takes a logarithm",
    "LogSoftmax": "takes a logarithm",
    "LpNormalization": "sums squares",
    "MeanVarianceNormalization": "sums squares",
    "Pow": "raises to a power",
    "RMSNormalization": "sums squares",
    "Reciprocal": "divides",
    "ReduceL1": "sums",
    "ReduceL2": "sums squares",
    "ReduceLogSum": "sums",
    "ReduceLogSumExp": "sums exponentials",
    "ReduceMean": "sums",
    "ReduceProd": "multiplies",
    "ReduceSum": "sums",
    "ReduceSumSquare": "sums squares",
    "Softplus": "exponentiates",
    "Sqrt": "takes a root",
}

#: A constant that FP16 distorts by more than this is no longer the same number.
_DISTORTION = 0.01

_HALF = "tensor(float16)"


@dataclass(frozen=True)
class Signature:
    """Which float inputs and outputs of a node may be FP16.

    Attributes:
        inputs: For each input, whether it may be FP16.
        outputs: For each output.
        known: Whether ONNX defines the operator.
        tied: Whether every float type of the node that varies may be FP16.
    """

    inputs: tuple[bool, ...]
    outputs: tuple[bool, ...]
    known: bool = True
    tied: bool = True


def float32_nodes(model: ir.Model, peaks: Mapping[str, float]) -> dict[str, str]:
    """The nodes of a graph that stay in FP32 when the rest becomes FP16.

    Quantizers are left out: they take whatever type is around them.

    Args:
        model: With named nodes, inferred types and constants lifted to initializers.
        peaks: Tensor name to the largest magnitude seen in it; may lack tensors.

    Returns:
        Node name to the reason.
    """
    reach = dict(peaks)
    for node in model.graph:
        if node.op_type == "DequantizeLinear":
            scale = constant(node.inputs[1])
            if scale is not None:
                reach[node.outputs[0].name or ""] = 128.0 * float(np.abs(scale).max(initial=0))
    kept: dict[str, str] = {}
    for node in model.graph:
        if node.op_type in ("QuantizeLinear", "DequantizeLinear"):
            continue
        reason = next(_reasons(node, signature(node, model), reach, kept), None)
        if reason is not None:
            kept[node.name or ""] = reason
    return kept


def signature(node: ir.Node, model: ir.Model) -> Signature:
    """What ONNX's schema says about a node's types."""
    version = model.opset_imports.get(node.domain, 1)
    return _signature(node.op_type, version, node.domain, len(node.inputs), len(node.outputs))


@functools.cache
def _signature(operator: str, version: int, domain: str, inputs: int, outputs: int) -> Signature:
    try:
        schema = onnx.defs.get_schema(operator, version, domain)
    except onnx.defs.SchemaError:
        return Signature((False,) * inputs, (False,) * outputs, known=False)
    allowed = {one.type_param_str: one.allowed_type_strs for one in schema.type_constraints}

    def may(formals: Sequence[onnx.defs.OpSchema.FormalParameter], count: int) -> tuple[bool, ...]:
        # The last one may stand for many.
        kinds = [formals[min(index, len(formals) - 1)].type_str for index in range(count)]
        return tuple(_HALF in allowed.get(kind, (kind,)) for kind in kinds)

    present = (*schema.inputs[:inputs], *schema.outputs[:outputs])
    used = {formal.type_str for formal in present} & set(allowed)
    tied = all(_HALF in allowed[kind] for kind in used if "tensor(float)" in allowed[kind])
    return Signature(may(schema.inputs, inputs), may(schema.outputs, outputs), tied=tied)


def _reasons(
    node: ir.Node, types: Signature, reach: Mapping[str, float], kept: Mapping[str, str]
) -> Iterator[str]:
    floats = [value for value in node.inputs if value is not None and value.dtype == ir.DataType.FLOAT]
    results = [value for value in node.outputs if value.dtype == ir.DataType.FLOAT]
    if not floats and not results:
        return
    if not types.known:
        yield "ONNX does not define the operator, so its types are unknown"
    if not types.tied:
        yield "the operator has no FP16 form"
    if any(one.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS) for one in node.attributes.values()):
        yield "it holds a graph of its own"
    if not floats:
        yield "its floats come from another type: positions beyond 2048 are not exact in FP16"
    if node.op_type in _DELICATE:
        yield f"it {_DELICATE[node.op_type]}, which FP16 may not hold"
    for value in (*floats, *results):
        if reach.get(value.name or "", 0.0) > LARGEST / _MARGIN:
            yield f"'{value.name}' reaches {reach[value.name or '']:g}, and FP16 ends at {LARGEST:.0f}"
    for value in floats:
        array = constant(value)
        if array is not None and not _fits(array):
            yield f"the constant '{value.name}' does not fit FP16"
    if node.op_type == "Softmax" and _producer(floats[0]) in kept:
        yield "its input is in FP32, where masks may lie beyond FP16"


def _fits(array: NDArray[Any]) -> bool:
    finite = array[np.isfinite(array)]
    if np.abs(finite).max(initial=0.0) > LARGEST:
        return False
    if array.size != 1 or not finite.size or not finite.any():
        return True
    exact = float(finite.reshape(-1)[0])
    return math.isclose(float(np.float16(exact)), exact, rel_tol=_DISTORTION)


def _producer(value: ir.Value) -> str | None:
    producer = value.producer()
    return producer.name if producer is not None else None
