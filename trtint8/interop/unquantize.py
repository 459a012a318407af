"""Brings the Q/DQ pairs of a model that any tool quantized into the one form that TensorRT has.

A pair that TensorRT can compute stays where it is and computes what it did: it becomes symmetric int8, behind
a Clip where its own ends are narrower. Other pairs are taken out, and a Clip keeps their ends. Quantized
constants become the float constants that they represent. The ranges of the pairs become a calibration table.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnx_ir.passes import common

from calibrators.data.feeds import AnyFloats
from calibrators.errors import ModelError
from calibrators.operators import Values, operator_of
from calibrators.tables.choice import FloatLayers
from calibrators.tables.table import CalibrationTable
from trtint8.interop.integer_models import expand, extrapolates
from trtint8.interop.pairs import (
    HIGHEST,
    LOWEST,
    Grid,
    float_values,
    grid_of,
    input_at,
    integer_ends,
    is_quantized_constant,
    parameters,
    quantized_type,
    quantized_values,
    reads_integers,
)
from trtint8.models.graph import (
    add_initializer,
    constant_input,
    is_constant,
    made_by,
    nodes_inside,
    read_constant,
    run_passes,
    take_name,
    value_names,
)
from trtint8.models.model import FLOAT_MODEL, Model, forget_origin, prepare, record_float_model, warnings_of
from trtint8.models.passes.simplify import InferShapesPass, NameNodesPass
from trtint8.quantization.operators import Ends, ends_of
from trtint8.quantization.quantize import undo_one_scale

_FLOAT, _INT8 = ir.DataType.FLOAT, ir.DataType.INT8


#: The reason why a weighted node of a finished model is in float.
_WITHOUT_BOTH_PAIRS = "the model has no Q/DQ pairs before both of its operands"


@dataclass
class Unquantized:
    """What became of the pairs of a model.

    Attributes:
        ranges: Tensor name to the largest magnitude that its pair can represent.
        kept_float: Names of the weighted nodes that have an input without a pair.
        restored: Names of the Relu and Clip nodes that were part of a pair and are nodes of the graph now.
        lost: Name of a QuantizeLinear whose steps are given up to what its pair computed, and the value that
            takes its place.
        readers: Names of the nodes, and indices of their inputs, that read a pair which was taken out.
    """

    ranges: dict[str, float] = field(default_factory=dict)
    kept_float: list[str] = field(default_factory=list)
    restored: list[str] = field(default_factory=list)
    lost: dict[str, tuple[Grid, ir.Value]] = field(default_factory=dict)
    readers: set[tuple[str, int]] = field(default_factory=set)


def unquantize(
    model: ir.Model, given_up: Collection[str] = (), widened: Mapping[str, np.float32] | None = None
) -> Unquantized:
    """Brings the pairs of a model into TensorRT's form, in place; those that it cannot have are taken out.

    Args:
        model: A model of opset 13 or later, in FP32, with QuantizeLinear and DequantizeLinear nodes.
        given_up: Names of QuantizeLinear nodes whose pairs are taken out although TensorRT can have them.
        widened: Name of a QuantizeLinear to the greater scale that its pair gets.

    Returns:
        The ranges of the pairs that were taken out, and the nodes that keep their ends.

    Raises:
        ModelError: A scale or zero point is not constant or does not fit, or a scale is 0 or not finite.
    """
    return _Unquantizer(model, given_up, widened or {}).run()


class _Unquantizer:
    def __init__(self, model: ir.Model, given_up: Collection[str], widened: Mapping[str, np.float32]) -> None:
        self._model = model
        self._graph = model.graph
        self._given_up = given_up
        self._widened = widened
        self._names = value_names(model.graph)
        self._result = Unquantized()
        self._clipped: dict[tuple[ir.Value, float | None, float | None], ir.Value] = {}
        self._bounds = Bounds()

    def run(self) -> Unquantized:
        for node in list(self._graph):
            if node.op_type == "QuantizeLinear" and node.outputs[0].is_graph_output():
                self._write_output(node)
        for node in list(self._graph):
            if node.op_type == "DequantizeLinear":
                self._dequantize(node)
            if any(output.uses() or output.is_graph_output() for output in node.outputs):
                self._bounds.follow(node)
        common.RemoveUnusedNodesPass()(self._model)
        move_behind_activations(self._model)
        for node in self._graph:
            quantize = quantizer_before(node)
            if quantize is not None and _is_repeated(grid_of(quantize), node.outputs[0]):
                self._replace(node.outputs[0], quantize.inputs[0])
        common.RemoveUnusedNodesPass()(self._model)
        lost = self._result.lost
        self._result.lost = {name: one for name, one in lost.items() if not _is_repeated(*one)}
        dropped = drop_covered_ends(self._model, self._result.restored)
        self._result.restored = [name for name in self._result.restored if name not in dropped]
        self._result.ranges = {
            name: amax for name, amax in self._result.ranges.items() if name not in dropped
        }
        return self._result

    def _dequantize(self, node: ir.Node) -> None:
        source = node.inputs[0]
        assert source is not None
        quantize, integers = made_by(source), read_constant(source)
        if integers is not None:
            self._store(node, integers, None)
        elif quantize is None:
            self._read_input(node, source)
        elif quantize.op_type != "QuantizeLinear" or quantize.inputs[0] is None:
            raise ModelError(
                f"node '{node.name}' dequantizes '{source.name}', which no QuantizeLinear makes; "
                "export the model with Q/DQ pairs"
            )
        elif (weights := constant_input(quantize, 0)) is not None and not _stays_among_activations(
            node, quantize
        ):
            self._store(node, quantized_values(quantize, weights), quantize.inputs[0])
        else:
            self._settle(node, quantize, quantize.inputs[0])

    def _store(self, node: ir.Node, integers: NDArray[np.generic], given: ir.Value | None) -> None:
        """Replaces a quantized constant, made of floats if they are given, by the values it represents."""
        values, stored = float_values(node, integers, *parameters(node)), read_constant(given)
        # Floats that lie on the steps keep their name.
        if given is None or stored is None or not np.allclose(stored, values, rtol=1e-6, atol=0):
            given = self._constant(f"{node.outputs[0].name}_float", values)
        self._replace(node.outputs[0], given)

    def _settle(self, node: ir.Node, quantize: ir.Node, value: ir.Value) -> None:
        """Gives a pair TensorRT's form, or takes it out."""
        grid, name = grid_of(quantize), quantize.name or ""
        if not grid.within(*self._bounds[value]).fits or name in self._given_up:
            value = self._between(value, grid, quantize, low=True, high=True)
            key = value.name or ""
            self._result.ranges[key] = max(self._result.ranges.get(key, 0.0), grid.amax)
            self._result.lost[name] = grid, value
            self._result.readers.update(
                (reader.name or "", index) for reader, index in node.outputs[0].uses()
            )
            self._replace(node.outputs[0], value)
            return
        wider = self._widened.get(name)
        low = wider is not None or bool(grid.low[0] > LOWEST)
        high = wider is not None or bool(grid.high[0] < HIGHEST)
        value = self._between(value, grid, quantize, low=low, high=high)
        if quantize.inputs[0] is not value:
            quantize.replace_input_with(0, value)
        self._make_symmetric(quantize, node, grid.scale[0] if wider is None else wider)

    def _make_symmetric(self, quantize: ir.Node, dequantize: ir.Node, scale: np.float32) -> None:
        assert quantize.inputs[0] is not None
        stem = quantize.inputs[0].name or ""
        values: list[ir.Value] = []
        for node in (quantize, dequantize):
            if _is_symmetric(node, scale):
                continue
            values = values or [
                add_initializer(self._graph, take_name(f"{stem}_scale", self._names), np.asarray(scale)),
                add_initializer(
                    self._graph, take_name(f"{stem}_zero_point", self._names), np.zeros((), np.int8)
                ),
            ]
            node.resize_inputs(3)
            for index, value in enumerate(values, 1):
                node.replace_input_with(index, value)
            for attribute in ("axis", "block_size", "output_dtype", "precision"):
                node.attributes.pop(attribute, None)
        quantize.outputs[0].type = ir.TensorType(_INT8)
        dequantize.outputs[0].type = ir.TensorType(_FLOAT)

    def _between(self, value: ir.Value, grid: Grid, quantize: ir.Node, *, low: bool, high: bool) -> ir.Value:
        """A value between the ends of a pair, where it does not lie there anyway.

        Args:
            value: What the pair reads.
            grid: The pair.
            quantize: Its first node.
            low: Whether the lower end matters.
            high: Whether the upper end matters.
        """
        (lowest, highest), given = grid.ends, self._bounds[value]
        # What is less than half a step outside is rounded to the end.
        near = grid.scale.astype(np.float64) / 2
        low = low and bool((given[0] < lowest - near).any())
        high = high and bool((given[1] > highest + near).any())
        if not (low or high):
            return value
        if lowest.size > 1:
            shape = _shape_of_channels(value, quantize, lowest.size)
            for operator, end in (("Max", lowest), ("Min", highest)):
                value = self._restore(value, operator, ends=end.reshape(shape))
            self._bounds[value] = float(lowest.min()), float(highest.max())
            return value
        key = value, lowest[0] if low else None, highest[0] if high else None
        if key not in self._clipped:  # each value has one Relu, and one Clip with these ends
            if key[1:] == (0, None):
                self._clipped[key] = self._restore(value, "Relu")
            else:
                ends = {"low": key[1], **({"high": key[2]} if high else {})}
                self._clipped[key] = self._restore(value, "Clip", **ends)
        return self._clipped[key]

    def _restore(self, value: ir.Value, operator: str, **numbers: Any) -> ir.Value:
        """A node that keeps the ends of a pair; see :meth:`_insert`."""
        restored = self._insert(value, operator, **numbers)
        self._result.restored.append(restored.name or "")
        return restored

    def _insert(
        self, value: ir.Value, operator: str, to: int = 0, stem: str | None = "", **numbers: Any
    ) -> ir.Value:
        """Inserts an operator behind a value.

        Args:
            value: The first input.
            operator: The operator.
            to: The element type, for a Cast.
            stem: What the result is named after; the value's name where that is empty.
            **numbers: The further inputs, which are constants; None for one that is left out.

        Returns:
            The result, in float.
        """
        output = take_name(f"{stem or value.name}_{operator.lower()}", self._names)
        constants = [
            None if number is None else self._constant(f"{output}_{name}", number)
            for name, number in numbers.items()
        ]
        node = ir.node(operator, [value, *constants], {"to": to} if to else {}, name=output)
        made, producer = node.outputs[0], value.producer()
        made.name, made.shape, made.type = output, value.shape, ir.TensorType(_FLOAT)
        if producer is not None:
            self._graph.insert_after(producer, node)
        else:
            self._graph.insert_before(self._graph[0], node)
        self._bounds.follow(node)
        return made

    def _constant(self, name: str, number: AnyFloats | float) -> ir.Value:
        return add_initializer(self._graph, take_name(name, self._names), np.asarray(number, np.float32))

    def _read_input(self, node: ir.Node, source: ir.Value) -> None:
        """Keeps integers that the caller gives: as they are in TensorRT's form, else computed in float."""
        scale, point = parameters(node)
        if source.dtype is None or scale.size > 1 or not scale.all():
            raise ModelError(
                f"node '{node.name}' dequantizes the input '{source.name}' with other than one scale; export "
                "the model with a float input"
            )
        if source.dtype == _INT8 and _is_symmetric(node, scale[0]):
            self._bounds[node.outputs[0]] = LOWEST * float(scale[0]), HIGHEST * float(scale[0])
            return
        # Floats that a pair with the same parameters makes the same integers of.
        value = self._insert(source, "Cast", to=_FLOAT)
        value = self._insert(value, "Sub", stem=source.name, by=point[0])
        value = self._insert(value, "Mul", stem=source.name, by=scale[0])
        integers = {"output_dtype": source.dtype}
        name = f"{node.name}_quantize"
        quantize = ir.node("QuantizeLinear", [value, *node.inputs[1:]], integers, name=name)
        quantize.outputs[0].name = take_name(f"{source.name}_int8", self._names)
        quantize.outputs[0].shape = source.shape
        low, high = grid_of(quantize).ends
        self._bounds[value] = float(low[0]), float(high[0])
        self._graph.insert_before(node, quantize)
        node.replace_input_with(0, quantize.outputs[0])
        self._settle(node, quantize, value)

    def _write_output(self, node: ir.Node) -> None:
        """Keeps integers that the caller gets: as they are in TensorRT's form, else computed in float."""
        scale, point = parameters(node)
        old, value = node.outputs[0], node.inputs[0]
        assert value is not None
        if scale.size > 1 or not scale.all():
            raise ModelError(
                f"node '{node.name}' quantizes the output '{old.name}' with other than one scale; export the "
                "model with a float output"
            )
        if _is_symmetric(node, scale[0]):
            return
        low, high = integer_ends(node)
        dtype, stem = old.dtype or ir.DataType.UINT8, value.name
        value = self._insert(value, "Div", stem=stem, by=scale[0])
        value = self._insert(value, "Round", stem=stem)
        value = self._insert(value, "Add", stem=stem, by=point[0])
        value = self._insert(value, "Clip", stem=stem, low=low, high=high)
        value = self._insert(value, "Cast", stem=stem, to=dtype)
        value.dtype = dtype
        self._give_out(old, value)

    def _replace(self, old: ir.Value, new: ir.Value | None) -> None:
        assert new is not None
        for reader, index in tuple(old.uses()):
            reader.replace_input_with(index, new)
        dequantize = old.producer()
        if not old.is_graph_output() or dequantize is None:
            return
        if new.is_graph_input() or new.is_initializer() or new.is_graph_output():
            # An Identity of a value that keeps its own name.
            identity = ir.node("Identity", [new], name=f"{old.name}_Identity")
            self._graph.insert_after(dequantize, identity)
            new = identity.outputs[0]
        elif new.name in self._result.ranges:
            self._result.ranges[old.name or ""] = self._result.ranges.pop(new.name)
        self._give_out(old, new)

    def _give_out(self, old: ir.Value, new: ir.Value) -> None:
        """Gives out a value in place of another one, by the name of that, which callers use."""
        name, old.name = old.name, take_name(f"{old.name}_replaced", self._names)
        new.name, new.shape, new.type = name, new.shape or old.shape, new.type or old.type
        for index, output in enumerate(self._graph.outputs):
            if output is old:
                self._graph.outputs[index] = new


