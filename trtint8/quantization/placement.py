"""Where Q/DQ pairs go so that TensorRT runs a network in INT8, and why a node stays in float.

The choice rests on the graph alone: neither data nor batch size changes it. TensorRT fuses a pair into the
layer that reads it, so pairs are put before the inputs of weighted operators and never between an operator
and its activation function (NVIDIA, "Working with Quantized Types", TensorRT documentation).
"""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Literal

import onnx_ir as ir

from calibrators.checks import several
from calibrators.data.inputs import InputShapes
from calibrators.errors import Argument, ModelError, counted, enumerated, titled
from calibrators.operators import OPERATORS, Operator, Product, operator_named, operator_of
from trtint8.models.graph import (
    constant_tensor,
    is_constant,
    matches_node,
    module_of,
    modules_around,
    nodes_inside,
    values_behind,
    values_read,
)
from trtint8.models.plugins import unknown_nodes
from trtint8.quantization.attention import Attention, find_attentions, output_readers
from trtint8.quantization.operators import commutes_with_quantization, weight_axis
from trtint8.quantization.slower import SLOWER_WHEN_BUILT, Products, slower_in_int8
from trtint8.quantization.targets import DEFAULT, TARGETS, KernelCosts, KernelLimits, SmallSizes, Target
from trtint8.quantization.tensor_configs import JointConfigs, join_configs


@dataclass(frozen=True)
class Edge:
    """One input of one node that reads a quantized tensor.

    Attributes:
        node: Name of the node that reads the tensor.
        index: Index of the node's input.
        tensor: Name of the tensor that is read.
        axis: The axis of the output channels where the tensor is a weight with one scale per channel; None
            where the whole tensor has one scale.
    """

    node: str
    index: int
    tensor: str
    axis: int | None = None


#: What decides on a node. In INT8: it multiplies by constant weights or by another activation, is part of an
#: attention, is added to what a convolution computes, or joins tensors with one scale. In float: it was named
#: for it, its whole attention is, the model has there what takes no pairs, the target has no INT8 kernel or
#: none that gains anything, INT8 is estimated to be slower, it is taken for a plugin of TensorRT, it is
#: inside another node, or a model that came with pairs has none before it.
Cause = Literal[
    "weights",
    "activations",
    "attention",
    "residual",
    "concat",
    "keep_float",
    "accuracy",
    "model",
    "target",
    "slower",
    "plugin",
    "inside",
    "no_pairs",
]

#: How many names a short text of a placement has.
_FEW = 3


@dataclass(frozen=True)
class Decision:
    """Whether one node is quantized, and why.

    Attributes:
        node: Name of the node.
        operator: The node's ONNX operator.
        quantized: Whether the node reads Q/DQ pairs.
        reason: The reason, in words for the user.
        cause: The reason for programs: ``weights``, ``activations``, ``attention``, ``residual`` or
            ``concat`` in INT8; ``keep_float``, ``accuracy``, ``attention``, ``model``, ``target``,
            ``slower``, ``plugin``, ``inside`` or ``no_pairs`` in float. See
            :data:`trtint8.quantization.placement.Cause`.
        domain: The operator's domain; empty for ONNX's own.
        module: The path of the module of PyTorch that the node comes from, such as ``encoder.layer.1.dense``;
            empty where the model does not say.
    """

    node: str
    operator: str
    quantized: bool
    reason: str
    cause: Cause
    domain: str = ""
    module: str = ""

    @property
    def title(self) -> str:
        """The name of the node, and its module."""
        return titled(self.node, self.module)

    @property
    def row(self) -> Operator:
        """What the operator is."""
        return operator_named(self.operator, self.domain)


