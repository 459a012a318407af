"""Quantized models made elsewhere: what TensorRT would refuse or run in float, and the corrected model."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnx_ir.passes import common

from calibrators.display.counts import counted
from calibrators.errors import ModelError
from calibrators.tables.table import CalibrationTable
from trtint8.interop.expand_qlinear import is_qlinear
from trtint8.interop.extract import pair_ranges
from trtint8.interop.float_movement import moved_data
from trtint8.interop.grids import HIGHEST, Grid, weight_grid
from trtint8.interop.integer_models import Expanded, expand, integer_operators, original_name
from trtint8.interop.integer_product import FLOAT_COUNTERPARTS
from trtint8.interop.lint_rules import (
    Finding,
    concat_scales,
    pair_findings,
)
from trtint8.interop.migration import plan_migration
from trtint8.interop.pairs import constant_scales, is_quantized_constant, reads_integers
from trtint8.interop.unquantize import (
    Unquantized,
    drop_covered_ends,
    move_behind_activations,
    quantized_nodes,
    unquantize,
)
from trtint8.models.file_names import check_model_name
from trtint8.models.graph_constants import is_constant, read_constant
from trtint8.models.inner_graphs import nodes_inside
from trtint8.models.loading.opset import with_opset
from trtint8.models.model import OLDEST_OPSET, Model, prepare
from trtint8.models.origin import FLOAT_MODEL, forget_origin
from trtint8.models.passes.float32 import ComputeInFloat32Pass
from trtint8.models.passes.identities import RemoveIdentitiesPass
from trtint8.models.passes.infer_shapes import InferShapesPass
from trtint8.models.passes.nan_guards import RemoveNanGuardsPass
from trtint8.models.serialization import save_model
from trtint8.quantization.attention import Attention, find_attentions
from trtint8.quantization.operators import WEIGHTED, weight_axis
from trtint8.quantization.placement import Edge, Placement, place
from trtint8.quantization.quantize import tensor_names, with_pairs


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
        The findings, in graph order; empty where there is nothing to mend. What :func:`mend` does not keep is
        among them, and so is why it cannot mend the model.

    Raises:
        ModelError: The model is a float model.
    """
    expanded = expand(model.graph_model)
    _refuse_float(expanded.original, model.name)
    findings = list(_findings(expanded))
    if all(finding.mendable for finding in findings):
        try:
            findings += _mend(model)[1]
        except ModelError as error:
            findings.append(Finding("unmendable", "", str(error), mendable=False))
    return findings


def mend(model: Model) -> Mended:
    """Brings the Q/DQ pairs of a model into TensorRT's form, and keeps what the model computes.

    A pair that TensorRT can compute stays where it is. Of another pair the ends stay, by a Clip, and pairs of
    its range are placed where layers read it; :func:`lint` names it.

    Args:
        model: A model that any tool quantized.

    Returns:
        The new model. A Relu or Clip that a quantizer had absorbed is a node again. Weights keep the values that
        their pairs represented, and weighted nodes that were float stay float, unless their input is quantized
        and their weights lie on the steps of int8; with them stays float the other half of an attention of which
        only a part was quantized. Weighted nodes whose input had a scale computed at run time become float, with
        the values that their weights represented.

    Raises:
        ModelError: The model is a float model, a finding cannot be mended, or a tensor that needs a range had
            no pair.
    """
    return _mend(model)[0]


