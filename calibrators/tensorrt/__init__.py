"""TensorRT's own calibrators, and which TensorRT is here.

The four calibrators are loaded on first use: ``from calibrators.tensorrt import EntropyCalibrator2``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

__all__ = ["EntropyCalibrator", "EntropyCalibrator2", "LegacyCalibrator", "MinMaxCalibrator"]

if TYPE_CHECKING:
    from calibrators.tensorrt.calibrator import Calibrator as EntropyCalibrator
    from calibrators.tensorrt.calibrator import Calibrator as EntropyCalibrator2
    from calibrators.tensorrt.calibrator import Calibrator as MinMaxCalibrator
    from calibrators.tensorrt.calibrators import Legacy as LegacyCalibrator
else:

    def __getattr__(name: str) -> type:
        if name not in __all__:
            raise AttributeError(f"module 'calibrators.tensorrt' has no attribute '{name}'")
        return importlib.import_module("calibrators.tensorrt.calibrators").installed_calibrator(name)