@dataclass(frozen=True, repr=False)
class Placement:
    """All Q/DQ pairs of a model.

    Attributes:
        activations: Edges that read activations through a pair with one scale, in graph order.
        weights: Edges that read constant weights through a pair.
        configs: How every tensor is quantized, and which tensors share one scale.
        decisions: Decisions in graph order: one per node that multiplies matrices, per node that reads a pair
            or could have read one, and per node of an unknown operator. A node inside another node has the
            place of the outer one.
        slower: Names of the weighted nodes that stay in float because INT8 is estimated to be slower.
        unchanging: Those of the activations whose values no sample changes, such as the first state of an
            unrolled loop.
    """

    activations: tuple[Edge, ...]
    weights: tuple[Edge, ...]
    configs: JointConfigs
    decisions: tuple[Decision, ...]
    slower: tuple[str, ...] = ()
    unchanging: frozenset[str] = frozenset()

    def __repr__(self) -> str:
        named = enumerated([f"'{name}'" for name, _ in self.float_nodes], _FEW)
        in_float = f"; in float {named}" if named else ""
        activations = counted(len(self.tensors), "activation")
        return f"<Placement: {self.layers_text}, {activations} with a scale{in_float}>"

    @property
    def layers_text(self) -> str:
        """How many layers are in INT8, in words."""
        return f"{len(self.quantized_nodes)} of {self.multiplying} layers in INT8"

    @property
    def tensors(self) -> tuple[str, ...]:
        """The activations that need a range, each once, in graph order."""
        return tuple(dict.fromkeys(edge.tensor for edge in self.activations))

    @property
    def shared(self) -> tuple[tuple[str, ...], ...]:
        """Groups of two or more activations that share one scale."""
        return self.configs.groups(self.tensors)

    @property
    def all_slower(self) -> bool:
        """True if all layers that could be in INT8 stay in float because INT8 is estimated to be slower."""
        return bool(self.slower) and not self.quantized_nodes

    @property
    def multiplying(self) -> int:
        """The number of nodes that multiply matrices, in INT8 or in float."""
        return sum(decision.row.multiplies for decision in self.decisions)

    @property
    def float_nodes(self) -> tuple[tuple[str, str], ...]:
        """Names of the nodes that multiply matrices in float, each with the reason."""
        return tuple((one.node, one.reason) for one in self._products_in_float)

    @property
    def float_causes(self) -> dict[str, Cause]:
        """Names of the nodes that multiply matrices in float, each with the cause."""
        return {one.node: one.cause for one in self._products_in_float}

    @property
    def _products_in_float(self) -> list[Decision]:
        return [one for one in self.decisions if one.row.multiplies and not one.quantized]

    @property
    def reading_pairs(self) -> frozenset[str]:
        """Names of all nodes that read Q/DQ pairs."""
        return frozenset(edge.node for edge in (*self.activations, *self.weights))

    @property
    def quantized_nodes(self) -> tuple[str, ...]:
        """Names of the weighted nodes that run in INT8."""
        return tuple(one.node for one in self.decisions if one.quantized and one.row.is_weighted)


def place(
    model: ir.Model,
    keep_float: Sequence[str] = (),
    target: Target = DEFAULT,
    largest: InputShapes | None = None,
    *,
    float16: bool = False,
    keep_int8: Sequence[str] = (),
    optimal: InputShapes | None = None,
    slower: Collection[str] = (),
    float_layers: Collection[str] = (),
) -> Placement:
    """Decides which edges of a prepared model get Q/DQ pairs.

    Args:
        model: A float model with named nodes, folded constants and inferred types
            (:func:`trtint8.models.model.prepare`).
        keep_float: Names of nodes, or patterns with ``*`` and ``?``, that stay in float.
        target: What the model is built for, which decides which nodes have INT8 kernels and how tensors are
            quantized.
        largest: Input name to its largest shape, where that is known. An attention whose number of keys
            is not known stays in float.
        float16: Whether what is outside INT8 becomes FP16. Layers that are estimated to be slower in INT8
            than in FP16 stay in FP16 then, where the target says what its kernels cost.
        keep_int8: Names of nodes, or patterns, that are put in INT8 even if that is estimated to be slower.
        optimal: Input name to the shape that the engine is tuned for, with which INT8 is compared with FP16;
            ``largest`` where it is not given.
        slower: Names of weighted nodes that stay in FP16 because an engine was slower with them in INT8.
        float_layers: Names of weighted nodes that stay in float because that gains accuracy; those that
            ``keep_int8`` names do not.

    Returns:
        The placement.

    Raises:
        ModelError: A pattern matches no node that could be quantized, or the model has no weighted node.
    """
    _check_layers(model)
    attentions = find_attentions(model, largest)
    names = _quantizable_names(model, attentions)
    in_int8 = _matching(names, keep_int8, "keep_int8")
    accurate = frozenset(float_layers) - in_int8.keys()
    placer = _Placer(model, _matching(names, keep_float, "keep_float"), target, attentions, accurate)
    if float16 and target.costs_with_float16:
        placer.leave_slower(target.costs_with_float16, in_int8, largest if optimal is None else optimal)
    placer.leave({node: SLOWER_WHEN_BUILT for node in model.graph if node.name in slower})
    return placer.place()


