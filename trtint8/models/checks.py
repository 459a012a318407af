"""Checks that a model is one that ONNX Runtime and TensorRT take, and mends what exporters get wrong.

Checked or mended are names (text, unique, present), the order of nodes, the version of ONNX's format, inputs,
attributes and weights of nodes, and what is left of training, such as nodes that draw random numbers.
"""

from __future__ import annotations

import graphlib
import heapq
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from google.protobuf.message import Message
from onnx import helper

from calibrators.data.feeds import Array
from calibrators.errors import ModelError, counted
from calibrators.host.weights import names_read
from calibrators.operators import operator_of
from trtint8.models.graph import (
    constant_input,
    message_containers,
    message_graphs,
    read_constant,
    take_name,
)


def check_names(model: onnx.ModelProto, name: str) -> None:
    """Refuses a model with a name that is no text.

    Args:
        model: The model. Of its constant tensors the values are not looked at.
        name: What to call the model in messages.

    Raises:
        ModelError: A name of a node, a tensor, an operator or anything else is not UTF-8.
    """
    waiting: list[Any] = [model]
    while waiting:
        message = waiting.pop()
        if isinstance(message, onnx.TensorProto):
            _check(message.name, name)
            _check(message.doc_string, name)
            waiting.extend(message.external_data)
            continue
        for kind, value in message.ListFields():
            if kind.message_type is not None:
                waiting.extend([value] if isinstance(value, Message) else value)
            elif kind.type == kind.TYPE_STRING:
                for text in [value] if isinstance(value, (str, bytes)) else value:
                    _check(text, name)


def _check(text: str | bytes, name: str) -> None:
    if isinstance(text, bytes):
        raise ModelError(f"'{name}' holds the name {text[:80]!r}, which is not UTF-8; export it again")


def name_nodes_apart(message: onnx.ModelProto) -> None:
    """Names nodes after their operator and output where an earlier one of the same graph has their name.

    Some exporters name nodes after layers that are called several times. Nodes without a name stay as they
    are, because ONNX Runtime takes them.

    Args:
        message: The model; changed.
    """
    for graph in message_containers(message):
        counts = Counter(node.name for node in graph.node if node.name)
        if len(counts) == counts.total():
            continue
        taken, seen = set(counts), set[str]()
        for node in graph.node:
            if node.name in seen:
                node.name = take_name(f"{node.op_type}_{node.output[0] if node.output else ''}", taken)
            elif node.name:
                seen.add(node.name)


def name_listed_outputs(message: onnx.ModelProto) -> None:
    """Names the outputs that a node leaves out amid a list, as of a Split: ONNX Runtime crashes there.

    Args:
        message: The model; changed.
    """
    bare = [
        (node, index)
        for graph in message_containers(message)
        for node in graph.node
        for index in range(_first_listed(node), len(node.output))
        if not node.output[index]
    ]
    if not bare:
        return
    nodes = (node for graph in message_containers(message) for node in graph.node)
    taken = {name for node in nodes for name in (*node.input, *node.output)}
    for node, index in bare:
        node.output[index] = take_name(f"{node.op_type}_unused", taken)


def _first_listed(node: onnx.NodeProto) -> int:
    """The index of a node's first output that is one of a list; the number of outputs where none is."""
    if not "".join(node.output) or all(node.output) or node.domain or not onnx.defs.has(node.op_type):
        return len(node.output)
    outputs = onnx.defs.get_schema(node.op_type).outputs
    variadic = onnx.defs.OpSchema.FormalParameterOption.Variadic
    return len(outputs) - 1 if outputs and outputs[-1].option == variadic else len(node.output)


def name_graphs(message: onnx.ModelProto) -> None:
    """Names the graphs without a name, which only ONNX's checker refuses.

    Args:
        message: The model; changed.
    """
    for graph in message_graphs(message.graph):
        graph.name = graph.name or "graph"


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


#: The version that everything reads that trtint8 works with, ONNX Runtime 1.18 the oldest of it.
_READ_BY_ALL = 10

#: The first version whose initializers need not be listed as inputs.
_WITHOUT_LISTED_WEIGHTS = 4

#: The first version with functions, which ONNX's checker looks into from then on.
_WITH_FUNCTIONS = 8


def settle_ir_version(message: onnx.ModelProto) -> None:
    """Declares a version of the format that suits what is done with a model.

    An older one where the model's operators do not need the one that it has: the onnx package writes its own
    newest version into every model, and ONNX Runtime and TensorRT refuse one that is newer than they are,
    whatever the model holds.

    A newer one in place of version 3, in which all initializers are listed as inputs, as old exporters wrote
    them: they are constants there, and in later versions they are constants where they are not listed. A
    newer one too where a model has functions and its version has none.

    Args:
        message: The model; changed.
    """
    if message.ir_version < _WITHOUT_LISTED_WEIGHTS:
        weights = {tensor.name for tensor in message.graph.initializer}
        for value in [value for value in message.graph.input if value.name in weights]:
            message.graph.input.remove(value)
        message.ir_version = _WITHOUT_LISTED_WEIGHTS
    if message.functions:
        message.ir_version = max(message.ir_version, _WITH_FUNCTIONS)
    needed = helper.find_min_ir_version_for(list(message.opset_import), ignore_unknown=True)
    message.ir_version = min(message.ir_version, max(needed, _READ_BY_ALL))


