"""Puts the nodes of a model's own functions in the place of the nodes that call them."""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes import common


class InlineFunctionsPass(ir.passes.InPlacePass):
    """Inlines all functions.

    Nodes keep the names that they have in a function, with numbers behind them where it is called more than
    once. Those without a name are named after the function and their operator: onnx-ir would call all of
    them ``node``.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Inlines the functions of the model."""
        for function in model.functions.values():
            for node in function.all_nodes():
                node.name = node.name or f"{function.name}_{node.op_type}"
        return common.InlinePass()(model)