def _shape_of_channels(value: ir.Value, quantize: ir.Node, count: int) -> list[int]:
    """The shape of one number per channel of a value that a QuantizeLinear reads."""
    axis, shape = quantize.attributes.get_int("axis", 1), list(value.shape or ())
    if not -len(shape) <= axis < len(shape):
        raise ModelError(
            f"node '{quantize.name}' has one scale per channel of '{value.name}', whose rank is not "
            "known; export the model with the shapes of its tensors"
        )
    if isinstance(shape[axis], int) and shape[axis] != count:
        raise ModelError(
            f"node '{quantize.name}' has {count} scales along axis {axis}, which do not fit the "
            f"tensor '{value.name}' of shape {shape}"
        )
    return [-1 if index == axis % len(shape) else 1 for index in range(len(shape))]


def _stays_among_activations(dequantize: ir.Node, quantize: ir.Node) -> bool:
    """Whether a constant's pair can stay, and a Concat joins it with activations, which have pairs too."""
    joins = [reader for reader, _ in dequantize.outputs[0].uses() if reader.op_type == "Concat"]
    others = (value for node in joins for value in node.inputs if not is_constant(value))
    if all(is_quantized_constant(value) for value in others):
        return False
    return grid_of(quantize).fits


def _is_symmetric(node: ir.Node, scale: np.float32) -> bool:
    """Whether a node of a pair has the form that TensorRT takes, with this scale."""
    given, point = (constant_input(node, index) for index in (1, 2))
    return (
        given is not None
        and given.ndim == 0
        and bool(given == scale > 0)
        and (point is None or (point.ndim == 0 and not point.any()))
        and quantized_type(node) == _INT8
    )


