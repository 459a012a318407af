"""How a graph is followed: kinds of nodes and values, constants, graphs inside nodes, windows, passes.

onnx and onnx_ir raise dozens of kinds of errors with messages of several lines. Here they become one
sentence.
"""

from __future__ import annotations

import contextlib
import copy
import fnmatch
import itertools
import math
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import numpy as np
import onnx
import onnx_ir as ir

from calibrators.data.feeds import Array
from calibrators.errors import ModelError, TrtInt8Error, cause_in_words
from calibrators.operators import operator_of


def constant_tensor(value: ir.Value | None) -> ir.TensorProtocol | None:
    """The tensor of a constant, an initializer or the output of a Constant node, whose contents are not read.

    Args:
        value: A value of a graph, or None where a node leaves out an optional input.

    Returns:
        The tensor; None where the value is not constant.
    """
    return None if value is None else ir.convenience.get_const_tensor(value)


def is_constant(value: ir.Value | None) -> bool:
    """Whether a value is an initializer or the output of a Constant node; its contents are not read."""
    return constant_tensor(value) is not None


def read_constant(value: ir.Value | None) -> Array | None:
    """The contents of a constant, of its shape and dtype; None where the value is not constant."""
    tensor = constant_tensor(value)
    return None if tensor is None else tensor.numpy()


def constant_integers(value: ir.Value | None) -> tuple[int, ...] | None:
    """The elements of a constant of integers, such as axes; None of anything else."""
    if value is None or value.dtype not in (ir.DataType.INT64, ir.DataType.INT32):
        return None
    found = read_constant(value)
    return None if found is None else tuple(map(int, found.ravel()))


#: What all constants that are made while a model is prepared may come to, in bytes: this, and so many times
#: what the model stores. Its weights may pass through a Cast, a Reshape and a Transpose, and the smallest
#: model may make a few tables. But many nodes that read one weight could make a weight each.
_ROOM, _ROOM_GROWTH = 64 << 20, 16

#: Where a graph holds how much of that is left, and what it stores.
_KEY, _STORED = "trtint8.room", "trtint8.stored"


def check_repeated(graph: ir.Graph) -> None:
    """Refuses a graph with so many constants of the same memory that they would not fit into a file.

    Raises:
        ModelError: There are too many of them.
    """
    tensors = _tensors_of_nodes(graph)
    sizes = {id(tensor): tensor.nbytes for tensor in tensors}
    total, most = sum(tensor.nbytes for tensor in tensors), _ROOM + _ROOM_GROWTH * sum(sizes.values())
    if total > most:
        raise ModelError(
            f"the constants in its functions come to {total:,} bytes where they are called, and {most:,} "
            "are the most; export it without functions"
        )


def _tensors_of_nodes(graph: ir.Graph) -> list[ir.TensorProtocol]:
    """The tensors that stand in nodes, such as Constants."""
    attributes = (attribute for node in graph.all_nodes() for attribute in node.attributes.values())
    kind = ir.AttributeType.TENSOR
    return [one.as_tensor() for one in attributes if one.type == kind and not one.is_ref()]


@contextlib.contextmanager
def bounded_constants(graph_model: ir.Model) -> Iterator[None]:
    """Bounds what the constants that are added to the main graph while the block runs may come to.

    What the graph holds when it is bounded first is what the model stores.
    """
    meta = graph_model.graph.meta
    if _KEY in meta:
        yield
        return
    in_nodes = sum(tensor.nbytes for tensor in _tensors_of_nodes(graph_model.graph))
    held = weight_bytes(graph_model) + in_nodes
    stored = meta.setdefault(_STORED, held)
    meta[_KEY] = _ROOM + _ROOM_GROWTH * stored - (held - stored)
    try:
        yield
    finally:
        del meta[_KEY]


def weight_bytes(graph_model: ir.Model) -> int:
    """How many bytes the constants of a model's main graph have."""
    values = graph_model.graph.initializers.values()
    return sum(value.const_value.nbytes for value in values if value.const_value is not None)


