import numpy as np
import pytest

from calibrators.errors import CalibrationDataError
from tests.host_device import HostDevice
from tests.trtint8.runtime.doubling import SPEC_Y, OnGpu
from trtint8.runtime.outputs import as_targets

STREAM = 0x7F00


def test_arrays_on_the_host_and_on_the_gpu():
    host, device = np.zeros((2, 3), np.float32), OnGpu(HostDevice(), np.zeros((2, 3), np.float32))
    targets = as_targets({"y": host}, (SPEC_Y,), STREAM)
    assert targets.host["y"] is host and not targets.device and targets.aligned == {}
    targets = as_targets({"y": device}, (SPEC_Y,), STREAM)
    assert targets.aligned == {"y": device.pointer} and not targets.host
    targets.check("y", (2, 3))
    with pytest.raises(CalibrationDataError, match="output 'y' has shape 4x3 and the array for it 2x3"):
        targets.check("y", (4, 3))


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        ({"z": np.zeros((2, 3), np.float32)}, "the engine has no output 'z'; it has 'y'"),
        ({"y": np.zeros((3, 2), np.float32).T}, "the array for output 'y' is read-only or not contiguous"),
        ({"y": np.broadcast_to(np.float32(0), (2, 3))}, "for output 'y' is read-only or not contiguous"),
        ({"y": np.zeros((2, 3))}, "output 'y' takes float32 but was given float64"),
        ({"y": np.zeros((2, 4), np.float32)}, r"output 'y' takes shape \?x3 but was given 2x4"),
        ({"y": np.zeros((2, 3), np.float32).tolist()}, "output 'y' takes float32 but was given float64"),
        (
            {"y": type("input_array", (), {"__array__": None})()},
            "a input_array for output 'y' does not become a NumPy array",
        ),
        ({"y": memoryview(np.zeros((2, 3), np.float32))}, "a memoryview for output 'y' cannot be written to"),
    ],
)
def test_what_does_not_fit(outputs, message):
    with pytest.raises(CalibrationDataError, match=message):
        as_targets(outputs, (SPEC_Y,), STREAM)
