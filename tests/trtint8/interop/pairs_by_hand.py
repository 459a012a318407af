"""Q/DQ models built by hand, with any parameters."""

import numpy as np

from tests.trtint8.onnx_models import Shaped
from trtint8.interop.lint import lint
from trtint8.models.model import load_model

ZERO = np.int8(0)


class Pairs(Shaped):
    """Builds Q/DQ models by hand, with any parameters; its convolutions have kernels of one element."""

    def op(self, operator, inputs, name, **attributes):
        kernel = {"kernel_shape": (1, 1)} if operator in ("Conv", "ConvTranspose") else {}
        return super().op(operator, inputs, name, **kernel | attributes)

    def quantize(self, tensor, scale=0.1, zero=ZERO, name="q", **attributes):
        scale = np.asarray(scale, np.float32)
        parameters = [self.constant(scale), self.constant(np.full(scale.shape, zero, np.asarray(zero).dtype))]
        quantized = self.op("QuantizeLinear", [tensor, *parameters], f"{name}_q", **attributes)
        return self.op("DequantizeLinear", [quantized, *parameters], f"{name}_dq", **attributes)

    def stored(self, whole, scale=0.1, name="w", **attributes):
        scale = np.asarray(scale, np.float32)
        zero = self.constant(np.zeros(scale.shape, whole.dtype))
        return self.op(
            "DequantizeLinear", [self.constant(whole), self.constant(scale), zero], name, **attributes
        )

    def conv(self, source, weights=None, bias=(), name="conv"):
        weights = weights or self.stored(np.ones((4, 4, 1, 1), np.int8), name=f"{name}_w")
        return self.op("Conv", [source, weights, *bias], name)


def concat_of(first, second):
    """Two convolutions' outputs, quantized with these scales and concatenated."""
    g = Pairs()
    x = g.quantize("x")
    parts = [
        g.quantize(g.conv(x, name=name), scale, name=f"{name}_part")
        for name, scale in (("a", first), ("b", second))
    ]
    joined = g.quantize(g.op("Concat", parts, "concat", axis=1), max(first, second), name="joined")
    return g, g.conv(joined, g.stored(np.ones((4, 8, 1, 1), np.int8), name="wide"), name="last")


def model_of(g, output):
    return load_model(g.model({"x": ["N", 4, 8, 8]}, output))


def rules(model):
    return [finding.rule for finding in lint(model)]


def build_rule(rule):
    g = Pairs()
    if rule == "zero-point":
        return g, g.conv(g.quantize("x", zero=np.int8(3)))
    if rule == "type":
        return g, g.conv(g.quantize("x", zero=np.uint8(0)))
    if rule == "bias-int32":
        bias = g.stored(np.ones(4, np.int32), 0.01, "b")
        return g, g.conv(g.quantize("x"), bias=[bias])
    if rule == "activation-per-channel":
        return g, g.conv(g.quantize("x", scale=[0.1, 0.2, 0.3, 0.4], axis=1))
    if rule == "scale-shape":
        return g, g.conv(g.quantize("x", scale=[0.1]))
    if rule == "scalar-constant":
        return g, g.op("Mul", [g.conv(g.quantize("x")), g.stored(np.int8(3).reshape(()), name="s")], "mul")
    if rule == "pair-before-activation":
        return g, g.op("Relu", [g.quantize(g.conv(g.quantize("x")), name="mid")], "relu")
    if rule == "one-sided":
        return g, g.op("Conv", [g.quantize("x"), g.weights(4, 4, 1, 1)], "conv")
    if rule == "weight-axis":
        weights = g.stored(np.ones((4, 4, 1, 1), np.int8), [0.1] * 4, "w", axis=1)
        return g, g.conv(g.quantize("x"), weights)
    if rule == "kernel-shape":
        weights = g.stored(np.ones((4, 4, 1, 1), np.int8))
        return g, g.op("Conv", [g.quantize("x"), weights], "conv", kernel_shape=None)
    if rule == "concat-scales":
        return concat_of(0.1, 0.2)
    raise AssertionError(rule)
