"""Weights that are changed only where samples that they were not made with gain."""

import numpy as np
import onnx

import trtint8
from tests.trtint8.onnx_models import Shaped
from tests.trtint8.tuning.networks import normal


def network():
    g = Shaped(quantized=False)
    x = g.op("Relu", [g.op("Gemm", ["x", g.weights(32, 32)], "first")], "relu")
    return g.model({"x": ["N", 32]}, g.op("Gemm", [x, g.weights(32, 8)], "second"))


def made(tmp_path, values):
    path = tmp_path / "net.onnx"
    onnx.save(network(), path)
    table = trtint8.calibrate(path, {"x": normal(32, 32)}, progress=False)
    return trtint8.write_quantized(path, table, tmp_path / "q.onnx", rounding={"x": values})


def test_few_samples_and_samples_alike_change_nothing(tmp_path):
    for values in (normal(4, 32), np.repeat(normal(1, 32), 40, axis=0)):
        files = made(tmp_path, values)
        assert files.rounded.remedies == ()
        assert files.table is None


def test_what_is_written_gives_the_same_model_again(tmp_path):
    mixed = normal(64, 4) @ normal(4, 32, seed=1)
    files = made(tmp_path, mixed)
    if files.rounded.remedies:
        again = trtint8.quantize(files.float_model, files.table)
        stored = onnx.load(files.model)
        for one, other in zip(again.graph.initializer, stored.graph.initializer, strict=True):
            assert one.raw_data == other.raw_data
    else:
        assert files.float_model is None
