"""Converts what does not run in INT8 to FP16, for a TensorRT that takes types from the graph.

TensorRT 11 and TensorRT for RTX have no FP16 switch: every tensor has the type that the model gives it. So
values become FP16 here, with casts where a node stays in FP32. A QuantizeLinear has the type of the value
that it reads, a DequantizeLinear the type that its readers want. Where either is FP16, the scales of both are
rounded to FP16 in the same way, so that the pair agrees. A scale that FP16 does not hold, or only roughly,
keeps both in FP32.

Nodes that would lose accuracy in FP16 stay in FP32. So do nodes that decide by their values, with all that
leads up to them since the last layer: a comparison of two numbers that FP16 rounds to one is another
comparison, and a pixel that is looked up half a pixel further on is another pixel. A layer's sums are rounded
to FP16 like any noise. Only where values of one layer are compared with one another, as a pixel with the
largest around it, does its rounding make equal what was not, and where they are coordinates, it moves them;
there the layer stays in FP32 as well.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import onnx
import onnx_ir as ir
from onnx_ir.passes import common

from calibrators.checks import warn_user
from calibrators.data.feeds import Array
from calibrators.errors import Argument, advice, counted, enumerated
from calibrators.operators import Product, operator_of
from trtint8.models.graph import (
    add_initializer,
    holds_graphs,
    is_constant,
    nodes_inside,
    read_constant,
    run_passes,
    set_element_type,
    take_name,
    value_names,
    values_read,
)
from trtint8.models.opset import with_opset
from trtint8.models.passes.simplify import InferShapesPass, NameNodesPass
from trtint8.quantization.float16_magnitudes import (
    LARGEST,
    SMALLEST_NORMAL,
    Magnitudes,
    keeps_size,
    loses_little,
    round_scale,
    scale_fits,
    within_range,
)

#: The first opset whose QuantizeLinear and DequantizeLinear take FP16 scales.
_OPSET = 19

_HALF, _FLOAT = ir.DataType.FLOAT16, ir.DataType.FLOAT
#: Data type to the ending of the names of converted values.
_SUFFIXES = {_HALF: "float16", _FLOAT: "float32"}


def to_float16(
    model: ir.Model, *, float32_io: bool, peaks: Mapping[str, float] | None, name: str
) -> tuple[ir.Model, dict[str, Float32Reason]]:
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
    if unseen := [words for cause, words in kept.values() if cause == "unseen"]:
        nodes = counted(len(unseen), "node")
        ways = advice(
            f"build without FP16 ({Argument('fp16', 'False')})",
            f"leave FP16 out ({Argument('float16', 'False')})",
            "take a table of all tensors of the float model, which 'trtint8 calibrate' makes by default",
        )
        warn_user(
            f"{nodes} of '{name}' may overflow in FP16 and stay in FP32: {unseen[0]}; {ways}", note=True
        )
    _Converter(converted, kept, _FLOAT if float32_io else _HALF, decisions.outputs).run()
    return converted, kept


def _warn_of_inputs_and_outputs(
    graph: ir.Graph, peaks: Mapping[str, float], exact: Collection[ir.Value]
) -> None:
    if names := [repr(value.name) for value in graph.outputs if value in exact]:
        warn_user(
            f"{enumerated(names)} stay float32 among outputs in FP16, because the network compares their "
            f"exact values; add {Argument('float32_io', 'True')}, so that all inputs and outputs stay "
            "float32",
            note=True,
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
    kept: Collection[str]
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


#: Inputs unlike those of calibration may cause larger values than these, by up to this factor.
_MARGIN = 2.0


#: What decides that a node stays in FP32 amid FP16: it takes or gives no FP16 (``types``), or computes what
#: FP16 does not hold (``operator``); a value is too large (``overflow``), too small (``underflow``), or of an
#: unknown size (``unseen``); a scale or a constant does not fit; its floats come from another type, such as
#: positions (``integers``); something is decided by it (``decision``); TensorRT hides what lies beyond a
#: length (``lengths``); masks are added in FP32 before it (``masks``); it reads the quantized tensor of a
#: product in FP32 (``shared``); or only nodes in FP32 are around it (``between``).
Float32Cause = Literal[
    "types",
    "operator",
    "overflow",
    "underflow",
    "unseen",
    "scale",
    "constant",
    "integers",
    "decision",
    "lengths",
    "masks",
    "shared",
    "between",
]


class Float32Reason(NamedTuple):
    """Why a node stays in FP32.

    Attributes:
        cause: The reason for programs.
        words: The reason for the user.
    """

    cause: Float32Cause
    words: str


#: The input of a recurrent operator that holds the sequences' lengths.
_LENGTHS = 4

_HALF_TENSOR = "tensor(float16)"


@dataclass(frozen=True)
class Signature:
    """Which float inputs and outputs of a node may be FP16.

    Attributes:
        inputs: For each input, whether it may be FP16.
        outputs: For each output, whether it may be FP16.
        known: Whether ONNX defines the operator.
        has_half_form: Whether FP16 is among the types of every type parameter that may be float32.
        types: The type parameters of the inputs, and those of the outputs.
    """

    inputs: tuple[bool, ...]
    outputs: tuple[bool, ...]
    known: bool = True
    has_half_form: bool = True
    types: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())

    def follows(self, node: ir.Node) -> bool:
        """True if all float outputs of a node have the type of a float input.

        Others have the type that an attribute names, which may be left out where it says float32.
        """
        kinds, outputs = self.types
        read = {kind for kind, value in zip(kinds, node.inputs, strict=True) if _is_float(value)}
        made = {kind for kind, value in zip(outputs, node.outputs, strict=True) if _is_float(value)}
        return made <= read


def float32_nodes(
    model: ir.Model, peaks: Mapping[str, float] | None, deciding: Mapping[ir.Node, str]
) -> dict[str, Float32Reason]:
    """The nodes of a graph that stay in FP32 when the rest becomes FP16.

    QuantizeLinear and DequantizeLinear are left out: they take both types.

    Args:
        model: A model with named nodes, inferred types and constants lifted to initializers.
        peaks: Tensor name to the largest magnitude seen in it; may lack tensors. What neither was seen nor is
            bounded by the graph stays in FP32, where it cannot overflow. None where FP16 is taken for granted
            where nothing is known.
        deciding: The nodes by which something is decided, each with the reason.

    Returns:
        Node name to the reason.
    """
    sizes = Magnitudes.of(model, peaks or {})
    sequences = _sequences_with_lengths(model)
    kept: dict[str, Float32Reason] = {}
    for node in model.graph:
        if operator_of(node).half_of_pair:
            continue
        reasons = [_reasons(node, signature(node, model), sizes.seen, kept)]
        if node in sequences:
            reader = sequences[node].name
            words = f"it makes the sequences of '{reader}', right before which TensorRT takes no cast"
            reasons.append(iter([Float32Reason("lengths", words)]))
        if node in deciding:
            reasons.append(iter([Float32Reason("decision", deciding[node])]))
        if peaks is not None:
            reasons.append(_of_unseen(node, sizes))
        reason = next(itertools.chain(*reasons), None)
        if reason is not None:
            kept[node.name or ""] = reason
    while beside := _beside_float32(model, kept):
        kept |= beside
    return kept | _between_float32(model, kept)


def _beside_float32(model: ir.Model, kept: Collection[str]) -> dict[str, Float32Reason]:
    """Matrix products that read the pair of another one which stays in FP32, by their names.

    TensorRT for RTX 1.7 joins products of one quantized tensor, and its compiler fails if only some of them
    are in FP32.
    """
    readers: dict[ir.Value, list[str]] = {}
    for node in model.graph:
        if operator_of(node).product is Product.MATRICES:
            for source in filter(None, map(_quantized, node.inputs[:2])):
                readers.setdefault(source, []).append(node.name or "")
    found: dict[str, Float32Reason] = {}
    for source, names in readers.items():
        if in_float32 := [name for name in names if name in kept]:
            words = f"'{in_float32[0]}' stays in FP32, and reads the integers of '{source.name}' as well"
            found |= {name: Float32Reason("shared", words) for name in names if name not in kept}
    return found


def _between_float32(model: ir.Model, kept: Collection[str]) -> dict[str, Float32Reason]:
    """Nodes, no layers, that read and are read by nodes in FP32 alone, by their names.

    In FP16 they would need casts on both sides, and round what both sides hold exactly. What only looks up
    constants, as embeddings, needs none before it, and its constants would be twice as large.
    """
    found = {
        node
        for node in model.graph
        if _floats(node.outputs)
        and node.name not in kept
        and not (operator_of(node).multiplies or operator_of(node).half_of_pair)
    }

    def stays(node: ir.Node | None) -> bool:
        return node is not None and (node in found or node.name in kept)

    def is_between(node: ir.Node) -> bool:
        sources = [value for value in _floats(node.inputs) if not is_constant(value)]
        results = _floats(node.outputs)
        return (
            bool(sources)
            and all(stays(value.producer()) for value in sources)
            and all(stays(reader) for value in results for reader, _ in value.uses())
            and not any(value.is_graph_output() for value in results)
        )

    count = len(found) + 1
    while len(found) < count:
        count = len(found)
        # In both orders, so that a chain of nodes goes at once, from whichever end.
        for node in (*model.graph, *reversed(model.graph)):
            if node in found and not is_between(node):
                found.remove(node)
    reason = Float32Reason("between", "only nodes in FP32 are around it")
    return {node.name or "": reason for node in model.graph if node in found}


def _quantized(value: ir.Value | None) -> ir.Value | None:
    """The activation whose integers a node reads, also through movements of values; None without a pair."""
    quantized = False
    while value is not None and (node := value.producer()) is not None:
        if not (operator_of(node).half_of_pair or operator_of(node).rearranges):
            break
        quantized = quantized or operator_of(node).half_of_pair
        value = node.inputs[0]
    return value if quantized and not is_constant(value) else None


def signature(node: ir.Node, model: ir.Model) -> Signature:
    """Which types ONNX's schema of a node's operator allows."""
    version = model.opset_imports.get(node.domain, 1)
    return _signature(node.op_type, version, node.domain, len(node.inputs), len(node.outputs))


@functools.cache
def _signature(operator: str, version: int, domain: str, inputs: int, outputs: int) -> Signature:
    try:
        schema = onnx.defs.get_schema(operator, version, domain)
    except onnx.defs.SchemaError:
        return Signature((False,) * inputs, (False,) * outputs, known=False)
    allowed = {limits.type_param_str: limits.allowed_type_strs for limits in schema.type_constraints}

    def kinds(formals: Sequence[onnx.defs.OpSchema.FormalParameter], count: int) -> tuple[str, ...]:
        # The last formal parameter may be variadic.
        return tuple(formals[min(index, len(formals) - 1)].type_str for index in range(count))

    def may_be_half(kinds: Sequence[str]) -> tuple[bool, ...]:
        return tuple(_HALF_TENSOR in allowed.get(kind, (kind,)) for kind in kinds)

    present = (*schema.inputs[:inputs], *schema.outputs[:outputs])
    used = {formal.type_str for formal in present} & set(allowed)
    has_half_form = all(_HALF_TENSOR in allowed[kind] for kind in used if "tensor(float)" in allowed[kind])
    types = kinds(schema.inputs, inputs), kinds(schema.outputs, outputs)
    return Signature(may_be_half(types[0]), may_be_half(types[1]), has_half_form=has_half_form, types=types)


def _reasons(
    node: ir.Node, types: Signature, seen: Mapping[str, float], kept: Collection[str]
) -> Iterator[Float32Reason]:
    floats, results = _floats(node.inputs), _floats(node.outputs)
    if not floats and not results:
        return
    if not types.known:
        yield Float32Reason("types", "ONNX does not define the operator, so its types are unknown")
    if not types.has_half_form:
        yield Float32Reason("types", "the operator has no FP16 form")
    if holds_graphs(node):
        yield Float32Reason("types", "it holds a graph of its own")
    if any(not isinstance(value.type, ir.TensorType) for value in (*floats, *results)):
        yield Float32Reason("types", "it reads or makes a sequence, whose tensors have one type")
    if not floats or (node.op_type == "CastLike" and node.inputs[0] not in floats):
        yield Float32Reason(
            "integers", "its floats come from another type: positions beyond 2048 are not exact in FP16"
        )
    if _joins_integers(node):
        yield Float32Reason(
            "types", "it joins integers between pairs, and ONNX Runtime takes only FP32 scales there"
        )
    if node.op_type == "BitCast":
        yield Float32Reason("types", "it takes the bits of its input for another type")
    if types.known and node.op_type != "Cast" and not types.follows(node):
        yield Float32Reason("types", "it gives out FP32, whatever it reads")
    squares = node.op_type == "Mul" and node.inputs[0] is node.inputs[1]
    if delicate := "squares" if squares else operator_of(node).loses_in_fp16:
        yield Float32Reason("operator", f"it {delicate}, which FP16 may not hold")
    for value in (*floats, *results):
        magnitude = seen.get(value.name or "", 0.0)
        if magnitude > LARGEST / _MARGIN:
            yield Float32Reason(
                "overflow",
                f"'{value.name}' reaches {magnitude:g}, and the largest FP16 number is {LARGEST:.0f}",
            )
    for name in _decisive_when_small(node, floats, results, seen):
        if 0 < (magnitude := seen.get(name, 0.0)) < SMALLEST_NORMAL:
            yield Float32Reason(
                "underflow",
                f"'{name}' only reaches {magnitude:g}, and FP16 loses precision below {SMALLEST_NORMAL:.2g}",
            )
    for name in _with_inexact_scales(floats, results):
        yield Float32Reason("scale", f"the scale of '{name}' does not fit FP16")
    for index, read in enumerate(node.inputs):
        array = read_constant(read) if read in floats else None
        if read is not None and array is not None and not _constant_fits(node, index, array):
            yield Float32Reason("constant", f"the constant '{read.name}' does not fit FP16")
    if _hides_by_length(node):
        yield Float32Reason("lengths", "TensorRT hides what lies beyond a sequence's length by zeros in FP32")
    if node.op_type == "Softmax" and _producer_name(floats[0]) in kept:
        yield Float32Reason("masks", "its input is in FP32, where masks may lie beyond FP16")


def _decisive_when_small(
    node: ir.Node,
    inputs: Sequence[ir.Value],
    outputs: Sequence[ir.Value],
    seen: Mapping[str, float],
) -> list[str]:
    """The names of the tensors of which a single small one keeps a node in FP32.

    Where the output is about as large as the largest input, it decides: a small summand loses no more than
    the sum, which is rounded to steps that are as large or larger.
    """
    names = [value.name or "" for value in outputs]
    if keeps_size(node) and all(name in seen for name in names):
        return names
    return [value.name or "" for value in inputs] + names


def _with_inexact_scales(inputs: Sequence[ir.Value], outputs: Sequence[ir.Value]) -> Iterator[str]:
    """The names of the tensors next to a node that have a Q/DQ pair in FP32.

    TensorRT fuses a pair with a node that computes in the pair's type: a cast between them would part them.
    """
    for value in inputs:
        producer = value.producer()
        if producer is not None and producer.op_type == "DequantizeLinear" and not scale_fits(producer):
            yield value.name or ""
    for value in outputs:
        readers = [reader for reader, _ in value.uses() if reader.op_type == "QuantizeLinear"]
        if not all(map(scale_fits, readers)):
            yield value.name or ""


def _constant_fits(node: ir.Node, index: int, array: Array) -> bool:
    """Whether FP16 can hold the constant that a node has as one of its inputs."""
    if not within_range(array):
        return False
    # What small addends lose is no more than what their sum loses, whose magnitude has been judged: biases
    # that training has left near zero are no reason. A single small number keeps a divisor from being zero.
    return (array.size > 1 and index in operator_of(node).addends) or loses_little(array)


def _is_float(value: ir.Value | None) -> bool:
    return value is not None and value.dtype == ir.DataType.FLOAT


def _floats(values: Iterable[ir.Value | None]) -> list[ir.Value]:
    return [value for value in values if value is not None and _is_float(value)]


def _of_unseen(node: ir.Node, sizes: Magnitudes) -> Iterator[Float32Reason]:
    """Reasons of tensors of which calibration has seen nothing, and which may leave FP16's range."""
    for value in (*_floats(node.inputs), *_floats(node.outputs)):
        name = value.name or ""
        if name in sizes.seen or is_constant(value):
            continue
        bound = sizes.bounds.get(name)
        if bound is None:
            yield Float32Reason("unseen", f"nothing tells how large '{name}' becomes")
        elif bound > LARGEST / _MARGIN:
            yield Float32Reason(
                "unseen", f"nothing tells how large '{name}' becomes, which may reach {bound:.3g}"
            )


