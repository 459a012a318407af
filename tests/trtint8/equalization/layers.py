"""Networks of one layer or two."""

import numpy as np

from tests.trtint8.onnx_models import normal, parsed


def rows_network(body, output="second_out", **weights):
    """Layers that read rows of six numbers."""
    return parsed("float[N, 6] x", f"float[] {output}", body, **weights)


def two_layers(uneven=100.0, turned=False):
    """Two layers; of the first one's channels one is a hundred times larger, and little is read of it.

    The channels are the first axis between them where that is ``turned``.
    """
    random, scales = np.random.default_rng(0), np.ones(8, np.float32)
    scales[3] = uneven
    w, v, b = (random.standard_normal(shape).astype(np.float32) for shape in ((6, 8), (8, 5), 8))
    body = """[first] first_out = Gemm (x, w, b) [relu] relu_out = Relu (first_out)
        [second] second_out = Gemm (relu_out, v)"""
    if turned:
        between = "turned = Transpose (relu_out) [second] second_out = Gemm <transA = 1> (turned"
        body = body.replace("[second] second_out = Gemm (relu_out", between)
    return rows_network(body, w=w * scales, v=v / scales[:, None], b=b * np.float32(0.1))


def even():
    """Two layers whose channels are alike."""
    second = np.random.default_rng(0).choice([-1.0, -0.7, 0.7, 1.0], (60, 40))
    body = "[first] first_out = MatMul (x, w) [second] second_out = MatMul (first_out, v)"
    return rows_network(body, w=np.tile(np.eye(6, dtype=np.float32), 10), v=second.astype(np.float32))


def only_one_layer():
    return rows_network("[only] only_out = MatMul (x, w)", "only_out", w=normal(6, 5) * np.float32(0.1))
