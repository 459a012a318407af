"""The graphs inside nodes, which are branches and loop bodies, and what stands in them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import onnx
import onnx_ir as ir


def inner_graphs(node: ir.Node) -> Iterator[ir.Graph]:
    """The graphs that a node holds as attributes, not those inside them."""
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.GRAPH:
            yield attribute.as_graph()
        elif attribute.type == ir.AttributeType.GRAPHS:
            yield from attribute.as_graphs()


def holds_graphs(node: ir.Node) -> bool:
    """Whether there are graphs inside a node, which may read any value of the graph around it."""
    return any(True for _ in inner_graphs(node))


def nodes_inside(node: ir.Node) -> Iterator[ir.Node]:
    """The nodes of the graphs inside a node, however deep."""
    for graph in inner_graphs(node):
        yield from ir.traversal.RecursiveGraphIterator(graph)


def graph_values(graph: ir.Graph) -> list[ir.Value]:
    """The inputs of a graph and what its nodes compute, those of graphs inside nodes left out."""
    return [*graph.inputs, *(output for node in graph for output in node.outputs)]


def all_nodes(model: ir.Model) -> Iterator[ir.Node]:
    """The nodes of a model, those of graphs inside nodes and of its functions included."""
    in_functions = (function.all_nodes() for function in model.functions.values())
    return itertools.chain(model.graph.all_nodes(), *in_functions)


_Container = TypeVar("_Container", onnx.GraphProto, onnx.GraphProto | onnx.FunctionProto)


def message_graphs(graph: _Container) -> Iterator[_Container]:
    """A graph, or a function, and the graphs inside its nodes, however deep, as messages."""
    waiting: list[_Container] = [graph]
    while waiting:
        current = waiting.pop()
        yield current
        for node in current.node:
            attribute: onnx.AttributeProto  # which mypy does not find out of a container of either kind
            for attribute in node.attribute:
                waiting.extend([*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])])


def message_containers(message: onnx.ModelProto) -> Iterator[onnx.GraphProto | onnx.FunctionProto]:
    """The main graph of a model, its functions, and the graphs inside the nodes of both."""
    containers: tuple[onnx.GraphProto | onnx.FunctionProto, ...] = (message.graph, *message.functions)
    for container in containers:
        yield from message_graphs(container)


def values_read(node: ir.Node) -> Iterator[ir.Value]:
    """The values that a node reads, also those that only graphs inside it read."""
    yield from (value for value in node.inputs if value is not None)
    for inner in nodes_inside(node):
        yield from (value for value in inner.inputs if value is not None)


def values_behind(nodes: Iterable[ir.Node], starts: Callable[[ir.Node], bool]) -> set[ir.Value]:
    """What some nodes compute, and all that is computed from it.

    Args:
        nodes: Nodes in the order in which they run.
        starts: Says of a node whether it is one of them.
    """
    reached: set[ir.Value] = set()
    for node in nodes:
        if starts(node) or any(value in reached for value in values_read(node)):
            reached.update(node.outputs)
    return reached
