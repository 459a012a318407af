from types import SimpleNamespace

import pytest

from calibrators.errors import CalibrationDataError
from trtint8.runtime.streams import stream_handle


class OfCudaCore:
    def __cuda_stream__(self):
        return 0, 0x7F00


@pytest.mark.parametrize(
    ("stream", "handle"),
    [
        (0x7F00, 0x7F00),
        (1, 1),
        (0, 1),  # the legacy default stream by its other number
        (OfCudaCore(), 0x7F00),
        (SimpleNamespace(cuda_stream=0x7F01), 0x7F01),
        (SimpleNamespace(cuda_stream=0), 1),
        (SimpleNamespace(ptr=0x7F02), 0x7F02),
        (SimpleNamespace(handle=0x7F03), 0x7F03),
    ],
)
def test_streams_of_every_library(stream, handle):
    assert stream_handle(stream) == handle


@pytest.mark.parametrize("stream", ["stream", None, -1, SimpleNamespace(handle="x")])
def test_what_is_no_stream(stream):
    with pytest.raises(CalibrationDataError, match="is no CUDA stream; give one of PyTorch, CuPy or PyCUDA"):
        stream_handle(stream)