def quantizer_before(node: ir.Node) -> ir.Node | None:
    """The QuantizeLinear of the pair that a DequantizeLinear ends; None of another node."""
    ends_pair = node.op_type == "DequantizeLinear"
    return made_by(node.inputs[0], "QuantizeLinear") if ends_pair else None


def _is_repeated(grid: Grid, value: ir.Value) -> bool:
    """Whether all readers of a pair's values are pairs with its steps, also behind Clips and Relus."""
    readers = [reader for reader, _ in value.uses()]
    if not readers or value.is_graph_output() or grid.scale.size > 1:
        return False
    for reader in readers:
        if reader.op_type == "QuantizeLinear":
            given = constant_input(reader, 1)
            if given is None or given.size > 1 or given != grid.scale[0]:
                return False
            continue
        # A Clip at whole multiples of the scale commutes with rounding.
        ends = np.array([end for end in ends_of(reader) or (np.nan,) if not np.isinf(end)]) / grid.scale[0]
        if not (np.abs(ends - np.rint(ends)) < 1e-3).all() or not _is_repeated(grid, reader.outputs[0]):
            return False
    return True


def pair_before_activation(dequantize: ir.Node) -> tuple[ir.Node, ir.Node] | None:
    """The QuantizeLinear of a pair right behind a layer, and the Relu that alone reads the pair."""
    quantize, output = quantizer_before(dequantize), dequantize.outputs[0]
    before = made_by(quantize.inputs[0]) if quantize is not None else None
    if quantize is None or before is None or len(quantize.outputs[0].uses()) != 1:
        return None
    after = [user for user, _ in output.uses()]
    if not operator_of(before).is_weighted or output.is_graph_output():
        return None
    if not any(is_constant(value) or is_quantized_constant(value) for value in before.inputs[:2]):
        return None  # the output of an attention has a pair of its own
    return (quantize, after[0]) if [user.op_type for user in after] == ["Relu"] else None


