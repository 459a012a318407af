"""The float model of a report."""

import onnx
import pytest

from calibrators.errors import ModelError
from tests.trtint8.onnx_models import conv_relu_conv
from trtint8.report.files import load_original


def test_a_model_with_pairs_is_refused(tmp_path):
    for name, quantized in (("float", False), ("int8", True)):
        onnx.save(conv_relu_conv(quantized=quantized), tmp_path / f"{name}.onnx")
    assert load_original(tmp_path / "float.onnx").name == "float.onnx"
    with pytest.raises(ModelError, match=r"'int8\.onnx'"):
        load_original(tmp_path / "int8.onnx")
