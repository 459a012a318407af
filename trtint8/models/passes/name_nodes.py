"""Gives every node a unique name."""

from __future__ import annotations

import onnx_ir as ir

from trtint8.models.graph_constants import unused_name


class NameNodesPass(ir.passes.InPlacePass):
    """Names nodes that have no name, or the name of an earlier node, after their operator and output.

    ``keep_float`` patterns, the printed reasons and TensorRT's layer report all refer to nodes by name. Names
    that are unique already stay.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Names the nodes of the main graph."""
        taken = {node.name for node in model.graph if node.name}
        seen: set[str] = set()
        renamed = False
        for node in model.graph:
            if not node.name or node.name in seen:
                stem = f"{node.op_type}_{node.outputs[0].name if node.outputs else ''}"
                node.name, renamed = unused_name(stem, taken), True
                taken.add(node.name)
            seen.add(node.name)
        return ir.passes.PassResult(model, modified=renamed)