_Option = onnx.defs.OpSchema.FormalParameterOption


def check_complete(graph_model: ir.Model, name: str) -> None:
    """Refuses nodes that leave out an input or an attribute which their operators need.

    ONNX's checker does not see what is left out where a function was called, nor in a list of inputs, with
    which ONNX Runtime crashes.

    Args:
        graph_model: Any model.
        name: The model's name in messages.

    Raises:
        ModelError: Something is left out; names the node.
    """
    for node in graph_model.graph.all_nodes():
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


def check_weights(graph_model: ir.Model, name: str) -> None:
    """Refuses weights that are no numbers, as training that diverged and files that were cut leave them.

    Args:
        graph_model: Any model.
        name: The model's name in messages.

    Raises:
        ModelError: A constant that a node computes with holds NaN, or weights are infinite; names both.
    """
    nodes = list(graph_model.graph.all_nodes())
    looks_for_nan = any(node.op_type == "IsNaN" for node in nodes)
    for node in nodes:
        weights = operator_of(node).weights
        if weights is None or (looks_for_nan and not weights):
            continue
        # What is wrong with the scale of a pair, the check of pairs says.
        for index, value in enumerate(node.inputs[:1] if node.op_type == "QuantizeLinear" else node.inputs):
            if value is None or value.dtype is None or not value.dtype.is_floating_point():
                continue
            array = read_constant(value)
            if array is not None and (bad := _not_numbers(array, bool(weights), index in weights)):
                made_by = node.name or node.outputs[0].name
                raise ModelError(
                    f"the constant '{value.name}' of '{name}', which node '{made_by}' ({node.op_type}) "
                    f"computes with, holds {bad} among {counted(array.size, 'value')}; take weights from "
                    "before training diverged, or export or download the model again"
                )


def _not_numbers(array: Array, is_layer: bool, is_weight: bool) -> str:
    """How many values of an array are none to compute with, in words; nothing where all are."""
    with np.errstate(all="ignore"):
        # Finite sums are of finite numbers, and are found faster.
        sums = array.dtype in (np.float32, np.float64) and np.isfinite(array.sum())
    if sums or np.isfinite(array).all():
        return ""
    if nans := int(np.isnan(array).sum()):
        return f"NaN {counted(nans, 'time')}"
    infinities = int((np.isinf(array) if is_weight else np.isposinf(array)).sum()) if is_layer else 0
    return f"infinity {counted(infinities, 'time')}" if infinities else ""


#: The input of a Dropout that says whether it drops values, and those of a BatchNormalization that hold its
#: statistics.
_TRAINS, _MEAN, _VARIANCE = 2, 3, 4


def switch_to_inference(graph_model: ir.Model) -> list[str]:
    """Lets nodes compute as in inference that were exported in training mode.

    A Dropout in training mode sets random values to zero and enlarges the others, so activations are not
    those of the deployed network; a BatchNormalization takes its statistics from the batch. TensorRT refuses
    both. What stays is a Dropout whose mode is computed, and a BatchNormalization whose new statistics are
    read or which has none of its own: means of 0 and variances of 1 are written where a network
    normalizes by the batch, or standardizes weights, in inference as well.

    Args:
        graph_model: The model; changed.

    Returns:
        The operators of the nodes that were switched.
    """
    nodes = [node for node in graph_model.graph.all_nodes() if not node.domain]
    dropping = [node for node in nodes if node.op_type == "Dropout" and _drops(node)]
    for node in dropping:
        node.resize_inputs(_TRAINS)
    normalizing = [node for node in nodes if node.op_type == "BatchNormalization" and _may_normalize(node)]
    for node in normalizing:
        node.attributes.pop("training_mode")
        node.resize_outputs(1)
    return [node.op_type for node in (*dropping, *normalizing)]


def _drops(node: ir.Node) -> bool:
    """Whether a Dropout is in training mode, as far as that is known."""
    mode = constant_input(node, _TRAINS)
    return mode is not None and bool(mode.any())


def _may_normalize(node: ir.Node) -> bool:
    """Whether a BatchNormalization in training mode may take its own statistics."""
    mean, variance = constant_input(node, _MEAN), constant_input(node, _VARIANCE)
    if not node.attributes.get_int("training_mode", 0) or mean is None or variance is None:
        return False
    return bool(mean.any() or (variance != 1).any()) and not any(map(_is_read, node.outputs[1:]))


def random_nodes(model: ir.Model) -> list[ir.Node]:
    """The nodes whose results are random and are read, those of inner graphs included.

    Args:
        model: Any model.

    Returns:
        The nodes, in graph order.
    """
    return [
        node for node in model.graph.all_nodes() if operator_of(node).random and _is_read(node.outputs[0])
    ]


def _is_read(value: ir.Value) -> bool:
    return bool(value.uses()) or value.is_graph_output()
