"""The version of the ONNX format that a model declares."""

from __future__ import annotations

import onnx
from onnx import helper

#: The version that everything reads that trtint8 works with, ONNX Runtime 1.18 the oldest of it.
_READ_BY_ALL = 10


def lower_ir_version(message: onnx.ModelProto) -> None:
    """Declares an older version of the format where the model's operators do not need the one that it has.

    The onnx package writes its own newest version into every model, and ONNX Runtime and TensorRT refuse one
    that is newer than they are, whatever the model holds.

    Args:
        message: The model; changed.
    """
    needed = helper.find_min_ir_version_for(list(message.opset_import), ignore_unknown=True)
    message.ir_version = min(message.ir_version, max(needed, _READ_BY_ALL))
