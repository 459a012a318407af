"""Removes nodes that pass a tensor on."""

from __future__ import annotations

import onnx_ir as ir


class RemoveIdentitiesPass(ir.passes.InPlacePass):
    """Removes the Identity nodes of the main graph, and Casts to the type that a tensor has.

    Those of branches and loop bodies stay: ONNX does not allow a graph inside a node to return a tensor from
    outside of it directly.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Removes such a node unless outputs of the model would lose their names."""
        removed = sum(map(_remove, [node for node in model.graph if _passes_on(node)]))
        return ir.passes.PassResult(model, removed > 0)


def _passes_on(node: ir.Node) -> bool:
    if node.domain != "":
        return False
    if node.op_type != "Cast":
        return node.op_type == "Identity"
    source, wanted = node.inputs[0], node.attributes["to"].as_int()
    return source is not None and source.dtype is not None and source.dtype == wanted


def _remove(node: ir.Node) -> bool:
    (passed,), (output,) = node.inputs, node.outputs
    if passed is None:
        return False
    if output.is_graph_output():
        if passed.is_graph_input() or passed.is_initializer() or passed.is_graph_output():
            return False
        passed.name = output.name
    passed.shape = passed.shape or output.shape
    passed.type = passed.type or output.type
    output.replace_all_uses_with(passed, replace_graph_outputs=True)
    assert node.graph is not None
    node.graph.remove(node, safe=True)
    return True
