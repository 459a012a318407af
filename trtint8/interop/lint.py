"""Quantized models made elsewhere: what TensorRT would refuse or run in float, and the corrected model."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir

from calibrators.display.counts import counted
from calibrators.errors import ModelError
from calibrators.tables.table import CalibrationTable
from trtint8.interop.expand_qlinear import is_qlinear
from trtint8.interop.integer_models import Expanded, expand, integer_operators
from trtint8.interop.integer_product import FLOAT_COUNTERPARTS
from trtint8.interop.lint_rules import Finding, pair_findings
from trtint8.interop.migration import plan_migration
from trtint8.interop.unquantize import Unquantized, quantized_nodes, unquantize
from trtint8.models.file_names import check_model_name
from trtint8.models.inner_graphs import nodes_inside
from trtint8.models.loading.opset import with_opset
from trtint8.models.model import Model, prepare
from trtint8.models.onnx_errors import run_passes
from trtint8.models.origin import FLOAT_MODEL, forget_origin
from trtint8.models.passes.float32 import ComputeInFloat32Pass
from trtint8.models.passes.identities import RemoveIdentitiesPass
from trtint8.models.passes.infer_shapes import InferShapesPass
from trtint8.models.passes.nan_guards import RemoveNanGuardsPass
from trtint8.models.serialization import save_model
from trtint8.quantization.attention import find_attentions
from trtint8.quantization.operators import WEIGHTED
from trtint8.quantization.placement import place
from trtint8.quantization.quantize import QuantizeOptions, quantize_graph, tensor_names

#: The first opset whose Clip takes its bounds as inputs.
_BOUNDS_AS_INPUTS = 11


@dataclass(frozen=True, repr=False)
class Mended:
    """A model after :func:`mend`.

    Attributes:
        graph_model: The model with Q/DQ pairs as TensorRT wants them; without pairs where no range is known.
        quantized_nodes: Names of the model's weighted nodes in INT8.
        unquantized: The ranges and scales of the old pairs.
        filled: Tensors that needed a range and had no pair, with the amax that follows from other tensors.
    """

    graph_model: ir.Model
    quantized_nodes: tuple[str, ...]
    unquantized: Unquantized
    filled: dict[str, float]

    def __repr__(self) -> str:
        filled = f", {counted(len(self.filled), 'range')} filled in" if self.filled else ""
        return f"<Mended: {counted(len(self.quantized_nodes), 'node')} in INT8{filled}>"

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Writes the model atomically.

        Raises:
            OutputError: The file cannot be written, or its name does not end in .onnx.
        """
        return save_model(self.graph_model, check_model_name(path))


def lint(model: Model) -> list[Finding]:
    """Checks a model against TensorRT's rules.

    A Concat of different scales is a finding. A residual Add of different scales is none: TensorRT for RTX
    builds the same layers whether the two branches of an Add share a scale or not.

    Args:
        model: A model that any tool quantized, in any of ONNX's forms: Q/DQ pairs, operators that read and
            write integers with scales (QLinearConv and the like), or integer operators with scales computed
            at run time.

    Returns:
        The findings, in graph order; empty where there is nothing to mend.

    Raises:
        ModelError: The model is a float model.
    """
    expanded = expand(model.graph_model, model.name)
    _refuse_float(expanded.original, model.name)
    return list(_findings(expanded))


