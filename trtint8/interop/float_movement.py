"""Operators that only move data, on quantized data: brought back to float, with a pair on either side."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from trtint8.interop.pairs import (
    WHOLE,
    Parameters,
    agree,
    dequantized,
    input_at,
    parameters_of,
    supplant,
)
from trtint8.models.graph_constants import add_initializer, constant


@dataclass(frozen=True)
class _Movement:
    """What of an operator's inputs and outputs is data; None for all."""

    inputs: tuple[int, ...] | None = (0,)
    outputs: tuple[int, ...] | None = (0,)


#: Operators that give the same, but for rounding, before and after quantization.
MOVING = {
    **dict.fromkeys(
        (
            *("DepthToSpace", "Expand", "Flatten", "Gather", "GlobalMaxPool", "Identity", "MaxPool"),
            *("Reshape", "Resize", "Slice", "SpaceToDepth", "Squeeze", "Tile", "Transpose", "Unsqueeze"),
        ),
        _Movement(),
    ),
    "Concat": _Movement(inputs=None),
    "Pad": _Movement(inputs=(0, 2)),
    "Split": _Movement(outputs=None),
    "Where": _Movement(inputs=(1, 2)),
    # Their results are whole numbers of another kind.
    **dict.fromkeys(("ArgMax", "ArgMin", "Shape", "Size"), _Movement(outputs=())),
}


class FloatMovementPass(ir.passes.InPlacePass):
    """Gives operators between a quantizer and a dequantizer float data, and quantizes what they make again.

    Data whose scale is computed at run time passes unquantized: it would come out as it went in, but for
    rounding.

    Attributes:
        moved: Names of the nodes that were changed.
    """

    def __init__(self) -> None:
        self.moved: list[str] = []

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Goes in graph order, so that the first of a chain quantizes what the second reads."""
        self.moved = [
            node.name or ""
            for node in list(model.graph)
            if node.domain == "" and node.op_type in MOVING and _float(model.graph, node)
        ]
        return ir.passes.PassResult(model, modified=bool(self.moved))


def moved_data(node: ir.Node) -> dict[int, ir.Value]:
    """The inputs from which an operator takes what it moves, by index; none for other operators."""
    if node.domain != "" or node.op_type not in MOVING:
        return {}
    inputs = MOVING[node.op_type].inputs
    indices = range(len(node.inputs)) if inputs is None else inputs
    return {index: value for index in indices if (value := input_at(node, index)) is not None}


def _float(graph: ir.Graph, node: ir.Node) -> bool:
    movement, data = MOVING[node.op_type], moved_data(node)
    parameters = _parameters(node, data)
    if parameters is None:
        return False
    inputs = list(node.inputs)
    for index, value in data.items():
        source = _float_source(graph, node, index, value, parameters)
        if source is None:
            return False
        inputs[index] = source
    new = ir.Node(
        "",
        node.op_type,
        inputs,
        list(node.attributes.values()),
        num_outputs=len(node.outputs),
        name=node.name,
    )
    outputs = range(len(node.outputs)) if movement.outputs is None else movement.outputs
    supplant(node, new, [parameters if index in outputs else None for index in range(len(node.outputs))])
    return True


def _parameters(node: ir.Node, data: dict[int, ir.Value]) -> Parameters | None:
    """The one scale and zero point of all of a node's data; None where it has none, or several."""
    if _pads_with_raw_zero(node):
        return None
    found = [p for value in data.values() if (p := _quantized_with(value)) is not None]
    if not found and all(constant(value) is not None and value.dtype in WHOLE for value in data.values()):
        found = [p for output in node.outputs for p in _dequantized_with(output)][:1]
    if not found or not all(agree(found[0], other) for other in found[1:]):
        return None
    scale = constant(found[0].scale)
    return None if scale is not None and scale.size > 1 else found[0]


def _pads_with_raw_zero(node: ir.Node) -> bool:
    """Whether a Pad writes the whole number 0, which may mean any value."""
    mode = node.attributes.get_string("mode", "constant")
    return node.op_type == "Pad" and mode == "constant" and input_at(node, 2) is None


def _quantized_with(value: ir.Value) -> Parameters | None:
    producer = value.producer()
    if producer is None or producer.op_type == "DequantizeLinear" or value is not producer.outputs[0]:
        return None
    return parameters_of(producer)


def _dequantized_with(value: ir.Value) -> Iterator[Parameters]:
    """The parameters with which a value is dequantized further down."""
    for reader, _ in value.uses():
        parameters = parameters_of(reader)
        if reader.op_type == "DequantizeLinear" and parameters is not None:
            yield parameters
        elif reader.op_type in MOVING:
            for output in reader.outputs:
                yield from _dequantized_with(output)


def _float_source(
    graph: ir.Graph, node: ir.Node, index: int, value: ir.Value, parameters: Parameters
) -> ir.Value | None:
    """A node's data in float, or None where it cannot be known."""
    if value is parameters.zero:
        return add_initializer(graph, f"{node.name}_input{index}_zero", np.zeros((), np.float32))
    if constant(parameters.scale) is not None:
        if _quantized_with(value) is None and constant(value) is None:
            return None
        return dequantized(node, value, parameters, f"{node.name}_input{index}")
    quantizer = value.producer()
    return quantizer.inputs[0] if quantizer is not None and _quantized_with(value) else None
