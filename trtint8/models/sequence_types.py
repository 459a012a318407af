"""Declares which values are sequences or optional: what infers types later takes all others for tensors."""

from __future__ import annotations

import onnx

from trtint8.models.inner_graphs import message_graphs

#: Operators that make sequences or optional values of tensors, or of nothing.
_MAKING = frozenset({"Optional", "SequenceConstruct", "SequenceEmpty", "SequenceMap", "SplitToSequence"})


def declare_sequences(message: onnx.ModelProto) -> None:
    """Gives the values that are no tensors the types that ONNX infers.

    Args:
        message: The model without its large weights; changed. Values whose type cannot be inferred stay as
            they are, and so do models without sequences.
    """
    graphs = list(message_graphs(message.graph))
    if not any(_holds_others(graph) for graph in graphs):
        return
    try:
        inferred = onnx.shape_inference.infer_shapes(message)
    except (onnx.shape_inference.InferenceError, ValueError, RuntimeError):
        return  # ONNX Runtime says what is wrong with the model
    for graph, found in zip(graphs, message_graphs(inferred.graph), strict=True):
        declared = {value.name for value in graph.value_info}
        others = (value for value in found.value_info if not value.type.HasField("tensor_type"))
        graph.value_info.extend(value for value in others if value.name not in declared)


def _holds_others(graph: onnx.GraphProto) -> bool:
    return any(node.op_type in _MAKING and not node.domain for node in graph.node) or any(
        not value.type.HasField("tensor_type") for value in graph.input
    )
