"""Finds what TensorRT would refuse, or run in float, in quantized models made elsewhere, and mends it.

A pair that TensorRT can compute stays where it is. Another pair is taken out, a Clip keeps its ends, and a
pair of its range stands again where a layer reads it. What a model computes changes in no other way, and a
finding names what changes.

A Concat of different scales is a finding. A residual Add of different scales is none: TensorRT for RTX builds
the same layers whether the two branches of an Add share a scale or not.

In a mended model a Relu or Clip that a quantizer had absorbed is a node again. Weights keep the values that
their pairs represented. Weighted nodes that were float stay float, unless their input is quantized and their
weights lie on the steps of int8. An attention of which only a part was quantized becomes float. So do
weighted nodes whose input had a scale computed at run time, with the values that their weights represented.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from calibrators.checks import FilePath
from calibrators.data.feeds import Float32s
from calibrators.errors import ModelError, counted
from calibrators.histograms.rules import decibels
from calibrators.operators import operator_of
from calibrators.records import Result
from calibrators.tables.table import CalibrationTable
from trtint8.interop.integer_models import (
    FLOAT_COUNTERPARTS,
    Expanded,
    expand,
    has_float_operator,
    moved_data,
    original_name,
    refuse_float,
)
from trtint8.interop.migrate import plan_migration
from trtint8.interop.pairs import (
    HIGHEST,
    Grid,
    constant_scales,
    dequantizer_behind,
    feeds_integers,
    grid_of,
    input_at,
    is_quantized_constant,
    is_weight,
    quantized_type,
    quantizers_before,
    reads_integers,
    stored_in,
    walk_back,
    weight_grid,
)
from trtint8.interop.unquantize import (
    Unquantized,
    drop_covered_ends,
    move_behind_activations,
    pair_before_activation,
    pair_ranges,
    quantized_nodes,
    unquantize,
    without_pairs,
)
from trtint8.models.graph import (
    constant_input,
    constant_tensor,
    is_constant,
    made_by,
    read_constant,
    run_passes,
)
from trtint8.models.model import (
    FLOAT_MODEL,
    OLDEST_OPSET,
    Model,
    ModelSource,
    check_model_name,
    forget_origin,
    load_model,
    prepare,
    warn_of_runtime_nodes,
)
from trtint8.models.opset import with_opset
from trtint8.models.passes.attention_masks import RemoveNanGuardsPass
from trtint8.models.passes.float32 import ComputeInFloat32Pass
from trtint8.models.passes.simplify import InferShapesPass, RemoveIdentitiesPass
from trtint8.models.serialization import save_model
from trtint8.quantization.attention import Attention, find_attentions
from trtint8.quantization.config import SMALLEST_SCALE, TensorQuantConfig, fake_quantize
from trtint8.quantization.operators import lacks_kernel_shape, weight_axis
from trtint8.quantization.placement import Edge, Placement, place
from trtint8.quantization.qdq import read_weights, weight_scale
from trtint8.quantization.quantize import tensor_names, with_pairs


def lint(model: ModelSource) -> list[Finding]:
    """Checks a model that any tool has quantized against TensorRT's rules.

    Args:
        model: A path, the serialized model or a ``ModelProto``, with Q/DQ pairs, operators on integers
            (QLinearConv and the like), or integer operators with scales computed at run time.

    Returns:
        The findings, in the graph's order; empty if nothing is wrong.

    Raises:
        ModelError: The model is unusable, or a float model.

    Examples:
        >>> sorted({finding.rule for finding in trtint8.lint("other_tool.onnx")})
        ['computed-constant', 'integer-data', 'type', 'zero-point']
    """
    model = load_model(model)
    warn_of_runtime_nodes(model)
    expanded = expand(model.graph_model, model.name)
    refuse_float(expanded.original, model.name)
    findings = list(_rule_findings(expanded))
    if all(finding.mendable for finding in findings):
        try:
            findings += mend(model).changes
        except ModelError as error:
            findings.append(Finding("unmendable", "", str(error), mendable=False))
    return findings


@dataclass(frozen=True)
class Finding(Result):
    """A violation of one of TensorRT's rules.

    Attributes:
        rule: The name of the rule, like "bias-int32".
        node: The name of the node.
        message: What is wrong, and what TensorRT does about it.
        mendable: Whether :func:`trtint8.interop.lint.mend` corrects it.
    """

    rule: str
    node: str
    message: str
    mendable: bool = True


def _rule_findings(expanded: Expanded) -> Iterator[Finding]:
    """Checks an expanded model against TensorRT's rules.

    Yields:
        The violated rules, in the order of the original graph behind those of nodes that were folded.
    """
    for name, operator in expanded.folded.items():
        message = (
            f"{operator} computes integers, a scale or a zero point of constants: TensorRT refuses some "
            "of that, and runs some layers in float"
        )
        yield Finding("computed-constant", name, message)
    advice = (
        "quantize the float model that it was made from"
        if quantized_nodes(expanded.graph_model)
        else "run `trtint8 calibrate` and `trtint8 quantize` on the mended model"
    )
    for node in expanded.original.graph:
        name, operator = node.name or "", node.op_type
        if name in expanded.obstacles:
            integer = has_float_operator(node)
            rule = "integer-operator" if integer else "integer-data"
            what = f"TensorRT has no {operator}, and " if integer else ""
            message = (
                f"{what}{expanded.obstacles[name]}; export the model with Q/DQ pairs around float operators"
            )
            yield Finding(rule, name, message, mendable=False)
        elif name in expanded.replaced:
            rule = expanded.replaced[name]
            yield Finding(
                rule, name, _REPLACED[rule].format(operator, FLOAT_COUNTERPARTS.get(operator), advice)
            )
        yield from _pair_findings(node)


#: Rule that a node violated before it was replaced to the message: of its operator, the float operator in its
#: place, and advice for INT8.
_REPLACED = {
    "dynamic-scale": "its input's scale is computed at run time, which TensorRT lacks, and no range is "
    "known: it becomes a float {1}; for INT8, {2}",
    "integer-data": "{0} moves integers: TensorRT wants a pair on either side",
    "integer-operator": "TensorRT has no {0}; Q/DQ pairs express the same",
    "qlinear": "TensorRT has no {0}; Q/DQ pairs express the same",
}


def _pair_findings(node: ir.Node) -> Iterator[Finding]:
    """Checks a node that quantizes or dequantizes, or that reads dequantized values.

    Args:
        node: A node of any operator; only QuantizeLinear, DequantizeLinear, weighted operators and Concat are
            checked.

    Yields:
        The violated rules.
    """
    if operator_of(node).half_of_pair:
        yield from _quantizer(node, node.name or "")
    elif operator_of(node).is_weighted:
        yield from _weighted(node, node.name or "")
    elif node.op_type == "Concat":
        scales = sorted({float(np.float32(grid.amax / HIGHEST)) for grid in _concat_grids(node).values()})
        if len(scales) > 1:
            shown = ", ".join(f"{scale:.4g}" for scale in scales)
            message = f"its inputs have the scales {shown}: it rescales in float instead of copying INT8"
            yield Finding("concat-scales", node.name or "", message)


def _quantizer(node: ir.Node, name: str) -> Iterator[Finding]:
    scale, point, stored = (constant_input(node, index) for index in (1, 2, 0))
    activation, dtype = not is_weight(node.inputs[0]), quantized_type(node)
    if scale is None or (point is None and input_at(node, 2) is not None):
        what = "scale" if scale is None else "zero point"
        yield Finding("scale-computed", name, f"its {what} is computed at run time", mendable=False)
        return
    shape, other = list(scale.shape), list(scale.shape if point is None else point.shape)
    if activation and scale.size == 1 and shape:
        message = (
            f"its scale has the shape {shape}, which is one scale per channel for TensorRT: it runs in "
            "float; one scale has no dimensions"
        )
        yield Finding("scale-shape", name, message)
    elif shape != other and not scale.size == math.prod(other) == 1:
        message = (
            f"its zero point has the shape {other} and its scale {shape}, and TensorRT takes equal shapes"
        )
        yield Finding("scale-shape", name, message)
    wrong = scale[~((scale > 0) & np.isfinite(scale))]
    if wrong.size:
        # The steps below 0 are those above 0 of the positive scale, and what is 0 has any scale.
        mendable = bool(np.isfinite(wrong).all()) and not (activation and (wrong == 0).any())
        yield Finding("scale", name, f"a scale is {wrong[0]}; scales are positive and finite", mendable)
    if misfit := _misfit(node, scale.size):
        yield Finding("axis", name, misfit, mendable=False)
        return
    if point is not None and point.any():
        message = f"its zero point is {point[point != 0][0]}, and TensorRT takes only 0"
        yield Finding("zero-point", name, message)
    kind = "" if dtype is None else dtype.name.lower()
    if dtype == ir.DataType.INT32:
        yield Finding("bias-int32", name, "it dequantizes an int32 bias, which TensorRT wants in float")
    elif dtype is not None and activation and not dtype.is_integer():
        message = f"it quantizes to {kind}, which is no integer type; export the model with int8 or uint8"
        yield Finding("type", name, message, mendable=False)
    elif dtype not in (None, ir.DataType.INT8):
        yield Finding("type", name, f"it quantizes to {kind}, and TensorRT takes int8")
    block_size = node.attributes.get_int("block_size", 0)
    if block_size and not activation:
        message = (
            f"it has one scale per block of {block_size} weights, which TensorRT takes for scales of output "
            "channels: its results are wrong"
        )
        yield Finding("block-scales", name, message)
    if activation and scale.size > 1:
        message = "an activation has one scale per channel: it runs in float"
        yield Finding("activation-per-channel", name, message)
    if stored is not None and stored.ndim == 0:
        yield Finding("scalar-constant", name, "it dequantizes a constant without dimensions")
    if node.op_type == "DequantizeLinear" and activation and pair_before_activation(node):
        yield Finding(
            "pair-before-activation", name, "a pair before an activation function prevents a fusion"
        )


def _misfit(node: ir.Node, count: int) -> str | None:
    """Says how scales do not fit the tensor that they belong to; None where they do, or it is not known."""
    value, stored = node.inputs[0], stored_in(node.inputs[0])
    if count < 2 or node.attributes.get_int("block_size", 0) > 0 or stored is None or stored.shape is None:
        return None
    axis, shape = (
        node.attributes.get_int("axis", 1),
        [size if isinstance(size, int) else "?" for size in stored.shape],
    )
    if -len(shape) <= axis < len(shape) and shape[axis] in (count, "?"):
        return None
    tensor = f"the tensor '{value.name if value is not None else ''}' of shape {shape}"
    return f"it has {count} scales along axis {axis}, which do not fit {tensor}"


def _weighted(node: ir.Node, name: str) -> Iterator[Finding]:
    sources = [dequantizer_behind(value) for value in node.inputs[:2]]
    one_sided = any(sources) and not all(map(reads_integers, node.inputs[:2]))
    if one_sided and not any(map(_is_empty, node.inputs[:2])):
        yield Finding(
            "one-sided", name, f"only one of its operands is quantized: it runs in float{_one_sided(node)}"
        )
    for index, source in enumerate(sources):
        if source is not None:
            yield from _weight_axis(node, name, index, *source)
    weights = sources[1] if len(sources) > 1 else None
    if weights is not None and is_weight(weights[0].inputs[0]) and lacks_kernel_shape(node):
        message = "it does not tell kernel_shape, without which TensorRT 8.6 refuses quantized weights"
        yield Finding("kernel-shape", name, message)


def _is_empty(value: ir.Value | None) -> bool:
    """True of a constant without elements, as of an adapter of rank 0: there is nothing to quantize."""
    tensor = constant_tensor(value)
    return tensor is not None and tensor.size == 0


def _weight_axis(
    node: ir.Node, name: str, index: int, weights: ir.Node, axes: tuple[int, ...] | None
) -> Iterator[Finding]:
    """Checks the scales of an operand, which is at that index and dequantized by ``weights``."""
    scale, array = constant_input(weights, 1), read_constant(stored_in(weights.inputs[0]))
    if scale is None or scale.size < 2 or array is None or not array.ndim:
        return
    if weights.attributes.get_int("block_size", 0) or _misfit(weights, scale.size):
        return  # a finding of its own
    stored = weights.attributes.get_int("axis", 1)
    stored += array.ndim if stored < 0 else 0
    axis = axes.index(stored) if axes is not None and stored in axes else stored
    # The rank of what the node reads may be unknown, but that of the stored weights never is.
    operand = node.inputs[index] or weights.outputs[0]
    wanted = array.ndim - 1 if node.op_type == "MatMul" and index else weight_axis(node, operand)
    if axis != wanted:
        instead = "one scale" if wanted is None else str(wanted)
        message = f"its weights have scales along axis {axis} instead of {instead}: it runs in float"
        yield Finding("weight-axis", name, message)


def _one_sided(node: ir.Node) -> str:
    """Says that a node stays in float, where its operand without a pair is not quantized in another way."""
    layer = _Layer.of(node)
    if not layer.stays_float(node):
        return ""
    steps = f": '{layer.bare[0].name}' lies on no steps of int8" if layer.is_unsure else ""
    return f", and stays in float{steps}"


def _concat_grids(node: ir.Node) -> dict[str, Grid]:
    """The pairs before a Concat, where a layer or another pair reads what the Concat makes.

    Returns:
        Name of each QuantizeLinear to what its pair computes.
    """
    found: dict[str, Grid] = {}
    if node.op_type != "Concat" or not feeds_integers(node):
        return found
    for value in node.inputs:
        for quantize in quantizers_before(value):
            with contextlib.suppress(ModelError):  # a finding of its own
                found[quantize.name or ""] = grid_of(quantize)
    return found


@dataclass(frozen=True, repr=False)
class Mended(Result):
    """A model after :func:`mend`.

    Attributes:
        graph_model: The model with Q/DQ pairs as TensorRT needs them; without pairs if no range is known.
        quantized_nodes: Names of the model's weighted nodes in INT8.
        unquantized: How the old pairs were changed.
        filled: Tensors that needed a range and had no pair, with the amax that follows from other tensors.
        changes: The differences between what the new and the old model compute.
    """

    graph_model: ir.Model
    quantized_nodes: tuple[str, ...]
    unquantized: Unquantized
    filled: dict[str, float]
    changes: tuple[Finding, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Returns what ``trtint8 lint --fix --json`` prints beside the findings."""
        return {
            "quantized_nodes": list(self.quantized_nodes),
            "restored": list(self.unquantized.restored),
            "filled": dict(self.filled),
        }

    def __repr__(self) -> str:
        filled = f", {counted(len(self.filled), 'range')} filled in" if self.filled else ""
        return f"<Mended: {counted(len(self.quantized_nodes), 'node')} in INT8{filled}>"

    def save(self, path: FilePath) -> Path:
        """Writes the model atomically.

        Raises:
            OutputError: The file cannot be written, or its name does not end in .onnx.
        """
        return save_model(self.graph_model, check_model_name(path))


