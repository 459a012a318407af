"""Types and shapes of a model's tensors, as far as ONNX infers them."""

from __future__ import annotations

import contextlib

import onnx

from calibrators.errors import ModelError
from trtint8.models.onnx_errors import as_model_errors


def infer_types(message: onnx.ModelProto) -> onnx.ModelProto | None:
    """A copy of a model with the types and shapes that ONNX infers; None where it refuses the model.

    Args:
        message: The model without its large weights.
    """
    with contextlib.suppress(ModelError), as_model_errors("the model", "is refused"):
        return onnx.shape_inference.infer_shapes(message)
    return None