def _mend(model: Model) -> tuple[Mended, list[Finding]]:
    """The mended model, and what it does not keep beside that which a rule names."""
    expanded = expand(with_opset(model.graph_model, OLDEST_OPSET, model.name))
    _refuse_float(expanded.original, model.name)
    unmendable = next((finding for finding in _findings(expanded) if not finding.mendable), None)
    if unmendable:
        raise ModelError(f"node '{unmendable.node}': {unmendable.message}")
    # In FP32, inputs in FP16 are read behind a Cast, and Casts between pairs and layers go where the types are
    # known.
    passes = InferShapesPass(), ComputeInFloat32Pass(), RemoveIdentitiesPass()
    ir.passes.Sequential(*passes)(expanded.graph_model)
    move_behind_activations(expanded.graph_model)
    layers = _Layers.of(expanded.graph_model)
    given_up: dict[str, Finding] = {}
    while True:
        mended, halves = _place(model, expanded.graph_model.clone(), layers, given_up)
        if not halves:
            break
        given_up |= halves
    names = {node.name for node in expanded.original.graph}
    lost = mended.unquantized.lost
    pairs = {one.name: one for one in expanded.graph_model.graph}
    findings = [
        Finding("steps", original_name(pairs[name], names), _lost(grid))
        for name, (grid, _) in lost.items()
        if name not in given_up
    ]
    return mended, [*given_up.values(), *findings, *layers.regridded.values()]


def _lost(grid: Grid) -> str:
    low, high = grid.ends
    channels = f" of its {grid.scale.size} channels" if grid.scale.size > 1 else ""
    return (
        f"the steps of {grid.scale.min():.4g}{channels} between {low.min():.4g} and {high.max():.4g} are given up, "
        f"as TensorRT has 255 around 0: a Clip keeps the ends, and layers read steps of {grid.amax / HIGHEST:.4g}"
    )


@dataclass
class _Layers:
    """What the weighted nodes of a model read, before pairs of constants are computed.

    Attributes:
        scales: Name of a node to the scales of the pairs of its weights.
        floating: Names of the nodes that read an operand without a pair.
        unsure: Names of those whose only operand without a pair is constant, and may lie on steps of int8.
        regridded: Name of a node whose weights lie on no steps of int8 along the axis that TensorRT wants, to the
            finding that says so.
    """

    scales: dict[str, list[NDArray[np.float32]]]
    floating: list[str]
    unsure: set[str]
    regridded: dict[str, Finding]

    @classmethod
    def of(cls, model: ir.Model) -> _Layers:
        layers = cls({}, [], set(), {})
        for node in model.graph:
            if node.op_type not in WEIGHTED or node.domain != "":
                continue
            name = node.name or ""
            layers.scales[name] = [scale for value in node.inputs[:2] for scale in constant_scales(value)]
            bare = [
                value
                for value in node.inputs[:2]
                if not (reads_integers(value) or is_quantized_constant(value))
            ]
            if bare and len(bare) == 1 and len(node.inputs) > 1 and is_constant(bare[0]):
                layers.unsure.add(name)
            elif bare:
                layers.floating.append(name)
        return layers

    def grid(self, node: ir.Node, index: int, axis: int | None) -> NDArray[np.float32] | None:
        """The scales of a constant operand of a node, if it lies on steps of int8."""
        weights = read_constant(node.inputs[index])
        return None if weights is None else weight_grid(weights, axis, self.scales.get(node.name or "", ()))

    def kept(self, model: ir.Model) -> list[str]:
        """Names of the weighted nodes of a prepared model that stay float."""
        return [
            node.name or ""
            for node in model.graph
            if node.op_type in WEIGHTED
            and (node.name in self.floating or (node.name in self.unsure and not self._lies_on_steps(node)))
        ]

    def _lies_on_steps(self, node: ir.Node) -> bool:
        constants = [
            (index, value) for index, value in enumerate(node.inputs[:2]) if value and is_constant(value)
        ]
        return all(self.grid(node, index, weight_axis(node, value)) is not None for index, value in constants)


