"""Types and shapes of a model's tensors, as far as ONNX infers them."""

from __future__ import annotations

import contextlib

import onnx

from calibrators.errors import ModelError
from trtint8.models.inner_graphs import message_graphs
from trtint8.models.onnx_errors import as_model_errors


def infer_types(message: onnx.ModelProto) -> onnx.ModelProto | None:
    """A copy of a model with the types and shapes that ONNX infers; None where it refuses the model.

    Args:
        message: The model without its large weights.
    """
    with contextlib.suppress(ModelError), as_model_errors("the model", "is refused"):
        return onnx.shape_inference.infer_shapes(message)
    return None


def correct_shapes(message: onnx.ModelProto) -> None:
    """Gives tensors the shapes that ONNX infers, where the model declares others.

    Who edits a model often leaves the shapes that tensors had before. ONNX Runtime and TensorRT do not look
    at them. A size that is a number where ONNX infers that of an input is corrected as well: that of the
    samples, where a model was exported with one and opened for any number. An output keeps such a number.

    Args:
        message: The model without its large weights; changed. Shapes that cannot be inferred stay as they
            are.
    """
    graphs = list(message_graphs(message.graph))
    if not any(graph.value_info or graph.output for graph in graphs):
        return
    bare = onnx.ModelProto()
    bare.CopyFrom(message)
    for graph in message_graphs(bare.graph):
        del graph.value_info[:]
        for output in graph.output:
            if output.type.HasField("tensor_type"):
                output.type.tensor_type.ClearField("shape")
    inferred = infer_types(bare)
    if inferred is None:
        return
    names = {dim.dim_param for value in message.graph.input for dim in value.type.tensor_type.shape.dim} - {
        ""
    }
    for graph, found in zip(graphs, message_graphs(inferred.graph), strict=True):
        known = {value.name: value.type.tensor_type for value in (*found.value_info, *found.output)}
        for values, opened in ((graph.value_info, names), (graph.output, set[str]())):
            for value in values:
                declared, right = value.type.tensor_type, known.get(value.name)
                if right is not None and _contradict(declared, right, opened):
                    declared.shape.CopyFrom(right.shape)


def _contradict(declared: onnx.TypeProto.Tensor, inferred: onnx.TypeProto.Tensor, opened: set[str]) -> bool:
    """True if both have a shape, and these cannot be those of one tensor."""
    if not declared.HasField("shape") or not inferred.HasField("shape"):
        return False
    if len(declared.shape.dim) != len(inferred.shape.dim):
        return True
    return any(
        ours.HasField("dim_value")
        and (ours.dim_value != right.dim_value if right.HasField("dim_value") else right.dim_param in opened)
        for ours, right in zip(declared.shape.dim, inferred.shape.dim, strict=True)
    )
