"""Models validated on one data set."""

import numpy as np
import pytest
from onnx import TensorProto

import trtint8
from calibrators.errors import ModelError
from tests.trtint8.validation.small_models import scaled

DATA = np.eye(4, dtype=np.float32) + np.float32(1 / 3)


def test_several_models_side_by_side():
    result = trtint8.validate(
        scaled(-1.0),
        DATA,
        reference=scaled(1.0),
        also={"FP16": scaled(1.0, TensorProto.FLOAT16)},
        labels=np.arange(4),
        progress=False,
    )
    assert result.judged == "the model in ONNX Runtime"
    assert (result.top1.count, result.also["FP16"].top1.count, result.reference_top1.count) == (0, 4, 4)
    # The input is rounded to FP16, whose spacing is 2^-12 at 1/3 and 2^-10 at 4/3.
    rounded = DATA.astype(np.float16).astype(np.float64)
    assert result.also["FP16"].outputs[0].max_error == pytest.approx(np.abs(rounded - DATA).max())
    assert 0 < result.also["FP16"].outputs[0].max_error <= 2**-11


@pytest.mark.parametrize("name", ["INT8", "FP32"])
def test_names_that_are_taken(name):
    with pytest.raises(ModelError, match=f"'{name}' in also is the name of the"):
        trtint8.validate(scaled(1.0), DATA, reference=scaled(1.0), also={name: scaled(1.0)})
