"""A small float model, and its results."""

import numpy as np
import onnx
import onnxruntime as ort

from tests.trtint8.onnx_models import conv_relu_conv


def small():
    return onnx.shape_inference.infer_shapes(conv_relu_conv(quantized=False))


def run(model, x):
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"images": x})[0]


def images():
    return np.random.default_rng(1).standard_normal((2, 3, 16, 16)).astype(np.float32)