def mend(model: ModelSource) -> Mended:
    """Repairs a model that any tool has quantized: Q/DQ pairs are placed anew, as TensorRT needs them.

    Args:
        model: What :func:`lint` takes.

    Returns:
        The new model, with the ranges and the quantized weights of the old one; its ``save`` writes it.

    Raises:
        ModelError: The model is unusable or a float model, a finding cannot be repaired, or a tensor that
            needs a range had no pair.

    Examples:
        >>> trtint8.mend("other_tool.onnx").save("int8.onnx")
        PosixPath('int8.onnx')
    """
    model = load_model(model)
    expanded = expand(with_opset(model.graph_model, OLDEST_OPSET, model.name), model.name)
    refuse_float(expanded.original, model.name)
    unmendable = next((finding for finding in _rule_findings(expanded) if not finding.mendable), None)
    if unmendable:
        raise ModelError(f"node '{unmendable.node}': {unmendable.message}")
    return _Mender(model, expanded).mend()


@dataclass(frozen=True)
class _Layer:
    """What a weighted node of a model reads, before pairs of constants are computed.

    Attributes:
        scales: The scales of the pairs of its weights, each flat.
        bare: The operands that have no pair.
    """

    scales: Sequence[Float32s] = ()
    bare: Sequence[ir.Value] = ()

    @classmethod
    def of(cls, node: ir.Node) -> _Layer:
        operands = [value for value in node.inputs[:2] if value is not None]
        bare = [one for one in operands if not (reads_integers(one) or is_quantized_constant(one))]
        return cls([scale for value in operands for scale in constant_scales(value)], bare)

    @property
    def is_unsure(self) -> bool:
        """Whether its only operand without a pair is constant, so that it may lie on steps of int8."""
        return len(self.bare) == 1 and is_constant(self.bare[0])

    def grid(self, node: ir.Node, index: int, axis: int | None) -> Float32s | None:
        """The scales of an operand of the node, if that is constant and lies on steps of int8."""
        weights = constant_input(node, index)
        return None if weights is None else weight_grid(weights, axis, self.scales)

    def stays_float(self, node: ir.Node) -> bool:
        """Whether the node, which may be prepared by now, stays float."""
        return bool(self.bare) and not (
            self.is_unsure
            and all(
                self.grid(node, index, weight_axis(node, value)) is not None
                for index, value in enumerate(node.inputs[:2])
                if value is not None and is_constant(value)
            )
        )


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
        self._layers = {
            node.name: _Layer.of(node) for node in self._graph_model.graph if operator_of(node).is_weighted
        }
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
        # What dequantizes an input of the model is read as a pair, which had only this node.
        nodes = {f"{name}_quantize": node for name, node in nodes.items()} | nodes
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
        kept = [
            name
            for name, node in nodes.items()
            if operator_of(node).is_weighted and self._layers.get(name, _Layer()).stays_float(node)
        ]
        stayed = pair_ranges(prepared.graph_model)
        ranges = {**stayed, **unquantized.ranges}
        unquantized = replace(unquantized, ranges=ranges, kept_float=kept)
        if len(kept) == sum(operator_of(node).is_weighted for node in nodes.values()):
            wider = _widened(prepared.graph_model)
            return _Changes(widened=wider) if wider else Mended(prepared.graph_model, (), unquantized, {})
        bare = without_pairs(prepared.graph_model)
        attentions = find_attentions(bare)
        products = {one.context.outputs[0].name: one.context.name or "" for one in attentions}
        while True:
            placement = place(bare, kept)
            wanted = _missing_pairs(placement, nodes)
            plan = plan_migration(bare, wanted, ranges)
            # An attention whose output has no range is quantized in part only; whole in float it is one
            # kernel.
            halves = [products[tensor] for tensor in plan.unsolved if tensor in products]
            if not set(halves) - set(kept):
                break
            kept += halves
        if lost := _pairs_of_halves(attentions, kept, nodes):
            return _Changes(given_up=lost)
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
    ) -> tuple[dict[tuple[str, int | None], Float32s], tuple[Finding, ...]]:
        """The scales that keep the values of weights, or come nearest to them, which is a finding each."""
        scales, regridded = {}, []
        for edge in placement.weights:
            node, layer = nodes[edge.node], self._layers.get(edge.node, _Layer())
            scale = layer.grid(node, edge.index, edge.axis)
            if scale is None:
                config = placement.configs[edge.tensor].along(edge.axis)
                scale, noise = _nearest(read_weights(node, edge), config, layer.scales)
                regridded.append(_regridded(edge, noise))
            scales[edge.tensor, edge.axis] = scale
        return scales, tuple(regridded)


