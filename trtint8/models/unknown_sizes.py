"""Sizes of dimensions that are declared, but not known."""

from __future__ import annotations

import onnx

from trtint8.models.inner_graphs import message_graphs

#: The name under which converters of PaddlePaddle write every size that they do not know.
_NO_NAME = "?"


def clear_unknown_sizes(message: onnx.ModelProto) -> None:
    """Removes sizes that say only that a size is not known: -1, and the name ``?``.

    In ONNX a size is a number that is not negative, and equal names are equal sizes; so -1 would be a wrong
    size, and two dimensions called ``?`` would have to be equal.

    Args:
        message: The model; changed.
    """
    for graph in message_graphs(message.graph):
        for value in (*graph.input, *graph.output, *graph.value_info):
            if value.type.HasField("tensor_type"):
                for dimension in value.type.tensor_type.shape.dim:
                    if dimension.dim_value < 0 or dimension.dim_param == _NO_NAME:
                        dimension.ClearField("value")
