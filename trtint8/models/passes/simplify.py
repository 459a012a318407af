"""Passes that simplify a graph.

They give nodes unique names, put a model's own functions in the place of their calls, remove nodes that pass
a tensor on, write each Sum as Add nodes (which is what shortcuts are joined by elsewhere), fold
BatchNormalization into convolutions, and infer shapes and element types.

ONNX infers nothing of operators that it does not define, such as plugins, nor of anything behind them. But
operators that it defines have inputs and outputs of one type: what is added to a float32 tensor is float32.
Whatever stays open after that stands between two operators of which nothing is known, and nothing else reads
it.
"""

from __future__ import annotations

import contextlib
import functools
import graphlib
import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import onnx
import onnx_ir as ir
from onnx_ir.passes import common

from calibrators.errors import ModelError
from calibrators.operators import operator_named, operator_of
from trtint8.models.declared import clear_new_names, names_to_keep
from trtint8.models.graph import (
    OperatorPass,
    add_initializer,
    check_repeated,
    holds_graphs,
    made_by,
    message_graphs,
    read_constant,
    take_name,
    value_names,
)
from trtint8.models.plugins import HIDDEN


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


class SumsAsAddsPass(OperatorPass):
    """Replaces a Sum of two tensors or more, as Caffe2 and Keras export shortcuts, by Adds of two tensors.

    The last Add keeps the node's name, and its output its name.
    """

    operators = frozenset({"Sum"})

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Rewrites the nodes of the main graph."""
        graph = model.graph
        sums = [node for node in graph if (node.domain, node.op_type) == ("", "Sum") and len(node.inputs) > 1]
        names = value_names(graph)
        for node in sums:
            *first, last = node.inputs
            total = first[0]
            for number, value in enumerate(first[1:], 1):
                partial = ir.node("Add", [total, value], name=f"{node.name}/{number}" if node.name else None)
                total = partial.outputs[0]
                total.name = take_name(f"{node.outputs[0].name}_sum_{number}", names)
                total.type = node.outputs[0].type
                graph.insert_before(node, partial)
            add = ir.node("Add", [total, last], name=node.name)
            ir.convenience.replace_nodes_and_values(graph, node, [node], [add], node.outputs, add.outputs)
        return ir.passes.PassResult(model, bool(sums))


class NameNodesPass(ir.passes.InPlacePass):
    """Names nodes that have no name, or the name of an earlier node, after their operator and output.

    ``keep_float`` patterns, the printed reasons and TensorRT's layer report all refer to nodes by name. Names
    that are unique already stay.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Names the nodes of the main graph."""
        taken = {node.name for node in model.graph if node.name}
        seen: set[str] = set()
        renamed = False
        for node in model.graph:
            if not node.name or node.name in seen:
                stem = f"{node.op_type}_{node.outputs[0].name if node.outputs else ''}"
                node.name, renamed = take_name(stem, taken), True
            seen.add(node.name)
        return ir.passes.PassResult(model, modified=renamed)


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
        result = common.InlinePass()(model)
        check_repeated(model.graph)
        return result


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


_logger = logging.getLogger(__name__)


class FoldBatchNormPass(OperatorPass):
    """Folds each BatchNormalization into the Conv or ConvTranspose whose only reader it is.

    TensorRT does the same, and its INT8 kernels have no normalization between the convolution and its
    activation function; so weights must be quantized after the fold, not before. The output of the
    convolution gets the name of the normalization's output.
    """

    operators = frozenset({"BatchNormalization"})

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Folds the nodes that can be folded, and leaves the others unchanged."""
        folded, taken = 0, value_names(model.graph)
        for node in list(model.graph):
            if node.op_type == "BatchNormalization" and node.domain == "" and _fold(node, taken):
                folded += 1
        if folded:
            _logger.debug("folded %d batch normalizations", folded)
        return ir.passes.PassResult(model, modified=bool(folded))


def _fold(norm: ir.Node, taken: set[str]) -> bool:
    """Folds one node where that is possible; the names of new values join those that are taken."""
    graph = norm.graph
    source = norm.inputs[0]
    conv = made_by(source)
    if (
        not isinstance(graph, ir.Graph)
        or source is None
        or conv is None
        or not operator_of(conv).is_convolution
        or conv.graph is not graph
        or len(source.uses()) != 1
        or source.is_graph_output()
        or bool(norm.attributes.get_int("training_mode", 0))
        or any(output.uses() or output.is_graph_output() for output in norm.outputs[1:])
        or (conv.op_type == "ConvTranspose" and conv.attributes.get_int("group", 1) != 1)
    ):
        return False
    given = [value for value in (*conv.inputs[1:], *norm.inputs[1:]) if value is not None]
    parameters = [array for value in given if (array := read_constant(value)) is not None]
    if len(parameters) < len(given):
        return False

    weight, *bias, gamma, beta, mean, variance = parameters
    axis = operator_of(conv).weights_axis
    assert axis is not None, "a convolution has one"
    channels = weight.shape[axis] if weight.ndim > axis else 0
    for value, parameter in zip(given[1:], parameters[1:], strict=True):
        if parameter.shape != (channels,):
            raise ModelError(
                f"the tensor '{value.name}' has the shape {list(parameter.shape)}, but "
                f"'{norm.name or norm.op_type}' normalizes the {channels} channels of "
                f"'{conv.name or conv.op_type}'; give it one number per channel"
            )
    # In float64, which costs little: the folded weights are quantized later, so they should be exact.
    shifted = variance.astype(np.float64) + norm.attributes.get_float("epsilon", 1e-5)
    if not (shifted > 0).all():
        return False
    factor = gamma.astype(np.float64) / np.sqrt(shifted)
    broadcast = [1] * weight.ndim
    broadcast[axis] = -1
    new_weight = (weight * factor.reshape(broadcast)).astype(weight.dtype)
    old_bias = bias[0].astype(np.float64) if bias else 0.0
    new_bias = ((old_bias - mean) * factor + beta).astype(weight.dtype)

    output, result = norm.outputs[0], conv.outputs[0]
    conv.resize_inputs(3)
    for index, array, ending in ((1, new_weight, "folded"), (2, new_bias, "folded_bias")):
        added = add_initializer(graph, take_name(f"{given[0].name}_{ending}", taken), array)
        conv.replace_input_with(index, added)
    name, shape, dtype = output.name, output.shape, output.type
    output.replace_all_uses_with(result, replace_graph_outputs=True)
    graph.remove(norm, safe=True)
    result.name, result.shape, result.type = name, shape, dtype
    return True


