"""Brings models whose operators compute on integers into Q/DQ form, and says which nodes stay and why.

Three kinds become Q/DQ pairs around float operators. QLinearConv and QLinearMatMul are ONNX's; ONNX Runtime's
own domain has others like them ("Contrib Operators", ONNX Runtime documentation). TensorRT has none of them.
ConvInteger and MatMulInteger stand in the pattern that ONNX Runtime's dynamic quantization writes: a
DynamicQuantizeLinear, the integer operator, a Cast, and a Mul by the product of both scales ("Quantize ONNX
Models", ONNX Runtime documentation). Operators that only move data get a pair on either side where they move
integers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common

from calibrators.data.feeds import Array, Float32s, Floats
from calibrators.errors import ModelError
from calibrators.operators import Picks, Values, operator_of
from trtint8.interop.pairs import (
    data_type,
    graph_of,
    input_at,
    quantized_type,
    quantized_values,
    replace_value,
    walk_back,
)
from trtint8.models.graph import (
    add_initializer,
    as_model_errors,
    constant_input,
    is_constant,
    made_by,
    nodes_inside,
    read_constant,
    run_passes,
    values_read,
)
from trtint8.models.model import OLDEST_OPSET
from trtint8.models.opset import with_opset
from trtint8.models.passes.fold_constants import FoldConstantsPass
from trtint8.models.passes.simplify import NameNodesPass

#: The types of quantized data.
INTEGER_TYPES = (ir.DataType.INT8, ir.DataType.UINT8)

_QUANTIZERS = ("QuantizeLinear", "DynamicQuantizeLinear")


@dataclass(frozen=True)
class Expanded:
    """A model whose integer operators were replaced, as far as possible.

    Attributes:
        original: The model as it was, with a unique name for every node, and constants in place of the nodes
            that compute them, except pairs.
        graph_model: The model with Q/DQ pairs instead. The node that replaces an operator has its name.
        replaced: Name of a node that computed on integers, and is replaced, to the rule of
            :func:`trtint8.interop.lint.lint` that it violates.
        obstacles: Name of a node that still computes on integers to the reason.
        folded: Name of a node that computed integers, a scale or a zero point of constants to its operator.
    """

    original: ir.Model
    graph_model: ir.Model
    replaced: dict[str, str]
    obstacles: dict[str, str]
    folded: dict[str, str]


def expand(model: ir.Model, name: str) -> Expanded:
    """Replaces integer operators by Q/DQ pairs around float operators, or by float operators alone.

    Args:
        model: A model without functions; not changed.
        name: The model's name in messages.

    Returns:
        The new model, and the reasons why nodes could not be replaced.

    Raises:
        ModelError: A node is not as its operator demands.
    """
    original = model.clone()
    run_passes(original, name, _lift_constants(), NameNodesPass())
    with as_model_errors(name, "cannot be prepared"):
        folded = _fold(original)
    graph_model = original.clone()
    in_float = FloatOperatorsPass(expand_qlinear, move_in_float, expand_dynamic)
    run_passes(graph_model, name, in_float, common.RemoveUnusedOpsetsPass())
    names = {node.name for node in original.graph}
    obstacles = {
        original_name(node, names): obstacle
        for node in graph_model.graph
        if (obstacle := _obstacle(node)) is not None
    }
    return Expanded(original, graph_model, in_float.replaced, obstacles | in_float.obstacles, folded)


def integer_operators(model: ir.Model) -> tuple[str, ...]:
    """Types of the operators that compute on integers, each once, in alphabetical order."""
    return tuple(sorted({node.op_type for node in model.graph if operator_of(node).integers is not None}))


def refuse_float(graph_model: ir.Model, name: str) -> None:
    """Refuses a model whose main graph holds neither pairs nor operators on integers.

    Raises:
        ModelError: It is a float model, or its pairs are in the graphs of nodes.
    """
    if integer_operators(graph_model) or any(operator_of(node).half_of_pair for node in graph_model.graph):
        return
    for node in graph_model.graph:
        if any(operator_of(inner).half_of_pair for inner in nodes_inside(node)):
            raise ModelError(
                f"the Q/DQ pairs of '{name}' are in the graphs of {node.op_type} '{node.name}', and only the "
                "main graph is looked at; export the branch that you need as a model of its own"
            )
    raise ModelError(
        f"'{name}' is a float model, with no Q/DQ pairs to look at; give a quantized model, or quantize it "
        "with 'trtint8 calibrate' and 'trtint8 quantize'"
    )


def expand_static(model: ir.Model, name: str) -> ir.Model:
    """Replaces integer operators whose scales are constants by Q/DQ pairs around float operators.

    Args:
        model: Any model; not changed.
        name: The model's name in messages.

    Returns:
        A model that computes the same, except for float rounding, of opset 13 or later. Operators whose
        scales are computed at run time stay, because no Q/DQ pairs can replace them.

    Raises:
        ModelError: It cannot be converted to opset 13.
    """
    expanded = model.clone()
    # What replaces a node is named after it.
    run_passes(expanded, name, _lift_constants(), NameNodesPass(), FloatOperatorsPass(expand_qlinear))
    return with_opset(expanded, OLDEST_OPSET, name)


def _lift_constants() -> ir.passes.InPlacePass:
    """Replaces Constant nodes by initializers, whose types are always known."""
    return common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)


def _fold(model: ir.Model) -> dict[str, str]:
    """Computes what nodes make of constants, except the values of pairs, in place.

    Returns:
        Name to operator of the nodes that computed integers, a scale or a zero point.
    """
    before = {node: node.op_type for node in _before_pairs(model.graph)}
    FoldConstantsPass()(model)
    for node in list(model.graph):
        readers = (reader.op_type for reader, _ in node.outputs[0].uses())
        if node.op_type == "QuantizeLinear" and any(reader != "DequantizeLinear" for reader in readers):
            _store_integers(model.graph, node)
    FoldConstantsPass()(model)
    return {node.name or "": operator for node, operator in before.items() if node.graph is None}


def _before_pairs(graph: ir.Graph) -> Iterator[ir.Node]:
    """The nodes before the scale, the zero point or the integers of a pair, back to the last quantizer."""

    def before(value: ir.Value | None) -> Sequence[ir.Value | None]:
        node = made_by(value)
        return () if node is None or node.op_type in _QUANTIZERS else node.inputs

    pairs = (node for node in graph if operator_of(node).half_of_pair)
    starts = (value for node in pairs for value in node.inputs[node.op_type == "QuantizeLinear" :])
    for value in walk_back(starts, before):
        node = made_by(value)
        if node is not None and node.op_type not in _QUANTIZERS:
            yield node


def _store_integers(graph: ir.Graph, node: ir.Node) -> None:
    """Replaces a QuantizeLinear of a constant by its integers, so that movements of them fold."""
    weights, dtype = read_constant(node.inputs[0]), quantized_type(node)
    output = node.outputs[0]
    if weights is None or dtype is None or not dtype.is_integer() or output.is_graph_output():
        return
    if any(read_constant(value) is None for value in node.inputs[1:] if value is not None):
        return
    integers = quantized_values(node, weights).astype(dtype.numpy())
    name, output.name = output.name or "", f"{output.name}_computed"
    output.replace_all_uses_with(add_initializer(graph, name, integers))
    graph.remove(node, safe=True)


def original_name(node: ir.Node, names: set[str | None]) -> str:
    """The name of a node, or, where an expansion inserted it, of the node that was expanded."""
    if node.name in names:
        return node.name or ""
    if node.op_type == "DequantizeLinear":
        return next(reader.name or "" for reader, _ in node.outputs[0].uses())
    producer = made_by(node.inputs[0])
    return (producer.name if producer is not None else None) or ""


def _obstacle(node: ir.Node) -> str | None:
    """Why a node of an expanded model belongs neither to a Q/DQ pair nor to the float operators."""
    if node.op_type == "DequantizeLinear":
        return _unpaired(node)
    if node.op_type in _QUANTIZERS:
        return None
    for value in values_read(node):
        # Graphs inside a node may have pairs of their own.
        quantizer = made_by(value, *_QUANTIZERS)
        stored = node.domain != "" and is_constant(value) and value.dtype in INTEGER_TYPES
        if stored or (quantizer is not None and quantizer.graph is node.graph):
            return f"it computes on the integers of '{value.name}'"
    return None


def _unpaired(node: ir.Node) -> str | None:
    """Why a DequantizeLinear is not the second node of a pair."""
    source = node.inputs[0]
    if source is None or is_constant(source) or (source.is_graph_input() and source.dtype in INTEGER_TYPES):
        return None
    quantize = made_by(source, *_QUANTIZERS)
    if quantize is None:
        return f"it dequantizes '{source.name}', which no QuantizeLinear makes"
    own, paired = _read_parameters(node), _read_parameters(quantize)
    if own and paired and not is_constant(quantize.inputs[0]) and not _agree(own, paired):
        return f"its scale or zero point is not that of '{quantize.name}', which quantizes its input"
    return None


class _ObstacleError(Exception):
    """A node cannot be replaced; the message says why, in words for the user."""


class FloatOperatorsPass(ir.passes.InPlacePass):
    """Replaces nodes that compute on integers by nodes that compute on floats.

    The model computes the same as before, except for float rounding. Nodes that cannot be replaced stay.

    Args:
        rules: What replaces a node, one after the other for the whole graph: each in graph order, so that the
            types of a node's inputs are known, and a chain is replaced throughout.

    Attributes:
        replaced: Name of each node that was replaced to the rule of :func:`trtint8.interop.lint.lint` that it
            violates.
        obstacles: Name of each node that a rule is for and cannot replace to the reason.
    """

    def __init__(self, *rules: Callable[[ir.Node], str | None]) -> None:
        self.rules = rules
        self.replaced: dict[str, str] = {}
        self.obstacles: dict[str, str] = {}

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Applies all rules, and removes what nothing reads any more."""
        for rule in self.rules:
            for node in list(model.graph):
                try:
                    violated = rule(node)
                except _ObstacleError as obstacle:
                    self.obstacles[node.name or ""] = str(obstacle)
                    continue
                if violated:
                    self.replaced[node.name or ""] = violated
        common.RemoveUnusedNodesPass()(model)
        left = {node.name for node in model.graph}
        self.obstacles = {name: obstacle for name, obstacle in self.obstacles.items() if name in left}
        return ir.passes.PassResult(model, modified=bool(self.replaced))


