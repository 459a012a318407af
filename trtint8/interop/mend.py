"""Brings the Q/DQ pairs of a model that any tool quantized into TensorRT's form.

A pair that TensorRT can compute stays where it is. Another pair is taken out, a Clip keeps its ends, and a
pair of its range stands again where a layer reads it. What a model computes changes in no other way, and a
finding names what changes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnx_ir.passes import common

from calibrators.display.counts import counted
from calibrators.errors import ModelError
from calibrators.operators import operator_of
from calibrators.tables.table import CalibrationTable
from trtint8.interop.extract import pair_ranges
from trtint8.interop.float_movement import moved_data
from trtint8.interop.grids import HIGHEST, Grid, weight_grid
from trtint8.interop.integer_models import Expanded, expand, original_name, refuse_float
from trtint8.interop.lint_rules import Finding, concat_grids, rule_findings
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
from trtint8.models.loading.opset import with_opset
from trtint8.models.model import OLDEST_OPSET, Model, prepare
from trtint8.models.onnx_errors import run_passes
from trtint8.models.origin import FLOAT_MODEL, forget_origin
from trtint8.models.passes.float32 import ComputeInFloat32Pass
from trtint8.models.passes.identities import RemoveIdentitiesPass
from trtint8.models.passes.infer_shapes import InferShapesPass
from trtint8.models.passes.nan_guards import RemoveNanGuardsPass
from trtint8.models.serialization import save_model
from trtint8.quantization.attention import Attention, find_attentions
from trtint8.quantization.operators import weight_axis
from trtint8.quantization.placement import Edge, Placement, place
from trtint8.quantization.quantize import tensor_names, with_pairs


@dataclass(frozen=True, repr=False)
class Mended:
    """A model after :func:`mend`.

    Attributes:
        graph_model: The model with Q/DQ pairs as TensorRT wants them; without pairs where no range is known.
        quantized_nodes: Names of the model's weighted nodes in INT8.
        unquantized: What became of the old pairs.
        filled: Tensors that needed a range and had no pair, with the amax that follows from other tensors.
        changes: What the new model does not compute as the old one did.
    """

    graph_model: ir.Model
    quantized_nodes: tuple[str, ...]
    unquantized: Unquantized
    filled: dict[str, float]
    changes: tuple[Finding, ...] = ()

    def __repr__(self) -> str:
        filled = f", {counted(len(self.filled), 'range')} filled in" if self.filled else ""
        return f"<Mended: {counted(len(self.quantized_nodes), 'node')} in INT8{filled}>"

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Writes the model atomically.

        Raises:
            OutputError: The file cannot be written, or its name does not end in .onnx.
        """
        return save_model(self.graph_model, check_model_name(path))


def mend(model: Model) -> Mended:
    """Brings the Q/DQ pairs of a model into TensorRT's form, and keeps what the model computes.

    A pair that TensorRT can compute stays where it is. Of another pair the ends stay, by a Clip, and pairs of
    its range are placed where layers read it; :func:`lint` names it.

    Args:
        model: A model that any tool quantized.

    Returns:
        The new model. A Relu or Clip that a quantizer had absorbed is a node again. Weights keep the values
        that their pairs represented. Weighted nodes that were float stay float, unless their input is
        quantized and their weights lie on the steps of int8. An attention of which only a part was quantized
        becomes float. So do weighted nodes whose input had a scale computed at run time, with the values that
        their weights represented.

    Raises:
        ModelError: The model is a float model, a finding cannot be mended, or a tensor that needs a range had
            no pair.
    """
    expanded = expand(with_opset(model.graph_model, OLDEST_OPSET, model.name), model.name)
    refuse_float(expanded.original, model.name)
    unmendable = next((finding for finding in rule_findings(expanded) if not finding.mendable), None)
    if unmendable:
        raise ModelError(f"node '{unmendable.node}': {unmendable.message}")
    return _Mender(model, expanded).mend()


@dataclass(frozen=True)
class _Layers:
    """What the weighted nodes of a model read, before pairs of constants are computed.

    Attributes:
        scales: Name of a node to the scales of the pairs of its weights.
        floating: Names of the nodes that read an operand without a pair.
        unsure: Names of those whose only operand without a pair is constant, and may lie on steps of int8.
    """

    scales: dict[str, list[NDArray[np.float32]]]
    floating: list[str]
    unsure: set[str]

    @classmethod
    def of(cls, model: ir.Model) -> _Layers:
        layers = cls({}, [], set())
        for node in model.graph:
            if not operator_of(node).is_weighted:
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
            if operator_of(node).is_weighted
            and (node.name in self.floating or (node.name in self.unsure and not self._lies_on_steps(node)))
        ]

    def _lies_on_steps(self, node: ir.Node) -> bool:
        constants = [
            (index, value) for index, value in enumerate(node.inputs[:2]) if value and is_constant(value)
        ]
        return all(self.grid(node, index, weight_axis(node, value)) is not None for index, value in constants)


