"""Brings the Q/DQ pairs of a model that any tool quantized into the one form that TensorRT has.

A pair that TensorRT can compute stays where it is and computes what it did: it becomes symmetric int8, behind
a Clip where its own ends are narrower. Other pairs are taken out, and a Clip keeps their ends. Quantized
constants become the float constants that they represent. The ranges of the pairs become a calibration table.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnx_ir.passes import common

from calibrators.errors import ModelError
from calibrators.operators import Values, operator_of
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
    type_ends,
)
from trtint8.models.graph import (
    add_initializer,
    constant_input,
    is_constant,
    nodes_inside,
    read_constant,
    run_passes,
    take_name,
    value_names,
)
from trtint8.models.model import FLOAT_MODEL, Model, forget_origin, prepare, record_float_model, warnings_of
from trtint8.models.passes.simplify import InferShapesPass, NameNodesPass
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
        self._restored: dict[tuple[ir.Value, float | None, float | None], ir.Value] = {}
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
        for node in list(self._graph):
            if node.op_type == "QuantizeLinear":
                _drop_repeated(node)
        common.RemoveUnusedNodesPass()(self._model)
        lost = self._result.lost
        self._result.lost = {name: one for name, one in lost.items() if not _is_repeated(*one)}
        self._drop_wider_clips()
        return self._result

    def _dequantize(self, node: ir.Node) -> None:
        source = node.inputs[0]
        assert source is not None
        quantize = source.producer()
        if read_constant(source) is not None:
            self._store(node, read_constant(source))
        elif quantize is None:
            self._read_input(node, source)
        elif quantize.op_type != "QuantizeLinear" or quantize.inputs[0] is None:
            raise ModelError(
                f"node '{node.name}' dequantizes '{source.name}', which no QuantizeLinear makes; "
                "export the model with Q/DQ pairs"
            )
        elif (weights := read_constant(quantize.inputs[0])) is not None and not _stays_among_activations(
            node, quantize
        ):
            self._store(node, quantized_values(quantize, weights))
        else:
            self._settle(node, quantize, quantize.inputs[0])

    def _store(self, node: ir.Node, integers: NDArray[np.generic] | None) -> None:
        """Replaces a quantized constant by the values that it represents."""
        assert integers is not None
        scale, zero_point = parameters(node)
        values = float_values(node, integers, scale, zero_point)
        quantize = node.inputs[0].producer() if node.inputs[0] is not None else None
        given = quantize.inputs[0] if quantize is not None else None
        stored = read_constant(given)
        # Floats that lie on the steps keep their name.
        if given is None or stored is None or not np.allclose(stored, values, rtol=1e-6, atol=0):
            name = take_name(f"{node.outputs[0].name}_float", self._names)
            given = add_initializer(self._graph, name, values)
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
        if lowest.size > 1 and (low or high):
            return self._clip_channels(value, quantize, lowest, highest)
        if low and lowest[0] == 0 and not high:
            return self._restore(value, "Relu", None, None)
        if low or high:
            ends = lowest[0] if low else None, highest[0] if high else None
            return self._restore(value, "Clip", *ends)
        return value

    def _restore(self, value: ir.Value, operator: str, low: float | None, high: float | None) -> ir.Value:
        """The result of a Relu, or of a Clip with these ends, behind a value; each value has one of each."""
        key = value, low, high
        if key not in self._restored:
            output = take_name(f"{value.name}_{operator.lower()}", self._names)
            ends = {"low": low, "high": high} if operator == "Clip" and high is not None else {"low": low}
            ends = ends if operator == "Clip" else {}
            inputs = [
                None if end is None else self._constant(f"{output}_{name}", end) for name, end in ends.items()
            ]
            self._restored[key] = self._insert(value, operator, [value, *inputs], output)
        return self._restored[key]

    def _clip_channels(
        self, value: ir.Value, quantize: ir.Node, low: NDArray[np.float64], high: NDArray[np.float64]
    ) -> ir.Value:
        axis, rank = (
            quantize.attributes.get_int("axis", 1),
            len(value.shape) if value.shape is not None else 0,
        )
        if not -rank <= axis < rank:
            raise ModelError(
                f"node '{quantize.name}' has one scale per channel of '{value.name}', whose rank is not "
                "known; export the model with the shapes of its tensors"
            )
        shape = [1] * rank
        shape[axis] = -1
        size = value.shape[axis] if value.shape is not None else None
        if isinstance(size, int) and size != low.size:
            raise ModelError(
                f"node '{quantize.name}' has {low.size} scales along axis {axis}, which do not fit the "
                f"tensor '{value.name}' of shape {list(value.shape or ())}"
            )
        for operator, end in (("Max", low), ("Min", high)):
            output = take_name(f"{value.name}_{operator.lower()}", self._names)
            ends = self._constant(f"{output}_ends", end.reshape(shape))
            value = self._insert(value, operator, [value, ends], output)
        self._bounds[value] = float(low.min()), float(high.max())
        return value

    def _insert(self, value: ir.Value, operator: str, inputs: list[ir.Value | None], output: str) -> ir.Value:
        node = _float_node(operator, inputs, output, value)
        producer = value.producer()
        if producer is not None:
            self._graph.insert_after(producer, node)
        else:
            self._graph.insert_before(self._graph[0], node)
        self._bounds.follow(node)
        self._result.restored.append(node.name or "")
        return node.outputs[0]

    def _constant(self, name: str, number: NDArray[np.float64] | float) -> ir.Value:
        return add_initializer(self._graph, take_name(name, self._names), np.asarray(number, np.float32))

    def _drop_wider_clips(self) -> None:
        """Takes out the Clips of pairs that others repeat behind them, within the same ends."""
        restored, dropped = frozenset(self._result.restored), set()
        for node in list(self._graph):
            output, ends = node.outputs[0] if node.outputs else None, _ends(node)
            if output is None or node.name not in restored or ends is None:
                continue
            readers = [_ends(reader) for reader, _ in output.uses()]
            inside = (one is not None and ends[0] <= one[0] and one[1] <= ends[1] for one in readers)
            if readers and all(inside) and not output.is_graph_output() and node.inputs[0] is not None:
                output.replace_all_uses_with(node.inputs[0])
                self._graph.remove(node, safe=True)
                dropped.add(node.name)
                self._result.ranges.pop(output.name or "", None)
        self._result.restored = [name for name in self._result.restored if name not in dropped]

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
        stem = source.name or ""
        steps = [
            ("Cast", None, [ir.AttrInt64("to", _FLOAT)]),
            ("Sub", point[0], []),
            ("Mul", scale[0], []),
        ]
        value = source
        for operator, number, attributes in steps:
            output = take_name(f"{stem}_{operator.lower()}", self._names)
            inputs = [value] if number is None else [value, self._constant(f"{output}_by", float(number))]
            made = _float_node(operator, inputs, output, value, attributes)
            self._graph.insert_before(node, made)
            value = made.outputs[0]
        smallest, largest = (np.asarray([end]) - point for end in type_ends(source.dtype))
        low, high = (smallest, largest) if scale[0] > 0 else (-largest, -smallest)
        grid = Grid(np.abs(scale), low, high)
        self._bounds[value] = float(grid.ends[0][0]), float(grid.ends[1][0])
        if not grid.fits:
            self._result.ranges[value.name or ""] = grid.amax
            self._result.lost[node.name or ""] = grid, value
            self._result.readers.update(
                (reader.name or "", index) for reader, index in node.outputs[0].uses()
            )
            self._replace(node.outputs[0], value)
            return
        quantize = ir.Node("", "QuantizeLinear", [value, None], name=f"{node.name}_quantize")
        quantize.outputs[0].name, quantize.outputs[0].shape = (
            take_name(f"{stem}_int8", self._names),
            source.shape,
        )
        self._graph.insert_before(node, quantize)
        node.replace_input_with(0, quantize.outputs[0])
        self._make_symmetric(quantize, node, grid.scale[0])

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
        smallest, largest = map(float, integer_ends(node))
        dtype = old.dtype if old.dtype is not None else ir.DataType.UINT8
        steps = [
            ("Div", [float(scale[0])], []),
            ("Round", [], []),
            ("Add", [float(point[0])], []),
            ("Clip", [smallest, largest], []),
            ("Cast", [], [ir.AttrInt64("to", dtype)]),
        ]
        stem, anchor = value.name or "", node
        for operator, numbers, attributes in steps:
            output = take_name(f"{stem}_{operator.lower()}", self._names)
            inputs = [value, *(self._constant(f"{output}_{i}", number) for i, number in enumerate(numbers))]
            made = _float_node(operator, inputs, output, value, attributes)
            self._graph.insert_after(anchor, made)
            anchor, value = made, made.outputs[0]
        value.dtype = dtype
        for index, output_value in enumerate(self._graph.outputs):
            if output_value is old:
                name, old.name = old.name, take_name(f"{old.name}_integers", self._names)
                value.name, value.shape = name, value.shape or old.shape
                self._graph.outputs[index] = value

    def _replace(self, old: ir.Value, new: ir.Value) -> None:
        for node, index in tuple(old.uses()):
            node.replace_input_with(index, new)
        for index, output in enumerate(self._graph.outputs):
            if output is old:
                # The output keeps its name, which callers use.
                name, old.name = old.name, f"{old.name}_dequantized"
                if new.is_graph_input() or new.is_initializer() or new.is_graph_output():
                    self._graph.outputs[index] = self._copy(old, new, name)
                    continue
                if (new.name or "") in self._result.ranges:
                    self._result.ranges[name or ""] = self._result.ranges.pop(new.name or "")
                new.name, new.shape, new.type = name, new.shape or old.shape, new.type or old.type
                self._graph.outputs[index] = new

    def _copy(self, old: ir.Value, new: ir.Value, name: str | None) -> ir.Value:
        """An Identity of a value that keeps its own name, in place of a dequantized output."""
        identity = ir.Node("", "Identity", [new], name=f"{name}_Identity")
        copy = identity.outputs[0]
        copy.name, copy.shape, copy.type = name, old.shape, old.type
        dequantize = old.producer()
        assert dequantize is not None
        self._graph.insert_after(dequantize, identity)
        return copy


def _stays_among_activations(dequantize: ir.Node, quantize: ir.Node) -> bool:
    """Whether a constant's pair can stay, and a Concat joins it with activations, which have pairs too."""
    joins = [reader for reader, _ in dequantize.outputs[0].uses() if reader.op_type == "Concat"]
    others = (value for node in joins for value in node.inputs if not is_constant(value))
    if all(is_quantized_constant(value) for value in others):
        return False
    return grid_of(quantize).fits