def move_behind_activations(model: ir.Model) -> None:
    """Moves pairs from before a Relu to behind it, which computes the same: each pair has the value 0."""
    for node in list(model.graph):
        quantize, relu = pair_before_activation(node) or (None, None)
        if relu is None or quantize is None:
            continue
        output, dequantized = relu.outputs[0], node.outputs[0]
        relu.replace_input_with(0, quantize.inputs[0])
        output.replace_all_uses_with(dequantized, replace_graph_outputs=True)
        quantize.replace_input_with(0, output)
        if dequantized.is_graph_output():
            output.name, dequantized.name = dequantized.name, output.name
        dequantized.shape = output.shape
        model.graph.remove([quantize, node])
        model.graph.insert_after(relu, [quantize, node])


def drop_covered_ends(model: ir.Model, restored: Collection[str]) -> set[str]:
    """Takes out the ends of Clips that all pairs and Clips behind them have themselves.

    Args:
        model: A model with pairs; changed in place.
        restored: Names of the Clips and Relus that :func:`unquantize` put into it.

    Returns:
        Names of the nodes of which no end is left, which are taken out.
    """
    names, dropped = frozenset(restored), set()
    for node in list(model.graph):
        ends = ends_of(node) if node.name in names else None
        readers = [_covered(reader) for reader, _ in node.outputs[0].uses()] if node.outputs else []
        if ends is None or not readers or node.outputs[0].is_graph_output():
            continue
        source = node.inputs[0]
        assert source is not None
        low, high = ends
        low = -math.inf if all(low <= end for end, _ in readers) else low
        high = math.inf if all(end <= high for _, end in readers) else high
        if (low, high) == OPEN:
            node.outputs[0].replace_all_uses_with(source)
            model.graph.remove(node, safe=True)
            dropped.add(node.name or "")
        elif (low, high) == (0, math.inf):
            node.op_type = "Relu"
            node.resize_inputs(1)
        elif (low, high) != ends:
            if math.isinf(low):
                node.replace_input_with(1, None)
            node.resize_inputs(2 if math.isinf(high) else 3)
    return dropped