class Parameters(NamedTuple):
    """The parameters with which a tensor is quantized, as values of the graph.

    Attributes:
        scale: The scale.
        zero_point: The zero point; None for 0.
    """

    scale: ir.Value
    zero_point: ir.Value | None


def _read_parameters(node: ir.Node) -> Parameters | None:
    """The parameters of a QuantizeLinear, DequantizeLinear or DynamicQuantizeLinear; None for other nodes."""
    if node.op_type == "DynamicQuantizeLinear":
        return Parameters(node.outputs[1], node.outputs[2])
    scale = input_at(node, 1)
    if not operator_of(node).half_of_pair or scale is None:
        return None
    return Parameters(scale, input_at(node, 2))


def _quantized_with(value: ir.Value) -> Parameters | None:
    """The parameters of the quantizer that makes a value; None where none does."""
    quantizer = made_by(value, *_QUANTIZERS)
    return _read_parameters(quantizer) if quantizer is not None and value is quantizer.outputs[0] else None


def _agree(first: Parameters, second: Parameters) -> bool:
    """Whether two sets of parameters are the same values, or constants of the same contents."""
    return _same(first.scale, second.scale) and _same(first.zero_point, second.zero_point)


def _same(first: ir.Value | None, second: ir.Value | None) -> bool:
    if first is second:
        return True
    # Only a zero point may be missing, which is 0 then.
    arrays = [np.zeros(1) if value is None else read_constant(value) for value in (first, second)]
    left, right = (None if array is None else array.reshape(-1) for array in arrays)
    return left is not None and right is not None and np.array_equal(left, right)