def _float_node(
    operator: str,
    inputs: Sequence[ir.Value | None],
    output: str,
    like: ir.Value,
    attributes: Sequence[ir.Attr] = (),
) -> ir.Node:
    """A node, of no graph yet, whose float output has a name and the shape of another value."""
    node = ir.Node("", operator, inputs, attributes, name=output)
    node.outputs[0].name, node.outputs[0].shape = output, like.shape
    node.outputs[0].type = ir.TensorType(_FLOAT)
    return node


def _is_symmetric(node: ir.Node, scale: np.float32) -> bool:
    """Whether a node of a pair has the form that TensorRT takes, with this scale."""
    given, point = (read_constant(input_at(node, index)) for index in (1, 2))
    return (
        given is not None
        and given.ndim == 0
        and bool(given == scale > 0)
        and (point is None or (point.ndim == 0 and not point.any()))
        and quantized_type(node) == _INT8
    )


def _pair_before(value: ir.Value | None) -> tuple[ir.Node, np.float32] | None:
    """The QuantizeLinear of the pair in TensorRT's form that makes a value, and its scale."""
    dequantize = value.producer() if value is not None else None
    if dequantize is None or dequantize.op_type != "DequantizeLinear" or dequantize.inputs[0] is None:
        return None
    quantize, scale = dequantize.inputs[0].producer(), read_constant(dequantize.inputs[1])
    if quantize is None or quantize.op_type != "QuantizeLinear" or scale is None or scale.size > 1:
        return None
    return quantize, np.float32(scale.reshape(()))