def _sequences_with_lengths(model: ir.Model) -> dict[ir.Node, ir.Node]:
    """The nodes that make the sequences of a recurrent node which hides by lengths, or move them, to it."""
    found: dict[ir.Node, ir.Node] = {}
    for node in reversed(model.graph):
        moved = node in found and operator_of(node).rearranges
        if (moved or _hides_by_length(node)) and (source := node.inputs[0]) is not None:
            producer = source.producer()
            if producer is not None:
                found.setdefault(producer, found[node] if moved else node)
    return found


def _joins_integers(node: ir.Node) -> bool:
    """Whether a node is a Concat of nothing but dequantized values, all of which are quantized again."""
    if node.op_type != "Concat" or node.domain != "" or node.outputs[0].is_graph_output():
        return False
    producers = [value.producer() for value in node.inputs if value is not None]
    readers = [reader for reader, _ in node.outputs[0].uses()]
    return all(one is not None and one.op_type == "DequantizeLinear" for one in producers) and all(
        reader.op_type == "QuantizeLinear" for reader in readers
    )


def _hides_by_length(node: ir.Node) -> bool:
    """Whether a node runs along sequences of given lengths."""
    lengths = node.inputs[_LENGTHS] if len(node.inputs) > _LENGTHS else None
    return operator_of(node).product is Product.RECURRENT and lengths is not None


