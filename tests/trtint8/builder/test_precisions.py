"""Precisions of single layers, and types and formats of inputs and outputs."""

from types import SimpleNamespace

import numpy as np
import pytest

from calibrators.errors import BuildError, UnsupportedError
from trtint8.builder.options import BuildOptions
from trtint8.builder.precisions import data_type, io_dtypes, match_layers, set_io


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


def test_brackets_stand_for_themselves():
    """TensorRT gives them to layers that a network's author has given no name."""
    names = [f"(Unnamed Layer* {index}) [{kind}]" for index, kind in enumerate(["Pooling", "Convolution"])]
    assert match_layers(names, {"*[Conv*]": "fp32"}) == {names[1]: "fp32"}
    assert match_layers(names, {names[0]: "fp16"}) == {names[0]: "fp16"}
    with pytest.raises(BuildError, match="matches no layer"):
        match_layers(names, {"*[PC]*": "fp32"})


def test_precision_names(rtx):
    assert data_type(rtx.module, "fp16") == rtx.module.DataType.HALF
    with pytest.raises(
        UnsupportedError, match="there is no precision 'fp12' here; use one of fp32, fp16, bf16"
    ):
        data_type(rtx.module, "fp12")


def test_types_at_the_ends_are_those_that_were_set(rtx):
    types = rtx.module.DataType
    tensors = {
        "ids": SimpleNamespace(name="ids", dtype=types.INT32),  # as before version 10, where ONNX has INT64
        "images": SimpleNamespace(name="images", dtype=types.FLOAT),
        "packed": SimpleNamespace(name="packed", dtype=types.INT4),
        "y": SimpleNamespace(name="y", dtype=types.FLOAT),
    }
    names = list(tensors)
    network = SimpleNamespace(
        num_inputs=3,
        num_outputs=1,
        get_input=lambda index: tensors[names[index]],
        get_output=lambda index: tensors[names[3 + index]],
    )
    set_io(rtx.module, network, BuildOptions(io_types={"images": "int8", "y": "fp16"}))
    assert io_dtypes(rtx.module, network) == {
        "ids": np.dtype(np.int32),
        "images": np.dtype(np.int8),
        "y": np.dtype(np.float16),
    }
