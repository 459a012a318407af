"""Explains the placement of every small model that stands for a rule; see test_explain.py."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.trtint8.onnx_models import Shaped, prepared_graph
from tests.trtint8.quantization.attention_models import FORMS, plain
from trtint8.quantization.placement import place
from trtint8.quantization.targets import target_named

GOLDEN = Path(__file__).parent / "golden" / "explain.txt"

IMAGES = {"x": ["N", 16, 8, 8]}


def conv(g, source, name, channels=16, **attributes):
    return g.Conv(name, source, g.weights(16, channels, 3, 3), pads=[1] * 4, **attributes)


def residual():
    g = Shaped()
    return g.model(IMAGES, g.Add("add", conv(g, "x", "conv"), "x"))


def two_branches():
    g = Shaped()
    joined = g.Concat("concat", conv(g, "x", "a"), conv(g, "x", "b"), axis=1)
    return g.model(IMAGES, conv(g, joined, "c", channels=32))


def upsampling(groups=1):
    g = Shaped()
    up = g.ConvTranspose("up", conv(g, "x", "conv"), g.weights(16, 16, 2, 2), group=groups)
    return g.model(IMAGES, up)


def classifier():
    g = Shaped()
    pooled = g.Flatten("flatten", g.GlobalAveragePool("pool", conv(g, "x", "conv")))
    return g.model(IMAGES, g.Gemm("head", pooled, g.weights(10, 16), transB=1))


def depthwise():
    g = Shaped()
    y = g.Conv("deep", g.Relu("relu", "x"), g.weights(16, 1, 3, 3), group=16)
    return g.model(IMAGES, g.Conv("point", y, g.weights(12, 16, 1, 1)))


def recurrent():
    """One layer of each recurrent operator, each with a linear layer before it."""
    g = Shaped()
    y = "x"
    for operator, gates in (("LSTM", 4), ("GRU", 3), ("RNN", 1)):
        y = g.MatMul(f"before_{operator}", y, g.weights(8, 8))
        weights = [g.weights(1, 8 * gates, 8), g.weights(1, 8 * gates, 8)]
        made = g.op(operator, [y, *weights], operator.lower(), hidden_size=8)
        y = g.Squeeze(f"squeeze_{operator}", made, g.constant(np.array([1])))
    return g.model({"x": [5, "N", 8]}, y)


def equation():
    g = Shaped()
    gated = g.Einsum("gate", "x", g.weights(8), equation="nij,j->nij")
    y = g.Einsum("product", gated, g.weights(8, 8), equation="nij,jk->nik")
    return g.model({"x": ["N", 4, 8]}, y)


def one_operator():
    """Attention of opset 23, between two linear layers."""
    g = Shaped()
    q, k, v = (g.MatMul(f"{name}_linear", "x", g.weights(8, 8)) for name in ("q", "k", "v"))
    y = g.Attention("attention", q, k, v, q_num_heads=2, kv_num_heads=2)
    model = g.model({"x": ["N", 4, 8]}, g.MatMul("out_linear", y, g.weights(8, 8)))
    model.opset_import[0].version = 23
    model.ir_version = 11
    return onnx.shape_inference.infer_shapes(model)


def branches():
    """A Conv before an If whose branches hold a Conv each."""
    g = Shaped()
    y = conv(g, "x", "outer")
    weights = g.weights(16, 16, 3, 3)
    made = helper.make_tensor_value_info
    inner = [
        helper.make_graph(
            [helper.make_node("Conv", [y, weights], [f"{name}_out"], name=name, pads=[1] * 4)],
            name,
            [],
            [made(f"{name}_out", TensorProto.FLOAT, ["N", 16, 8, 8])],
        )
        for name in ("then_conv", "else_conv")
    ]
    y = g.If("if", "flag", then_branch=inner[0], else_branch=inner[1])
    model = g.model(IMAGES, y)
    model.graph.input.append(made("flag", TensorProto.BOOL, []))
    return model


def convolutions(channels=16, size=8):
    """Three convolutions with activation functions between."""
    g = Shaped()
    y = "x"
    for name in "abc":
        made = g.Conv(name, y, g.weights(channels, channels, 3, 3), pads=[1] * 4)
        y = g.Relu(f"{name}_relu", made)
    return g.model({"x": ["N", channels, size, size]}, y)


def feed_forward():
    """Two linear layers among operators that are kernels of their own in any type."""
    g = Shaped()
    y = g.Erf("second", g.MatMul("wide", g.Erf("first", "x"), g.weights(64, 256)))
    return g.model({"x": ["N", 8, 16, 64]}, g.Erf("last", g.MatMul("narrow", y, g.weights(256, 64))))


def kept_linear():
    g = Shaped()
    return g.model({"x": ["N", 32]}, g.MatMul("linear", "x", g.weights(32, 32)))


#: Heading to the function that makes the model, the target and the patterns of nodes that stay in float.
CASES = {
    f"attention, {name.replace('_', ' ')}: tensorrt": (form, "tensorrt", ()) for name, form in FORMS.items()
}
CASES |= {
    f"attention of {words}: {target}": (lambda sizes=sizes: plain(**sizes), target, ())
    for target, words, sizes in (
        ("rtx", "heads of 48", {"head": 48}),
        ("rtx", "600 keys", {"length": 8, "keys": 600}),
        ("rtx", "600 queries", {"length": 600, "keys": 8}),
        ("tensorrt-10", "600 queries", {"length": 600, "keys": 32}),
        ("rtx", "any length", {"length": "length"}),
        ("rtx", "one head", {"heads": 1}),
        ("rtx", "one query of four heads", {"length": 1, "keys": 50, "heads": 4}),
        ("dla", "the usual form", {}),
    )
}
CASES |= {
    "attention whose first product is kept in float: rtx": (plain, "rtx", ("scores",)),
    "attention whose next layer is kept in float: rtx": (plain, "rtx", ("out_linear",)),
    "residual: tensorrt": (residual, "tensorrt", ()),
    "two branches: tensorrt": (two_branches, "tensorrt", ()),
    "upsampling: tensorrt": (upsampling, "tensorrt", ()),
    "upsampling: rtx": (upsampling, "rtx", ()),
    "upsampling by groups: tensorrt": (lambda: upsampling(2), "tensorrt", ()),
    "upsampling by groups: tensorrt-8.6": (lambda: upsampling(2), "tensorrt-8.6", ()),
    "upsampling by groups: dla": (lambda: upsampling(2), "dla", ()),
    "classifier: tensorrt-11": (classifier, "tensorrt-11", ()),
    "classifier: dla": (classifier, "dla", ()),
    "depthwise: tensorrt-10": (depthwise, "tensorrt-10", ()),
    "recurrent: rtx": (recurrent, "rtx", ()),
    "Einsum: rtx": (equation, "rtx", ()),
    "Attention: rtx": (one_operator, "rtx", ()),
    "If: rtx": (branches, "rtx", ()),
    "kept: tensorrt": (kept_linear, "tensorrt", ("lin*",)),
    "convolutions of few channels: rtx with FP16": (convolutions, "rtx", ()),
    "convolutions of few channels: rtx": (convolutions, "rtx", ()),
    "convolutions of many channels: rtx with FP16": (lambda: convolutions(256, 16), "rtx", ()),
    "depthwise: rtx with FP16": (depthwise, "rtx", ()),
    "residual: rtx with FP16": (residual, "rtx", ()),
    "feed-forward: rtx with FP16": (feed_forward, "rtx", ()),
    "attention, the usual form: rtx with FP16": (plain, "rtx", ()),
}


def explained(heading):
    """The decisions of one case, a line for each, and how many nodes that multiply run in INT8."""
    form, target, kept = CASES[heading]
    model = prepared_graph(form())
    placement = place(model, kept, target_named(target), float16=heading.endswith(" with FP16"))
    lines = [
        " | ".join((found.node, found.operator, "INT8" if found.quantized else "float", found.reason))
        for found in placement.decisions
    ]
    return "\n".join([*lines, f"{len(placement.quantized_nodes)} of {placement.multiplying} in INT8"])


if __name__ == "__main__":
    GOLDEN.parent.mkdir(exist_ok=True)
    GOLDEN.write_text("\n\n".join(f"== {heading}\n{explained(heading)}" for heading in CASES) + "\n")
