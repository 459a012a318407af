"""Infers the shapes of tensors."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

import onnx_ir as ir
from onnx_ir.passes import common

from trtint8.models.inner_graphs import all_nodes
from trtint8.models.loading.unknown_sizes import clear_new_names, names_to_keep
from trtint8.models.loading.unregistered import HIDDEN
from trtint8.models.passes.element_types import settle_element_types

#: Domains and names of operators of which ONNX infers nothing, to operators of ONNX whose output has the same
#: type and shape.
_STAND_INS: Mapping[tuple[str, str], str] = {
    ("", "GroupNormalization"): "Identity",
    ("", "SimplifiedLayerNormalization"): "Identity",
    (HIDDEN, "GroupNormalization"): "Identity",
    (HIDDEN, "LayerNormalization"): "Identity",
    (HIDDEN, "SimplifiedLayerNormalization"): "Identity",
    (HIDDEN, "ThresholdedRelu"): "Identity",
    ("com.microsoft", "BiasGelu"): "Identity",
    ("com.microsoft", "FastGelu"): "Identity",
    ("com.microsoft", "FusedConv"): "Conv",
    ("com.microsoft", "FusedGemm"): "Gemm",
    ("com.microsoft", "Gelu"): "Identity",
    ("com.microsoft", "QuickGelu"): "Identity",
    ("com.microsoft", "SkipLayerNormalization"): "Identity",
}


class InferShapesPass(ir.passes.InPlacePass):
    """Declares the types and shapes of tensors, as far as ONNX infers them, or their neighbours tell.

    Where sizes may be 0, names that ONNX gives to unknown ones are left out; see
    :func:`trtint8.models.loading.unknown_sizes.clear_new_names`.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Infers the shapes of the main graph and of those inside its nodes."""
        keep = names_to_keep(model)
        with _stand_ins(model):
            result = common.ShapeInferencePass(check_type=False, strict_mode=False)(model)
        clear_new_names(model, keep)
        settle_element_types(model)
        return result


@contextlib.contextmanager
def _stand_ins(model: ir.Model) -> Iterator[None]:
    """Makes nodes of which ONNX infers nothing others of the same shapes, until the block ends."""
    replaced = [
        (node, node.domain, node.op_type)
        for node in all_nodes(model)
        if (node.domain, node.op_type) in _STAND_INS
    ]
    try:
        for node, domain, operator in replaced:
            node.domain, node.op_type = "", _STAND_INS[domain, operator]
        yield
    finally:
        for node, domain, operator in replaced:
            node.domain, node.op_type = domain, operator
