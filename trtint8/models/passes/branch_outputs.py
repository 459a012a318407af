"""Lets branches compute what they return."""

from __future__ import annotations

import onnx_ir as ir

from trtint8.models.inner_graphs import inner_graphs


class ComputeBranchOutputsPass(ir.passes.InPlacePass):
    """Puts an Identity before every output of a branch or loop body that is a tensor from outside of it.

    ONNX does not allow a graph inside a node to return such a tensor directly, which is what is left of it
    when an Identity is eliminated.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Looks at the graphs of all nodes, however deep."""
        added = 0
        for node in ir.traversal.RecursiveGraphIterator(model.graph):
            added += sum(map(_compute_outputs, inner_graphs(node)))
        return ir.passes.PassResult(model, added > 0)


def _compute_outputs(graph: ir.Graph) -> int:
    own = {id(value) for value in (*graph.inputs, *graph.initializers.values())}
    own |= {id(value) for node in graph for value in node.outputs}
    added = 0
    for index, value in enumerate(graph.outputs):
        if id(value) not in own:
            name = f"{value.name}_of_{graph.name}_{index}"
            output = ir.Value(name=name, shape=value.shape, type=value.type)
            graph.append(ir.Node("", "Identity", [value], outputs=[output]))
            graph.outputs[index] = output
            added += 1
    return added
