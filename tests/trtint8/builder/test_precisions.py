"""Precisions of single layers, and types and formats of inputs and outputs."""

import pytest

from calibrators.errors import BuildError, UnsupportedError
from trtint8.builder.precisions import data_type, match_layers


def test_patterns_of_layers():
    names = ["/a/Conv", "/b/Conv", "/b/Relu"]
    assert match_layers(names, {"*": "fp16", "/b/*": "fp32", "/b/Relu": "int8"}) == {
        "/a/Conv": "fp16",
        "/b/Conv": "fp32",
        "/b/Relu": "int8",
    }
    with pytest.raises(
        BuildError, match=r"the pattern '/c/\*' matches no layer of the network; it has for exam"
    ):
        match_layers(names, {"/c/*": "fp16"})


def test_precision_names(rtx):
    assert data_type(rtx.module, "fp16") == rtx.module.DataType.HALF
    with pytest.raises(
        UnsupportedError, match="there is no precision 'fp12' here; use one of fp32, fp16, bf16"
    ):
        data_type(rtx.module, "fp12")