def _place(
    model: Model, graph_model: ir.Model, layers: _Layers, given_up: Mapping[str, Finding]
) -> tuple[Mended, dict[str, Finding]]:
    """Mends an expanded model, which is changed.

    Returns:
        The mended model, and the pairs of attentions that have to be given up first: a name of a QuantizeLinear
        to the finding that says so. Where there are any, the model is none yet.
    """
    unquantized = unquantize(graph_model, given_up, _widened(graph_model))
    _remove_guards(graph_model, unquantized.ranges)
    prepared = prepare(Model(graph_model, model.name, model.fingerprint))
    if FLOAT_MODEL not in model.graph_model.metadata_props:
        forget_origin(prepared.graph_model)  # the float model is not known
    nodes = {node.name or "": node for node in prepared.graph_model.graph}
    unquantized.kept_float = kept = layers.kept(prepared.graph_model)
    if len(kept) == sum(node.op_type in WEIGHTED for node in nodes.values()):
        _with_ranges(unquantized, prepared.graph_model)
        return Mended(prepared.graph_model, (), unquantized, {}), {}
    bare = _without_pairs(prepared.graph_model)
    placement = place(bare, kept)
    products = {one.context.outputs[0].name: one.context for one in find_attentions(bare)}
    ranges = {**unquantized.ranges, **pair_ranges(prepared.graph_model)}
    plan = plan_migration(_missing_pairs(placement, nodes), ranges)
    # An attention whose output has no range is quantized in part only; whole in float it is one kernel.
    if halves := [products[tensor].name or "" for tensor in plan.unsolved if tensor in products]:
        kept += halves
        placement = place(bare, kept)
    if lost := _pairs_of_halves(find_attentions(bare), kept, nodes):
        return Mended(prepared.graph_model, (), unquantized, {}), lost
    wanted = _missing_pairs(placement, nodes)
    plan = plan_migration(wanted, ranges)
    needed = {edge.tensor for edge in wanted.activations if nodes[edge.node].op_type in WEIGHTED}
    if unsolved := [tensor for tensor in plan.unsolved if tensor in needed]:
        raise ModelError(
            f"tensor '{unsolved[0]}' of '{model.name}' has no Q/DQ pair and needs one; quantize the "
            "float model instead"
        )
    edges = tuple(edge for edge in wanted.activations if edge.tensor not in plan.unsolved)
    ranges = {**ranges, **plan.fills}
    for group in placement.shared:
        widest = max((ranges[tensor] for tensor in group if tensor in ranges), default=0.0)
        ranges |= {tensor: widest for tensor in group if tensor in ranges}
    table = CalibrationTable(ranges)
    scales = {}
    for edge in placement.weights:
        scale = layers.grid(nodes[edge.node], edge.index, edge.axis)
        if scale is not None:
            scales[edge.tensor, edge.axis] = scale
        else:
            layers.regridded[edge.node] = _regridded(edge)
    mended = with_pairs(prepared, table, replace(wanted, activations=edges), scales)
    drop_covered_ends(mended, unquantized.restored)
    filled = {
        tensor: amax for tensor, amax in plan.fills.items() if tensor in {edge.tensor for edge in edges}
    }
    _with_ranges(unquantized, prepared.graph_model)
    return Mended(mended, quantized_nodes(mended), unquantized, filled), {}


def _widened(model: ir.Model) -> dict[str, float]:
    """Name of each QuantizeLinear before a Concat that gets a greater scale to that scale."""
    widened: dict[str, float] = {}
    for node in model.graph:
        scales = concat_scales(node)
        widest = max(scales.values(), default=0.0)
        for name, scale in scales.items():
            if scale < widest:
                widened[name] = max(widest, widened.get(name, 0.0))
    return widened


def _without_pairs(model: ir.Model) -> ir.Model:
    """A copy of a model in which nodes read what pairs read."""
    bare = model.clone()
    for node in bare.graph:
        if node.op_type != "DequantizeLinear" or node.inputs[0] is None:
            continue
        quantize = node.inputs[0].producer()
        if quantize is not None and quantize.op_type == "QuantizeLinear" and quantize.inputs[0] is not None:
            for reader, index in tuple(node.outputs[0].uses()):
                reader.replace_input_with(index, quantize.inputs[0])
    common.RemoveUnusedNodesPass()(bare)
    return bare


def _missing_pairs(placement: Placement, nodes: Mapping[str, ir.Node]) -> Placement:
    """A placement without the edges that read a pair already."""
    edges = placement.activations
    bare = (edge for edge in edges if not reads_integers(nodes[edge.node].inputs[edge.index]))
    return replace(placement, activations=tuple(bare))


