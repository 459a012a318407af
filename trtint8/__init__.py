"""INT8 TensorRT engines from ONNX models.

The public names are loaded on first use, so that ``import trtint8`` is quick and needs neither TensorRT
nor ONNX Runtime.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_PUBLIC = {
    "Accuracy": "trtint8.validation.accuracy",
    "BuildOptions": "trtint8.builder.options",
    "BuildResult": "trtint8.int8_engine",
    "CalibrationTable": "calibrators.tables.table",
    "Engine": "trtint8.runtime.engine",
    "EngineInfo": "trtint8.engine.file",
    "InputSpec": "calibrators.data.inputs",
    "Preprocessing": "calibrators.data.preprocessing",
    "RayExecutor": "calibrators.ray.executor",
    "ShapeRange": "trtint8.engine.profiles",
    "TrtInt8Error": "calibrators.errors",
    "build_int8_engine": "trtint8.int8_engine",
    "calibrate": "trtint8.calibration",
    "measure_sensitivity": "trtint8.api",
    "model_inputs": "trtint8.api",
    "quantize": "trtint8.api",
    "read_engine_info": "trtint8.engine.file",
    "tune": "trtint8.api",
    "validate": "trtint8.api",
}

__all__ = ["__version__", *_PUBLIC]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'trtint8' has no attribute '{name}'")
    return getattr(importlib.import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return __all__
