"""Models whose large weights are kept beside the message that declares them.

Protobuf copies every byte whenever a message is serialized, parsed or changed. Without its weights a message
goes through all of that in no time, and ONNX Runtime takes the weights from where they lie.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx
from numpy.typing import NDArray

#: What the message says of a weight's values: they are external, in a file that does not exist.
LOCATION = "in memory"

#: Bytes from which a weight is worth being kept apart.
LARGE = 1 << 12


@dataclass(frozen=True, eq=False)
class LightModel:
    """A model in two parts.

    Attributes:
        message: The model; its large float32 initializers have type and shape, but no values.
        weights: The values by name, read-only.
    """

    message: onnx.ModelProto
    weights: Mapping[str, NDArray[np.float32]]

    @classmethod
    def take(cls, message: onnx.ModelProto) -> LightModel:
        """Takes a message apart.

        Args:
            message: Is changed, and becomes part of the result.
        """
        weights = {}
        for tensor in message.graph.initializer:
            if tensor.data_type == onnx.TensorProto.FLOAT and len(tensor.raw_data) >= LARGE:
                values = np.frombuffer(tensor.raw_data, "<f4")
                if values.size != np.prod(tensor.dims, dtype=np.int64):
                    continue  # it is invalid; whoever reads it will say so
                weights[tensor.name] = values.reshape(tuple(tensor.dims))
                tensor.ClearField("raw_data")
                tensor.data_location = onnx.TensorProto.EXTERNAL
                tensor.external_data.add(key="location", value=LOCATION)
        return cls(message, weights)

    def checkable(self) -> onnx.ModelProto:
        """A message that ONNX's checker, which would look for external data in files, takes for the model.

        Returns:
            The graph with the weights among its inputs, so that nothing lacks values.
        """
        found = onnx.ModelProto()
        found.CopyFrom(self.message)
        graph = found.graph
        inputs = {value.name for value in graph.input}
        for index in reversed(range(len(graph.initializer))):
            tensor = graph.initializer[index]
            if tensor.name in self.weights:
                if tensor.name not in inputs:
                    shape = list(tensor.dims)
                    graph.input.append(
                        onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, shape)
                    )
                del graph.initializer[index]
        return found
