"""A network of ResNet-50's size and shape, with random weights: for times only."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from onnx import helper

from gpu_checks.random_graph import RandomGraph

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
    graph = RandomGraph()
    last = graph.relu(graph.conv(INPUT, 3, 64, 7, 2, "conv1"), "relu1")
    last = graph.node("MaxPool", [last], "pool1", kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    channels = 64
    for number, (blocks, inner, stride) in enumerate(_STAGES, 1):
        for block in range(blocks):
            step, name = stride if block == 0 else 1, f"layer{number}.{block}"
            last = _block(graph, last, channels, inner, step, name)
            channels = inner * _EXPANSION
    last = graph.node("GlobalAveragePool", [last], "pool2")
    last = graph.node("Flatten", [last], "flatten", axis=1)
    weight = graph.constant("fc.weight", (CLASSES, channels), 1 / channels)
    bias = graph.constant("fc.bias", (CLASSES,), 0.01)
    graph.nodes.append(helper.make_node("Gemm", [last, weight, bias], [OUTPUT], "fc", transB=1))
    return graph.serialized("resnet50", (INPUT, ("N", *SHAPE)), (OUTPUT, ("N", CLASSES)))


def random_images(count: int) -> NDArray[np.float32]:
    """Standard normal values of the input's shape, the same on every call."""
    return np.random.default_rng(1).standard_normal((count, *SHAPE), np.float32)


def _block(graph: RandomGraph, source: str, inputs: int, inner: int, stride: int, name: str) -> str:
    outputs, shortcut = inner * _EXPANSION, source
    last = graph.relu(graph.conv(source, inputs, inner, 1, 1, f"{name}.conv1"), f"{name}.relu1")
    last = graph.relu(graph.conv(last, inner, inner, 3, stride, f"{name}.conv2"), f"{name}.relu2")
    last = graph.conv(last, inner, outputs, 1, 1, f"{name}.conv3", gain=_QUIET)
    if inputs != outputs:
        shortcut = graph.conv(source, inputs, outputs, 1, stride, f"{name}.shortcut")
    return graph.relu(graph.node("Add", [last, shortcut], f"{name}.add"), f"{name}.relu3")