def _drop_repeated(quantize: ir.Node) -> None:
    """Takes out a pair that another one with the same steps repeats, behind no more than Clips and Relus."""
    scale = read_constant(quantize.inputs[1])
    reader, value = quantize, quantize.inputs[0]
    while value is not None and len(value.uses()) == 1 and not value.is_graph_output():
        if found := _pair_before(value):
            if scale is not None and scale.size == 1 and found[1] == scale:
                reader.replace_input_with(0, found[0].inputs[0])
            return
        node = value.producer()
        if node is None or node.op_type not in ("Clip", "Relu") or not _ends_at_steps(node, scale):
            return
        reader, value = node, node.inputs[0]


def _is_repeated(grid: Grid, value: ir.Value) -> bool:
    """Whether all that reads a value are pairs with the steps of a pair that was taken out before them."""
    readers = [reader for reader, _ in value.uses()]
    if not readers or value.is_graph_output() or grid.scale.size > 1:
        return False
    return all(
        _has_scale(reader, grid.scale[0])
        if reader.op_type == "QuantizeLinear"
        else reader.op_type in ("Clip", "Relu")
        and _ends_at_steps(reader, grid.scale)
        and _is_repeated(grid, reader.outputs[0])
        for reader in readers
    )


def _has_scale(node: ir.Node, scale: np.float32) -> bool:
    given = read_constant(node.inputs[1])
    return given is not None and given.size == 1 and bool(given == scale)