def mend(model: Model) -> Mended:
    """Replaces the Q/DQ pairs of a model by pairs where TensorRT wants them, with the ranges of the old ones.

    Args:
        model: A model that any tool quantized.

    Returns:
        The new model. A Relu or Clip that a quantizer had absorbed is a node again. Weights stay the same
        integers where their scales lie along the axis that TensorRT wants, and weighted nodes that were float
        stay float, and with them the other half of an attention of which only a part was quantized. Weighted
        nodes whose input had a scale computed at run time become float, with the values that their weights
        represented.

    Raises:
        ModelError: The model is a float model, a finding cannot be mended, or a tensor that needs a range had
            no pair.
    """
    expanded = expand(with_opset(model.graph_model, _BOUNDS_AS_INPUTS, model.name), model.name)
    _refuse_float(expanded.original, model.name)
    unmendable = next((finding for finding in _findings(expanded) if not finding.mendable), None)
    if unmendable:
        raise ModelError(f"node '{unmendable.node}': {unmendable.message}")
    # Ranges are noted by the names of tensors. In FP32, inputs in FP16 are read behind a Cast, and Casts
    # between pairs and layers go where the types are known. Outputs behind an Identity pass their names on.
    passes = InferShapesPass(), ComputeInFloat32Pass(), RemoveIdentitiesPass()
    run_passes(expanded.graph_model, model.name, *passes)
    unquantized = unquantize(expanded.graph_model)
    _remove_guards(expanded.graph_model, unquantized.ranges, model.name)
    prepared = prepare(Model(expanded.graph_model, model.name, model.fingerprint))
    if FLOAT_MODEL not in model.graph_model.metadata_props:
        forget_origin(prepared.graph_model)  # the float model is not known
    weighted = {node.name for node in prepared.graph_model.graph if node.op_type in WEIGHTED}
    kept = [name for name in unquantized.kept_float if name in weighted]
    if len(kept) == len(weighted):
        return Mended(prepared.graph_model, (), unquantized, {})
    plan = plan_migration(place(prepared.graph_model, kept), unquantized.ranges)
    products = {one.context.outputs[0].name: one.context for one in find_attentions(prepared.graph_model)}
    # An attention whose output has no range is quantized in part only; whole in float it is one kernel.
    while bare := [products[tensor].name or "" for tensor in plan.unsolved if tensor in products]:
        kept += bare
        plan = plan_migration(place(prepared.graph_model, kept), unquantized.ranges)
    if plan.unsolved:
        raise ModelError(
            f"tensor '{plan.unsolved[0]}' of '{model.name}' has no Q/DQ pair and needs one; quantize the "
            "float model instead"
        )
    table = CalibrationTable({**unquantized.ranges, **plan.fills})
    mended, placement = quantize_graph(
        prepared, table, QuantizeOptions(kept), weight_scales=unquantized.weight_scales
    )
    return Mended(mended, placement.quantized_nodes, unquantized, plan.fills)


def _remove_guards(graph_model: ir.Model, ranges: dict[str, float], name: str) -> None:
    """Removes guards against NaN; what takes the place of a tensor gets its range."""
    guards = RemoveNanGuardsPass()
    run_passes(graph_model, name, guards)
    for tensor, source in guards.sources.items():
        if source in ranges:
            ranges[tensor] = max(ranges[source], ranges.get(tensor, 0.0))
    left = set(tensor_names(graph_model))
    for source in guards.sources.values():
        if source not in left:
            ranges.pop(source, None)


def _refuse_float(graph_model: ir.Model, name: str) -> None:
    pairs = {"QuantizeLinear", "DequantizeLinear"}
    if integer_operators(graph_model) or any(node.op_type in pairs for node in graph_model.graph):
        return
    for node in graph_model.graph:
        if any(inner.op_type in pairs for inner in nodes_inside(node)):
            raise ModelError(
                f"the Q/DQ pairs of '{name}' are in the graphs of {node.op_type} '{node.name}', and only the "
                "main graph is looked at; export the branch that you need as a model of its own"
            )
    raise ModelError(
        f"'{name}' is a float model, with no Q/DQ pairs to look at; give a quantized model, or quantize it "
        "with 'trtint8 calibrate' and 'trtint8 quantize'"
    )


def _findings(expanded: Expanded) -> Iterator[Finding]:
    for node in expanded.original.graph:
        obstacle = expanded.obstacles.get(node.name or "")
        if obstacle is None:
            yield from _expanded_finding(expanded, node)
        else:
            what = f"TensorRT has no {node.op_type}, and " if _is_integer(node) else ""
            rule = "integer-operator" if _is_integer(node) else "integer-data"
            message = f"{what}{obstacle}; export the model with Q/DQ pairs around float operators"
            yield Finding(rule, node.name or "", message, mendable=False)
        yield from pair_findings(node)


def _expanded_finding(expanded: Expanded, node: ir.Node) -> Iterator[Finding]:
    name, operator = node.name or "", node.op_type
    if name in expanded.dynamic:
        advice = (
            "quantize the float model that it was made from"
            if quantized_nodes(expanded.graph_model)
            else "run `trtint8 calibrate` and `trtint8 quantize` on the mended model"
        )
        yield Finding(
            "dynamic-scale",
            name,
            "its input's scale is computed at run time, which TensorRT lacks, and no range is known: it "
            f"becomes a float {FLOAT_COUNTERPARTS[operator]}; for INT8, {advice}",
        )
    elif _is_integer(node):
        rule = "qlinear" if is_qlinear(node) else "integer-operator"
        yield Finding(rule, name, f"TensorRT has no {operator}; Q/DQ pairs express the same")
    elif name in expanded.moved:
        yield Finding(
            "integer-data", name, f"{operator} moves integers: TensorRT wants a pair on either side"
        )


def _is_integer(node: ir.Node) -> bool:
    return node.op_type in FLOAT_COUNTERPARTS or is_qlinear(node)
