"""Declares the types and shapes of outputs where an exporter left them out, which ONNX's checker refuses."""

from __future__ import annotations

import onnx

from trtint8.models.loading.inferred_types import infer_types


def list_outputs_once(message: onnx.ModelProto) -> None:
    """Removes outputs that are listed a second time: arrays are given out by name, each once.

    Args:
        message: The model; changed.
    """
    outputs: dict[str, onnx.ValueInfoProto] = {}
    for output in message.graph.output:
        outputs.setdefault(output.name, output)
    if len(outputs) < len(message.graph.output):
        kept = list(outputs.values())
        del message.graph.output[:]
        message.graph.output.extend(kept)


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