def _covered(reader: ir.Node) -> Ends:
    """The ends beyond which a node gives the same for all values; none where it does not."""
    if reader.op_type == "QuantizeLinear":
        scale = float(grid_of(reader).scale.max())
        return (LOWEST + 0.5) * scale, (HIGHEST - 0.5) * scale
    return ends_of(reader) or (-math.inf, math.inf)


def without_pairs(model: ir.Model) -> ir.Model:
    """A copy of a model in which nodes read what pairs read, and the values of stored integers."""
    bare = model.clone()
    names = value_names(bare.graph)
    for node in bare.graph:
        if node.op_type != "DequantizeLinear":
            continue
        quantize, integers = quantizer_before(node), constant_input(node, 0)
        source = quantize.inputs[0] if quantize is not None else None
        if integers is not None:
            name = take_name(f"{node.outputs[0].name}_float", names)
            source = add_initializer(bare.graph, name, float_values(node, integers, *parameters(node)))
        if source is not None:
            for reader, index in tuple(node.outputs[0].uses()):
                reader.replace_input_with(index, source)
    common.RemoveUnusedNodesPass()(bare)
    return bare


def in_float32(model: Model) -> ir.Model:
    """A prepared copy of a quantized model in which all pairs have FP32 around them, for any TensorRT."""
    prepared = prepare(model)
    undo_one_scale(prepared.graph_model)
    return prepared.graph_model


