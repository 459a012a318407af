"""What tests of the four calibrators share: their names, data, and caches as TensorRT writes them."""

import numpy as np

from calibrators.data.inputs import InputSpec
from tests.host_device import read

ALGORITHMS = {
    "EntropyCalibrator2": ("EntropyCalibration2", "ENTROPY_CALIBRATION_2", "IInt8EntropyCalibrator2"),
    "EntropyCalibrator": ("EntropyCalibration", "ENTROPY_CALIBRATION", "IInt8EntropyCalibrator"),
    "MinMaxCalibrator": ("MinMaxCalibration", "MINMAX_CALIBRATION", "IInt8MinMaxCalibrator"),
    "LegacyCalibrator": ("LegacyCalibration", "LEGACY_CALIBRATION", "IInt8LegacyCalibrator"),
}
IMAGES = InputSpec("images", np.dtype(np.float32), ("N", 3, 4, 5))
SCALES = InputSpec("scales", np.dtype(np.float32), ("N", 2))
DATA = np.random.default_rng(0).standard_normal((20, 3, 4, 5)).astype(np.float32)
MORE = np.random.default_rng(1).standard_normal((20, 2)).astype(np.float32)


def images(addresses, rows=5):
    return read(addresses[0], np.float32, (rows, 3, 4, 5))


def cache_of(kind, version="8601"):
    header = f"TRT-{version}-{ALGORITHMS[kind][0]}"
    if kind == "LegacyCalibrator":
        header = "0 3ff0000000000000 3fefff2e48e8a71e"
    return f"{header}\nimages: 3c010204\nlogits: 3d123456\n".encode()
