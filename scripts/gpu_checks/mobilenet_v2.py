"""A network of MobileNetV2's size and shape, with random weights: for times only."""

from __future__ import annotations

import numpy as np
from onnx import helper

from gpu_checks.random_graph import RandomGraph
from gpu_checks.resnet50 import CLASSES, INPUT, OUTPUT, SHAPE

#: Expansion, outputs, blocks and stride of each stage (Sandler et al., "MobileNetV2: Inverted Residuals and
#: Linear Bottlenecks", table 2).
_STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
_FIRST, _LAST = 32, 1280


def mobilenet_v2() -> bytes:
    """The model, serialized: ``images`` (N, 3, 224, 224) to ``logits`` (N, 1000), float32, opset 17.

    Batch normalization is folded, as exporters leave it: 52 convolutions and a Gemm, 3.5 million parameters.
    """
    graph = RandomGraph()
    graph.fixed("zero", np.float32(0))
    graph.fixed("six", np.float32(6))
    last, channels = _relu6(graph, graph.conv(INPUT, 3, _FIRST, 3, 2, "stem"), "stem"), _FIRST
    for number, (expansion, outputs, blocks, stride) in enumerate(_STAGES, 1):
        for block in range(blocks):
            step, name = stride if block == 0 else 1, f"stage{number}.{block}"
            last = _block(graph, last, (channels, expansion * channels, outputs), step, name)
            channels = outputs
    last = _relu6(graph, graph.conv(last, channels, _LAST, 1, 1, "head"), "head")
    last = graph.node("GlobalAveragePool", [last], "pool")
    last = graph.node("Flatten", [last], "flatten", axis=1)
    weight = graph.constant("fc.weight", (CLASSES, _LAST), 1 / _LAST)
    bias = graph.constant("fc.bias", (CLASSES,), 0.01)
    graph.nodes.append(helper.make_node("Gemm", [last, weight, bias], [OUTPUT], "fc", transB=1))
    return graph.serialized("mobilenet_v2", (INPUT, ("N", *SHAPE)), (OUTPUT, ("N", CLASSES)))


def _relu6(graph: RandomGraph, source: str, name: str) -> str:
    return graph.node("Clip", [source, "zero", "six"], f"{name}.relu6")


def _block(graph: RandomGraph, source: str, channels: tuple[int, int, int], stride: int, name: str) -> str:
    inputs, inner, outputs = channels
    last = source
    if inner != inputs:
        last = _relu6(graph, graph.conv(last, inputs, inner, 1, 1, f"{name}.expand"), f"{name}.expand")
    last = graph.conv(last, inner, inner, 3, stride, f"{name}.depthwise", group=inner)
    last = _relu6(graph, last, f"{name}.depthwise")
    last = graph.conv(last, inner, outputs, 1, 1, f"{name}.project", gain=0.7)
    same = stride == 1 and inputs == outputs
    return graph.node("Add", [last, source], f"{name}.add") if same else last
