"""Overflow of FP16 models that ONNX Runtime hides on a CPU."""

import numpy as np
import pytest

import trtint8
from tests.trtint8.onnx_models import parsed
from trtint8.models.model import load_model
from trtint8.validation.opening import half_tensors


def stream(half, peak=1e5, between=""):
    """A product that reaches ``peak`` and is divided again, by hand in FP16 or in FP32."""
    dtype, kind = (np.float16, 10) if half else (np.float32, 1)
    return parsed(
        "float[n, 4] x",
        "float[n, 4] y",
        f"typed = Cast <to = {kind}> (x) large = MatMul (typed, w) {between} "
        f"scaled = Mul ({'back' if between else 'large'}, small) y = Cast <to = 1> (scaled)",
        w=np.full((4, 4), peak / 4, dtype),
        small=dtype(1 / peak),
    )


def ones(count=8):
    return {"x": np.ones((count, 4), np.float32)}


def test_the_tensors_in_fp16():
    assert set(half_tensors(load_model(stream(True)).graph_model)) == {"typed", "large", "scaled", "x"}
    assert half_tensors(load_model(stream(False)).graph_model) == ()
    passing = stream(False, between="half = Cast <to = 10> (large) back = Cast <to = 1> (half)")
    assert "large" in half_tensors(load_model(passing).graph_model)


@pytest.mark.parametrize(("rows", "divided"), [(8, 0), (40, 39)])
def test_validate_finds_what_overflows_on_a_gpu(rows, divided):
    """In one sample of many, too."""
    samples = ones(rows)
    samples["x"][:divided] /= 100
    with pytest.warns(UserWarning, match=r"'large' in FP16, .* 100000"):
        found = trtint8.validate(stream(True), samples, reference=stream(False), batch_size=3)
    assert "FP16 in FP32 on a CPU" in found.judged


def test_what_stays_within_fp16_gives_no_warning(recwarn):
    samples = ones()
    samples["x"][:4] /= 100
    found = trtint8.validate(stream(True, 1e4), samples, reference=stream(False, 1e4))
    assert "FP16 in FP32 on a CPU" in found.judged and not recwarn


def test_samples_that_do_not_fit_are_named_by_their_input():
    samples = {"x": np.ones((8, 3), np.float32)}
    with pytest.raises(trtint8.CalibrationDataError, match=r"'x' has shape 8x3 .* nx4"):
        trtint8.validate(stream(True), samples, reference=stream(False))
