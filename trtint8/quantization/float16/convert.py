"""Converts what does not run in INT8 to FP16, for a TensorRT that takes types from the graph.

TensorRT 11 and TensorRT for RTX have no FP16 switch: every tensor has the type that the model gives it. So
values become FP16 here, with casts where a node stays in FP32. A QuantizeLinear has the type of the value
that it reads, a DequantizeLinear the type that its readers want. Where either is FP16, the scales of both are
rounded to FP16 in the same way, so that the pair agrees. A scale that FP16 does not hold, or only roughly,
keeps both in FP32.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import onnx_ir as ir
from onnx_ir.passes import common

from calibrators.display.counts import counted, enumerated
from calibrators.errors import Argument
from calibrators.user_warnings import warn_user
from trtint8.models.graph_constants import (
    add_initializer,
    read_constant,
    set_element_type,
    take_name,
    value_names,
)
from trtint8.models.loading.opset import with_opset
from trtint8.models.onnx_errors import run_passes
from trtint8.models.passes.infer_shapes import InferShapesPass
from trtint8.models.passes.name_nodes import NameNodesPass
from trtint8.quantization.float16.decisions import find_decisions
from trtint8.quantization.float16.rounding import LARGEST, SMALLEST_NORMAL, round_scale, scale_fits
from trtint8.quantization.float16.rules import UNSEEN, float32_nodes, signature

#: The first opset whose QuantizeLinear and DequantizeLinear take FP16 scales.
_OPSET = 19

_HALF, _FLOAT = ir.DataType.FLOAT16, ir.DataType.FLOAT
#: Data type to the ending of the names of converted values.
_SUFFIXES = {_HALF: "float16", _FLOAT: "float32"}


def to_float16(
    model: ir.Model, *, float32_io: bool, peaks: Mapping[str, float] | None, name: str
) -> tuple[ir.Model, dict[str, str]]:
    """Converts a model to FP16, except for Q/DQ pairs' integers and nodes that would lose accuracy.

    Args:
        model: A model with or without Q/DQ pairs; not changed.
        float32_io: Whether the model's own inputs and outputs stay float32.
        peaks: Tensor name to the largest magnitude seen in it; may lack tensors. Nodes that read or write a
            tensor whose values come near the largest FP16 number, or may as far as is known, or are all too
            small for it, stay in FP32. None where only the time counts that the model takes: what is not
            known to overflow becomes FP16.
        name: The model's name in messages.

    Returns:
        The new model, of opset 19 or later, and the names of the nodes that stay in FP32, with the reasons.

    Raises:
        ModelError: ONNX cannot convert it to opset 19.

    Warns:
        UserWarning: An input or output becomes FP16 whose values FP16 does not hold, or nodes stay in FP32
            because nothing is known of their values.
    """
    converted = with_opset(model, _OPSET, name).clone()
    run_passes(
        converted,
        name,
        common.RemoveInitializersFromInputsPass(),
        common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
        NameNodesPass(),
        InferShapesPass(),
    )
    decisions = find_decisions(converted)
    kept = float32_nodes(converted, peaks, decisions.nodes)
    if not float32_io:
        _warn_of_inputs_and_outputs(converted.graph, peaks or {}, decisions.outputs)
    if unseen := [reason for reason in kept.values() if reason.startswith(UNSEEN)]:
        nodes = counted(len(unseen), "node")
        warn_user(
            f"{nodes} of '{name}' may overflow in FP16 and stay in FP32: {unseen[0]}; calibrate all tensors, "
            "as 'trtint8 calibrate' does by default"
        )
    _Converter(converted, kept, _FLOAT if float32_io else _HALF, decisions.outputs).run()
    return converted, kept


def _warn_of_inputs_and_outputs(
    graph: ir.Graph, peaks: Mapping[str, float], exact: Collection[ir.Value]
) -> None:
    if names := [repr(value.name) for value in graph.outputs if value in exact]:
        warn_user(
            f"{enumerated(names)} stay float32 among outputs in FP16, because the network compares their "
            f"exact values; add {Argument('float32_io', 'True')}, so that all inputs and outputs stay float32"
        )
    for value in (*graph.inputs, *graph.outputs):
        peak = 0.0 if value in exact else peaks.get(value.name or "", 0.0)
        if value.dtype == _FLOAT and peak > 0 and not SMALLEST_NORMAL <= peak <= LARGEST:
            warn_user(
                f"'{value.name}' reaches {peak:.3g}, and FP16 has full precision from {SMALLEST_NORMAL:.2g} "
                f"to {LARGEST:.0f}; add {Argument('float32_io', 'True')}, so that inputs and outputs stay "
                "float32"
            )


@dataclass
class _Converter:
    """Rewrites a graph in place.

    Attributes:
        model: The model.
        kept: Names of the nodes that stay in FP32.
        io: The type of the model's inputs and outputs.
        exact: The outputs that stay float32 all the same.
        originals: The values that were float32 before the conversion, whatever their type is now.
        made: Original value and type to the value that holds it in that type.
        rounded: The scales, as bytes, that become FP16 numbers in every type: those of pairs that are FP16 at
            one end or both, and so of all tensors that share a scale with one of these.
        names: The names of all values and nodes, those of graphs inside nodes included.
    """

    model: ir.Model
    kept: Mapping[str, str]
    io: ir.DataType
    exact: Collection[ir.Value]
    originals: set[ir.Value] = field(default_factory=set)
    made: dict[tuple[ir.Value, ir.DataType], ir.Value] = field(default_factory=dict)
    rounded: set[bytes] = field(default_factory=set)
    names: set[str] = field(default_factory=set)

    def run(self) -> None:
        graph = self.model.graph
        nodes = list(graph)
        self.names = value_names(graph) | {node.name for node in nodes if node.name}
        values = [*graph.inputs, *graph.initializers.values(), *(v for node in nodes for v in node.outputs)]
        self.originals = {value for value in values if value.type == ir.TensorType(_FLOAT)}
        for value in self.originals.intersection(graph.inputs):
            set_element_type(value, self.io)
        for node in nodes:
            self._set_output_types(node)
        everywhere = list(ir.traversal.RecursiveGraphIterator(graph))
        halves = (node.inputs[1] for node in everywhere if self._scaled_type(node) == _HALF)
        self.rounded = {scale.tobytes() for scale in map(read_constant, halves) if scale is not None}
        for node in everywhere:
            self._connect(node)
        for index, value in enumerate(graph.outputs):
            wanted = _FLOAT if value in self.exact else self.io
            if value in self.originals and value.dtype != wanted:
                graph.outputs[index] = self._renamed_output(value, wanted)
        common.RemoveUnusedNodesPass()(self.model)

    def _set_output_types(self, node: ir.Node) -> None:
        """Gives the outputs of a node their new types."""
        if node.op_type == "QuantizeLinear" or node.name in self.kept:
            return
        for value, may_be_half in zip(node.outputs, signature(node, self.model).outputs, strict=True):
            if value not in self.originals or not may_be_half:
                continue
            wanted = _HALF
            if node.op_type == "DequantizeLinear":
                wanted = self._wanted_by_readers(value) if scale_fits(node) else _FLOAT
            set_element_type(value, wanted)
            if node.op_type == "Cast":
                node.attributes["to"] = ir.AttrInt64("to", _HALF)

    def _wanted_by_readers(self, value: ir.Value) -> ir.DataType:
        """FP16 where any reader takes it: readers in FP32 get a DequantizeLinear of their own."""
        reads = {self._wanted(node, index) for node, index in value.uses()}
        return _HALF if _HALF in reads or (value.is_graph_output() and self.io == _HALF) else _FLOAT

    def _wanted(self, node: ir.Node, index: int) -> ir.DataType:
        """The type that a node wants a float input to have."""
        inner = node.graph is not self.model.graph
        if inner or node.name in self.kept or not signature(node, self.model).inputs[index]:
            return _FLOAT
        return _HALF

    def _connect(self, node: ir.Node) -> None:
        """Gives every float input of a node the type that it wants."""
        if (dtype := self._scaled_type(node)) is not None:
            if node.op_type == "QuantizeLinear" and (value := node.inputs[0]) is not None:
                node.replace_input_with(0, self._typed(value, dtype))
            self._rescale(node, dtype)
        elif node.op_type != "Cast":  # which takes any type
            for index, value in enumerate(node.inputs):
                if value in self.originals:
                    node.replace_input_with(index, self._typed(value, self._wanted(node, index)))

    def _scaled_type(self, node: ir.Node) -> ir.DataType | None:
        """The type of the scale of a QuantizeLinear or DequantizeLinear; None of other nodes."""
        if node.op_type == "QuantizeLinear" and (value := node.inputs[0]) in self.originals:
            assert value is not None
            return value.dtype if scale_fits(node) else _FLOAT
        if node.op_type == "DequantizeLinear" and node.outputs[0] in self.originals:
            return node.outputs[0].dtype
        return None

    def _rescale(self, node: ir.Node, dtype: ir.DataType) -> None:
        scale = node.inputs[1]
        assert scale is not None, "the schema demands it"
        if node.op_type == "DequantizeLinear" and "output_dtype" in node.attributes:
            node.attributes["output_dtype"] = ir.AttrInt64("output_dtype", dtype)
        exact = read_constant(scale)
        if exact is None or exact.tobytes() not in self.rounded:
            node.replace_input_with(1, self._typed(scale, dtype))
            return
        key = (scale, dtype)
        if key not in self.made:
            rounded = round_scale(exact).astype(dtype.numpy())
            self.made[key] = add_initializer(self.model.graph, self._name_in(scale, dtype), rounded)
        node.replace_input_with(1, self.made[key])

    def _typed(self, value: ir.Value, dtype: ir.DataType) -> ir.Value:
        """A value in a type: a converted constant, the output of a second DequantizeLinear, or of a Cast."""
        if value.dtype == dtype:
            return value
        key = (value, dtype)
        if key not in self.made:
            self.made[key] = self._convert(value, dtype)
        return self.made[key]

    def _convert(self, value: ir.Value, dtype: ir.DataType) -> ir.Value:
        name = self._name_in(value, dtype)
        if value.const_value is not None:
            return add_initializer(self.model.graph, name, value.const_value.numpy().astype(dtype.numpy()))
        producer = value.producer()
        if producer is not None and producer.op_type == "DequantizeLinear" and scale_fits(producer):
            attributes = list(producer.attributes.values())
            node_name = take_name(f"{name}_dequantize", self.names)
            node = ir.Node("", producer.op_type, list(producer.inputs), attributes, name=node_name)
            self._rescale(node, dtype)
        else:
            cast_name = take_name(f"{name}_cast", self.names)
            node = ir.Node("", "Cast", [value], [ir.AttrInt64("to", dtype)], name=cast_name)
        output = node.outputs[0]
        output.name, output.dtype, output.shape = name, dtype, value.shape
        graph = self.model.graph
        if producer is None:
            graph.insert_before(graph[0], node)
        else:
            graph.insert_after(producer, node)
        return output

    def _renamed_output(self, value: ir.Value, dtype: ir.DataType) -> ir.Value:
        """An output of the model in another type, under the name that it had."""
        name = value.name or ""
        output = self._typed(value, dtype)
        value.name = self._name_in(value, value.dtype or _FLOAT)
        output.name = name
        return output

    def _name_in(self, value: ir.Value, dtype: ir.DataType) -> str:
        """A name of what a value becomes in a type, which nothing has yet."""
        return take_name(f"{value.name}_{_SUFFIXES[dtype]}", self.names)