class _Quantized(NamedTuple):
    """Quantized data.

    Attributes:
        data: The integers.
        parameters: Their scale and zero point.
        axis: The axis of the channels; None where there is one scale.
    """

    data: ir.Value
    parameters: Parameters
    axis: int | None = None

    @property
    def is_dynamic(self) -> bool:
        """Whether the scale is computed at run time."""
        return read_constant(self.parameters.scale) is None

    def in_float(self, reader: ir.Node, index: int) -> ir.Value:
        """What the integers represent, or were made of where the scale is computed at run time.

        Args:
            reader: A node, before which the integers are dequantized.
            index: The index of its input, for names.
        """
        quantizer = self.data.producer()
        if self.is_dynamic and quantizer is not None and (source := quantizer.inputs[0]) is not None:
            return source
        inputs = [self.data, *(value for value in self.parameters if value is not None)]
        attributes = {} if self.axis is None else {"axis": self.axis}
        stem = f"{reader.name}_input{index}"
        node = ir.node("DequantizeLinear", inputs, attributes, name=f"{stem}_dequantize")
        value = node.outputs[0]
        value.name, value.dtype, value.shape = f"{stem}_dequantized", ir.DataType.FLOAT, self.data.shape
        graph_of(reader).insert_before(reader, node)
        return value