def _ends(node: ir.Node) -> tuple[float, float] | None:
    """The ends of a Clip, or of a Relu; None of another node, or where they are not constant."""
    if node.op_type not in ("Clip", "Relu"):
        return None
    low, high = (constant_input(node, index) for index in (1, 2))
    if any(input_at(node, index) is not None and end is None for index, end in ((1, low), (2, high))):
        return None
    least = 0.0 if node.op_type == "Relu" else -np.inf if low is None else float(low)
    return least, np.inf if high is None else float(high)


def _ends_at_steps(node: ir.Node, scale: NDArray[np.generic] | None) -> bool:
    """Whether the ends of a Clip are whole multiples of a scale, so that it commutes with rounding."""
    if scale is None:
        return False
    ends = [read_constant(value) for value in node.inputs[1:] if value is not None]
    return all(
        end is not None and bool((np.abs(end / scale - np.rint(end / scale)) < 1e-3).all()) for end in ends
    )


def activation_behind(dequantize: ir.Node) -> ir.Node | None:
    """The Relu that alone reads a pair which stands right behind a layer."""
    source = dequantize.inputs[0].producer() if dequantize.inputs[0] is not None else None
    if source is None or source.op_type != "QuantizeLinear" or len(source.outputs[0].uses()) != 1:
        return None
    before = source.inputs[0].producer() if source.inputs[0] is not None else None
    after = [user for user, _ in dequantize.outputs[0].uses()]
    if before is None or not operator_of(before).is_weighted or dequantize.outputs[0].is_graph_output():
        return None
    if not any(is_constant(value) or is_quantized_constant(value) for value in before.inputs[:2]):
        return None  # the output of an attention has a pair of its own
    return after[0] if [user.op_type for user in after] == ["Relu"] else None


def move_behind_activations(model: ir.Model) -> None:
    """Moves pairs from before a Relu to behind it, which computes the same: each pair has the value 0."""
    for node in list(model.graph):
        relu = activation_behind(node) if node.op_type == "DequantizeLinear" else None
        quantize = node.inputs[0].producer() if node.inputs and node.inputs[0] is not None else None
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


def drop_covered_ends(model: ir.Model, restored: Collection[str]) -> None:
    """Takes out the ends of Clips that all pairs behind them have themselves, and Clips without ends.

    Args:
        model: A model with all its pairs; changed in place.
        restored: Names of the Clips that :func:`unquantize` put into it.
    """
    names = frozenset(restored)
    for node in list(model.graph):
        if node.op_type != "Clip" or node.name not in names or node.outputs[0].is_graph_output():
            continue
        readers = [reader for reader, _ in node.outputs[0].uses()]
        if not readers or any(reader.op_type != "QuantizeLinear" for reader in readers):
            continue
        scales = [float(grid_of(reader).scale.max()) for reader in readers]
        low, high = (constant_input(node, index) for index in (1, 2))
        if high is not None and all((HIGHEST - 0.5) * scale <= high for scale in scales):
            node.resize_inputs(2)
            high = None
        if low is not None and all((LOWEST + 0.5) * scale >= low for scale in scales):
            node.resize_inputs(3 if high is not None else 1)
            if high is not None:
                node.replace_input_with(1, None)
            low = None
        if low is None and high is None:
            assert node.inputs[0] is not None
            node.outputs[0].replace_all_uses_with(node.inputs[0])
            model.graph.remove(node, safe=True)
        elif low == 0 and high is None:
            node.op_type = "Relu"
            node.resize_inputs(1)


