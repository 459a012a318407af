"""Nodes that stand before the nodes whose outputs they read."""

from __future__ import annotations

import graphlib
import heapq

import onnx

from calibrators.host.model_parts import names_read
from trtint8.models.inner_graphs import message_graphs


def sort_nodes(message: onnx.ModelProto) -> None:
    """Puts every node behind those whose outputs it reads; a graph that is in order stays as it is.

    ONNX demands this order, and ONNX Runtime and TensorRT do without: the conversion to float16 that some
    exporters call appends the casts of inputs to the end of the graph. A graph with a cycle is left alone.

    Args:
        message: The model; changed.
    """
    for graph in message_graphs(message.graph):
        _sort(graph)


def _sort(graph: onnx.GraphProto) -> None:
    made_by = {name: index for index, node in enumerate(graph.node) for name in node.output if name}
    before = {
        index: {made_by[name] for name in names_read(node) if name in made_by}
        for index, node in enumerate(graph.node)
    }
    if all(other < index for index, others in before.items() for other in others):
        return
    sorter = graphlib.TopologicalSorter(before)
    try:
        sorter.prepare()
    except graphlib.CycleError:
        return
    ready: list[int] = []
    order: list[int] = []
    while sorter.is_active():
        for index in sorter.get_ready():
            heapq.heappush(ready, index)
        # The first of those that may come next, so that the order changes as little as it can.
        order.append(heapq.heappop(ready))
        sorter.done(order[-1])
    nodes = [graph.node[index] for index in order]
    del graph.node[:]
    graph.node.extend(nodes)
