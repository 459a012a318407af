"""Every member of TensorRT that the code uses is there, and takes as many arguments."""

import pytest

from tests.signatures import collect, problem
from trtint8.flavor import Flavor

USES = collect()


@pytest.mark.parametrize("use", USES, ids=lambda use: f"{use.place}-{use.owner}.{use.member}")
def test_signature(trt, use):
    assert problem(trt, Flavor("tensorrt", trt.__version__), use) is None
