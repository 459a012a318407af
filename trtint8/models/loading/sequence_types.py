"""Declares which values are sequences or optional: what infers types later takes all others for tensors.

Inside a model they may be; its outputs are tensors.
"""

from __future__ import annotations

import onnx

from calibrators.errors import ModelError
from calibrators.operators import operator_of
from trtint8.models.inner_graphs import message_graphs
from trtint8.models.loading.inferred_types import infer_types

#: Types of values that are no tensors, in words.
_NO_TENSORS = {"sequence_type": "a sequence", "optional_type": "optional", "map_type": "a map"}


def declare_sequences(message: onnx.ModelProto) -> None:
    """Gives the values that are no tensors the types that ONNX infers.

    Args:
        message: The model without its large weights; changed. Values whose type cannot be inferred stay as
            they are, and so do models without sequences.
    """
    graphs = list(message_graphs(message.graph))
    if not any(_holds_others(graph) for graph in graphs):
        return
    inferred = infer_types(message)
    if inferred is None:
        return  # ONNX Runtime says what is wrong with the model
    for graph, found in zip(graphs, message_graphs(inferred.graph), strict=True):
        declared = {value.name for value in graph.value_info}
        others = (value for value in found.value_info if not value.type.HasField("tensor_type"))
        graph.value_info.extend(value for value in others if value.name not in declared)


def check_outputs_are_tensors(message: onnx.ModelProto, name: str) -> None:
    """Refuses outputs that are sequences or optional.

    Args:
        message: The model.
        name: The model's name in messages.

    Raises:
        ModelError: An output is no tensor.
    """
    for output in message.graph.output:
        if output.type.WhichOneof("value") in _NO_TENSORS:
            kind = _NO_TENSORS[output.type.WhichOneof("value")]
            raise ModelError(
                f"output '{output.name}' of '{name}' is {kind}, which TensorRT does not take; remove it, or "
                "make a tensor of it"
            )


def _holds_others(graph: onnx.GraphProto) -> bool:
    return any(operator_of(node).no_tensors for node in graph.node) or any(
        not value.type.HasField("tensor_type") for value in graph.input
    )
