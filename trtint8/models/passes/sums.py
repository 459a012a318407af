"""Writes each Sum as Add nodes, which is what convolutions and their shortcuts are joined by elsewhere."""

from __future__ import annotations

import onnx_ir as ir

from trtint8.models.graph_constants import unused_name, value_names


class SumsAsAddsPass(ir.passes.InPlacePass):
    """Replaces a Sum of two tensors or more, as Caffe2 and Keras export shortcuts, by Adds of two tensors.

    The last Add keeps the node's name, and its output its name.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Rewrites the nodes of the main graph."""
        graph = model.graph
        sums = [node for node in graph if (node.domain, node.op_type) == ("", "Sum") and len(node.inputs) > 1]
        names = value_names(graph) if sums else set()
        for node in sums:
            *first, last = node.inputs
            total = first[0]
            for number, value in enumerate(first[1:], 1):
                partial = ir.node("Add", [total, value], name=f"{node.name}/{number}" if node.name else None)
                total = partial.outputs[0]
                total.name = unused_name(f"{node.outputs[0].name}_sum_{number}", names)
                total.type = node.outputs[0].type
                names.add(total.name)
                graph.insert_before(node, partial)
            add = ir.node("Add", [total, last], name=node.name)
            ir.convenience.replace_nodes_and_values(graph, node, [node], [add], node.outputs, add.outputs)
        return ir.passes.PassResult(model, bool(sums))
