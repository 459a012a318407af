"""An encoder of BERT's and ViT's base size, with random weights: for times only."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from onnx import helper

from gpu_checks.random_graph import RandomGraph
from gpu_checks.resnet50 import CLASSES, OUTPUT

ENCODER_INPUT = "embeddings"
TOKENS, WIDTH = 128, 768
_LAYERS, _HEADS, _INNER = 12, 12, 3072


def encoder() -> bytes:
    """The model, serialized: ``embeddings`` (N, 128, 768) to ``logits`` (N, 1000), float32, opset 17.

    Twelve layers with normalization first, 12 heads and 3,072 inner channels, 86 million parameters;
    attention and GELU as exporters write them.
    """
    graph = RandomGraph()
    graph.fixed("split", np.array([0, 0, _HEADS, WIDTH // _HEADS], np.int64))
    graph.fixed("join", np.array([0, 0, WIDTH], np.int64))
    graph.fixed("scale", np.float32((WIDTH // _HEADS) ** -0.5))
    graph.fixed("sqrt2", np.float32(2**0.5))
    graph.fixed("one", np.float32(1))
    graph.fixed("half", np.float32(0.5))
    last = ENCODER_INPUT
    for number in range(_LAYERS):
        last = _attention(graph, last, f"layer{number}.attention")
        last = _feed_forward(graph, last, f"layer{number}.mlp")
    last = graph.node("ReduceMean", [_norm(graph, last, "norm")], "mean", axes=[1], keepdims=0)
    weight = graph.constant("head.weight", (WIDTH, CLASSES), 1 / WIDTH)
    bias = graph.constant("head.bias", (CLASSES,), 0.01)
    graph.nodes.append(helper.make_node("Gemm", [last, weight, bias], [OUTPUT], "head"))
    read = (ENCODER_INPUT, ("N", TOKENS, WIDTH))
    return graph.serialized("encoder", read, (OUTPUT, ("N", CLASSES)))


def random_embeddings(count: int) -> NDArray[np.float32]:
    """Standard normal values of the encoder's input shape, the same on every call."""
    return np.random.default_rng(1).standard_normal((count, TOKENS, WIDTH), np.float32)


def _norm(graph: RandomGraph, source: str, name: str) -> str:
    weight = graph.fixed(f"{name}.weight", np.ones(WIDTH, np.float32))
    bias = graph.fixed(f"{name}.bias", np.zeros(WIDTH, np.float32))
    return graph.node("LayerNormalization", [source, weight, bias], name, axis=-1, epsilon=1e-6)


def _linear(graph: RandomGraph, source: str, inputs: int, outputs: int, name: str) -> str:
    weight = graph.constant(f"{name}.weight", (inputs, outputs), 1 / inputs)
    bias = graph.constant(f"{name}.bias", (outputs,), 0.01)
    return graph.node("Add", [graph.node("MatMul", [source, weight], name), bias], f"{name}.biased")


def _attention(graph: RandomGraph, source: str, name: str) -> str:
    normal = _norm(graph, source, f"{name}.norm")
    heads = {}
    for part, order in (("query", [0, 2, 1, 3]), ("key", [0, 2, 3, 1]), ("value", [0, 2, 1, 3])):
        linear = _linear(graph, normal, WIDTH, WIDTH, f"{name}.{part}")
        split = graph.node("Reshape", [linear, "split"], f"{name}.{part}.split")
        heads[part] = graph.node("Transpose", [split], f"{name}.{part}.heads", perm=order)
    scores = graph.node("MatMul", [heads["query"], heads["key"]], f"{name}.scores")
    scaled = graph.node("Mul", [scores, "scale"], f"{name}.scaled")
    weights = graph.node("Softmax", [scaled], f"{name}.softmax", axis=-1)
    mixed = graph.node("MatMul", [weights, heads["value"]], f"{name}.mixed")
    turned = graph.node("Transpose", [mixed], f"{name}.turned", perm=[0, 2, 1, 3])
    joined = graph.node("Reshape", [turned, "join"], f"{name}.joined")
    return graph.node("Add", [source, _linear(graph, joined, WIDTH, WIDTH, f"{name}.out")], f"{name}.add")


def _feed_forward(graph: RandomGraph, source: str, name: str) -> str:
    inner = _linear(graph, _norm(graph, source, f"{name}.norm"), WIDTH, _INNER, f"{name}.up")
    part = graph.node("Erf", [graph.node("Div", [inner, "sqrt2"], f"{name}.div")], f"{name}.erf")
    gate = graph.node("Mul", [inner, graph.node("Add", [part, "one"], f"{name}.plus")], f"{name}.gate")
    activated = graph.node("Mul", [gate, "half"], f"{name}.gelu")
    down = _linear(graph, activated, _INNER, WIDTH, f"{name}.down")
    return graph.node("Add", [source, down], f"{name}.add")
