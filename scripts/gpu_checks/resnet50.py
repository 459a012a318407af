"""A network of ResNet-50's size and shape, with random weights: for times only."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

INPUT, OUTPUT = "images", "logits"
SHAPE = (3, 224, 224)
CLASSES = 1000

#: Blocks, inner channels and stride of each stage (He et al., "Deep Residual Learning for Image Recognition",
#: table 1; the stride stands in the 3x3 convolution, as in torchvision).
_STAGES = ((3, 64, 1), (4, 128, 2), (6, 256, 2), (3, 512, 2))
_EXPANSION = 4
#: Of the last convolution of a block, so that sums of many blocks stay small.
_QUIET = 0.2


def resnet50() -> bytes:
    """The model, serialized: ``images`` (N, 3, 224, 224) to ``logits`` (N, 1000), float32, opset 17.

    Batch normalization is folded, as exporters leave it: 53 convolutions and a Gemm, 25.5 million parameters.
    """
    graph = _Graph()
    last = graph.relu(graph.conv(INPUT, 3, 64, 7, 2, "conv1"), "relu1")
    last = graph.node("MaxPool", [last], "pool1", kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    channels = 64
    for number, (blocks, inner, stride) in enumerate(_STAGES, 1):
        for block in range(blocks):
            step, name = stride if block == 0 else 1, f"layer{number}.{block}"
            last = graph.block(last, channels, inner, step, name)
            channels = inner * _EXPANSION
    last = graph.node("GlobalAveragePool", [last], "pool2")
    last = graph.node("Flatten", [last], "flatten", axis=1)
    weight = graph.constant("fc.weight", (CLASSES, channels), 1 / channels)
    bias = graph.constant("fc.bias", (CLASSES,), 0.01)
    graph.nodes.append(helper.make_node("Gemm", [last, weight, bias], [OUTPUT], "fc", transB=1))
    return graph.serialized()


def random_images(count: int) -> NDArray[np.float32]:
    """Standard normal values of the input's shape, the same on every call."""
    return np.random.default_rng(1).standard_normal((count, *SHAPE), np.float32)


@dataclass
class _Graph:
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: list[onnx.TensorProto] = field(default_factory=list)
    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def constant(self, name: str, shape: tuple[int, ...], variance: float) -> str:
        values = self.random.standard_normal(shape, np.float32) * np.float32(np.sqrt(variance))
        self.weights.append(numpy_helper.from_array(values, name))
        return name

    def node(self, kind: str, inputs: list[str], name: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(kind, inputs, [f"{name}.out"], name, **attributes))
        return f"{name}.out"

    def conv(
        self, source: str, inputs: int, outputs: int, size: int, stride: int, name: str, gain: float = 1.0
    ) -> str:
        shape = (outputs, inputs, size, size)
        weight = self.constant(f"{name}.weight", shape, gain**2 * 2 / (inputs * size * size))
        bias = self.constant(f"{name}.bias", (outputs,), 0.01)
        pads = [size // 2] * 4
        return self.node(
            "Conv", [source, weight, bias], name, kernel_shape=[size] * 2, strides=[stride] * 2, pads=pads
        )

    def relu(self, source: str, name: str) -> str:
        return self.node("Relu", [source], name)

    def block(self, source: str, inputs: int, inner: int, stride: int, name: str) -> str:
        outputs, shortcut = inner * _EXPANSION, source
        last = self.relu(self.conv(source, inputs, inner, 1, 1, f"{name}.conv1"), f"{name}.relu1")
        last = self.relu(self.conv(last, inner, inner, 3, stride, f"{name}.conv2"), f"{name}.relu2")
        last = self.conv(last, inner, outputs, 1, 1, f"{name}.conv3", _QUIET)
        if inputs != outputs:
            shortcut = self.conv(source, inputs, outputs, 1, stride, f"{name}.shortcut")
        return self.relu(self.node("Add", [last, shortcut], f"{name}.add"), f"{name}.relu3")

    def serialized(self) -> bytes:
        graph = helper.make_graph(
            self.nodes,
            "resnet50",
            [helper.make_tensor_value_info(INPUT, TensorProto.FLOAT, ["N", *SHAPE])],
            [helper.make_tensor_value_info(OUTPUT, TensorProto.FLOAT, ["N", CLASSES])],
            self.weights,
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        serialized: bytes = model.SerializeToString()
        return serialized