def _pairs_of_halves(
    attentions: Sequence[Attention], kept: Sequence[str], nodes: Mapping[str, ir.Node]
) -> dict[str, Finding]:
    """The pairs of attentions of which one product stays float: their first nodes, to findings."""
    lost: dict[str, Finding] = {}
    for attention in attentions:
        names = [node.name or "" for node in attention.nodes]
        if sum(name in kept for name in names) in (0, len(names)):
            continue
        message = (
            f"the attention of '{names[0]}' is quantized in part, which prevents its fusion: it becomes float, "
            "the steps of this pair are given up, and a Clip keeps its ends"
        )
        for value in (value for name in names for value in nodes[name].inputs[:2]):
            lost |= {pair: Finding("attention", pair, message) for pair in _pairs_before(value)}
    return lost


def _pairs_before(value: ir.Value | None) -> Iterator[str]:
    """Names of the QuantizeLinear nodes of the pairs that a node reads, also through movements of values."""
    node = value.producer() if value is not None else None
    if node is None:
        return
    if node.op_type == "DequantizeLinear":
        quantize = node.inputs[0].producer() if node.inputs[0] is not None else None
        if quantize is not None:
            yield quantize.name or ""
    else:
        for source in moved_data(node).values():
            yield from _pairs_before(source)


def _regridded(edge: Edge) -> Finding:
    along = "one scale" if edge.axis is None else f"one scale per channel of axis {edge.axis}"
    message = (
        f"its weights '{edge.tensor}' do not lie on 255 steps of {along}, as TensorRT takes them: their steps "
        "are given up, and they are rounded again"
    )
    return Finding("weight-steps", edge.node, message)


def _with_ranges(unquantized: Unquantized, model: ir.Model) -> None:
    """Notes the ranges of the pairs that stayed where they are."""
    unquantized.ranges = {**pair_ranges(model), **unquantized.ranges}


def _remove_guards(graph_model: ir.Model, ranges: dict[str, float]) -> None:
    """Removes guards against NaN; what takes the place of a tensor gets its range, and its pair."""
    guards = RemoveNanGuardsPass()
    # The guard of an attention is known by the product that reads it, which reads a pair of it here.
    pairs = [found for node in graph_model.graph if (found := _pair_behind(node)) is not None]
    for quantize, _, uses in pairs:
        for reader, index in uses:
            reader.replace_input_with(index, quantize.inputs[0])
        quantize.replace_input_with(0, None)
    guards(graph_model)
    for quantize, dequantize, uses in pairs:
        quantize.replace_input_with(0, uses[0][0].inputs[uses[0][1]])
        for reader, index in uses:
            reader.replace_input_with(index, dequantize.outputs[0])
    for tensor, source in guards.sources.items():
        if source in ranges:
            ranges[tensor] = max(ranges[source], ranges.get(tensor, 0.0))
    left, own = set(tensor_names(graph_model)), pair_ranges(graph_model)
    for tensor, source in guards.sources.items():
        if source not in left:
            ranges.pop(source, None)
        elif tensor in own:
            ranges.setdefault(source, own[tensor])


def _pair_behind(where: ir.Node) -> tuple[ir.Node, ir.Node, list[tuple[ir.Node, int]]] | None:
    """The pair that alone reads a Where, and who reads the pair."""
    if where.op_type != "Where" or len(where.outputs[0].uses()) != 1:
        return None
    ((quantize, _),) = where.outputs[0].uses()
    readers = [reader for reader, _ in quantize.outputs[0].uses()]
    if quantize.op_type != "QuantizeLinear" or [node.op_type for node in readers] != ["DequantizeLinear"]:
        return None
    dequantize = readers[0]
    uses = [(reader, index) for reader, index in dequantize.outputs[0].uses()]
    outputs = (node.outputs[0].is_graph_output() for node in (where, quantize, dequantize))
    return None if not uses or any(outputs) else (quantize, dequantize, uses)


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
    for name, operator in expanded.folded.items():
        message = (
            f"{operator} computes integers, a scale or a zero point of constants, which TensorRT refuses or leaves "
            "in float in most places"
        )
        yield Finding("computed-constant", name, message)
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