def _replace(
    old: ir.Node,
    operator: str,
    inputs: Sequence[ir.Value | None],
    like: ir.Node,
    result: _Quantized | None = None,
    quantized: Sequence[int] = (0,),
) -> ir.Node:
    """Replaces a node that computes on integers by a node that computes in float.

    Args:
        old: The node that is removed from the graph.
        operator: The operator of the node that takes its place, with as many outputs.
        inputs: What the new node reads.
        like: The node whose name and attributes the new one has.
        result: Integers with the type and the parameters with which outputs are quantized again.
        quantized: The indices of these outputs; the others replace those of the old node as they are.

    Returns:
        The new node.
    """
    graph, attributes = graph_of(old), list(like.attributes.values())
    new = ir.Node("", operator, inputs, attributes, num_outputs=len(old.outputs), name=like.name)
    graph.insert_after(old, new)
    scale, point = (None, None) if result is None else result.parameters
    if result is not None and point is None and data_type(result.data) == ir.DataType.INT8:
        # Without a zero point a QuantizeLinear writes uint8.
        point = add_initializer(graph, f"{like.name}_output_zero_point", np.zeros((), np.int8))
    for index, (before, after) in enumerate(zip(old.outputs, new.outputs, strict=True)):
        if scale is None or index not in quantized:
            after.type = before.type
            replace_value(before, after)
            continue
        after.name, after.dtype, after.shape = f"{before.name}_float", ir.DataType.FLOAT, before.shape
        again = [after, scale, *([] if point is None else [point])]
        quantize = ir.node("QuantizeLinear", again, name=f"{before.name}_quantize")
        quantize.outputs[0].type = ir.TensorType(ir.DataType.UINT8) if point is None else point.type
        graph.insert_after(new, quantize)
        replace_value(before, quantize.outputs[0])
    graph.remove(old, safe=True)
    return new


#: Integer operator to the float operator that computes the same.
FLOAT_COUNTERPARTS = {"ConvInteger": "Conv", "MatMulInteger": "MatMul"}


def expand_dynamic(node: ir.Node) -> str | None:
    """Replaces a ConvInteger or MatMulInteger and what scales its result, if all of the pattern is there.

    An operand whose scale is computed at run time is replaced by the input of its quantizer. An operand with
    a constant scale, and weights, are dequantized by a DequantizeLinear.
    """
    if node.op_type not in FLOAT_COUNTERPARTS:
        return None
    cast = _only_reader(node, "Cast")
    if cast.attributes.get_int("to", 0) != ir.DataType.FLOAT:
        raise _ObstacleError(f"'{cast.name}' casts to something else than float32")
    scaled = _only_reader(cast, "Mul")
    product = scaled.inputs[scaled.inputs[0] is cast.outputs[0]]
    assert product is not None
    operands = _operands_of_product(node, product)
    inputs = [operand.in_float(node, index) for index, operand in enumerate(operands)]
    scaled.outputs[0].type = ir.TensorType(ir.DataType.FLOAT)
    graph = graph_of(node)
    new = _replace(scaled, FLOAT_COUNTERPARTS[node.op_type], inputs, node)
    graph.remove([cast, node], safe=True)
    if new.op_type == "Conv":
        _fold_bias(graph, new)
    return "dynamic-scale" if any(operand.is_dynamic for operand in operands) else "integer-operator"


