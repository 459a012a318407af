"""The TensorRT that runs without a GPU."""

import pytest

from calibrators.tensorrt import flavor


@pytest.fixture(scope="session")
def rtx():
    """TensorRT for RTX, whose builder also runs without a GPU."""
    pytest.importorskip("tensorrt_rtx", reason="TensorRT for RTX is not installed")
    return flavor.load("rtx")