def has_room(graph: ir.Graph, size: int) -> bool:
    """True if constants of a size can be added to a graph."""
    return bool(size <= graph.meta.get(_KEY, math.inf))


def take_room(graph: ir.Graph, name: str | None, size: int) -> None:
    """Counts a constant that is added to a graph.

    Args:
        graph: The graph.
        name: The name of the constant, or of the node that makes it.
        size: How many bytes it has.

    Raises:
        ModelError: There is no room for it.
    """
    if not has_room(graph, size):
        raise ModelError(
            f"the constant '{name}' has {size:,} bytes, and those that the nodes of a model make may come to "
            f"{_ROOM:,} bytes and {_ROOM_GROWTH} times what it stores; export it with the weights themselves"
        )
    if _KEY in graph.meta:
        graph.meta[_KEY] -= size


def add_initializer(graph: ir.Graph, name: str, array: Array) -> ir.Value:
    """Adds a constant to a graph.

    Args:
        graph: The graph, which is changed in place.
        name: A name that no other value in the graph has.
        array: The contents, of any shape and of a dtype that ONNX has.

    Returns:
        The constant as a value.

    Raises:
        ModelError: The graph has no room for it (:func:`bounded_constants`).
    """
    take_room(graph, name, array.nbytes)
    tensor = ir.Tensor(array, name=name)  # ir.tensor takes longer to find out that this is an array
    value = ir.Value(
        name=name, shape=ir.Shape(array.shape), type=ir.TensorType(tensor.dtype), const_value=tensor
    )
    graph.register_initializer(value)
    return value


def value_names(graph: ir.Graph) -> set[str]:
    """The names of all inputs, initializers and values of a graph and of the graphs inside its nodes.

    A graph inside a node sees the values around it, so no name there may be given again outside.
    """
    names: set[str] = set()
    for each in (graph, *graph.subgraphs()):
        values = (value for node in each for value in (*node.inputs, *node.outputs) if value is not None)
        names |= {value.name for value in (*each.inputs, *values) if value.name is not None}
        names |= set(each.initializers)
    return names


def unused_name(stem: str, taken: Container[str]) -> str:
    """Chooses a name that is not taken yet.

    Args:
        stem: The name where it is free; else ``_1``, ``_2`` and so on are appended.
        taken: The names in use, such as :func:`value_names`.

    Returns:
        The first free name.
    """
    names = itertools.chain([stem], (f"{stem}_{number}" for number in itertools.count(1)))
    return next(name for name in names if name not in taken)


def take_name(stem: str, taken: set[str]) -> str:
    """Chooses a name as :func:`unused_name` does, and adds it to those in use."""
    name = unused_name(stem, taken)
    taken.add(name)
    return name


class Replacement:
    """Nodes that are put in the place of one, whose names begin with that of its output.

    Args:
        node: The node.
        taken: The names in use, to which new ones are added.
    """

    def __init__(self, node: ir.Node, taken: set[str]) -> None:
        self._node, self._taken = node, taken
        self._new: list[ir.Node] = []

    def op(self, operator: str, *inputs: ir.Value | None, **attributes: Any) -> ir.Value:
        """Adds a node; returns its output."""
        node = ir.node(operator, inputs, attributes)
        node.outputs[0].name = take_name(f"{self._node.outputs[0].name}_{operator}", self._taken)
        self._new.append(node)
        return node.outputs[0]

    def put(self, value: ir.Value) -> None:
        """Puts the new nodes, of which the last one makes a value, in the place of the old one."""
        node, graph = self._node, self._node.graph
        assert isinstance(graph, ir.Graph)
        self._new[-1].name = node.name
        ir.convenience.replace_nodes_and_values(graph, node, [node], self._new, node.outputs, [value])


def set_element_type(value: ir.Value, element_type: ir.DataType) -> None:
    """Changes the element type of a value, but not that of the same value in copies of the model.

    Args:
        value: A value of a known type, which copies made by ``clone`` share.
        element_type: The new element type.
    """
    value.type = copy.deepcopy(value.type)
    value.dtype = element_type


