"""Writes networks with random weights, the same on every call."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

#: Name and shape of an input or output.
Tensor = tuple[str, tuple[int | str, ...]]


@dataclass
class RandomGraph:
    """The nodes and weights of a network that is being written.

    Attributes:
        nodes: The nodes, in graph order.
        weights: The constants.
        random: Where the weights come from.
    """

    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: list[onnx.TensorProto] = field(default_factory=list)
    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def constant(self, name: str, shape: tuple[int, ...], variance: float) -> str:
        """Adds normal weights of the given variance; returns their name."""
        values = self.random.standard_normal(shape, np.float32) * np.float32(np.sqrt(variance))
        return self.fixed(name, values)

    def fixed(self, name: str, values: np.ndarray | np.generic) -> str:
        """Adds a constant of given values; returns its name."""
        self.weights.append(numpy_helper.from_array(np.asarray(values), name))
        return name

    def node(self, kind: str, inputs: list[str], name: str, **attributes: Any) -> str:
        """Adds a node; returns the name of its output."""
        self.nodes.append(helper.make_node(kind, inputs, [f"{name}.out"], name, **attributes))
        return f"{name}.out"

    def conv(
        self,
        source: str,
        inputs: int,
        outputs: int,
        size: int,
        stride: int,
        name: str,
        *,
        gain: float = 1.0,
        group: int = 1,
    ) -> str:
        """Adds a convolution with a bias, padded by half of its kernel; returns the name of its output."""
        shape = (outputs, inputs // group, size, size)
        weight = self.constant(f"{name}.weight", shape, gain**2 * 2 / (inputs // group * size * size))
        bias = self.constant(f"{name}.bias", (outputs,), 0.01)
        attributes: dict[str, Any] = {} if group == 1 else {"group": group}
        attributes |= {"kernel_shape": [size] * 2, "strides": [stride] * 2, "pads": [size // 2] * 4}
        return self.node("Conv", [source, weight, bias], name, **attributes)

    def relu(self, source: str, name: str) -> str:
        """Adds a Relu; returns the name of its output."""
        return self.node("Relu", [source], name)

    def serialized(self, name: str, read: Tensor, written: Tensor) -> bytes:
        """The model, of opset 17, with one float32 input and one float32 output."""
        graph = helper.make_graph(
            self.nodes,
            name,
            [helper.make_tensor_value_info(read[0], TensorProto.FLOAT, read[1])],
            [helper.make_tensor_value_info(written[0], TensorProto.FLOAT, written[1])],
            self.weights,
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        serialized: bytes = model.SerializeToString()
        return serialized
