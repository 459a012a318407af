"""Brings the ranges of other tools to a model: TensorRT's calibration caches and ncnn's tables.

The ranges of a cache are assigned to the tensors that get Q/DQ pairs, so that a float model and the cache of
its implicit engine make a Q/DQ model. ncnn's tables name layers, and calibration tables name tensors.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from calibrators import records
from calibrators.checks import FilePath
from calibrators.data.feeds import Array
from calibrators.errors import Argument, TableError, counted, enumerated
from calibrators.operators import operator_of
from calibrators.tables.formats import ncnn
from calibrators.tables.table import ROUNDING, CalibrationTable
from trtint8.models.graph import constant_input, read_constant
from trtint8.models.model import Model, check_model_name, load_model, prepare
from trtint8.models.passes.fold_constants import compute_node
from trtint8.models.serialization import save_model
from trtint8.quantization.config import FUSED_ACTIVATIONS
from trtint8.quantization.operators import commutes_with_quantization, weight_axis
from trtint8.quantization.placement import Placement
from trtint8.quantization.quantize import QuantizeOptions, quantized_model


@dataclass(frozen=True, repr=False)
class Migrated(records.Result):
    """A model that was made from a calibration cache.

    Attributes:
        graph_model: The model with Q/DQ pairs.
        placement: Where the pairs are.
        plan: How the cache and the graph fit together.
    """

    graph_model: ir.Model
    placement: Placement
    plan: Migration

    def to_json(self) -> dict[str, Any]:
        """Returns what ``trtint8 migrate --json`` prints, without the file and the proof by a build."""
        plan = self.plan
        return {
            "missing": list(plan.missing),
            "unused": list(plan.unused),
            "proposals": records.as_json(plan.proposals),
            "widened": records.as_json(plan.widened),
            "weighted_layers": self.placement.multiplying,
            "float_nodes": dict(self.placement.float_nodes),
        }

    def __repr__(self) -> str:
        missing = len(self.plan.missing)
        without = f", {counted(missing, 'tensor')} without a range in the cache" if missing else ""
        return f"<Migrated: {self.placement.layers_text}{without}>"

    def save(self, path: FilePath) -> Path:
        """Writes the model atomically.

        Raises:
            OutputError: The file cannot be written, or its name does not end in .onnx.
        """
        return save_model(self.graph_model, check_model_name(path))


def migrate(
    prepared: Model,
    table: CalibrationTable,
    asked: QuantizeOptions,
    *,
    fill: bool = False,
) -> Migrated:
    """Puts the ranges of a calibration cache where Q/DQ pairs need them.

    Args:
        prepared: The float model, from :func:`trtint8.models.model.prepare`.
        table: The ranges of the cache.
        asked: What stays in float, and what the model is for.
        fill: Whether tensors that the cache lacks get the ranges that follow from others.

    Returns:
        The model with Q/DQ pairs, and how the cache and the graph fit together.

    Raises:
        TableError: The cache lacks ranges, and ``fill`` is false or they do not follow from other ranges.
        ModelError: A pattern matches no node that could be quantized.
    """
    placement = asked.place(prepared, table)
    plan = plan_migration(prepared.graph_model, placement, table.amax)
    if plan.unsolved or (plan.missing and not fill):
        raise TableError(_refusal(plan, len(placement.tensors)))
    quantized = quantized_model(prepared, table.override(plan.fills), asked)
    return Migrated(quantized.graph_model, quantized.placement, plan)


def _refusal(plan: Migration, needed: int) -> str:
    named = enumerated(f"'{name}'" for name in plan.unsolved or plan.missing)
    cause = ""
    if plan.unsolved:
        if len(plan.missing) > max(1, needed / 2):
            cause = f"; that is most of the model's {needed}: the cache may be of another model"
        elif plan.unused:
            cause = f"; it has one for '{plan.unused[0]}', which the model lacks (was a tensor renamed?)"
        advice = "calibrate the model, or add ranges with 'trtint8 table set'"
    else:
        first = plan.proposals[0]
        advice = (
            f"all of them follow from others, like '{first.tensor}' from '{first.source}': pass "
            f"{Argument('fill', 'True')} to take those"
        )
    count = len(plan.unsolved or plan.missing)
    tensors = "1 tensor that needs one" if count == 1 else f"{count} tensors that need one"
    return f"the cache has no range for {tensors}: {named}{cause}; {advice}"


@dataclass(frozen=True)
class Proposal:
    """A range for a tensor that the cache lacks.

    Attributes:
        tensor: The name of the tensor.
        source: The name of the tensor in the cache whose range is proposed.
        amax: The proposed amax.
        reason: Why the tensor may have the range of the other one, in words for the user.
    """

    tensor: str
    source: str
    amax: float
    reason: str


@dataclass(frozen=True)
class Migration:
    """How a cache and a graph fit together.

    Attributes:
        missing: Tensors that need a range and have none in the cache.
        unused: Tensors of the cache that the graph lacks, because they were renamed, fused or folded.
        proposals: Ranges for missing tensors, where one follows from the cache.
        widened: Name of a tensor whose scale becomes larger than in the cache, because it shares the scale of
            another tensor, to the factor.
    """

    missing: tuple[str, ...]
    unused: tuple[str, ...]
    proposals: tuple[Proposal, ...]
    widened: Mapping[str, float]

    @property
    def unsolved(self) -> tuple[str, ...]:
        """Missing tensors without a proposal."""
        solved = {proposal.tensor for proposal in self.proposals}
        return tuple(tensor for tensor in self.missing if tensor not in solved)

    @property
    def fills(self) -> dict[str, float]:
        """Tensor name to proposed amax."""
        return {proposal.tensor: proposal.amax for proposal in self.proposals}


def plan_migration(model: ir.Model, placement: Placement, amax: Mapping[str, float]) -> Migration:
    """Compares a cache with what a placement needs.

    Args:
        model: The prepared model.
        placement: The placement for it.
        amax: Tensor name to amax in the cache.

    Returns:
        The tensors that lack a range, those that are not used, and proposals.
    """
    missing = tuple(tensor for tensor in placement.tensors if tensor not in amax)
    unused = tuple(name for name in amax if name not in placement.configs)
    following = _following(model, placement, amax) if missing else {}
    proposals = tuple(following[tensor] for tensor in missing if tensor in following)
    known = {**amax, **{proposal.tensor: proposal.amax for proposal in proposals}}
    return Migration(missing, unused, proposals, _widened(placement, known, amax))


def _following(model: ir.Model, placement: Placement, amax: Mapping[str, float]) -> dict[str, Proposal]:
    """The ranges of a cache, and those that follow from them.

    A range passes on where all values do, and from what an operator reads to what it gives out where that
    cannot be larger. It never passes through a sum, whose terms say little of it.
    """
    found = {name: Proposal(name, name, value, "shares its scale") for name, value in amax.items()}

    def pass_on(tensor: ir.Value | None, source: Proposal, **changes: Any) -> None:
        if tensor is not None and tensor.name:
            found.setdefault(tensor.name, replace(source, tensor=tensor.name, **changes))

    joined = {one.node for one in placement.decisions if one.quantized and one.operator == "Concat"}
    for node in reversed(model.graph):
        source = found.get(node.outputs[0].name or "")
        if source is not None and (operator_of(node).rearranges or node.name in joined):
            for value in node.inputs if node.name in joined else node.inputs[:1]:
                pass_on(value, source)
    for node in model.graph:
        read = [found.get(value.name or "") if value is not None else None for value in node.inputs]
        read = read if node.name in joined else read[:1]
        sources = [source for source in read if source is not None]
        if not sources or len(sources) < len(read):
            continue
        widest = max(sources, key=lambda source: source.amax)
        if node.name in joined or commutes_with_quantization(node):
            for value in node.outputs:
                pass_on(value, widest)
        elif (largest := _largest_activated(node, widest.amax, model.opset_imports[""])) is not None:
            pass_on(node.outputs[0], widest, amax=largest, reason="no larger than that")
    return found


def _largest_activated(node: ir.Node, amax: float, opset: int) -> float | None:
    """The largest magnitude that an activation function gives out; None of another node.

    It rises or falls throughout, or on either side of 0, so that it is largest at an end of what it reads.
    """
    if node.domain != "" or node.op_type not in FUSED_ACTIVATIONS:
        return None
    constants = {value.name or "": read_constant(value) for value in node.inputs[1:] if value is not None}
    arrays = {name: array for name, array in constants.items() if array is not None}
    if len(arrays) < len(constants):
        return None
    value = node.inputs[0]
    assert value is not None
    ends = compute_node(node, {value.name or "": np.asarray([-amax, amax]), **arrays}, opset)
    return float(np.abs(ends).max())


def _widened(
    placement: Placement, known: Mapping[str, float], cache: Mapping[str, float]
) -> dict[str, float]:
    widened = {}
    for group in placement.shared:
        widest = max((known[tensor] for tensor in group if tensor in known), default=0.0)
        for tensor in group:
            if cache.get(tensor, 0.0) > 0 and widest > ROUNDING * cache[tensor]:
                widened[tensor] = widest / cache[tensor]
    return widened


#: The largest table or network of ncnn that is read, in bytes; that of ResNet-152 has half a megabyte.
_MOST_BYTES = 16 << 20


def read_ncnn_table(path: FilePath, network: FilePath) -> tuple[CalibrationTable, tuple[str, ...]]:
    """Reads a table of ncnn.

    Args:
        path: The ``.table`` file.
        network: The ``.param`` file of the network, or the ONNX model whose node names its layers have.

    Returns:
        The calibration table, and the names of the layers whose weight ranges were written for a Winograd
        transformation; the names are only found where ``network`` is an ONNX model.

    Raises:
        TableError: A file is malformed, or the network lacks a layer.
        ModelError: The ONNX model is unusable.
    """
    content = ncnn.parse(_read(path), os.fspath(path))
    if Path(network).suffix.lower() == ".param":
        inputs = ncnn.layer_inputs(_read(network), os.fspath(network))
        return CalibrationTable(content.tensors(inputs)), ()
    nodes, inputs = _layers(network)
    winograd = tuple(
        name
        for name, node in nodes.items()
        if f"{name}_param_0" in content.weights
        and _is_3x3_stride_1(node)
        and ncnn.is_winograd(content.weights[f"{name}_param_0"], _weights(node))
    )
    return CalibrationTable(content.tensors(inputs)), winograd


def render_ncnn_table(table: CalibrationTable, model: FilePath) -> bytes:
    """Renders a table for ncnn, with layers named like the model's nodes.

    Args:
        table: The calibration table.
        model: The path of the float ONNX model.

    Returns:
        The content of the ``.table`` file.

    Raises:
        TableError: A layer's input has no range.
        ModelError: The model is unusable.
    """
    nodes, inputs = _layers(model)
    missing = [tensor for tensor in inputs.values() if tensor not in table.amax]
    if missing:
        raise TableError(
            f"the table has no range for '{missing[0]}', which a layer reads; calibrate this model"
        )
    weights = {}
    for name, node in nodes.items():
        channels = _weights(node)
        weights[f"{name}_param_0"] = tuple(np.abs(channels.reshape(len(channels), -1)).max(axis=1).tolist())
    activations = {name: table.amax[tensor] for name, tensor in inputs.items()}
    return ncnn.render(ncnn.NcnnTable(activations, weights))


def _layers(model: FilePath) -> tuple[dict[str, ir.Node], dict[str, str]]:
    """The layers that ncnn quantizes, convolutions and inner products with constant weights, by name.

    Returns:
        The nodes, and the names of the tensors that they read.
    """
    nodes = {
        (node.name or "").replace(" ", "_"): node
        for node in prepare(load_model(model)).graph_model.graph
        if operator_of(node).is_weighted and constant_input(node, 1) is not None
    }
    return nodes, {name: value.name or "" for name, node in nodes.items() if (value := node.inputs[0])}


def _weights(node: ir.Node) -> Array:
    """A node's weights, with the output channels along the first axis."""
    value, weights = node.inputs[1], constant_input(node, 1)
    assert value is not None and weights is not None
    return np.moveaxis(weights, weight_axis(node, value) or 0, 0)


def _is_3x3_stride_1(node: ir.Node) -> bool:
    strides = node.attributes.get_ints("strides", [1, 1])
    return node.op_type == "Conv" and _weights(node).shape[2:] == (3, 3) and list(strides) == [1, 1]


def _read(path: FilePath) -> bytes:
    with records.reading(f"'{os.fspath(path)}'", TableError):
        return records.read_bytes(path, _MOST_BYTES)