def constant_input(node: ir.Node, index: int) -> Array | None:
    """The value of a node's input.

    Args:
        node: The node.
        index: Index of the input.

    Returns:
        The value; None where there is no such input, or where it is computed.
    """
    return read_constant(node.inputs[index]) if index < len(node.inputs) else None


def set_constant_input(node: ir.Node, index: int, array: Array, taken: set[str] | None = None) -> None:
    """Gives one input of one node a new constant value.

    An initializer that nothing else reads keeps its name. One that others read as well is not changed, and
    the node gets an initializer of its own.

    Args:
        node: A node of the model's main graph; changed in place.
        index: Index of the input; the number of the node's inputs adds one.
        array: The new value.
        taken: The names in use, to which a new one is added; None where they are to be looked for, which
            takes time in proportion to the graph.
    """
    value = node.inputs[index] if index < len(node.inputs) else None
    if value is not None and _is_read_by_one_node(value):
        tensor = ir.Tensor(array, name=value.name)
        value.const_value, value.shape = tensor, ir.Shape(array.shape)
        value.type = ir.TensorType(tensor.dtype)
        return
    if index >= len(node.inputs):
        node.resize_inputs(index + 1)
    graph = node.graph
    assert isinstance(graph, ir.Graph)
    name = take_name(f"{node.name}_input_{index}", value_names(graph) if taken is None else taken)
    node.replace_input_with(index, add_initializer(graph, name, np.asarray(array, order="C")))


def _is_read_by_one_node(value: ir.Value) -> bool:
    return value.is_initializer() and len(value.uses()) == 1 and not value.is_graph_output()


#: The property in which PyTorch's exporter lists the modules around a node, from the outermost inwards, and
#: last the node itself, as Python writes a list; and that with their classes.
SCOPES = "pkg.torch.onnx.name_scopes"
_CLASSES = "pkg.torch.onnx.class_hierarchy"
_TEXTS = re.compile(r"""'([^']*)'|"([^"]*)\"""")

#: The names that PyTorch's older exporter gives to nodes, such as ``/encoder/layer.1/dense/MatMul_1``.
_NAME_IN_MODULES = re.compile(r"/(.+)/[A-Z]\w*")


def module_of(node: ir.Node) -> str:
    """Returns the path of the module of PyTorch that a node comes from, such as ``encoder.layer.1.dense``.

    Args:
        node: A node of any model. The exporter writes the path into its properties, or into its name.

    Returns:
        The path; empty for nodes of the outermost module, and of other exporters.
    """
    scopes = ["".join(text) for text in _TEXTS.findall(node.metadata_props.get(SCOPES, ""))]
    if len(scopes) > 1:
        return scopes[-2]
    named = _NAME_IN_MODULES.fullmatch(node.name or "")
    path: list[str] = []
    for part in named[1].split("/") if named else ():
        if path and part.startswith(f"{path[-1]}."):  # a module in a Sequential has the name of both
            path.pop()
        path.append(part)
    return ".".join(path)


def modules_of(graph: ir.Graph) -> dict[str, str]:
    """Returns the names of the layers of a graph to their modules, if known; see :func:`module_of`."""
    layers = (node for node in graph if operator_of(node).multiplies)
    return {node.name or "": module for node in layers if (module := module_of(node))}


def matches_node(pattern: str, name: str, module: str) -> bool:
    """Returns True if a pattern is for a node: for its name, its module, or a module around that.

    Args:
        pattern: A name, or a pattern with ``*`` and ``?``.
        name: The node's name.
        module: What :func:`module_of` returns for the node.
    """
    return any(fnmatch.fnmatch(text, pattern) for text in (name, *modules_around(module)))


def modules_around(module: str) -> Iterator[str]:
    """The paths of a module and of those around it: ``a`` and ``a.b`` of ``a.b``."""
    return itertools.accumulate(module.split("."), "{}.{}".format) if module else iter(())