@dataclass
class _Changes:
    """What has to change in a model's pairs although TensorRT can have them.

    Attributes:
        given_up: Names of the QuantizeLinear nodes of pairs that are taken out, to the reasons.
        widened: Names of those that get the greater scale of another pair before the same Concat.
    """

    given_up: dict[str, str] = field(default_factory=dict)
    widened: dict[str, np.float32] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.given_up or self.widened)


class _Mender:
    """Mends one model, and begins again where that shows that more pairs have to change."""

    def __init__(self, model: Model, expanded: Expanded) -> None:
        self._model = model
        self._names = {node.name for node in expanded.original.graph}
        self._graph_model = expanded.graph_model
        # In FP32, inputs in FP16 are read behind a Cast. Casts between pairs and layers go where types are
        # known.
        passes = InferShapesPass(), ComputeInFloat32Pass(), RemoveIdentitiesPass()
        run_passes(self._graph_model, model.name, *passes)
        move_behind_activations(self._graph_model)
        self._layers = _Layers.of(self._graph_model)
        self._changes = _Changes(widened=_widened(self._graph_model))

    def mend(self) -> Mended:
        while isinstance(mended := self._place(), _Changes):
            self._changes.given_up |= mended.given_up
            self._changes.widened |= mended.widened
        lost = {name: _lost(grid) for name, (grid, _) in mended.unquantized.lost.items()}
        wider = {
            name: f"its steps become those of another pair before the same Concat, {scale:.4g}"
            for name, scale in self._changes.widened.items()
        }
        nodes = {node.name or "": node for node in self._graph_model.graph}
        changes = (
            Finding("steps", original_name(nodes[name], self._names), message)
            for name, message in {**lost, **wider, **self._changes.given_up}.items()
        )
        return replace(mended, changes=(*changes, *mended.changes))

    def _place(self) -> Mended | _Changes:
        """The mended model, or what has to change before it is one."""
        graph_model = self._graph_model.clone()
        unquantized = unquantize(graph_model, self._changes.given_up, self._changes.widened)
        _remove_guards(graph_model, unquantized.ranges)
        prepared = prepare(Model(graph_model, self._model.name, self._model.fingerprint))
        if FLOAT_MODEL not in self._model.graph_model.metadata_props:
            forget_origin(prepared.graph_model)  # the float model is not known
        nodes = {node.name or "": node for node in prepared.graph_model.graph}
        kept = self._layers.kept(prepared.graph_model)
        stayed = pair_ranges(prepared.graph_model)
        ranges = {**stayed, **unquantized.ranges}
        unquantized = replace(unquantized, ranges=ranges, kept_float=list(kept))
        if len(kept) == sum(operator_of(node).is_weighted for node in nodes.values()):
            wider = _widened(prepared.graph_model)
            return _Changes(widened=wider) if wider else Mended(prepared.graph_model, (), unquantized, {})
        bare = _without_pairs(prepared.graph_model)
        placement = place(bare, kept)
        attentions = find_attentions(bare)
        products = {one.context.outputs[0].name: one.context for one in attentions}
        plan = plan_migration(_missing_pairs(placement, nodes), ranges)
        # An attention whose output has no range is quantized in part only; whole in float it is one kernel.
        if halves := [products[tensor].name or "" for tensor in plan.unsolved if tensor in products]:
            kept += halves
            placement = place(bare, kept)
            unquantized.kept_float.extend(halves)
        if lost := _pairs_of_halves(attentions, kept, nodes):
            return _Changes(given_up=lost)
        wanted = _missing_pairs(placement, nodes)
        plan = plan_migration(wanted, ranges)
        layers = {edge for edge in wanted.activations if operator_of(nodes[edge.node]).is_weighted}
        missing = frozenset(plan.unsolved)
        if unsolved := sorted(edge.tensor for edge in layers if edge.tensor in missing):
            raise ModelError(
                f"tensor '{unsolved[0]}' of '{self._model.name}' has no Q/DQ pair and needs one; quantize "
                "the float model instead"
            )
        # What read no pair gets none.
        edges = tuple(
            edge
            for edge in wanted.activations
            if edge in layers
            or ((edge.node, edge.index) in unquantized.readers and edge.tensor not in missing)
        )
        table = _shared_ranges(placement, {**ranges, **plan.fills})
        scales, regridded = self._weight_scales(placement, nodes)
        mended = with_pairs(prepared, table, replace(wanted, activations=edges), scales)
        while wider := _widened(mended):
            if own := {name: scale for name, scale in wider.items() if name in nodes}:
                return _Changes(widened=own)
            _widen(mended, wider)
        drop_covered_ends(mended, unquantized.restored)
        move_behind_activations(mended)
        tensors = {edge.tensor for edge in edges}
        filled = {tensor: amax for tensor, amax in plan.fills.items() if tensor in tensors}
        return Mended(mended, quantized_nodes(mended), unquantized, filled, regridded)

    def _weight_scales(
        self, placement: Placement, nodes: Mapping[str, ir.Node]
    ) -> tuple[dict[tuple[str, int | None], NDArray[np.float32]], tuple[Finding, ...]]:
        """The scales that keep the values of weights, and a finding for each layer that has none."""
        scales, regridded = {}, []
        for edge in placement.weights:
            scale = self._layers.grid(nodes[edge.node], edge.index, edge.axis)
            if scale is None:
                regridded.append(_regridded(edge))
            else:
                scales[edge.tensor, edge.axis] = scale
        return scales, tuple(regridded)