class InferShapesPass(ir.passes.InPlacePass):
    """Declares the types and shapes of tensors, as far as ONNX infers them, or their neighbours tell.

    Where sizes may be 0, names that ONNX gives to unknown ones are left out; see
    :func:`trtint8.models.declared.clear_new_names`.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Infers the shapes of the main graph and of those inside its nodes."""
        keep = names_to_keep(model)
        with _stand_ins(model):
            result = common.ShapeInferencePass(check_type=False, strict_mode=False)(model)
        clear_new_names(model, keep)
        settle_element_types(model)
        return result


@contextlib.contextmanager
def _stand_ins(model: ir.Model) -> Iterator[None]:
    """Makes nodes of which ONNX infers nothing others of the same shapes, until the block ends."""
    replaced = [
        (node, node.domain, node.op_type, stand_in)
        for node in model.graph.all_nodes()
        if (stand_in := _stand_in(node)) is not None
    ]
    try:
        for node, _, _, stand_in in replaced:
            node.domain, node.op_type = "", stand_in
        yield
    finally:
        for node, domain, operator, _ in replaced:
            node.domain, node.op_type = domain, operator


def _stand_in(node: ir.Node) -> str | None:
    """The operator of ONNX whose output has the type and shape of a node's, of which ONNX infers nothing."""
    hidden = node.domain == HIDDEN
    stand_in = operator_named(node.op_type, "" if hidden else node.domain).stand_in
    if not stand_in or hidden or node.domain or not onnx.defs.has(node.op_type):
        return stand_in or None
    inferred = onnx.defs.get_schema(node.op_type).has_type_and_shape_inference_function
    return None if inferred else stand_in


def settle_element_types(model: ir.Model) -> None:
    """Declares the element types of a graph's tensors that follow from others; shapes stay open.

    Args:
        model: A float32 model with inferred types; changed in place. What a QuantizeLinear reads is float32.
    """
    waiting = [node for node in model.graph if any(map(_is_open, (*node.inputs, *node.outputs)))]
    while waiting:
        node = waiting.pop()
        for value, dtype in _settled(node, model):
            value.type = ir.TensorType(dtype)
            beside = [value.producer(), *(reader for reader, _ in value.uses())]
            waiting += [one for one in beside if one is not None and one.graph is model.graph]


def _settled(node: ir.Node, model: ir.Model) -> Iterator[tuple[ir.Value, ir.DataType]]:
    """The open values beside a node whose type follows from its operator."""
    if holds_graphs(node):
        return
    if node.domain == "" and node.op_type == "QuantizeLinear" and (source := node.inputs[0]) is not None:
        if _is_open(source):
            yield source, ir.DataType.FLOAT
        return
    version = model.opset_imports.get(node.domain, 1)
    kinds = _type_names(node.op_type, version, node.domain, len(node.inputs), len(node.outputs))
    if kinds is None:
        return
    values = list(zip((*node.inputs, *node.outputs), kinds, strict=True))
    known = {kind: value.dtype for value, kind in values if value is not None and value.dtype is not None}
    for value, kind in values:
        if value is None or not _is_open(value):
            continue
        dtype = _CONCRETE.get(kind) or known.get(kind)
        if dtype is not None:
            yield value, dtype


@functools.cache
def _type_names(
    operator: str, version: int, domain: str, inputs: int, outputs: int
) -> tuple[str, ...] | None:
    """The types of inputs and outputs in an operator's schema: names of variables, or of types.

    None of an operator that ONNX does not define.
    """
    try:
        schema = onnx.defs.get_schema(operator, version, domain)
    except onnx.defs.SchemaError:
        return None
    names: list[str] = []
    for formals, count in ((schema.inputs, inputs), (schema.outputs, outputs)):
        for index in range(count):
            # The last formal parameter may be variadic, with a type for each or one for all.
            formal = formals[min(index, len(formals) - 1)]
            names.append(formal.type_str if formal.is_homogeneous else f"{formal.type_str} {index}")
    return tuple(names)


def _is_open(value: ir.Value | None) -> bool:
    return value is not None and value.type is None


#: Names of types in schemas to element types.
_CONCRETE = {
    "tensor(bool)": ir.DataType.BOOL,
    "tensor(float)": ir.DataType.FLOAT,
    "tensor(int32)": ir.DataType.INT32,
    "tensor(int64)": ir.DataType.INT64,
}
