"""INT8 TensorRT engines from ONNX models.

The public names are loaded on first use, so that ``import trtint8`` is quick and needs neither TensorRT
nor ONNX Runtime.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"
