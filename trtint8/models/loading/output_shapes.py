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


def _lacks_shape(output: onnx.ValueInfoProto) -> bool:
    return output.type.HasField("tensor_type") and not output.type.tensor_type.HasField("shape")