def as_float_model(model: Model, fingerprint: str | None = None) -> Model:
    """The float model behind one that trtint8 quantized, prepared, with the names of its tensors.

    What is in FP16 becomes FP32 again. Weights are those of the float model where the pairs hold these, and
    else what their integers represent.

    Args:
        model: A model from :func:`trtint8.quantization.quantize.quantized_model`, in any form.
        fingerprint: That of the float model; None for the one that the model names.

    Returns:
        The prepared model, whose fingerprint is that of the float model.
    """
    graph_model = without_pairs(in_float32(model))
    run_passes(graph_model, model.name, NameNodesPass(), InferShapesPass())
    origin = fingerprint or graph_model.metadata_props.get(FLOAT_MODEL, model.fingerprint)
    forget_origin(graph_model)
    record_float_model(graph_model, origin)
    return Model(graph_model, model.name, origin)


def quantized_nodes(model: ir.Model) -> tuple[str, ...]:
    """Names of the weighted nodes of which both operands are dequantized."""
    return tuple(
        node.name or ""
        for node in model.graph
        if operator_of(node).is_weighted and all(map(reads_integers, node.inputs[:2]))
    )


def float_nodes(model: ir.Model) -> tuple[tuple[str, str], ...]:
    """Names of the nodes that multiply matrices in float, each with the one reason that there is."""
    quantized = frozenset(quantized_nodes(model))
    nodes = itertools.chain.from_iterable((node, *nodes_inside(node)) for node in model.graph)
    return tuple(
        (node.name or node.op_type, _WITHOUT_BOTH_PAIRS)
        for node in nodes
        if operator_of(node).multiplies and node.name not in quantized
    )


def extract_table(model: Model) -> CalibrationTable:
    """Reads the range of every quantized activation.

    Args:
        model: A model with Q/DQ pairs, made by any tool.

    Returns:
        Tensor name to amax, in the graph's order: the largest magnitude that the integers represent. For
        int8 with the zero point 0, ``amax / 127`` in float32 gives back exactly the scales. Layers that read
        a tensor without a range stay in float.

    Raises:
        ModelError: The model has no Q/DQ pairs on activations, the scale of an activation is not one
            constant positive number, or an activation is quantized to no integer type.
    """
    graph = expand(model.graph_model, model.name).original.graph
    amax: dict[str, float] = {}
    for name, node in _quantizers(graph):
        scale = constant_input(node, 1)
        if scale is None:
            raise ModelError(
                f"the scale of tensor '{name}' is computed at run time; a table needs a constant"
            )
        if scale.size != 1 or not (np.isfinite(scale) & (scale > 0)).all():
            raise ModelError(
                f"tensor '{name}' has {scale.size} scales, the first {scale.reshape(-1)[:1]}; an activation "
                "has one positive scale"
            )
        largest = grid_of(node).amax
        if amax.setdefault(name, largest) != largest:
            raise ModelError(
                f"tensor '{name}' of '{model.name}' is quantized with two ranges, up to {amax[name]:g} and "
                f"up to {largest:g}; a table has room for one"
            )
    if not amax:
        raise ModelError(
            f"'{model.name}' has no Q/DQ pairs on activations, so no table is in it; give a quantized model"
        )
    # Without a range, a layer that was left in float cannot be quantized again.
    kept = tuple(
        node.name or ""
        for node in graph
        if operator_of(node).is_weighted
        and is_constant(node.inputs[1])
        and node.inputs[0] is not None
        and node.inputs[0].name not in amax
    )
    layers = FloatLayers(kept, 0.0) if kept else None
    return CalibrationTable(amax, warnings=warnings_of(model), float_layers=layers)


