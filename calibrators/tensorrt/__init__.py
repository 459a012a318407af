"""TensorRT's own calibrators, and which TensorRT is here.

The four calibrators are loaded on first use: ``from calibrators.tensorrt import EntropyCalibrator2``.
"""

from __future__ import annotations

import importlib
from typing import Any

__all__ = [
    "EntropyCalibrator",
    "EntropyCalibrator2",
    "LegacyCalibrator",
    "MinMaxCalibrator",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'calibrators.tensorrt' has no attribute '{name}'")
    return importlib.import_module("calibrators.tensorrt.calibrators").installed_calibrator(name)
