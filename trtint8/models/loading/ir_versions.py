"""The version of the ONNX format that a model declares."""

from __future__ import annotations

import onnx
from onnx import helper

#: The version that everything reads that trtint8 works with, ONNX Runtime 1.18 the oldest of it.
_READ_BY_ALL = 10

#: The first version whose initializers need not be listed as inputs.
_WITHOUT_LISTED_WEIGHTS = 4


def settle_ir_version(message: onnx.ModelProto) -> None:
    """Declares a version of the format that suits what is done with a model.

    An older one where the model's operators do not need the one that it has: the onnx package writes its own
    newest version into every model, and ONNX Runtime and TensorRT refuse one that is newer than they are,
    whatever the model holds.

    A newer one in place of version 3, in which all initializers are listed as inputs, as old exporters wrote
    them: they are constants there, and in later versions they are constants where they are not listed.

    Args:
        message: The model; changed.
    """
    if message.ir_version < _WITHOUT_LISTED_WEIGHTS:
        weights = {tensor.name for tensor in message.graph.initializer}
        for value in [value for value in message.graph.input if value.name in weights]:
            message.graph.input.remove(value)
        message.ir_version = _WITHOUT_LISTED_WEIGHTS
    needed = helper.find_min_ir_version_for(list(message.opset_import), ignore_unknown=True)
    message.ir_version = min(message.ir_version, max(needed, _READ_BY_ALL))
