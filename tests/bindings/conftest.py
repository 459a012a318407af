"""Tests of TensorRT's real bindings: tests/test_bindings.py starts them where those are installed."""

import os

import pytest

VERSION = os.environ.get("TRTINT8_BINDINGS")
collect_ignore_glob = [] if VERSION else ["test_*.py"]


@pytest.fixture
def trt():
    import tensorrt

    assert tensorrt.__version__.startswith(VERSION)
    return tensorrt