def _producer_name(value: ir.Value) -> str | None:
    producer = value.producer()
    return producer.name if producer is not None else None


@dataclass(frozen=True)
class Decisions:
    """What of a graph stays in FP32 because something is decided by it.

    Attributes:
        nodes: The nodes, each with the reason.
        outputs: The outputs of the model whose exact values are compared with one another. Who compares them
            again finds the same only in FP32.
    """

    nodes: Mapping[ir.Node, str]
    outputs: frozenset[ir.Value]


def find_decisions(model: ir.Model) -> Decisions:
    """Finds what decides, and what leads up to that.

    One walk from the outputs to the inputs: every decision is one bit of a number that travels along.

    Args:
        model: A model with named nodes, inferred types and constants lifted to initializers.
    """
    found: dict[ir.Node, str] = {}
    outputs: list[ir.Value] = []
    #: The decisions in the order of their bits, and the bits of those for which a layer's rounding matters.
    decisions: list[ir.Node] = []
    close = 0
    #: Value to the decisions that it reaches, and to those that it reaches through a layer.
    reached: dict[ir.Value, int] = {}
    behind: dict[ir.Value, int] = {}
    for node in reversed(model.graph):
        reaches = through = 0
        for value in node.outputs:
            bits, layered = reached.pop(value, 0), behind.pop(value, 0)
            reaches, through = reaches | bits, through | layered
            if bits & ~layered & close and value.is_graph_output():
                outputs.append(value)
        leads_to = reaches & ~through
        if _is_layer(node):
            leads_to &= close
            # What only filters each channel keeps values that are alike alike.
            through |= reaches & ~close if _is_filter(node) else reaches
        decides_by = dict.fromkeys(_decides_by(node))
        if decides_by:
            operator = operator_of(node)
            how = "looks up places by" if operator.coordinates or operator.steep else "decides by"
            found[node] = f"it {how} '{next(iter(decides_by)).name}', which FP16 rounds"
        elif leads_to:
            first = decisions[(leads_to & -leads_to).bit_length() - 1]
            found[node] = f"'{first.name}' depends on its exact values"
        own = 0
        if decides_by or (leads_to and _compares(node)):
            own = 1 << len(decisions)
            decisions.append(node)
            close |= own if _is_close(node) else 0
        for value in _reads(node):
            if value.producer() is not None:
                mine = own if not decides_by or value in decides_by else 0
                reached[value] = reached.get(value, 0) | reaches | mine
                behind[value] = behind.get(value, 0) | through
    return Decisions(found, frozenset(outputs))