def _operands_of_product(node: ir.Node, product: ir.Value) -> list[_Quantized]:
    """The operands of an integer operator whose result is multiplied with a product of scales."""
    factors = list(_factors(product))
    activations = [_activation(node, index) for index in (0, 1)]
    if not any(activations):
        raise _ObstacleError("both of its operands are constant")
    # A computed scale is one of the factors; a constant one may have been multiplied into another factor.
    unfound = [operand for operand in activations if operand and not _remove_scale(factors, operand)]
    scale: Floats = np.ones((), np.float64)
    for factor in factors:
        if (array := read_constant(factor)) is None:
            raise _ObstacleError(
                f"its output is multiplied with '{factor.name}', which is no operand's scale"
            )
        scale = scale * array.astype(np.float64)
    for operand in unfound:
        known = read_constant(operand.parameters.scale)
        if known is None or all(activations):
            raise _ObstacleError(
                f"the scale of '{operand.data.name}' is not in the product '{product.name}', with which its "
                "output is multiplied"
            )
        scale = scale / known.astype(np.float64)
    if all(activations) and (scale != 1).any():
        raise _ObstacleError(f"its output is multiplied with more than its scales in '{product.name}'")
    return [one or _weights(node, at, scale.astype(np.float32)) for at, one in enumerate(activations)]


def _only_reader(node: ir.Node, operator: str) -> ir.Node:
    output = node.outputs[0]
    uses = tuple(output.uses())
    if len(uses) != 1 or output.is_graph_output() or uses[0][0].op_type != operator:
        found = ", ".join(reader.op_type for reader, _ in uses) or "nothing"
        found += " and the caller" if output.is_graph_output() else ""
        raise _ObstacleError(f"'{output.name}' is read by {found}, and not by one {operator} alone")
    return uses[0][0]


def _factors(value: ir.Value) -> Iterator[ir.Value]:
    product = made_by(value, "Mul") if read_constant(value) is None else None
    if product is None:
        yield value
        return
    for factor in product.inputs:
        assert factor is not None
        yield from _factors(factor)


def _activation(node: ir.Node, index: int) -> _Quantized | None:
    """An operand that a quantizer makes; None where the operand is constant."""
    data = node.inputs[index]
    assert data is not None
    if read_constant(data) is not None:
        return None
    quantizer, parameters = data.producer(), _quantized_with(data)
    if quantizer is None or parameters is None:
        origin = "a graph input" if quantizer is None else f"the {quantizer.op_type} '{quantizer.name}'"
        raise _ObstacleError(f"'{data.name}' comes from {origin}, and not from a quantizer")
    scale = read_constant(parameters.scale)
    if scale is not None and scale.size > 1:
        raise _ObstacleError(f"'{data.name}' has one scale per channel")
    if not _agree(parameters, Parameters(parameters.scale, input_at(node, index + 2))):
        raise _ObstacleError(f"its zero point for '{data.name}' is not that of '{quantizer.name}'")
    return _Quantized(data, parameters)


def _remove_scale(factors: list[ir.Value], operand: _Quantized) -> bool:
    """Removes an operand's scale from the factors; returns whether it was among them."""
    scale = Parameters(operand.parameters.scale, None)
    found = next((at for at, factor in enumerate(factors) if _agree(Parameters(factor, None), scale)), None)
    if found is not None:
        del factors[found]
    return found is not None


def _weights(node: ir.Node, index: int, scale: Float32s) -> _Quantized:
    data, given = node.inputs[index], input_at(node, index + 2)
    integers = read_constant(data)
    assert data is not None and integers is not None
    zero = np.zeros(1, integers.dtype) if given is None else read_constant(given)
    if zero is None:
        raise _ObstacleError(f"the zero point of '{data.name}' is computed at run time")
    if not ((scale > 0) & np.isfinite(scale)).all():
        raise _ObstacleError(f"a scale of '{data.name}' is not positive and finite")
    rank, conv = integers.ndim, node.op_type == "ConvInteger"
    axis = 0 if conv else rank - 1
    if zero.size == 1 and scale.size == 1:
        zero, scale, along = zero.reshape(()), scale.reshape(()), None
    elif index == 0 or rank < 2:
        raise _ObstacleError(f"'{data.name}' has several scales or zero points, and is no weight matrix")
    else:
        # The zero points of a ConvInteger are a vector; those of a MatMulInteger broadcast against the
        # weights.
        scale = _per_channel(scale, integers.shape[axis], rank, 1 if conv else axis, data)
        zero = _per_channel(zero, integers.shape[axis], *((1, 0) if conv else (rank, axis)), data)
        along = axis
    stored = (
        add_initializer(graph_of(node), f"{node.name}_input{index}_{what}", array)
        for what, array in (("scale", scale), ("zero_point", zero))
    )
    return _Quantized(data, Parameters(*stored), along)


