"""Declares the shapes of outputs where an exporter left them out, which ONNX's checker refuses."""

from __future__ import annotations

import onnx

from trtint8.models.loading.inferred_types import infer_types


def declare_output_shapes(message: onnx.ModelProto) -> None:
    """Gives the outputs that have no shape the one that ONNX infers.

    Args:
        message: The model without its large weights; changed. Outputs whose shape cannot be inferred stay as
            they are.
    """
    bare = [output for output in message.graph.output if _lacks_shape(output)]
    if not bare:
        return
    inferred = infer_types(message)
    if inferred is None:
        return  # the checker says what is wrong with the model
    shapes = {output.name: output for output in inferred.graph.output if not _lacks_shape(output)}
    for output in bare:
        if output.name in shapes:
            output.CopyFrom(shapes[output.name])


def with_some_shapes(message: onnx.ModelProto) -> onnx.ModelProto:
    """A message that ONNX's checker takes for the model, though nobody knows the shape of an output.

    ONNX Runtime and TensorRT find out the shapes while they run. The checker only looks whether there is one.

    Args:
        message: The model; it is changed.

    Returns:
        The model, in which outputs without a shape have that of a single number.
    """
    for output in message.graph.output:
        if _lacks_shape(output):
            output.type.tensor_type.shape.SetInParent()
    return message


def _lacks_shape(output: onnx.ValueInfoProto) -> bool:
    return output.type.HasField("tensor_type") and not output.type.tensor_type.HasField("shape")
