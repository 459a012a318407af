"""Models with ConvInteger and MatMulInteger, as ONNX Runtime's dynamic quantization writes them."""

import numpy as np
from onnx import helper

from tests.trtint8.integer_models import Integers

IMAGES = {"x": ["N", 4, 8, 8]}


class Dynamic(Integers):
    def quantize_dynamic(self, tensor, name="dynamic"):
        outputs = [f"{name}_q", f"{name}_s", f"{name}_z"]
        self.nodes.append(helper.make_node("DynamicQuantizeLinear", [tensor], outputs, name=name))
        return outputs

    def scaled(self, whole, scales, swapped=False):
        cast = self.op("Cast", [whole], "cast", to=1)
        product = scales[0] if len(scales) == 1 else self.op("Mul", scales, "scales")
        return self.op("Mul", [product, cast] if swapped else [cast, product], "scaled")


def conv(swapped=False, per_channel=False, bias=True, static=False, folded=False):
    """The pattern around one ConvInteger, and the float weights that it stands for."""
    g = Dynamic()
    data, scale, zero = g.quantize("x", 0.05) if static else g.quantize_dynamic("x")
    whole = g.random.integers(0, 256, (5, 4, 3, 3)).astype(np.uint8)
    scales = np.linspace(0.01, 0.03, 5, dtype=np.float32) if per_channel else np.full(1, 0.02, np.float32)
    along = scales.reshape(-1, 1, 1)
    weights = [g.constant(whole), zero, g.constant(np.uint8(131))]
    y = g.op("ConvInteger", [data, *weights], "node", pads=[1] * 4, strides=[2, 2])
    factors = [scale, g.constant(along)]
    if folded:
        factors = [g.constant(np.float32(0.05) * along)]
    y = g.scaled(y, factors[::-1] if swapped else factors, swapped)
    if bias:
        values = g.op("Reshape", [g.weights(5), g.constant(np.array([1, -1, 1, 1]))], "reshape")
        y = g.op("Add", [values, y] if swapped else [y, values], "bias")
    expected = (whole.astype(np.float32) - 131) * scales.reshape(-1, 1, 1, 1)
    return g.proto(IMAGES, g.op("Relu", [y], "relu"), 4), expected
