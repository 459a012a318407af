"""Integers, Q/DQ pairs and convolutions in ONNX Runtime that are small enough to be exact."""

import numpy as np


def pair(g, tensor, scale, axis=None):
    scale = np.asarray(scale, np.float32)
    parameters = [g.constant(scale), g.constant(np.zeros(scale.shape, np.int8))]
    attributes = {} if axis is None else {"axis": axis}
    name = f"{tensor}_pair"
    quantized = g.op("QuantizeLinear", [tensor, *parameters], f"{name}_q", **attributes)
    return g.op("DequantizeLinear", [quantized, *parameters], f"{name}_dq", **attributes)