def _nearest(
    weights: Float32s, config: TensorQuantConfig, given: Sequence[Float32s]
) -> tuple[Float32s, float]:
    """The scales that change weights least, and the ratio of the weights to the changes in decibels.

    Args:
        weights: The weights, which lie on no steps of int8.
        config: How they are quantized.
        given: Scales that the model has for them, each flat. What is beyond their steps is clipped.
    """
    widest = weight_scale(weights, config.axis)
    others = tuple(axis for axis in range(weights.ndim) if axis != config.axis)
    exact = weights.astype(np.float64)
    tried = [widest]
    for scale in map(np.abs, given):
        if scale.size in (1, widest.size) and (scale >= SMALLEST_SCALE).all():
            tried.append(np.broadcast_to(scale if widest.ndim else scale[0], widest.shape))
    noise = np.array(
        [((fake_quantize(weights, config.with_scale(one)) - exact) ** 2).sum(axis=others) for one in tried]
    )
    nearest = np.choose(noise.argmin(axis=0), tried)
    return nearest, decibels(float((exact**2).sum()), float(noise.min(axis=0).sum()))


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
        grids = _concat_grids(node)
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

    def before(value: ir.Value | None) -> Iterable[ir.Value]:
        node = made_by(value)
        return () if node is None or node.op_type == "DequantizeLinear" else moved_data(node).values()

    for each in walk_back([value], before):
        if (dequantize := made_by(each, "DequantizeLinear")) and (quantize := made_by(dequantize.inputs[0])):
            yield quantize.name or ""


def _regridded(edge: Edge, ratio: float) -> Finding:
    along = "one scale" if edge.axis is None else f"one scale per channel of axis {edge.axis}"
    message = (
        f"its weights '{edge.tensor}' do not lie on 255 steps of {along}, as TensorRT takes them: they are "
        f"rounded again, {ratio:.1f} dB from what they were"
    )
    return Finding("weight-steps", edge.node, message)


def _remove_guards(graph_model: ir.Model, ranges: dict[str, float]) -> None:
    """Removes guards against NaN; what takes the place of a tensor gets its range, and its pair."""
    guards = RemoveNanGuardsPass()
    guards(graph_model)
    for tensor, source in guards.sources.items():
        if source in ranges:
            ranges[tensor] = max(ranges[source], ranges.get(tensor, 0.0))
    left, own = set(tensor_names(graph_model)), pair_ranges(graph_model)
    for tensor, source in guards.sources.items():
        if source not in left:
            ranges.pop(source, None)
        elif tensor in own:
            ranges.setdefault(source, own[tensor])