def by_name(graph: ir.Graph, patterns: Iterable[str]) -> list[str]:
    """Returns patterns for TensorRT's layers, which have the names of nodes and no modules.

    Args:
        graph: The graph.
        patterns: Names of nodes or modules, or patterns.

    Returns:
        The patterns, with the names of layers in place of those that are for modules.
    """
    modules, found = modules_of(graph), list[str]()
    for pattern in patterns:
        named = [name for name, module in modules.items() if matches_node(pattern, name, module)]
        only_modules = named and not any(matches_node(pattern, node.name or "", "") for node in graph)
        found += named if only_modules else [pattern]
    return found


def modules_by_tensor(graph_model: ir.Model) -> dict[str, str]:
    """Returns the names of tensors to the modules that write them, for :func:`keep_modules`."""
    return {
        value.name or "": node.metadata_props[SCOPES]
        for node in graph_model.graph
        if SCOPES in node.metadata_props
        for value in node.outputs
    }


def settle_modules(graph_model: ir.Model) -> None:
    """Gives convolutions their own modules where PyTorch's exporter wrote those of a BatchNorm.

    The exporter computes a BatchNorm together with the convolution before it. The weights still have the name
    of the convolution's module.

    Args:
        graph_model: The model; the properties of its nodes are changed.
    """
    for node in graph_model.graph:
        if "BatchNorm" in node.metadata_props.get(_CLASSES, "") and operator_of(node).is_convolution:
            weights, around = node.inputs[1], module_of(node).rpartition(".")[0]
            own, _, kind = ((weights.name if weights is not None else "") or "").rpartition(".")
            if kind == "weight" and own.rpartition(".")[0] == around:
                node.metadata_props[SCOPES] = repr([own, node.name])


def keep_modules(graph_model: ir.Model, before: Mapping[str, str]) -> None:
    """Gives nodes that were put in the place of others the modules of the others.

    A node without a module gets that in which a tensor of its name was written, or that of its reader.

    Args:
        graph_model: The model; the properties of its nodes are changed.
        before: What :func:`modules_by_tensor` returned before nodes were replaced.
    """
    for node in reversed(graph_model.graph) if before else ():
        if SCOPES not in node.metadata_props:
            written = (before.get(value.name or "") for value in node.outputs)
            readers = (reader for value in node.outputs for reader, _ in value.uses())
            read = (reader.metadata_props.get(SCOPES) for reader in readers)
            if scopes := next(filter(None, (*written, *read)), None):
                node.metadata_props[SCOPES] = scopes


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


def made_by(value: ir.Value | None, *operators: str) -> ir.Node | None:
    """The node that computes a value.

    Args:
        value: A value, or None where a node leaves out an optional input.
        operators: The operators that count; none for all.

    Returns:
        The node; None where there is none, or it has another operator.
    """
    node = None if value is None else value.producer()
    return node if node is not None and (not operators or node.op_type in operators) else None


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


