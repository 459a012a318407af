"""Models with ConvInteger and MatMulInteger, as ONNX Runtime's dynamic quantization writes them."""

import numpy as np

from tests.trtint8.integer_models import ABOVE_ZERO
from tests.trtint8.onnx_models import normal, parsed

DYNAMIC = "[dynamic] q, c, z = DynamicQuantizeLinear (x) "
#: The scaled integers of a node; ``k`` is the scale of its weights.
SCALED = " [cast] cast = Cast <to = 1> (node) scales = Mul (c, k) scaled = Mul (cast, scales)"


def dynamic_model(body, inputs="float[N, 4, 8, 8] x", output="float[o0, o1, o2, o3] y", **constants):
    """A model of dynamically quantized images or rows, in ONNX's own text."""
    return parsed(inputs, output, DYNAMIC * ("q =" not in body) + body, **constants)


def conv(swapped=False, per_channel=False, bias=True, static=False, folded=False):
    """The pattern around one ConvInteger, and the float weights that it stands for."""
    whole = np.random.default_rng(0).integers(0, 256, (5, 4, 3, 3)).astype(np.uint8)
    scales = np.linspace(0.01, 0.03, 5, dtype=np.float32) if per_channel else np.full(1, 0.02, np.float32)
    along = scales.reshape(-1, 1, 1)
    body = "[q] q = QuantizeLinear (x, c, z)" if static else ""
    body += "[node] node = ConvInteger <pads = [1, 1, 1, 1], strides = [2, 2]> (q, w, z, o)" + SCALED
    body += (
        " r = Reshape (b, shape) added = Add (scaled, r) y = Relu (added)" if bias else " y = Relu (scaled)"
    )
    if swapped:
        for plain, turned in (("c, k", "k, c"), ("cast, scales", "scales, cast"), ("scaled, r", "r, scaled")):
            body = body.replace(plain, turned)
    if folded:
        body, along = body.replace("scales = Mul (c, k)", "").replace("scales", "k"), np.float32(0.05) * along
    constants = {"w": whole, "o": np.uint8(131), "k": along, "b": normal(5) * np.float32(0.1)}
    constants |= {"c": np.float32(0.05), "z": ABOVE_ZERO} if static else {}
    expected = (whole.astype(np.float32) - 131) * scales.reshape(-1, 1, 1, 1)
    return dynamic_model(body, shape=np.array([1, -1, 1, 1]), **constants), expected
