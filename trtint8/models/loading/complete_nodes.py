"""Checks that nodes have the inputs and attributes that their operators need."""

from __future__ import annotations

from collections.abc import Iterator

import onnx
import onnx_ir as ir

from calibrators.errors import ModelError
from calibrators.operators import operator_of
from trtint8.models.inner_graphs import all_nodes

_Option = onnx.defs.OpSchema.FormalParameterOption


def check_complete(graph_model: ir.Model, name: str) -> None:
    """Refuses nodes that leave out an input or an attribute which their operators need.

    ONNX's checker does not see what is left out where a function is called, nor in a list of inputs, with
    which ONNX Runtime crashes.

    Args:
        graph_model: Any model.
        name: The model's name in messages.

    Raises:
        ModelError: Something is left out; names the node.
    """
    for node in all_nodes(graph_model):
        missing = next(_missing(node, graph_model), None)
        if missing is not None:
            made = node.outputs[0].name if node.outputs else ""
            raise ModelError(
                f"the node '{node.name or made}' ({node.op_type}) of '{name}' has no {missing}, "
                "which it needs; export the model again"
            )


def _missing(node: ir.Node, graph_model: ir.Model) -> Iterator[str]:
    """The inputs and attributes that a node needs and lacks, in words."""
    # The pairs of ONNX Runtime's own domain take what ONNX's take.
    domain = "" if operator_of(node).half_of_pair else node.domain
    try:
        schema = onnx.defs.get_schema(node.op_type, graph_model.opset_imports.get(domain, 1), domain)
    except onnx.defs.SchemaError:  # not one of ONNX's operators
        return
    for index, formal in enumerate(schema.inputs):
        if formal.option == _Option.Variadic:
            lacks = None in node.inputs[index:]
        else:
            lacks = formal.option == _Option.Single and node.inputs[index : index + 1] in ((), (None,))
        if lacks:
            yield f"input '{formal.name}'"
    for attribute in schema.attributes.values():
        if attribute.required and attribute.name not in node.attributes:
            yield f"attribute '{attribute.name}'"
    if (node.domain, node.op_type) == ("", "Constant") and not node.attributes:
        yield "value"