def _reads(node: ir.Node) -> Iterator[ir.Value]:
    """The float values that a node reads, those that only graphs inside it read included."""
    return (value for value in values_read(node) if value.dtype == _FLOAT)


def _decides_by(node: ir.Node) -> Iterator[ir.Value]:
    """The float values by which a node decides, no constants; none of a node that decides nothing."""
    if any(_indices(inner) for inner in nodes_inside(node)):
        yield from (value for value in _reads(node) if not is_constant(value))
    for index in _indices(node):
        value = node.inputs[index] if index < len(node.inputs) else None
        if value is not None and value.dtype == _FLOAT and not is_constant(value):
            yield value


def _indices(node: ir.Node) -> tuple[int, ...]:
    """The indices of the inputs by which a node decides, if they are floats and computed."""
    if node.domain != "":
        return ()
    if node.op_type == "Cast":
        return () if ir.DataType(node.attributes.get_int("to", 1)).is_floating_point() else (0,)
    if node.op_type == "MaxPool":
        return (0,) if len(node.outputs) > 1 and node.outputs[1].uses() else ()
    operator = operator_of(node)
    return (0,) if operator.steep else operator.decides or operator.coordinates


def _compares(node: ir.Node) -> bool:
    """Whether a node takes computed values together whose difference matters."""
    operands = {value for value in node.inputs if value is not None and not is_constant(value)}
    compares = operator_of(node).compares or (node.domain, node.op_type) == ("", "Sub")
    return compares and len(operands) > 1


def _is_close(node: ir.Node) -> bool:
    """Whether the rounding of a layer's sums may matter to what a node decides by them."""
    return _compares(node) or node.op_type == "Equal" or bool(operator_of(node).coordinates)


def _is_layer(node: ir.Node) -> bool:
    """Whether what a node computes is no longer what a layer before it has computed."""
    if not operator_of(node).multiplies:
        return False
    if node.op_type == "Einsum":
        # A product without a sum, as of positions and frequencies, is a Mul.
        terms, _, result = node.attributes.get_string("equation", "").replace(" ", "").partition("->")
        return not result or bool(set(terms) - set(result) - {","})
    if node.op_type != "MatMul":
        return True
    first = node.inputs[0]
    return first is None or first.shape is None or not len(first.shape) or first.shape[-1] != 1


def _is_filter(node: ir.Node) -> bool:
    """Whether a node is a convolution that makes each channel of one channel, as to blur a map."""
    weights = node.inputs[1].shape if node.op_type == "Conv" and node.inputs[1] is not None else None
    return weights is not None and tuple(weights[:2]) == (node.attributes.get_int("group", 1), 1)
