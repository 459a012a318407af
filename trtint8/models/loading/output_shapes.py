"""Outputs as exporters leave them: without the type or shape that ONNX's checker wants, or listed twice."""

from __future__ import annotations

import onnx

from calibrators.user_warnings import warn_user
from trtint8.models.loading.inferred_types import infer_types


def list_outputs_once(message: onnx.ModelProto, name: str) -> None:
    """Leaves out what is listed as an output before: outputs are told by their names.

    Args:
        message: The model; changed.
        name: The model's name in messages.

    Warns:
        UserWarning: An output is listed more than once.
    """
    once: dict[str, onnx.ValueInfoProto] = {}
    again = [
        output.name for output in message.graph.output if once.setdefault(output.name, output) is not output
    ]
    if again:
        kept = [onnx.ValueInfoProto.FromString(output.SerializeToString()) for output in once.values()]
        del message.graph.output[:]
        message.graph.output.extend(kept)
        warn_user(f"'{name}' lists the output '{again[0]}' more than once, and it is given once")


def declare_output_shapes(message: onnx.ModelProto) -> None:
    """Gives the outputs that have no shape, or no type at all, the one that ONNX infers.

    Args:
        message: The model without its large weights; changed. Outputs of which nothing can be inferred stay
            as they are.
    """
    bare = [output for output in message.graph.output if _lacks_shape(output)]
    if not bare:
        return
    inferred = infer_types(message)
    if inferred is None:
        return  # the checker says what is wrong with the model
    known = (*inferred.graph.output, *inferred.graph.value_info)
    shapes = {output.name: output for output in known if not _lacks_shape(output)}
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
            output.type.tensor_type.elem_type = output.type.tensor_type.elem_type or onnx.TensorProto.FLOAT
    return message


def _lacks_shape(output: onnx.ValueInfoProto) -> bool:
    """True if an output has no shape, or no type; not of sequences and others that are no tensors."""
    tensor = output.type.tensor_type
    return output.type.WhichOneof("value") in (None, "tensor_type") and not (
        tensor.elem_type and tensor.HasField("shape")
    )
