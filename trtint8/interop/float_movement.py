"""Gives operators that only move data a Q/DQ pair on either side, where they move integers."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from calibrators.operators import Picks, Values, operator_of
from trtint8.interop.pairs import (
    INTEGER_TYPES,
    Parameters,
    agree,
    input_at,
    insert_dequantize,
    read_parameters,
    replace_by_float,
    with_type_of,
)
from trtint8.models.graph_constants import add_initializer, is_constant, read_constant


class FloatMovementPass(ir.passes.InPlacePass):
    """Gives operators that move quantized data float data instead, and quantizes their outputs again.

    Data whose scale is computed at run time is not quantized again: it would come out as it went in, except
    for rounding.

    Attributes:
        moved: Names of the nodes that were changed.
    """

    def __init__(self) -> None:
        self.moved: list[str] = []

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Works in graph order, because the second node of a chain reads what the first one quantizes."""
        self.moved = [
            node.name or ""
            for node in list(model.graph)
            if moves_integers(node) and _move_in_float(model.graph, node)
        ]
        return ir.passes.PassResult(model, modified=bool(self.moved))


def moves_integers(node: ir.Node) -> bool:
    """True if a node computes the same of values and, but for rounding, of integers that represent them."""
    operator = operator_of(node)
    return operator.selects or operator.values is Values.AVERAGED or _gives_no_data(node)


def moved_data(node: ir.Node) -> dict[int, ir.Value]:
    """The inputs whose data an operator moves, by index; empty for operators that do not move data."""
    if not moves_integers(node):
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


def _move_in_float(graph: ir.Graph, node: ir.Node) -> bool:
    """Replaces a node by one on float data; False where that cannot be done."""
    data = moved_data(node)
    parameters = _parameters(node, data)
    if parameters is None:
        return False
    inputs = list(node.inputs)
    for index, value in data.items():
        source = _float_source(graph, node, index, value, parameters)
        if source is None:
            return False
        inputs[index] = source
    if _pads_with_raw_zero(node):
        inputs[2:3] = [_raw_zero(graph, node, parameters)]
    new = ir.Node(
        "",
        node.op_type,
        inputs,
        list(node.attributes.values()),
        num_outputs=len(node.outputs),
        name=node.name,
    )
    results = operator_of(node).results
    outputs = () if _gives_no_data(node) else range(len(node.outputs)) if results is None else results
    again = with_type_of(next(iter(data.values())), parameters, graph, f"{node.name}_output")
    replace_by_float(node, new, [again if index in outputs else None for index in range(len(node.outputs))])
    return True


def _parameters(node: ir.Node, data: dict[int, ir.Value]) -> Parameters | None:
    """The scale and zero point that all of a node's data share; None where there are none, or several."""
    candidates = [p for value in data.values() if (p := _quantized_with(value)) is not None]
    if not candidates and all(map(_is_given, data.values())):
        candidates = [p for output in node.outputs for p in _dequantized_with(output)][:1]
    if not candidates or not all(agree(candidates[0], other) for other in candidates[1:]):
        return None
    scale = read_constant(candidates[0].scale)
    if (scale is None and _pads_with_raw_zero(node)) or extrapolates(node):
        return None
    return None if scale is not None and scale.size > 1 else candidates[0]


def _is_given(value: ir.Value) -> bool:
    """Whether a value is integers that no node makes: constants, or an input of the model."""
    return value.dtype in INTEGER_TYPES and (is_constant(value) or value.is_graph_input())


def _pads_with_raw_zero(node: ir.Node) -> bool:
    """Whether a Pad writes the integer 0, whatever value that represents."""
    mode = node.attributes.get_string("mode", "constant")
    return node.op_type == "Pad" and mode == "constant" and input_at(node, 2) is None


def _raw_zero(graph: ir.Graph, node: ir.Node, parameters: Parameters) -> ir.Value:
    """The value that the integer 0 represents, as a constant."""
    scale, point = read_constant(parameters.scale), read_constant(parameters.zero_point)
    assert scale is not None, "it was looked at before"
    zero = -scale.reshape(()) * np.float32(0 if point is None else point.reshape(()))
    return add_initializer(graph, f"{node.name}_padding", np.asarray(zero, np.float32))


def _quantized_with(value: ir.Value) -> Parameters | None:
    producer = value.producer()
    if producer is None or producer.op_type == "DequantizeLinear" or value is not producer.outputs[0]:
        return None
    return read_parameters(producer)


def _dequantized_with(value: ir.Value) -> Iterator[Parameters]:
    """The parameters with which nodes after a value dequantize it."""
    for reader, _ in value.uses():
        parameters = read_parameters(reader)
        if reader.op_type == "DequantizeLinear" and parameters is not None:
            yield parameters
        elif moves_integers(reader):
            for output in reader.outputs:
                yield from _dequantized_with(output)


def _float_source(
    graph: ir.Graph, node: ir.Node, index: int, value: ir.Value, parameters: Parameters
) -> ir.Value | None:
    """A node's data in float; None where the graph does not say how it was quantized."""
    if value is parameters.zero_point:
        return add_initializer(graph, f"{node.name}_input{index}_zero", np.zeros((), np.float32))
    if is_constant(parameters.scale):
        if _quantized_with(value) is None and not _is_given(value):
            return None
        return insert_dequantize(node, value, parameters, f"{node.name}_input{index}")
    quantizer = value.producer()
    return quantizer.inputs[0] if quantizer is not None and _quantized_with(value) else None
