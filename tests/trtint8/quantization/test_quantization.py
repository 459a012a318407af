"""Models that are calibrated, quantized and run, for what a rule of placement alone does not show."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

import trtint8
from tests.trtint8.onnx_models import constants_of, normal, parsed, prepared_graph
from trtint8.quantization.placement import place

TIED = normal(8, 8)


@pytest.mark.parametrize(
    ("reader", "axis"), [("MatMul", 1), ("Gemm <transB = 1>", 0), ("Gemm <transB = 0>", 1)]
)
@pytest.mark.parametrize("method", ["minmax", "auto"])
def test_a_weight_that_is_an_embedding_as_well_has_one_scale_per_channel(reader, axis, method):
    body = f"rows = Gather (w, ids) y = {reader} (rows, w)"
    model = parsed("int64[4] ids", "float[4, 8] y", body, w=TIED)
    feeds = [{"ids": np.arange(4)}, {"ids": np.arange(4, 8)}]
    quantized = trtint8.quantize(model, trtint8.calibrate(model, feeds, method=method))
    scales = constants_of(quantized)
    assert scales["rows_scale"].shape == ()
    assert_allclose(scales["w_scale"], np.abs(TIED).max(axis=1 - axis) / 127, rtol=1e-6)
    (result,) = trtint8.validate(quantized, feeds, reference=model).outputs
    assert result.sqnr_db > 30


def test_layers_without_weights_stay_in_float():
    """An adapter of rank 0, as it is exported where a network has none."""
    body = "[a] a = MatMul (x, w) b = MatMul (x, down) c = MatMul (b, up) y = Add (a, c)"
    empty = {"down": np.zeros((8, 0), np.float32), "up": np.zeros((0, 8), np.float32)}
    model, data = (
        parsed("float[n, 8] x", "float[n, 8] y", body, w=normal(8, 8), **empty),
        normal(8, 8, seed=1),
    )
    assert place(prepared_graph(model)).quantized_nodes == ("a",)
    quantized = trtint8.quantize(model, trtint8.calibrate(model, data))
    (result,) = trtint8.validate(quantized, data, reference=model).outputs
    assert result.sqnr_db > 30
