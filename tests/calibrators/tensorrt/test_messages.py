"""What TensorRT says, in plain words."""

import pytest

from calibrators.tensorrt.messages import BuildLog, plain


# Messages.
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("false", "TensorRT does not support this operator"),
        ('creator && "Plugin not found, are the plugin name..."', "TensorRT does not support this operator"),
        ("Assertion failed: (a || b): Scale must be positive", "Scale must be positive"),
        ("onnxOpImporters.cpp:1980: Defaulting to INT8 instead.", "Defaulting to INT8 instead"),
        (
            "IBuilder::buildSerializedNetwork: Error Code 1: Myelin ([pass.cpp:337: check_op] Cannot "
            "compile 'fc' (SM75): no FP32 GEMM. In compileGraph at /_src/optimizer/codeGenerator.cpp:2012)",
            "Cannot compile 'fc' (SM75): no FP32 GEMM",
        ),
        ("[checkMacros.cpp::catchCudaError::250] Error Code 1: Cuda Runtime (cudaError 35)", ""),
    ],
)
def test_plain_words(text, words):
    assert plain(text) == words


def test_reason_is_never_empty():
    assert BuildLog().reason() == "TensorRT gave no reason"
    assert BuildLog(errors=["a", "b", "c", "c"]).reason() == "b; c"