def placed_tensors(model: ir.Model) -> tuple[str, ...]:
    """The activations that need a range on one of the targets at least, whatever stays in float, each once.

    Args:
        model: A float model as :func:`place` takes it.

    Raises:
        ModelError: The model has no weighted node.
    """
    _check_layers(model)
    attentions = find_attentions(model)
    # What is open here may be known when the model is built.
    fitting = [replace(one, keys=one.keys or 1, queries=one.queries or 1) for one in attentions]
    names: dict[str, None] = {}
    for target in TARGETS.values():
        for found in [attentions] if fitting == attentions else [attentions, fitting]:
            placer = _Placer(model, {}, target, found)
            placer.choose()
            names |= dict.fromkeys((*(edge.tensor for edge in placer.activations), *placer.alternatives))
    return tuple(names)


@dataclass
class _Placer:
    model: ir.Model
    kept: dict[str, str]
    target: Target
    attentions: Sequence[Attention]
    #: Names of weighted nodes that stay in float because that gains accuracy.
    accurate: Collection[str] = ()
    activations: list[Edge] = field(default_factory=list)
    weights: list[Edge] = field(default_factory=list)
    decisions: dict[str, Decision] = field(default_factory=dict)
    #: Names of activations that would get a pair in place of another if more nodes stayed in float.
    alternatives: list[str] = field(default_factory=list)
    #: Nodes that are estimated to be slower in INT8, with the reason.
    slower: Mapping[ir.Node, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.order = {node.name or "": position for position, node in enumerate(self.model.graph)}
        self.whole: list[Attention] = []
        self.float_products: dict[ir.Node, tuple[str, Cause]] = {}
        for attention in self.attentions:
            found = self._attention_obstacle(attention)
            if found is None:
                self.whole.append(attention)
            else:
                reason, cause = found
                words = f"its attention stays whole in float: {reason}"
                self.float_products |= dict.fromkeys(attention.nodes, (words, cause))
        self.int8_products = {node for attention in self.whole for node in attention.nodes}

    def leave_slower(
        self,
        costs: Sequence[KernelCosts],
        forced: Collection[str],
        sizes: InputShapes | None,
    ) -> None:
        """Leaves layers in float that are estimated to be slower in INT8 than in FP16."""
        weighted = [node for node in self.model.graph if operator_of(node).is_weighted]
        possible = [node for node in weighted if self._obstacle(node) is None]
        required = [node for node in possible if node.name in forced]
        if len(required) < len(possible):
            products = Products(possible, required, [attention.nodes for attention in self.attentions])
            self.leave(slower_in_int8(self.model, products, costs, sizes))

    def leave(self, slower: Mapping[ir.Node, str]) -> None:
        """Leaves layers in float that are slower in INT8, each with the reason, and attentions whole."""
        self.slower = {**self.slower, **slower}
        self.whole = [one for one in self.whole if self.slower.keys().isdisjoint(one.nodes)]
        self.int8_products -= self.slower.keys()

    def place(self) -> Placement:
        self.choose()
        decisions = tuple(self._ordered_decisions())
        slower = tuple(node.name or "" for node in self.slower)
        changing = _changed_by_samples(self.model.graph)
        unchanging = frozenset(edge.tensor for edge in self.activations if edge.tensor not in changing)
        return Placement(
            tuple(self.activations), tuple(self.weights), self._configs(), decisions, slower, unchanging
        )

    def choose(self) -> None:
        """Decides on every node: fills in the edges, the decisions and the alternatives."""
        for node in self.model.graph:
            if operator_of(node).multiplies:
                self._place_weighted(node)
        for attention in self.whole:
            self._place_output(attention)
        for node in _candidates(self.model):
            if node.op_type == "Add":
                self._place_residual(node)
        # In reverse order: of a Concat that feeds a Concat it must be known whether its reader is quantized.
        for node in reversed(list(_candidates(self.model))):
            if node.op_type == "Concat":
                self._place_concat(node)
        unique = dict.fromkeys(self.activations)
        self.activations = sorted(unique, key=lambda edge: (self.order[edge.node], edge.index))

    def _ordered_decisions(self) -> Iterator[Decision]:
        unknown = set(unknown_nodes(self.model))
        for node in self.model.graph:
            if node.name in self.decisions:
                yield self.decisions[node.name]
            if node in unknown:
                reason = "ONNX has no such operator, so it is taken for a plugin of TensorRT"
                yield _decision(node, False, reason, "plugin")
            for inner in nodes_inside(node):
                if operator_of(inner).multiplies:
                    reason = f"it is inside the {node.op_type} '{node.name}', where no Q/DQ pairs are placed"
                    yield _decision(inner, False, reason, "inside")

    def _place_weighted(self, node: ir.Node) -> None:
        found = self._obstacle(node)
        if found is not None:
            self._decide(node, False, *found)
            return
        edges = [_edge(node, index) for index in (0, 1)]
        weights = [edge for edge in edges if is_constant(node.inputs[edge.index])]
        self.activations += [edge for edge in edges if edge not in weights]
        self.weights += weights
        weight = weights[0] if weights else None
        if node in self.int8_products:
            reason = "its attention is quantized whole: queries, keys, values, softmax and output"
            self._decide(node, True, reason, "attention")
        elif weight is None:
            self._decide(node, True, "both inputs are activations, one scale each", "activations")
        elif weight.axis is None:
            self._decide(node, True, "input with one scale, constant operand with one scale", "weights")
        else:
            reason = f"input with one scale, weights with one scale per channel (axis {weight.axis})"
            self._decide(node, True, reason, "weights")

    def _obstacle(self, node: ir.Node) -> tuple[str, Cause] | None:
        """The reason why a node that multiplies matrices cannot be quantized, and its cause, or None."""
        if node.name in self.kept:
            return self._named_by(node), "keep_float"
        if node.name in self.accurate:
            return "it makes much of the noise in INT8 and takes next to no time in float", "accuracy"
        if found := self.float_products.get(node):
            return found
        if reason := _obstacle_in_model(node):
            return reason, "model"
        if reason := _refusal(node, self.target):
            return reason, "target"
        if reason := self.slower.get(node):
            return reason, "slower"
        return None

    def _named_by(self, node: ir.Node) -> str:
        """The reason why a node stays in float that was named for it."""
        return f"kept in float by '{self.kept[node.name or '']}'"

    def _attention_obstacle(self, attention: Attention) -> tuple[str, Cause] | None:
        """The reason why an attention cannot be quantized whole, and its cause, or None."""
        readers = output_readers(attention)
        others = (node for node, _ in readers if not operator_of(node).is_weighted)
        for node in (*attention.nodes, *others):
            if node.name in self.kept:
                return f"'{node.name}' is {self._named_by(node)}", "keep_float"
        for node in attention.nodes:
            if reason := obstacle(node, self.target):
                return f"'{node.name}': {reason}", "attention"
        output = attention.context.outputs[0]
        if output.is_graph_output() or any(node.graph is not self.model.graph for node, _ in readers):
            return "its output is read outside the graph, where no pair can stand", "attention"
        reason = attention.obstacle(self.target.attention)
        return None if reason is None else (reason, "attention")

    def _place_output(self, attention: Attention) -> None:
        """Quantizes the output of an attention where no pair behind it does."""
        output = attention.context.outputs[0]
        self.alternatives.append(output.name or "")
        if only_read_by(output, {(edge.node, edge.index) for edge in self.activations}):
            return
        for node, index in output_readers(attention):
            self.activations.append(_edge(node, index))
            if node.name not in self.decisions:
                reason = f"reads the output of the attention of '{attention.scores.name}' in INT8"
                self._decide(node, True, reason, "attention")

    def _place_residual(self, node: ir.Node) -> None:
        """Quantizes one branch of an Add, so that TensorRT fuses it into the other branch's convolution."""
        if len(node.inputs) != 2 or any(value is None or is_constant(value) for value in node.inputs):
            return
        first, second = (value for value in node.inputs if value is not None)
        from_conv = [self._is_fusable_conv(value) for value in (first, second)]
        if not any(from_conv) or not _same_shape(first, second):
            return
        if node.name in self.kept:
            self._decide(node, False, self._named_by(node), "keep_float")
            return
        if all(from_conv):
            # The later convolution computes the sum; the output of the earlier one is its INT8 operand.
            index = min((0, 1), key=lambda i: self.order[_producer_name((first, second)[i])])
            self.alternatives.append((second, first)[index].name or "")
        else:
            index = from_conv.index(False)
        self.activations.append(_edge(node, index))
        conv = _producer_name((second, first)[index])
        self._decide(node, True, f"fuses into '{conv}': its other branch gets a pair", "residual")

    def _is_fusable_conv(self, value: ir.Value) -> bool:
        conv = value.producer()
        return (
            conv is not None
            and operator_of(conv).is_convolution
            and self._is_quantized(conv)
            and len(value.uses()) == 1
            and not value.is_graph_output()
        )

    def _place_concat(self, node: ir.Node) -> None:
        """Quantizes the inputs of a Concat whose output is quantized, so that it copies INT8."""
        output = node.outputs[0]
        read = {(edge.node, edge.index) for edge in self.activations}
        if not only_read_by(output, read):
            return
        if node.name in self.kept:
            self._decide(node, False, self._named_by(node), "keep_float")
        elif any(value is None or is_constant(value) for value in node.inputs):
            self._decide(node, False, "one of its inputs is constant", "model")
        else:
            self.activations += [_edge(node, index) for index in range(len(node.inputs))]
            self._decide(node, True, "its inputs and its output share one scale, so it copies INT8", "concat")

    def _configs(self) -> JointConfigs:
        return join_configs(
            self.model,
            self.target,
            activations=[edge.tensor for edge in self.activations],
            weights={edge.tensor: edge.axis for edge in self.weights},
            quantized=[decision.node for decision in self.decisions.values() if decision.quantized],
            kept=[name for name in (*self.kept, *self.accurate) if name in self.decisions],
            slower=[node.name or "" for node in self.slower],
        )

    def _is_quantized(self, node: ir.Node) -> bool:
        decision = self.decisions.get(node.name or "")
        return decision is not None and decision.quantized

    def _decide(self, node: ir.Node, quantized: bool, reason: str, cause: Cause) -> None:
        self.decisions[node.name or ""] = _decision(node, quantized, reason, cause)


def _decision(node: ir.Node, quantized: bool, reason: str, cause: Cause) -> Decision:
    name = node.name or node.op_type
    return Decision(name, node.op_type, quantized, reason, cause, node.domain, module_of(node))


def _edge(node: ir.Node, index: int) -> Edge:
    value = node.inputs[index]
    assert value is not None
    axis = weight_axis(node, value) if is_constant(value) else None
    return Edge(node.name or "", index, value.name or "", axis)


def _producer_name(value: ir.Value) -> str:
    producer = value.producer()
    return (producer.name if producer is not None else None) or ""


def _candidates(model: ir.Model) -> Iterator[ir.Node]:
    """The nodes that may get pairs whatever stands around them."""
    others = (("", "Add"), ("", "Concat"))
    return (
        node for node in model.graph if operator_of(node).is_weighted or (node.domain, node.op_type) in others
    )


def _changed_by_samples(graph: ir.Graph) -> set[str]:
    """Names of the tensors that are computed from the values of inputs, and not only from their shapes."""
    inputs = {value for value in graph.inputs if not value.is_initializer()}
    computing = (node for node in graph if not operator_of(node).reads_shape)
    changed = values_behind(computing, lambda node: not inputs.isdisjoint(values_read(node)))
    return {value.name or "" for value in inputs | changed}


def _check_layers(model: ir.Model) -> None:
    """Refuses a model without a node that could be quantized, and says why it has none."""
    if any(operator_of(node).is_weighted for node in model.graph):
        return
    for node in model.graph:
        if any(operator_of(inner).is_weighted for inner in nodes_inside(node)):
            raise ModelError(
                f"the model's layers are in the graphs of {node.op_type} '{node.name}', which stay as they "
                "are; export the branch that you need as a model of its own"
            )
        if operator_of(node).integers is not None:
            raise ModelError(
                f"the model computes in integers already, as in {node.op_type} '{node.name}'; give the float "
                "model, or make one of this with 'trtint8 lint MODEL --fix -o MENDED'"
            )
    *others, last = (name for (_, name), operator in OPERATORS.items() if operator.is_weighted)
    nothing = f"the model has no {', '.join(others)} or {last} node, so there is nothing to run in INT8"
    unpaired = next((node for node in model.graph if operator_of(node).no_pairs), None)
    if unpaired is not None:
        reason = operator_of(unpaired).no_pairs
        nothing += f"; {unpaired.op_type} '{unpaired.name}' stays in float: {reason}"
    raise ModelError(nothing)


def _quantizable_names(model: ir.Model, attentions: Sequence[Attention]) -> dict[str, str]:
    """Names of the nodes that could be quantized, to their modules."""
    readers = (node for attention in attentions for node, _ in output_readers(attention))
    return {node.name or "": module_of(node) for node in (*_candidates(model), *readers)}


def _matching(names: Mapping[str, str], patterns: Sequence[str], argument: str) -> dict[str, str]:
    """The names that match a pattern, to the pattern.

    Args:
        names: Names of nodes, to their modules.
        patterns: Names of nodes or modules, or patterns.
        argument: What messages call the patterns.
    """
    matching: dict[str, str] = {}
    for pattern in several(patterns):
        if not isinstance(pattern, str):
            raise ModelError(f"{Argument(argument)}: {pattern!r} is no name of a node; give strings")
        matched = [name for name in names if name == pattern] or [
            name for name, module in names.items() if matches_node(pattern, name, module)
        ]
        if not matched:
            known = dict.fromkeys(itertools.chain(names, *map(modules_around, names.values())))
            near = difflib.get_close_matches(pattern, known, _FEW)
            examples = [repr(name) for name in near] or [
                titled(f"'{name}'", module) for name, module in names.items()
            ]
            raise ModelError(
                f"{Argument(argument)}: '{pattern}' matches no node that could be quantized; names look like "
                f"{enumerated(examples, _FEW)}"
            )
        matching |= dict.fromkeys(matched, pattern)
    return matching


def only_read_by(value: ir.Value, edges: Set[tuple[str, int]]) -> bool:
    """Whether every use of a value, through operators that round nothing, is one of the edges.

    Args:
        value: A value of the graph.
        edges: Names of nodes, and indices of their inputs.
    """
    if value.is_graph_output() or not value.uses():
        return False
    for node, index in value.uses():
        if (node.name or "", index) in edges or operator_of(node).reads_shape:
            continue
        if index != 0 or not commutes_with_quantization(node):
            return False
        given = [output for output in node.outputs if output.uses() or output.is_graph_output()]
        if not all(only_read_by(output, edges) for output in given):
            return False
    return True


def _same_shape(first: ir.Value, second: ir.Value) -> bool:
    """Whether two tensors add without broadcasting, as far as their shapes are known."""
    if first.shape is None or second.shape is None:
        return True
    return len(first.shape) == len(second.shape) and all(
        a == b
        for a, b in zip(first.shape, second.shape, strict=True)
        if isinstance(a, int) and isinstance(b, int)
    )


def obstacle(node: ir.Node, target: Target) -> str | None:
    """Finds out why a node of the main graph cannot run in INT8.

    Args:
        node: A node that multiplies matrices.
        target: What the model is built for.

    Returns:
        The reason, in words for the user; None where nothing about the node itself is in the way.
    """
    return _obstacle_in_model(node) or _refusal(node, target)


def _obstacle_in_model(node: ir.Node) -> str | None:
    """The reason that holds for every target."""
    if reason := operator_of(node).no_pairs:
        return reason
    first, second = node.inputs[:2]
    if first is None or second is None:
        return "an input is missing"
    for value in (first, second):
        if value.dtype is not None and value.dtype != ir.DataType.FLOAT:
            return f"'{value.name}' is {value.dtype.name.lower()}, and Q/DQ is placed in float32 models"
        if value.shape is not None and 0 in value.shape:
            return f"'{value.name}' has no elements"
    if is_constant(first) and is_constant(second):
        return "both inputs are constant"
    if operator_of(node).is_convolution and not is_constant(second):
        return "its weights are computed at run time, and TensorRT's INT8 convolutions need constant ones"
    if any(value.shape is not None and len(value.shape) < 2 for value in (first, second)):
        return "an operand is a vector"
    return None


def _refusal(node: ir.Node, target: Target) -> str | None:
    """The reason of one target."""
    reason = target.refused.get(node.op_type)
    if reason is None and operator_of(node).is_convolution and _groups(node) > 1:
        reason = target.refused.get(f"grouped {node.op_type}")
    if reason is None and target.kernels is not None and operator_of(node).is_convolution:
        reason = _too_large(node, target.kernels)
    if reason is None and target.small is not None:
        reason = _too_small(node, target.small)
    return reason


def _too_large(node: ir.Node, limits: KernelLimits) -> str | None:
    _, _, *kernel = _weight_shape(node)
    strides = node.attributes.get_ints("strides", ())
    if len(kernel) != limits.spatial:
        return f"it has {len(kernel)} spatial dimensions, and the DLA takes {limits.spatial}"
    if max(kernel) > limits.kernel:
        return f"its kernel is {max(kernel)} large, and the DLA's largest is {limits.kernel}"
    if node.op_type == "Conv" and max(strides, default=1) > limits.stride:
        return f"its stride is {max(strides)}, and the DLA's largest is {limits.stride}"
    return None


def _too_small(node: ir.Node, small: SmallSizes) -> str | None:
    if node.op_type == "Conv":
        return _few_channels(node, small)
    if operator_of(node).product is Product.MATRICES:
        return _small_product(node, small)
    return None


def _few_channels(node: ir.Node, small: SmallSizes) -> str | None:
    outputs, inputs, *kernel = _weight_shape(node)
    if min(outputs, inputs) >= small.channels:
        return None
    if _groups(node) > 1:
        runs = outputs % small.multiple == 0 and min(kernel, default=0) >= 3
    else:
        reads_model_input = any(value is not None and value.is_graph_input() for value in node.inputs)
        runs = (
            (outputs % small.multiple == 0 or inputs % small.multiple == 0)
            and (reads_model_input or max(outputs, inputs) >= small.channels)
            and len(set(kernel)) == 1
        )
    if runs:
        return None
    per_group = " per group" if _groups(node) > 1 else ""
    return f"with {inputs} input channels{per_group} and {outputs} output channels, INT8 gains nothing"


def _small_product(node: ir.Node, small: SmallSizes) -> str | None:
    first, second = node.inputs[:2]
    rows, inner = _sizes(first, bool(node.attributes.get_int("transA", 0)))
    _, columns = _sizes(second, bool(node.attributes.get_int("transB", 0)))
    batched = any(
        value is not None and value.shape is not None and len(value.shape) > 2 for value in (first, second)
    )
    one_is_constant = is_constant(first) or is_constant(second)
    if small.vectors and 1 in (rows, columns) and not (batched and one_is_constant):
        return "it is a product of a matrix and a vector, which INT8 does not make faster"
    for size, words in ((columns, "columns"), (inner, "products per element")):
        if size is not None and size < small.inner:
            return f"with {size} {words}, INT8 gains nothing"
    return None


def _sizes(value: ir.Value | None, transposed: bool) -> tuple[int | None, int | None]:
    """Rows and columns of a matrix; None where they are not fixed."""
    shape = value.shape if value is not None else None
    if shape is None or len(shape) < 2:
        return None, None
    rows, columns = (dim if isinstance(dim, int) else None for dim in tuple(shape)[-2:])
    return (columns, rows) if transposed else (rows, columns)


def _weight_shape(node: ir.Node) -> tuple[int, ...]:
    weight = node.inputs[1]
    tensor = constant_tensor(weight)
    assert tensor is not None, "weights are constant"
    return tuple(tensor.shape.numpy())


def _groups(node: ir.Node) -> int:
    return node.attributes.get_int("group", 1)
