"""Operators that ONNX's converter gives another meaning, or makes invalid, on the way to a newer opset."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import onnx_ir as ir

from calibrators.errors import ModelError
from trtint8.models.graph_constants import constant_input, take_name, unused_name, value_names

#: The oldest opset that has the operators by which a Scan of opset 8 is written.
OPSET_OF_SCANS = 15


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


def set_old_scans_apart(graph_model: ir.Model) -> bool:
    """Writes every Scan of opset 8 as a Loop with the same attributes, until it is mended.

    ONNX's converter leaves out the axis of samples that a Scan has in opset 8 only, and takes it from the
    shapes of what the Scan reads. A Loop stays as it is, and the nodes inside it are converted. What a Scan
    has and a Loop has not, the number of its inputs, tells them apart.

    Args:
        graph_model: The model before it is converted, of opset 8; changed.

    Returns:
        True if there is one.
    """
    scans = [node for node in graph_model.graph.all_nodes() if (node.domain, node.op_type) == ("", "Scan")]
    for node in scans:
        node.op_type = "Loop"
    return bool(scans)


@dataclass
class _Context:
    """The model's name in messages, and the names of all values in it."""

    model: str
    taken: set[str]

    def name_like(self, value: ir.Value) -> str:
        """A new name that begins with that of a value."""
        return take_name(f"{value.name or 'value'}_of_sample", self.taken)


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


def _mend_scan(node: ir.Node, context: _Context) -> None:
    """Scan of opset 8 has an axis of samples, and may be given how long the sequence of each is.

    It becomes a Scan along the samples, with one along the sequence inside. Where lengths are given, the
    inner one runs along the first elements, and zeros take the place of what it does not give out, as in ONNX
    Runtime.
    """
    if "num_scan_inputs" not in node.attributes:
        return  # a Loop
    count = node.attributes.get_int("num_scan_inputs", 1)
    lengths, *read = node.inputs
    directions = node.attributes.get_ints("directions", ())
    graph, outputs, body = node.graph, list(node.outputs), node.attributes.pop("body").as_graph()
    assert isinstance(graph, ir.Graph)
    samples = [_one_sample(value, context) for value in (*read, *([] if lengths is None else [lengths]))]
    inner = ir.Node(
        "",
        "Scan",
        samples[: len(read)],
        [ir.AttrGraph("body", body), ir.AttrInt64("num_scan_inputs", count)],
        num_outputs=len(outputs),
    )
    if directions:
        inner.attributes.add(ir.AttrInt64s("scan_input_directions", directions))
    for made, output in zip(inner.outputs, outputs, strict=True):
        made.name = context.name_like(output)
        made.type = output.type
    nodes, results = [inner], list(inner.outputs)
    if lengths is not None:
        states = len(read) - count
        before, behind, padded = _cut_to_length(samples, inner, states, context)
        nodes, results = [*before, inner, *behind], [*results[:states], *padded]
    along = ir.Graph(samples, results, nodes=nodes, name=f"{body.name}_of_one_sample")
    outer = ir.Node(
        "",
        "Scan",
        [*read, *([] if lengths is None else [lengths])],
        [ir.AttrGraph("body", along), ir.AttrInt64("num_scan_inputs", len(samples))],
        num_outputs=len(outputs),
        name=node.name,
    )
    ir.convenience.replace_nodes_and_values(graph, node, [node], [outer], outputs, outer.outputs)


def _one_sample(value: ir.Value | None, context: _Context) -> ir.Value:
    """A value of the graph along the samples: what a value around it holds of one sample."""
    assert value is not None, "a Scan has all its inputs"
    shape = None if value.shape is None else ir.Shape(list(value.shape)[1:])
    return ir.Value(name=context.name_like(value), shape=shape, type=value.type)


def _cut_to_length(
    samples: list[ir.Value], scan: ir.Node, states: int, context: _Context
) -> tuple[list[ir.Node], list[ir.Node], list[ir.Value]]:
    """Lets a Scan run along the first elements of a sequence only.

    Args:
        samples: What it reads, and the length.
        scan: The Scan; its inputs are changed.
        states: How many of its inputs and outputs are states.
        context: The names.

    Returns:
        Nodes before it, nodes behind it, and what these give out in place of its outputs of sequences.
    """
    before: list[ir.Node] = []
    behind: list[ir.Node] = []

    def add(nodes: list[ir.Node], operator: str, *inputs: ir.Value, **attributes: ir.Attr) -> ir.Value:
        node = ir.Node("", operator, inputs, list(attributes.values()))
        node.outputs[0].name = context.name_like(scan.outputs[0])
        nodes.append(node)
        return node.outputs[0]

    def constant(nodes: list[ir.Node], value: int) -> ir.Value:
        return add(nodes, "Constant", value_ints=ir.AttrInt64s("value_ints", [value]))

    start, unknown = constant(before, 0), constant(before, -1)
    length = add(before, "Reshape", samples[-1], unknown)
    first = samples[states]
    whole = add(before, "Shape", first, end=ir.AttrInt64("end", 1))
    missing = add(before, "Sub", whole, length)
    for index in range(states, len(samples) - 1):
        scan.replace_input_with(index, add(before, "Slice", samples[index], start, length, start))
    padded: list[ir.Value] = []
    for value in scan.outputs[states:]:
        sizes = add(behind, "Shape", value, start=ir.AttrInt64("start", 1))
        lacking = add(behind, "Concat", missing, sizes, axis=ir.AttrInt64("axis", 0))
        zeros = add(behind, "Expand", add(behind, "CastLike", start, value), lacking)
        padded.append(add(behind, "Concat", value, zeros, axis=ir.AttrInt64("axis", 0)))
        padded[-1].type = value.type
    return before, behind, padded


#: Operator to the opset that changed it, and what mends the converted nodes of models from before.
_MENDS: dict[str, tuple[int, Callable[[ir.Node, _Context], None]]] = {
    "Hardmax": (13, _mend_hardmax),
    "Pad": (11, _mend_pad),
    "Loop": (9, _mend_scan),
    "Resize": (11, _mend_resize),
}