def pair_ranges(model: ir.Model) -> dict[str, float]:
    """The ranges of a model whose pairs are as TensorRT has them.

    Returns:
        Name of each activation that a pair reads to its amax, in graph order.
    """
    return {name: grid_of(node).amax for name, node in _quantizers(model.graph)}


def _quantizers(graph: ir.Graph) -> Iterator[tuple[str, ir.Node]]:
    """The QuantizeLinear nodes of activations, with the names of these, in graph order."""
    for node in graph:
        if node.op_type == "QuantizeLinear" and (value := node.inputs[0]) and not is_constant(value):
            yield value.name or "", node


#: The ends of a tensor of which nothing is known.
OPEN: Ends = (-math.inf, math.inf)


class Bounds:
    """The ends of the values of a graph that is walked through in its order, and changed on the way."""

    def __init__(self) -> None:
        self._known: dict[ir.Value, Ends] = {}

    def __getitem__(self, value: ir.Value | None) -> Ends:
        """The ends of a value; open where they are not known, or where nothing is read."""
        if value is None:
            return OPEN
        if value not in self._known and (stored := read_constant(value)) is not None:
            number = stored.dtype.kind in "iuf" and stored.size > 0
            self._known[value] = (float(stored.min()), float(stored.max())) if number else OPEN
        return self._known.get(value, OPEN)

    def __setitem__(self, value: ir.Value, ends: Ends) -> None:
        self._known[value] = ends

    def follow(self, node: ir.Node) -> None:
        """Notes the ends of what a node computes; those of what it reads were noted before."""
        ends = self._computed(node) if node.domain == "" else OPEN
        if ends != OPEN:
            results = operator_of(node).results
            for output in node.outputs if results is None else node.outputs[:1]:
                self[output] = ends

    def _computed(self, node: ir.Node) -> Ends:
        operator, row = node.op_type, operator_of(node)
        if operator == "DequantizeLinear":
            return self._dequantized(node)
        if operator in ("Add", "Mul"):
            (low, high), (other_low, other_high) = (self[value] for value in node.inputs)
            if operator == "Add":
                return low + other_low, high + other_high
            return (0.0, math.inf) if low >= 0 and other_low >= 0 else OPEN
        if (ends := ends_of(node)) is not None:
            (low, high), (least, most) = self[input_at(node, 0)], ends
            # With an end that is computed, and NaN here, the other argument is the result.
            return min(max(low, least), most), min(max(high, least), most)
        if row.values is Values.COMPUTED or row.values is Values.CONVERTED or _overshoots(node):
            return row.ends
        data = (node.inputs[index] for index in row.data_among(len(node.inputs)))
        sources = [self[value] for value in data if value is not None]
        if row.values is Values.AVERAGED_WITH_ZEROS or (operator == "Pad" and input_at(node, 2) is None):
            sources.append((0.0, 0.0))
        return min(one[0] for one in sources), max(one[1] for one in sources)

    def _dequantized(self, node: ir.Node) -> Ends:
        quantize = quantizer_before(node)
        if quantize is None:
            return OPEN
        low, high = grid_of(quantize).ends
        return float(np.min(low)), float(np.max(high))


def _overshoots(node: ir.Node) -> bool:
    """Whether results of a node may lie beyond the values of its data."""
    return "cubic" in node.attributes.get_string("mode", "") or extrapolates(node)