def _per_channel(array: Array, channels: int, rank: int, axis: int, data: ir.Value) -> Array:
    """Flattens an array that broadcasts along one axis of a tensor to one number per channel.

    Args:
        array: An array that broadcasts against the tensor.
        channels: The size of the tensor along the axis.
        rank: The rank of the tensor.
        axis: The axis of the channels.
        data: The value that the array belongs to, for the message.

    Returns:
        An array of shape (channels,).

    Raises:
        _ObstacleError: The array does not broadcast along that axis alone.
    """
    if array.size == 1:
        return np.full(channels, array.reshape(()), array.dtype)
    wanted = [1] * rank
    wanted[axis] = channels
    shape = (*[1] * (rank - array.ndim), *array.shape)
    if set(shape[:-rank]) - {1} or shape[-rank:] != tuple(wanted):
        raise _ObstacleError(
            f"the scales or zero points of '{data.name}' have shape {array.shape}, and not one number per "
            "output channel"
        )
    return array.reshape(-1)


def _fold_bias(graph: ir.Graph, conv: ir.Node) -> None:
    """Replaces an Add of one number per output channel by the convolution's bias."""
    output, weights = conv.outputs[0], conv.inputs[1]
    with contextlib.suppress(_ObstacleError):
        add = _only_reader(conv, "Add")
        bias = _bias_constant(add.inputs[add.inputs[0] is output])
        shape = weights.shape if weights is not None else None
        if bias is None or shape is None or not shape.is_static() or bias.dtype != np.float32:
            return
        channels = _per_channel(bias, shape.numpy()[0], len(shape), 1, output)
        conv.resize_inputs(3)
        conv.replace_input_with(2, add_initializer(graph, f"{conv.name}_bias", channels))
        replace_value(add.outputs[0], output)
        graph.remove(add, safe=True)


def _bias_constant(value: ir.Value | None) -> Array | None:
    """A constant, or the Reshape of one: ONNX Runtime writes both for biases."""
    array, reshape = read_constant(value), made_by(value, "Reshape")
    if array is None and reshape is not None:
        source, shape = (constant_input(reshape, index) for index in (0, 1))
        if source is not None and shape is not None and (shape != 0).all():
            array = source.reshape(tuple(int(size) for size in shape))
    return array


#: The domains of the operators: ONNX's and ONNX Runtime's.
_DOMAINS = ("", "com.microsoft")

#: From this opset on, Softmax works along one axis; before, along an axis and all axes after it.
_SOFTMAX_ALONG_ONE = 13


@dataclass(frozen=True)
class _Form:
    """How an operator's inputs are laid out. A scale and a zero point follow each quantized operand.

    Attributes:
        operator: The float operator that the operator computes.
        operands: Indices of the quantized operands.
        result: Index of the result's scale, which is followed by its zero point.
        bias: Index of the int32 bias, whose scale is the product of the operands' scales; None for no bias.
        plain: Indices of inputs that are not quantized; the float operator reads them first.
        repeated: Whether further operands follow in the same layout.
        weights: Whether the second operand may have one scale per channel.
    """

    operator: str
    operands: tuple[int, ...]
    result: int
    bias: int | None = None
    plain: tuple[int, ...] = ()
    repeated: bool = False
    weights: bool = False


#: Operator to the layout of its inputs.
QLINEAR = {
    "QLinearConv": _Form("Conv", (0, 3), 6, bias=8, weights=True),
    "QLinearMatMul": _Form("MatMul", (0, 3), 6, weights=True),
    "QGemm": _Form("Gemm", (0, 3), 7, bias=6, weights=True),
    "QLinearAdd": _Form("Add", (0, 3), 6),
    "QLinearMul": _Form("Mul", (0, 3), 6),
    "QLinearWhere": _Form("Where", (1, 4), 7, plain=(0,)),
    "QLinearConcat": _Form("Concat", (2,), 0, repeated=True),
    "QLinearAveragePool": _Form("AveragePool", (0,), 3),
    "QLinearGlobalAveragePool": _Form("GlobalAveragePool", (0,), 3),
    "QLinearLeakyRelu": _Form("LeakyRelu", (0,), 3),
    "QLinearSigmoid": _Form("Sigmoid", (0,), 3),
    "QLinearSoftmax": _Form("Softmax", (0,), 3),
}

