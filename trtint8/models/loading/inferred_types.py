"""Types and shapes of a model's tensors, as far as ONNX infers them."""

from __future__ import annotations

import onnx


def infer_types(message: onnx.ModelProto) -> onnx.ModelProto | None:
    """A copy of a model with the types and shapes that ONNX infers; None where it refuses the model.

    Args:
        message: The model without its large weights.
    """
    try:
        return onnx.shape_inference.infer_shapes(message)
    except (onnx.shape_inference.InferenceError, ValueError, RuntimeError):
        return None