def _shared_ranges(placement: Placement, ranges: Mapping[str, float]) -> CalibrationTable:
    """The ranges, each as wide as the widest of the tensors that share its scale, with pairs that stayed."""
    wide = dict(ranges)
    for group in placement.shared:
        known = [tensor for tensor in group if tensor in ranges]
        wide |= dict.fromkeys(known, max((ranges[tensor] for tensor in known), default=0.0))
    return CalibrationTable(wide)


def _lost(grid: Grid) -> str:
    low, high = grid.ends
    channels = f" of its {grid.scale.size} channels" if grid.scale.size > 1 else ""
    return (
        f"the steps of {grid.scale.min():.4g}{channels} between {low.min():.4g} and {high.max():.4g} are "
        f"given up, as TensorRT has 255 around 0: a Clip keeps the ends, and layers read steps of "
        f"{grid.amax / HIGHEST:.4g}"
    )


def _widened(model: ir.Model) -> dict[str, np.float32]:
    """The greater scales that pairs get from others before the same Concat, by their QuantizeLinear.

    Pairs that TensorRT cannot have get the scales of their Concats where they are placed again.
    """
    widened: dict[str, np.float32] = {}
    for node in model.graph:
        grids = concat_grids(node)
        if not all(grid.fits for grid in grids.values()):
            continue
        widest = max((grid.scale[0] for grid in grids.values()), default=np.float32(0))
        for name, grid in grids.items():
            if grid.scale[0] < widest:
                widened[name] = max(widest, widened.get(name, widest))
    return widened


def _widen(model: ir.Model, scales: Mapping[str, np.float32]) -> None:
    """Gives pairs that were placed anew greater scales, by the names of their QuantizeLinear."""
    for node in model.graph:
        if (name := node.name or "") in scales and (scale := node.inputs[1]) is not None:
            scale.const_value = ir.Tensor(np.asarray(scales[name], np.float32), name=scale.name)


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
) -> dict[str, str]:
    """The pairs of attentions of which one product stays float, by their QuantizeLinear, to the reasons."""
    lost: dict[str, str] = {}
    for attention in attentions:
        names = [node.name or "" for node in attention.nodes]
        if sum(name in kept for name in names) in (0, len(names)):
            continue
        reason = (
            f"its steps are given up, and a Clip keeps its ends: the attention of '{names[0]}' is quantized "
            "in part, which prevents its fusion, so it becomes float"
        )
        for value in (value for name in names for value in nodes[name].inputs[:2]):
            lost |= dict.fromkeys(_pairs_before(value), reason)
    return lost


def _pairs_before(value: ir.Value | None) -> Iterator[str]:
    """Names of the QuantizeLinear nodes of the pairs that a node reads, also through movements of values."""
    pending, seen = [value], set()
    while pending:
        found = pending.pop()
        node = found.producer() if found is not None else None
        if node is None or node in seen:
            continue
        seen.add(node)
        if node.op_type != "DequantizeLinear":
            pending += moved_data(node).values()
        elif node.inputs[0] is not None and (quantize := node.inputs[0].producer()) is not None:
            yield quantize.name or ""


def _regridded(edge: Edge) -> Finding:
    along = "one scale" if edge.axis is None else f"one scale per channel of axis {edge.axis}"
    message = (
        f"its weights '{edge.tensor}' do not lie on 255 steps of {along}, as TensorRT takes them: their "
        "steps are given up, and they are rounded again"
    )
    return Finding("weight-steps", edge.node, message)


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
