"""Operators that ONNX's converter gives another meaning, or makes invalid, on the way to a newer opset."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import onnx_ir as ir

from calibrators.errors import ModelError
from trtint8.models.graph_constants import constant_input, unused_name, value_names


def refuse_old_operators(graph_model: ir.Model, name: str) -> None:
    """Refuses operators of an old opset that no newer one has, which ONNX's converter does not name.

    Args:
        graph_model: The model before it is converted.
        name: The model's name in messages.

    Raises:
        ModelError: A BatchNormalization has statistics for each position, and not for each channel.
    """
    for node in graph_model.graph.all_nodes():
        if node.op_type == "BatchNormalization" and node.attributes.get_int("spatial", 1) == 0:
            raise ModelError(
                f"the BatchNormalization of '{name}' that makes '{node.outputs[0].name}' has statistics for "
                "each position (spatial=0), which no opset from 9 on has; write it as a Mul and an Add, or "
                "export the model with a newer opset"
            )


def mend_old_operators(converted: ir.Model, opset: int, name: str) -> None:
    """Gives operators of a converted model, those of branches and loop bodies too, their old meaning again.

    Args:
        converted: What ONNX's converter made of a model, of opset 13 or later; changed in place.
        opset: The opset that the model had before.
        name: The model's name in messages.

    Raises:
        ModelError: An operator's old meaning cannot be written in the new opset.
    """
    mends = {operator: mend for operator, (changed, mend) in _MENDS.items() if opset < changed}
    nodes = [node for node in converted.graph.all_nodes() if node.domain == "" and node.op_type in mends]
    if nodes:
        graphs = (converted.graph, *converted.graph.subgraphs())
        context = _Context(name, {taken for graph in graphs for taken in value_names(graph)})
        for node in nodes:
            mends[node.op_type](node, context)


@dataclass
class _Context:
    """The model's name in messages, and the names of all values in it."""

    model: str
    taken: set[str]


def _mend_resize(node: ir.Node, context: _Context) -> None:
    """Resize of opset 10 and Upsample have no attribute for coordinates, and are asymmetric.

    For the nearest element, ONNX Runtime and the examples of ONNX round down along an axis that grows, and up
    along one that shrinks. Scales that are computed at run time are taken to let axes grow.
    """
    node.attributes.add(ir.AttrString("coordinate_transformation_mode", "asymmetric"))
    if node.attributes.get_string("mode", "nearest") != "nearest":
        return
    scales = constant_input(node, 2)
    shrinks = scales is not None and bool((scales < 1).any())
    if shrinks and scales is not None and (scales > 1).any():
        raise ModelError(
            f"the Resize of '{context.model}' that makes '{node.outputs[0].name}' enlarges one axis and "
            "shrinks another one to the nearest element, which no newer opset has in one operator; export "
            "the model with opset 11 or later"
        )
    node.attributes.add(ir.AttrString("nearest_mode", "ceil" if shrinks else "floor"))


def _mend_hardmax(node: ir.Node, context: _Context) -> None:
    """Hardmax before opset 13 chooses one element among those of all axes from its own on."""
    source, output, graph = node.inputs[0], node.outputs[0], node.graph
    assert source is not None and isinstance(graph, ir.Graph)
    axis = node.attributes.get_int("axis", 1)
    node.attributes.add(ir.AttrInt64("axis", -1))
    if axis == -1 or (source.shape is not None and axis == len(source.shape) - 1):
        return
    size = ir.node("Shape", [source])
    rows = ir.node("Flatten", [source], {"axis": axis})
    chosen = ir.node("Hardmax", rows.outputs, {"axis": -1}, name=node.name)
    shaped = ir.node("Reshape", [chosen.outputs[0], size.outputs[0]])
    for added, part in ((size, "shape"), (rows, "rows"), (chosen, "chosen")):
        added.outputs[0].name = unused_name(f"{output.name}_{part}", context.taken)
        context.taken.add(added.outputs[0].name)
    new = [size, rows, chosen, shaped]
    ir.convenience.replace_nodes_and_values(graph, node, [node], new, [output], shaped.outputs)


def _mend_pad(node: ir.Node, _context: _Context) -> None:
    """The value of a Pad that repeats elements has no effect, and is no attribute from opset 11 on."""
    node.attributes.pop("value", None)


#: Operator to the opset that changed it, and what mends the converted nodes of models from before.
_MENDS: dict[str, tuple[int, Callable[[ir.Node, _Context], None]]] = {
    "Hardmax": (13, _mend_hardmax),
    "Pad": (11, _mend_pad),
    "Resize": (11, _mend_resize),
}
