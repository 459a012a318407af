"""Which nodes cannot compute in FP16 without losing accuracy, and why."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from calibrators.operators import Product, operator_of
from trtint8.models.graph_constants import is_constant, read_constant
from trtint8.models.inner_graphs import holds_graphs
from trtint8.quantization.float16.magnitudes import Magnitudes, keeps_size
from trtint8.quantization.float16.rounding import (
    LARGEST,
    SMALLEST_NORMAL,
    loses_little,
    scale_fits,
    within_range,
)

#: Inputs unlike those of calibration may cause larger values than these, by up to this factor.
_MARGIN = 2.0


#: How the reason begins why a node is in FP32 of whose tensors calibration has seen too few.
UNSEEN = "no range tells how large"

#: The input of a recurrent operator that holds the sequences' lengths.
_LENGTHS = 4

_HALF = "tensor(float16)"


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
) -> dict[str, str]:
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
    kept: dict[str, str] = {}
    for node in model.graph:
        if operator_of(node).half_of_pair:
            continue
        reasons = [_reasons(node, signature(node, model), sizes.seen, kept)]
        if node in sequences:
            reader = sequences[node].name
            reasons.append(
                iter([f"it makes the sequences of '{reader}', right before which TensorRT takes no cast"])
            )
        if node in deciding:
            reasons.append(iter([deciding[node]]))
        if peaks is not None:
            reasons.append(_of_unseen(node, sizes))
        reason = next(itertools.chain(*reasons), None)
        if reason is not None:
            kept[node.name or ""] = reason
    return kept


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
        return tuple(_HALF in allowed.get(kind, (kind,)) for kind in kinds)

    present = (*schema.inputs[:inputs], *schema.outputs[:outputs])
    used = {formal.type_str for formal in present} & set(allowed)
    has_half_form = all(_HALF in allowed[kind] for kind in used if "tensor(float)" in allowed[kind])
    types = kinds(schema.inputs, inputs), kinds(schema.outputs, outputs)
    return Signature(may_be_half(types[0]), may_be_half(types[1]), has_half_form=has_half_form, types=types)


def _reasons(
    node: ir.Node, types: Signature, seen: Mapping[str, float], kept: Mapping[str, str]
) -> Iterator[str]:
    floats, results = _floats(node.inputs), _floats(node.outputs)
    if not floats and not results:
        return
    if not types.known:
        yield "ONNX does not define the operator, so its types are unknown"
    if not types.has_half_form:
        yield "the operator has no FP16 form"
    if holds_graphs(node):
        yield "it holds a graph of its own"
    if any(not isinstance(value.type, ir.TensorType) for value in (*floats, *results)):
        yield "it reads or makes a sequence, whose tensors have one type"
    if not floats or (node.op_type == "CastLike" and node.inputs[0] not in floats):
        yield "its floats come from another type: positions beyond 2048 are not exact in FP16"
    if _joins_integers(node):
        yield "it joins integers between pairs, and ONNX Runtime takes only FP32 scales there"
    if node.op_type == "BitCast":
        yield "it takes the bits of its input for another type"
    if types.known and node.op_type != "Cast" and not types.follows(node):
        yield "it gives out FP32, whatever it reads"
    if delicate := operator_of(node).loses_in_fp16:
        yield f"it {delicate}, which FP16 may not hold"
    for value in (*floats, *results):
        magnitude = seen.get(value.name or "", 0.0)
        if magnitude > LARGEST / _MARGIN:
            yield f"'{value.name}' reaches {magnitude:g}, and the largest FP16 number is {LARGEST:.0f}"
    for name in _decisive_when_small(node, floats, results, seen):
        if 0 < (magnitude := seen.get(name, 0.0)) < SMALLEST_NORMAL:
            yield f"'{name}' only reaches {magnitude:g}, and FP16 loses precision below {SMALLEST_NORMAL:.2g}"
    for name in _with_inexact_scales(floats, results):
        yield f"the scale of '{name}' does not fit FP16"
    for index, read in enumerate(node.inputs):
        array = read_constant(read) if read in floats else None
        if read is not None and array is not None and not _constant_fits(node, index, array):
            yield f"the constant '{read.name}' does not fit FP16"
    if _hides_by_length(node):
        yield "TensorRT hides what lies beyond a sequence's length by zeros in FP32"
    if node.op_type == "Softmax" and _producer_name(floats[0]) in kept:
        yield "its input is in FP32, where masks may lie beyond FP16"


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


def _constant_fits(node: ir.Node, index: int, array: NDArray[Any]) -> bool:
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


def _of_unseen(node: ir.Node, sizes: Magnitudes) -> Iterator[str]:
    """Reasons of tensors of which calibration has seen nothing, and which may leave FP16's range."""
    for value in (*_floats(node.inputs), *_floats(node.outputs)):
        name = value.name or ""
        if name in sizes.seen or is_constant(value):
            continue
        bound = sizes.bounds.get(name)
        if bound is None:
            yield f"{UNSEEN} '{name}' becomes"
        elif bound > LARGEST / _MARGIN:
            yield f"{UNSEEN} '{name}' becomes, which may reach {bound:.3g}"


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