@dataclass(frozen=True)
class Window:
    """How the kernel of a convolution, or of a pooling, moves over the spatial axes.

    Attributes:
        kernel: The kernel's size along every spatial axis.
        strides: One stride per spatial axis.
        dilations: One dilation per spatial axis.
        pads: Numbers of zeros before every spatial axis, then after every spatial axis, as in ONNX.
    """

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[int, ...]

    @classmethod
    def of(cls, node: ir.Node, kernel: Sequence[int], spatial: Callable[[], Sequence[int]]) -> Window:
        """The window of a node, with the pads that ONNX's ``auto_pad`` means.

        Args:
            node: The node.
            kernel: The kernel's size along every spatial axis.
            spatial: Gives the sizes of the input along these axes, on which some pads depend.
        """
        attributes, ones = node.attributes, [1] * len(kernel)
        strides, dilations = (tuple(attributes.get_ints(name, ones)) for name in ("strides", "dilations"))
        auto_pad, pads = attributes.get_string("auto_pad", "NOTSET"), (0,) * (2 * len(kernel))
        if auto_pad.startswith("SAME"):
            totals = [
                max(0, (math.ceil(n / s) - 1) * s + (k - 1) * d + 1 - n)
                for n, s, k, d in zip(spatial(), strides, kernel, dilations, strict=True)
            ]
            small, large = [total // 2 for total in totals], [total - total // 2 for total in totals]
            pads = (*small, *large) if auto_pad == "SAME_UPPER" else (*large, *small)
        elif auto_pad == "NOTSET":
            pads = tuple(attributes.get_ints("pads", ())) or pads
        return cls(tuple(kernel), strides, dilations, pads)

    @property
    def reach(self) -> list[int]:
        """The kernel's length along each axis, less one."""
        return [d * (k - 1) for k, d in zip(self.kernel, self.dilations, strict=True)]


def may_be_float(value: ir.Value) -> bool:
    """Whether a tensor has floating-point values, no classes or sizes; true where the type is unknown."""
    return value.dtype is None or value.dtype.is_floating_point()


def is_along_last_axis(node: ir.Node) -> bool:
    """Whether a node that takes an axis, such as a Softmax, takes the last; false where that is not known."""
    axis, shape = node.attributes.get_int("axis", -1), node.outputs[0].shape
    return axis == -1 or (shape is not None and axis == len(shape) - 1)


#: Attributes that name the element type of what a node gives out.
TYPE_ATTRIBUTES = ("to", "dtype", "output_dtype", "output_datatype")


def computes_in(model: ir.Model, dtype: ir.DataType) -> bool:
    """Whether a model has weights or inputs of a type, or a node that converts to it."""
    return any(
        any(value.dtype == dtype for value in (*graph.inputs, *graph.initializers.values()))
        or any(_names_type(node, dtype) for node in graph)
        for graph in model.graphs()
    )


def _names_type(node: ir.Node, dtype: ir.DataType) -> bool:
    if not node.attributes:  # most nodes of a network that gradients were appended to
        return False
    attributes = (node.attributes.get(name) for name in TYPE_ATTRIBUTES)
    return any(
        one is not None and one.type == ir.AttributeType.INT and not one.is_ref() and one.as_int() == dtype
        for one in attributes
    )


#: How onnx writes where in its sources something failed.
_ASSERTION = re.compile(r"^/\S+:\d+: \w+: Assertion `.*?` failed: ")


@contextlib.contextmanager
def as_model_errors(name: str, problem: str, advice: str = "export it again") -> Iterator[None]:
    """Turns whatever onnx and onnx_ir raise in the block into a ModelError.

    Args:
        name: What to call the model in messages.
        problem: What the error says of it, such as ``cannot be read``.
        advice: What to do.

    Raises:
        ModelError: The block failed.
        TrtInt8Error: A pass of this project refused the model, inside onnx_ir or not.
    """
    try:
        yield
    except TrtInt8Error:
        raise
    except Exception as error:
        if isinstance(error.__cause__, TrtInt8Error):  # onnx_ir wraps what a pass raises
            raise error.__cause__ from None
        words = _ASSERTION.sub("", cause_in_words(error))
        raise ModelError(f"'{name}' {problem}: {words}; {advice}") from error


class OperatorPass(ir.passes.InPlacePass):
    """A pass that changes nothing in a graph without certain operators.

    Attributes:
        operators: The names of the operators, in any domain.
    """

    operators: ClassVar[frozenset[str]]


def run_passes(graph_model: ir.Model, name: str, *passes: ir.passes.PassBase) -> None:
    """Runs passes one after another. Those for operators that no node has are left out.

    Args:
        graph_model: The model; changed.
        name: What to call the model in messages.
        passes: The passes, which change the model in place.

    Raises:
        ModelError: A pass fails, because nodes are not as their operators demand.
    """
    with as_model_errors(name, "cannot be prepared"):
        present: set[str] = set()
        for one in passes:
            if isinstance(one, OperatorPass):
                present = present or {node.op_type for node in graph_model.graph.all_nodes()}
                if not present & one.operators:
                    continue
            if ir.passes.Sequential(one)(graph_model).modified:
                present = set()