def without_pairs(model: ir.Model) -> ir.Model:
    """A copy of a model in which nodes read what pairs read, and the values of stored integers."""
    bare = model.clone()
    names = value_names(bare.graph)
    for node in bare.graph:
        if node.op_type != "DequantizeLinear" or node.inputs[0] is None:
            continue
        quantize, integers = node.inputs[0].producer(), read_constant(node.inputs[0])
        source = None
        if integers is not None:
            name = take_name(f"{node.outputs[0].name}_float", names)
            source = add_initializer(bare.graph, name, float_values(node, integers, *parameters(node)))
        elif quantize is not None and quantize.op_type == "QuantizeLinear":
            source = quantize.inputs[0]
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
        int8 with the zero point 0, ``amax / 127`` in float32 gives back exactly the scales.

    Raises:
        ModelError: The model has no Q/DQ pairs on activations, the scale of an activation is not one
            constant positive number, or an activation is quantized to no integer type.
    """
    graph = expand(model.graph_model, model.name).original.graph
    amax: dict[str, float] = {}
    for node in graph:
        if node.op_type != "QuantizeLinear" or node.inputs[0] is None:
            continue
        if is_constant(node.inputs[0]):
            continue  # weights
        name = node.inputs[0].name or ""
        _refuse_scale(node, name)
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
    return CalibrationTable(amax, warnings=warnings_of(model))


def _refuse_scale(node: ir.Node, tensor: str) -> None:
    constant = read_constant(node.inputs[1])
    if constant is None:
        raise ModelError(f"the scale of tensor '{tensor}' is computed at run time; a table needs a constant")
    scales = np.asarray(constant, np.float32).reshape(-1)
    if len(scales) != 1 or not (np.isfinite(scales[0]) and scales[0] > 0):
        raise ModelError(
            f"tensor '{tensor}' has {len(scales)} scales, the first {scales[:1]}; an activation has one "
            "positive scale"
        )


def pair_ranges(model: ir.Model) -> dict[str, float]:
    """The ranges of a model whose pairs are as TensorRT has them.

    Returns:
        Name of each activation that a pair reads to its amax, in graph order.
    """
    pairs = (node for node in model.graph if node.op_type == "QuantizeLinear")
    return {
        node.inputs[0].name or "": grid_of(node).amax
        for node in pairs
        if node.inputs[0] is not None and not is_constant(node.inputs[0])
    }


#: The lowest and the highest value.
Ends = tuple[float, float]

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
            return self._product_or_sum(node)
        low, high = self[input_at(node, 0)]
        if operator == "Relu":
            return max(low, 0.0), max(high, 0.0)
        if operator == "Clip":
            least, most = (
                end if (given := constant_input(node, index)) is None else float(given)
                for index, end in ((1, -math.inf), (2, math.inf))
            )
            return min(max(low, least), most), min(max(high, least), most)
        if row.values is Values.COMPUTED or row.values is Values.CONVERTED or _overshoots(node):
            return row.ends
        data = (node.inputs[index] for index in row.data_among(len(node.inputs)))
        sources = [self[value] for value in data if value is not None]
        if row.values is Values.AVERAGED_WITH_ZEROS or (operator == "Pad" and input_at(node, 2) is None):
            sources.append((0.0, 0.0))
        return min(one[0] for one in sources), max(one[1] for one in sources)

    def _product_or_sum(self, node: ir.Node) -> Ends:
        (low, high), (other_low, other_high) = (self[value] for value in node.inputs)
        if node.op_type == "Add":
            return low + other_low, high + other_high
        return (0.0, math.inf) if low >= 0 and other_low >= 0 else OPEN

    def _dequantized(self, node: ir.Node) -> Ends:
        quantize = node.inputs[0].producer() if node.inputs[0] is not None else None
        if quantize is None or quantize.op_type != "QuantizeLinear":
            return OPEN
        low, high = grid_of(quantize).ends
        return float(np.min(low)), float(np.max(high))


def _overshoots(node: ir.Node) -> bool:
    """Whether results of a node may lie beyond the values of its data."""
    return "cubic" in node.attributes.get_string("mode", "") or extrapolates(node)