#: Attributes of the operators that the float operators lack.
_DROPPED = ("channels_last", "opset")


def has_float_operator(node: ir.Node) -> bool:
    """Whether an operator computes on integers what a float operator computes on what these represent."""
    return _is_qlinear(node) or node.op_type in FLOAT_COUNTERPARTS


def _is_qlinear(node: ir.Node) -> bool:
    return node.domain in _DOMAINS and node.op_type in QLINEAR


def expand_qlinear(node: ir.Node) -> str | None:
    """Replaces an operator that takes and gives integers with scales by the float operator and pairs."""
    if not _is_qlinear(node):
        return None
    form = QLINEAR[node.op_type]
    if node.attributes.get_int("channels_last", 0):
        raise _ObstacleError("its data is channels_last, and TensorRT takes channels first")
    indices = range(form.operands[0], len(node.inputs), 3) if form.repeated else form.operands
    operands = [
        _operand(node, index, index + 1, may_have_channels=form.weights and position == 1)
        for position, index in enumerate(indices)
    ]
    # QGemm may leave its result float.
    result = None if input_at(node, form.result) is None else _operand(node, indices[0], form.result)
    bias = input_at(node, form.bias) if form.bias is not None else None
    if bias is not None and read_constant(bias) is None:
        raise _ObstacleError(f"its bias '{bias.name}' is computed at run time")
    graph = graph_of(node)
    _check_softmax(node, graph)
    inputs = [node.inputs[index] for index in form.plain]
    inputs += [operand.in_float(node, position) for position, operand in enumerate(operands)]
    if bias is not None:
        inputs.append(_bias_in_float(graph, node, bias, operands))
    if result is None:
        node.outputs[0].type = ir.TensorType(ir.DataType.FLOAT)
    new = _replace(node, form.operator, inputs, node, result)
    for name in _DROPPED:
        new.attributes.pop(name, None)
    if form.operator == "Softmax":  # whose own default is another before opset 13
        new.attributes.setdefault("axis", ir.AttrInt64("axis", -1))
    return "qlinear"


def _operand(node: ir.Node, index: int, at: int, *, may_have_channels: bool = False) -> _Quantized:
    """The integers at an index of a node's inputs, with the scale and the zero point at another one."""
    data, scale, zero_point = input_at(node, index), input_at(node, at), input_at(node, at + 1)
    assert data is not None and scale is not None
    for value in (scale, zero_point):
        if value is not None and read_constant(value) is None:
            raise _ObstacleError(f"its scale or zero point '{value.name}' is computed at run time")
    if zero_point is not None and zero_point.dtype not in INTEGER_TYPES:
        raise _ObstacleError(f"'{zero_point.name}' is neither int8 nor uint8")
    weights, scales, axis = read_constant(data), read_constant(scale), None
    if scales is not None and scales.size > 1:
        if not may_have_channels:
            raise _ObstacleError(f"'{scale.name}' has one scale per channel of an activation")
        if weights is None or weights.ndim < 2 or scales.ndim != 1:
            raise _ObstacleError("it has one scale per channel for an operand that is not constant weights")
        first = node.op_type == "QLinearConv" or bool(node.attributes.get_int("transB", 0))
        axis = 0 if first else weights.ndim - 1
    return _Quantized(data, Parameters(scale, zero_point), axis)


def _check_softmax(node: ir.Node, graph: ir.Graph) -> None:
    """Refuses a QLinearSoftmax of another opset: Softmax changed its meaning, and the node names its own."""
    if node.op_type != "QLinearSoftmax" or node.attributes.get_int("axis", -1) == -1:
        return
    meant, opset = node.attributes.get_int("opset", _SOFTMAX_ALONG_ONE), graph.opset_imports.get("", 0)
    if (meant < _SOFTMAX_ALONG_ONE) != (opset < _SOFTMAX_ALONG_ONE):
        raise _ObstacleError(f"it is the Softmax of opset {meant}, and the model's opset has another")


def _bias_in_float(
    graph: ir.Graph, node: ir.Node, bias: ir.Value, operands: Sequence[_Quantized]
) -> ir.Value:
    """The int32 bias in float: its scale is the product of the operands' scales."""
    scale: Any = node.attributes.get_float("alpha", 1.0)
    for operand in operands:
        given = read_constant(operand.parameters.scale)
        assert given is not None
        scale = scale * given.astype(np.float64).reshape(-1)
    stored = read_constant(bias)
    return add_initializer(graph, f"{node.name}_bias_float", (stored * scale).astype(np.float32))


