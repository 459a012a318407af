"""The functions that a model brings along: what they come to, and their nodes in the place of their calls."""

from __future__ import annotations

import graphlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

import onnx
import onnx_ir as ir
from onnx_ir.passes import common

from calibrators.errors import ModelError
from trtint8.models.inner_graphs import all_nodes, message_graphs

#: How deep functions may call each other. ONNX and ONNX Runtime take no more, and older versions of them run
#: out of stack.
_DEEPEST = 100

#: The most steps of naming the nodes of functions apart: onnx-ir tries all numbers that a name has had, so a
#: name that is given a thousand times costs half a million steps. This many take seconds.
_MOST_STEPS = 20_000_000

#: Numbers of nodes from which on they are not counted.
_COUNTLESS = 1_000_000_000

#: Domain, name and overload of a function.
_Identifier = tuple[str, str, str]


def check_functions(message: onnx.ModelProto, name: str) -> None:
    """Refuses functions that nobody can put in the place of their calls.

    A few lines are enough for a function that calls another one twice, which calls a third one twice, and so
    on: 30 of these come to a billion nodes.

    Args:
        message: The model.
        name: What to call the model in messages.

    Raises:
        ModelError: A function is there twice, has the name of an operator, calls itself, is called with more
            inputs than it has, or has a graph as an attribute; or functions call each other too deep, or come
            to too many nodes.
    """
    functions: dict[_Identifier, onnx.FunctionProto] = {}
    for function in message.functions:
        identifier = _identifier(function.domain, function.name, function.overload)
        if identifier in functions:
            raise ModelError(f"'{name}' holds the function '{_shown(identifier)}' twice; export it again")
        if not identifier[0] and onnx.defs.has(function.name):
            # Some readers take the operator, and others the function.
            raise ModelError(
                f"'{name}' holds a function '{function.name[:200]}', which is the name of one of ONNX's "
                "operators; give it a domain of its own"
            )
        functions[identifier] = function
    if not functions:
        return
    nodes = {identifier: list(_nodes(function)) for identifier, function in functions.items()}
    calls = {
        identifier: Counter(called for node in inside if (called := _called(node)) in functions)
        for identifier, inside in nodes.items()
    }
    order = _callees_first(calls, name)
    main = list(_nodes(message.graph))
    for node in (*main, *(node for inside in nodes.values() for node in inside)):
        _check_call(node, functions, name)
    for identifier, function in functions.items():
        referring = (one for node in nodes[identifier] for one in node.attribute if one.ref_attr_name)
        _check_graphs((*function.attribute_proto, *referring), identifier, name)
    # A function that nothing calls is gone through as well.
    times = Counter(called for node in main if (called := _called(node)) in functions)
    for identifier in reversed(order):
        times[identifier] = max(times[identifier], 1)
        for called, count in calls[identifier].items():
            times[called] += count * times[identifier]
    named = Counter(_names(main, ""))
    for identifier, inside in nodes.items():
        for given in _names(inside, identifier[1]):
            named[given] += times[identifier]
    if sum(count * count for count in named.values() if count > 1) > _MOST_STEPS:
        total = sum(len(inside) * times[identifier] for identifier, inside in nodes.items())
        shown = f"{total:,}" if total < _COUNTLESS else f"more than {_COUNTLESS:,}"
        raise ModelError(
            f"the functions of '{name}' come to {shown} nodes where they are called, which is too many; "
            "export it without functions"
        )


def leaves_something_out(graph_model: ir.Model) -> bool:
    """True if a function is called without one of its inputs or attributes, which nodes inside may need.

    Args:
        graph_model: Any model.
    """
    return bool(graph_model.functions) and any(
        len(node.inputs) < len(function.inputs)
        or None in node.inputs
        or any(
            attribute.value is None and name not in node.attributes
            for name, attribute in function.attributes.items()
        )
        for node in all_nodes(graph_model)
        if (function := graph_model.functions.get(node.op_identifier())) is not None
    )


class InlineFunctionsPass(ir.passes.InPlacePass):
    """Inlines all functions.

    Nodes keep the names that they have in a function, with numbers behind them where it is called more than
    once. Those without a name are named after the function and their operator: onnx-ir would call all of
    them ``node``.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Inlines the functions of the model."""
        if not model.functions:
            return ir.passes.PassResult(model, modified=False)
        for function in model.functions.values():
            for node in function.all_nodes():
                node.name = node.name or f"{function.name}_{node.op_type}"
        return common.InlinePass()(model)


def _identifier(domain: str, name: str, overload: str) -> _Identifier:
    return "" if domain == "ai.onnx" else domain, name, overload


def _called(node: onnx.NodeProto) -> _Identifier:
    return _identifier(node.domain, node.op_type, node.overload)


def _shown(identifier: _Identifier) -> str:
    return ".".join(filter(None, identifier))[:200]


def _nodes(container: onnx.GraphProto | onnx.FunctionProto) -> Iterator[onnx.NodeProto]:
    """The nodes of a graph or a function, and those of the graphs inside them."""
    return (node for inner in message_graphs(container) for node in inner.node)


def _names(nodes: Sequence[onnx.NodeProto], function: str) -> Iterator[str]:
    """The names that onnx-ir keeps apart: of nodes behind a space, and of the tensors that they make."""
    for node in nodes:
        yield f" {node.name or f'{function}_{node.op_type}'}"
        yield from node.output


def _callees_first(calls: Mapping[_Identifier, Mapping[_Identifier, int]], name: str) -> list[_Identifier]:
    """The functions, each behind those that it calls."""
    try:
        order = list(graphlib.TopologicalSorter(calls).static_order())
    except graphlib.CycleError as error:
        raise ModelError(
            f"the function '{_shown(error.args[1][0])}' of '{name}' calls itself, which no function may; "
            "export it again"
        ) from error
    depths: dict[_Identifier, int] = {}
    for identifier in order:
        depths[identifier] = 1 + max((depths[called] for called in calls[identifier]), default=0)
        if depths[identifier] > _DEEPEST:
            raise ModelError(
                f"the function '{_shown(identifier)}' of '{name}' calls others more than {_DEEPEST} deep; "
                "export it without functions"
            )
    return order


def _check_call(node: onnx.NodeProto, functions: Mapping[_Identifier, onnx.FunctionProto], name: str) -> None:
    function = functions.get(_called(node))
    if function is not None and (
        len(node.input) > len(function.input) or len(node.output) > len(function.output)
    ):
        raise ModelError(
            f"a call of the function '{_shown(_called(node))}' of '{name}' has {len(node.input)} inputs and "
            f"{len(node.output)} outputs, and the function {len(function.input)} and {len(function.output)}; "
            "export it again"
        )
    if function is not None:
        _check_graphs(node.attribute, _called(node), name)


def _check_graphs(attributes: Iterable[onnx.AttributeProto], function: _Identifier, name: str) -> None:
    """Refuses attributes of a function that are graphs, which onnx-ir neither copies nor inlines."""
    kinds = onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS
    if any(one.type in kinds or one.HasField("g") or one.graphs for one in attributes):
        raise ModelError(
            f"the function '{_shown(function)}' of '{name}' has a graph as an attribute, which nothing here "
            "takes; export it without functions"
        )
