"""Q/DQ models made elsewhere: what TensorRT would refuse or quietly run in float, and the cure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from calibrators.errors import ModelError
from calibrators.table import CalibrationTable
from trtint8.api import quantize_graph
from trtint8.migration import plan_migration
from trtint8.model import Model, prepare
from trtint8.passes.expand_qlinear import EXPANDED, ExpandQLinearPass
from trtint8.quantization.placement import WEIGHTED, place, weight_axis
from trtint8.quantization.unquantize import Unquantized, unquantize

#: Operators that compute on whole numbers themselves, which TensorRT has no importer for.
_INTEGER_OPERATORS = ("ConvInteger", "MatMulInteger", "DynamicQuantizeLinear")


@dataclass(frozen=True)
class Finding:
    """One thing that TensorRT does not take as it stands.

    Attributes:
        rule: Its name, like "bias-int32".
        node: The node.
        message: What is wrong, and what comes of it.
        mendable: Whether :func:`mend` cures it.
    """

    rule: str
    node: str
    message: str
    mendable: bool = True


@dataclass(frozen=True)
class Mended:
    """A model after :func:`mend`.

    Attributes:
        graph_model: With Q/DQ pairs as TensorRT wants them.
        quantized_nodes: Names of its weighted nodes in INT8.
        said: What the old pairs said.
        filled: Tensors that needed a range and had no pair, with the range that follows from others.
    """

    graph_model: ir.Model
    quantized_nodes: tuple[str, ...]
    said: Unquantized
    filled: dict[str, float]


def lint(model: Model) -> list[Finding]:
    """Checks a model against TensorRT's rules.

    Args:
        model: With Q/DQ pairs, made by any tool.

    Returns:
        The findings, in the graph's order; empty where there is nothing to mend.
    """
    return [finding for node in model.graph_model.graph for finding in _findings(node)]


def mend(model: Model) -> Mended:
    """Places Q/DQ pairs anew, with the ranges of the old ones.

    Args:
        model: With Q/DQ pairs, made by any tool.

    Returns:
        The new model; weights stay the whole numbers that they were, where their scales lie along the axis
        that TensorRT wants, and weighted nodes that were float stay so.

    Raises:
        ModelError: A finding cannot be mended, or a tensor that needs a range had no pair.
    """
    hopeless = [finding for finding in lint(model) if not finding.mendable]
    if hopeless:
        raise ModelError(f"node '{hopeless[0].node}': {hopeless[0].message}")
    graph_model = model.graph_model.clone()
    ExpandQLinearPass()(graph_model)
    said = unquantize(graph_model)
    prepared = prepare(Model(graph_model, model.name, model.fingerprint))
    plan = plan_migration(place(prepared.graph_model, said.kept_float), said.ranges)
    if plan.unsolved:
        raise ModelError(
            f"tensor '{plan.unsolved[0]}' of '{model.name}' has no Q/DQ pair and needs one; quantize the "
            "float model instead"
        )
    table = CalibrationTable({**said.ranges, **plan.fills})
    mended, placement = quantize_graph(prepared, table, said.kept_float, said.weight_scales)
    return Mended(mended, placement.quantized_nodes, said, plan.fills)


def _findings(node: ir.Node) -> Iterator[Finding]:
    name = node.name or ""
    if node.op_type in _INTEGER_OPERATORS:
        message = f"TensorRT has no {node.op_type}; export the model with Q/DQ pairs"
        yield Finding("integer-operator", name, message, mendable=False)
    elif node.op_type in EXPANDED:
        yield Finding("qlinear", name, f"TensorRT has no {node.op_type}; Q/DQ pairs say the same")
    elif node.op_type in ("QuantizeLinear", "DequantizeLinear"):
        yield from _pair_findings(node, name)
    elif node.op_type in WEIGHTED:
        yield from _weighted_findings(node, name)


def _pair_findings(node: ir.Node, name: str) -> Iterator[Finding]:
    scale, point, stored = (_constant(node, index) for index in (1, 2, 0))
    activation = not _is_weight(node.inputs[0])
    if scale is None:
        yield Finding("scale-computed", name, "its scale is computed at run time", mendable=False)
        return
    if not ((scale > 0) & np.isfinite(scale)).all():
        bad = scale.reshape(-1)[~((scale > 0) & np.isfinite(scale)).reshape(-1)][0]
        yield Finding("scale", name, f"a scale is {bad}; scales are positive and finite", mendable=False)
    if point is not None and point.any():
        yield Finding(
            "zero-point", name, f"its zero point is {point.reshape(-1)[0]}, and TensorRT takes only 0"
        )
    if point is not None and point.dtype == np.int32:
        yield Finding("bias-int32", name, "it dequantizes an int32 bias, which TensorRT wants in float")
    elif point is not None and point.dtype != np.int8:
        yield Finding("type", name, f"it quantizes to {point.dtype}, and TensorRT takes int8")
    if activation and scale.size > 1:
        yield Finding("activation-per-channel", name, "an activation has a scale a channel: it runs in float")
    if stored is not None and stored.ndim == 0:
        yield Finding("scalar-constant", name, "it dequantizes a constant without dimensions")
    if node.op_type == "DequantizeLinear" and activation and _feeds_activation(node):
        yield Finding("pair-before-activation", name, "a pair before an activation splits a fusion")


def _weighted_findings(node: ir.Node, name: str) -> Iterator[Finding]:
    producers = [value.producer() if value is not None else None for value in node.inputs[:2]]
    quantized = [p is not None and p.op_type == "DequantizeLinear" for p in producers]
    if any(quantized) and not all(quantized):
        yield Finding("one-sided", name, "only one of its operands is quantized: it runs in float")
    weights, value = producers[1], node.inputs[1]
    if not quantized[1] or weights is None or value is None or weights.inputs[0] is None:
        return
    scale = _constant(weights, 1)
    wanted = weight_axis(node, value)
    axis = weights.attributes.get_int("axis", 1)
    if _is_weight(weights.inputs[0]) and scale is not None and scale.size > 1 and axis != wanted:
        message = f"its weights have scales along axis {axis} instead of {wanted}: it runs in float"
        yield Finding("weight-axis", name, message)


def _feeds_activation(node: ir.Node) -> bool:
    source = node.inputs[0].producer() if node.inputs[0] is not None else None
    value = source.inputs[0] if source is not None and source.op_type == "QuantizeLinear" else None
    before = value.producer() if value is not None else None
    after = [user.op_type for user, _ in node.outputs[0].uses()]
    return before is not None and before.op_type in WEIGHTED and after == ["Relu"]


def _is_weight(value: ir.Value | None) -> bool:
    """Whether a value is constant, or a quantized constant."""
    producer = value.producer() if value is not None else None
    if producer is not None and producer.op_type == "QuantizeLinear":
        value = producer.inputs[0]
    return value is not None and ir.convenience.get_const_tensor(value) is not None


def _constant(node: ir.Node, index: int) -> NDArray[Any] | None:
    value = node.inputs[index] if len(node.inputs) > index else None
    tensor = ir.convenience.get_const_tensor(value) if value is not None else None
    return None if tensor is None else tensor.numpy()
