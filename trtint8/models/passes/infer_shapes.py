"""Infers the shapes of tensors."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import onnx
import onnx_ir as ir
from onnx_ir.passes import common

from calibrators.operators import operator_named
from trtint8.models.inner_graphs import all_nodes
from trtint8.models.loading.unknown_sizes import clear_new_names, names_to_keep
from trtint8.models.loading.unregistered import HIDDEN
from trtint8.models.passes.element_types import settle_element_types


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
        (node, node.domain, node.op_type, stand_in)
        for node in all_nodes(model)
        if (stand_in := _stand_in(node)) is not None
    ]
    try:
        for node, _, _, stand_in in replaced:
            node.domain, node.op_type = "", stand_in
        yield
    finally:
        for node, domain, operator, _ in replaced:
            node.domain, node.op_type = domain, operator


def _stand_in(node: ir.Node) -> str | None:
    """The operator of ONNX whose output has the type and shape of a node's, of which ONNX infers nothing."""
    hidden = node.domain == HIDDEN
    stand_in = operator_named(node.op_type, "" if hidden else node.domain).stand_in
    if not stand_in or hidden or node.domain or not onnx.defs.has(node.op_type):
        return stand_in or None
    inferred = onnx.defs.get_schema(node.op_type).has_type_and_shape_inference_function
    return None if inferred else stand_in