def _moves_integers(node: ir.Node) -> bool:
    """True if a node computes the same of values and, but for rounding, of integers that represent them."""
    operator = operator_of(node)
    return operator.selects or operator.values is Values.AVERAGED or _gives_no_data(node)


def moved_data(node: ir.Node) -> dict[int, ir.Value]:
    """The inputs whose data an operator moves, by index; empty for operators that do not move data."""
    if not _moves_integers(node):
        return {}
    indices = operator_of(node).data_among(len(node.inputs))
    return {index: value for index in indices if (value := node.inputs[index]) is not None}


def _gives_no_data(node: ir.Node) -> bool:
    """Whether the results of a node are places or sizes, which are the same for values and their integers."""
    operator = operator_of(node)
    return operator.reads_shape or operator.picks is Picks.PLACES


def extrapolates(node: ir.Node) -> bool:
    """Whether a Resize writes a number of its own where it has no data."""
    return node.attributes.get_string("coordinate_transformation_mode", "") == "tf_crop_and_resize"


def move_in_float(node: ir.Node) -> str | None:
    """Gives an operator that moves quantized data float data instead, and quantizes its outputs again.

    Data whose scale is computed at run time is not quantized again: it would come out as it went in, except
    for rounding.
    """
    data = moved_data(node)
    shared = _parameters(node, data)
    if shared is None:
        return None
    graph, inputs = graph_of(node), list(node.inputs)
    for index, value in data.items():
        if value is shared.zero_point:
            inputs[index] = add_initializer(graph, f"{node.name}_input{index}_zero", np.zeros((), np.float32))
        else:
            inputs[index] = _Quantized(value, shared).in_float(node, index)
    if _pads_with_raw_zero(node):
        scale, point = (read_constant(value) for value in shared)
        assert scale is not None, "it was looked at before"
        # The value that the integer 0 represents.
        zero = -scale.reshape(()) * np.float32(0 if point is None else point.reshape(()))
        inputs[2:3] = [add_initializer(graph, f"{node.name}_padding", np.asarray(zero, np.float32))]
    results = () if _gives_no_data(node) else operator_of(node).results
    again = range(len(node.outputs)) if results is None else results
    _replace(node, node.op_type, inputs, node, _Quantized(next(iter(data.values())), shared), again)
    return "integer-data"


def _parameters(node: ir.Node, data: dict[int, ir.Value]) -> Parameters | None:
    """The scale and zero point that all of a node's data share; None where there are none, or several."""
    known = {value: _quantized_with(value) for value in data.values()}
    candidates = [one for one in known.values() if one is not None]
    if not candidates and known and all(map(_is_given, known)):
        candidates = [one for output in node.outputs for one in _dequantized_with(output)][:1]
    if not candidates or not all(_agree(candidates[0], other) for other in candidates[1:]):
        return None
    shared = candidates[0]
    scale = read_constant(shared.scale)
    if (scale is None and _pads_with_raw_zero(node)) or extrapolates(node):
        return None
    # Of the rest the graph does not say how it was quantized.
    told = (
        one is not None or value is shared.zero_point or (scale is not None and _is_given(value))
        for value, one in known.items()
    )
    return shared if all(told) and (scale is None or scale.size == 1) else None


def _is_given(value: ir.Value) -> bool:
    """Whether a value is integers that no node makes: constants, or an input of the model."""
    return value.dtype in INTEGER_TYPES and (is_constant(value) or value.is_graph_input())


def _pads_with_raw_zero(node: ir.Node) -> bool:
    """Whether a Pad writes the integer 0, whatever value that represents."""
    mode = node.attributes.get_string("mode", "constant")
    return node.op_type == "Pad" and mode == "constant" and input_at(node, 2) is None


def _dequantized_with(value: ir.Value) -> Iterator[Parameters]:
    """The parameters with which nodes after a value dequantize it."""
    for reader, _ in value.uses():
        parameters = _read_parameters(reader)
        if reader.op_type == "DequantizeLinear" and parameters is not None:
            yield parameters
        elif _moves_integers(reader):
            for output in reader.outputs:
                yield from _dequantized_with(output)
