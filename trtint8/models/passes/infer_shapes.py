"""Infers the shapes of tensors."""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes import common

from trtint8.models.unknown_sizes import clear_new_names, names_to_keep


class InferShapesPass(ir.passes.InPlacePass):
    """Declares the types and shapes of tensors, as far as ONNX infers them.

    Where sizes may be 0, names that ONNX gives to unknown ones are left out; see
    :func:`trtint8.models.unknown_sizes.clear_new_names`.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Infers the shapes of the main graph and of those inside its nodes."""
        keep = names_to_keep(model)
        result = common.ShapeInferencePass(check_type=False, strict_mode=False)(model)
        clear_new_names(model, keep)
        return result
