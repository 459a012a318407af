"""Where Q/DQ pairs go so that TensorRT runs a network in INT8, and why.

The choice rests on the graph alone: neither data nor batch size changes it. TensorRT fuses a pair into the
layer that reads it, so pairs stand at the inputs of weighted operators and never between an operator and
its activation (NVIDIA, "Working with Quantized Types", TensorRT documentation).
"""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from calibrators.errors import ModelError
from trtint8.quantization.config import State, TensorQuantConfig
from trtint8.quantization.joint import JointConfigs
from trtint8.quantization.targets import Target, target_named

#: Operators whose INT8 form is what quantization is for.
WEIGHTED = ("Conv", "ConvTranspose", "Gemm", "MatMul")

_EXPLICIT = target_named("tensorrt-gpu")

#: What TensorRT fuses into the weighted operator before it, so that the tensor between is never stored.
_FUSED_AFTER = {"Clip", "Elu", "HardSigmoid", "LeakyRelu", "Relu", "Selu", "Sigmoid", "Softplus", "Tanh"}

#: Operators that round nothing: quantizing before or after them is the same, with the same scale.
_COMMUTING = {
    "DepthToSpace",
    "Dropout",
    "Expand",
    "Flatten",
    "Gather",
    "GlobalMaxPool",
    "Identity",
    "MaxPool",
    "Reshape",
    "Slice",
    "SpaceToDepth",
    "Split",
    "Squeeze",
    "Tile",
    "Transpose",
    "Unsqueeze",
}


@dataclass(frozen=True)
class Edge:
    """One input of one node that reads a quantized tensor.

    Attributes:
        node: Name of the node that reads.
        index: Which of its inputs.
        tensor: Name of the tensor that is read.
        axis: The output channels' axis where the tensor is a weight with a scale a channel; None where
            one scale serves the whole tensor.
    """

    node: str
    index: int
    tensor: str
    axis: int | None = None


@dataclass(frozen=True)
class Decision:
    """What becomes of one node, and why."""

    node: str
    operator: str
    quantized: bool
    reason: str


@dataclass(frozen=True)
class Placement:
    """All Q/DQ pairs of a model.

    Attributes:
        activations: Edges that read activations through a pair with one scale.
        weights: Edges that read constant weights through a pair.
        configs: How every tensor is quantized, and which stand for others.
        decisions: One for every node that could have been quantized, in graph order.
    """

    activations: tuple[Edge, ...]
    weights: tuple[Edge, ...]
    configs: JointConfigs
    decisions: tuple[Decision, ...]

    @property
    def tensors(self) -> tuple[str, ...]:
        """The activations that need a range, each once, in graph order."""
        return tuple(dict.fromkeys(edge.tensor for edge in self.activations))

    @property
    def shared(self) -> tuple[tuple[str, ...], ...]:
        """Groups of activations that have one scale among them, for those that are not alone."""
        return self.configs.groups(self.tensors)

    @property
    def quantized_nodes(self) -> tuple[str, ...]:
        """Names of the weighted nodes that run in INT8."""
        return tuple(d.node for d in self.decisions if d.quantized and d.operator in WEIGHTED)


def place(model: ir.Model, keep_float: Sequence[str] = (), target: Target = _EXPLICIT) -> Placement:
    """Decides which edges of a prepared model get Q/DQ pairs.

    Args:
        model: A float model with named nodes, folded constants and inferred types
            (:func:`trtint8.models.model.prepare`).
        keep_float: Names of nodes, or patterns with ``*`` and ``?``, that stay in float.
        target: How what is quantized is quantized.

    Returns:
        The placement.

    Raises:
        ModelError: A pattern matches no node that could be quantized, or the model has none.
    """
    return _Placer(model, _kept(model, keep_float), target).place()


@dataclass
class _Placer:
    model: ir.Model
    kept: dict[str, str]
    target: Target
    activations: list[Edge] = field(default_factory=list)
    weights: list[Edge] = field(default_factory=list)
    decisions: dict[str, Decision] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.order = {node.name or "": position for position, node in enumerate(self.model.graph)}

    def place(self) -> Placement:
        for node in _candidates(self.model):
            if node.op_type in WEIGHTED:
                self._weighted(node)
        for node in _candidates(self.model):
            if node.op_type == "Add":
                self._residual(node)
        # Backwards, so that a Concat that feeds a Concat sees that its reader is quantized.
        for node in reversed(list(_candidates(self.model))):
            if node.op_type == "Concat":
                self._concat(node)
        self.activations.sort(key=lambda edge: (self.order[edge.node], edge.index))
        decisions = sorted(self.decisions.values(), key=lambda decision: self.order[decision.node])
        if not any(decision.operator in WEIGHTED for decision in decisions):
            raise ModelError(
                f"the model has no {', '.join(WEIGHTED)} node, so there is nothing to run in INT8"
            )
        return Placement(tuple(self.activations), tuple(self.weights), self._configs(), tuple(decisions))

    def _weighted(self, node: ir.Node) -> None:
        reason = self._obstacle(node)
        if reason:
            self._decide(node, False, reason)
            return
        edges = [_edge(node, index) for index in (0, 1)]
        constant = [_is_constant(node.inputs[edge.index]) for edge in edges]
        self.activations += [edge for edge, is_weight in zip(edges, constant, strict=True) if not is_weight]
        self.weights += [edge for edge, is_weight in zip(edges, constant, strict=True) if is_weight]
        weight = next((edge for edge, is_weight in zip(edges, constant, strict=True) if is_weight), None)
        if weight is None:
            self._decide(node, True, "both inputs are activations, one scale each")
        elif weight.axis is None:
            self._decide(node, True, "input with one scale, constant operand with one scale")
        else:
            self._decide(
                node, True, f"input with one scale, weights with a scale a channel (axis {weight.axis})"
            )

    def _obstacle(self, node: ir.Node) -> str | None:
        """Why a weighted node cannot be quantized, or None."""
        if node.name in self.kept:
            return f"kept in float by '{self.kept[node.name or '']}'"
        first, second = node.inputs[:2]
        if first is None or second is None:
            return "an input is missing"
        for value in (first, second):
            if value.dtype is not None and value.dtype != ir.DataType.FLOAT:
                return f"'{value.name}' is {value.dtype.name.lower()}, and Q/DQ is placed in float32 models"
        if _is_constant(first) and _is_constant(second):
            return "both inputs are constant"
        if node.op_type in ("Conv", "ConvTranspose") and not _is_constant(second):
            return "its weights are computed at run time, and TensorRT's INT8 convolutions need constant ones"
        if any(value.shape is not None and len(value.shape) < 2 for value in (first, second)):
            return "an operand is a vector"
        return None

    def _residual(self, node: ir.Node) -> None:
        """An Add fuses into the convolution before it when its other branch is INT8 too."""
        if len(node.inputs) != 2 or any(value is None or _is_constant(value) for value in node.inputs):
            return
        first, second = (value for value in node.inputs if value is not None)
        from_conv = [self._is_fusable_conv(value) for value in (first, second)]
        if not any(from_conv) or not _same_shape(first, second):
            return
        if node.name in self.kept:
            self._decide(node, False, f"kept in float by '{self.kept[node.name or '']}'")
            return
        if all(from_conv):
            # The later convolution takes the sum; the earlier one's output is its INT8 operand.
            index = min((0, 1), key=lambda i: self.order[_producer_name((first, second)[i])])
        else:
            index = from_conv.index(False)
        self.activations.append(_edge(node, index))
        conv = _producer_name((second, first)[index])
        self._decide(node, True, f"fuses into '{conv}': its other branch gets a pair")

    def _is_fusable_conv(self, value: ir.Value) -> bool:
        conv = value.producer()
        return (
            conv is not None
            and conv.op_type in ("Conv", "ConvTranspose")
            and self._is_quantized(conv)
            and len(value.uses()) == 1
            and not value.is_graph_output()
        )

    def _concat(self, node: ir.Node) -> None:
        """A Concat of INT8 tensors stays INT8 when all of them have one scale."""
        output = node.outputs[0]
        read = {(edge.node, edge.index) for edge in self.activations}
        if not _only_read_by(output, read):
            return
        if node.name in self.kept:
            self._decide(node, False, f"kept in float by '{self.kept[node.name or '']}'")
        elif any(value is None or _is_constant(value) for value in node.inputs):
            self._decide(node, False, "one of its inputs is constant")
        else:
            self.activations += [_edge(node, index) for index in range(len(node.inputs))]
            self._decide(node, True, "its inputs and its output share one scale, so it copies INT8")

    def _configs(self) -> JointConfigs:
        """A config for every tensor; those that hold the same whole numbers, or none, are joined."""
        configs = JointConfigs()
        placed = dict.fromkeys(edge.tensor for edge in self.activations)
        self._join_copies(configs, placed)
        self._join_concats(configs)
        self._join_fused(configs, placed)
        quantized = {configs.dominator(tensor) for tensor in placed}
        kept = self._read_by_kept()
        for value in _activations(self.model):
            name = value.name or ""
            if value.dtype is not None and value.dtype != ir.DataType.FLOAT:
                configs.add(name, TensorQuantConfig(state=State.SHAPE_OR_INDEX))
            elif configs.dominator(name) in quantized:
                configs.add(name, self.target.activations)
            elif name in kept:
                configs.add(name, dataclasses.replace(self.target.activations, state=State.DEQUANTIZED))
            else:
                configs.add(name, TensorQuantConfig(state=State.FLOAT))
        for edge in self.weights:
            configs.add(edge.tensor, self.target.weights_along(edge.axis))
        return configs

    def _read_by_kept(self) -> set[str]:
        """What would have a pair if nodes had not been kept in float."""
        nodes = {node.name: node for node in self.model.graph}
        names = [name for name in self.kept if name in self.decisions]
        values = (nodes[name].inputs[index] for name in names for index in (0, 1))
        return {value.name for value in values if value is not None and value.name}

    def _join_copies(self, configs: JointConfigs, placed: Iterable[str]) -> None:
        """What comes out of an operator that rounds nothing is what went in."""
        values = {value.name: value for node in self.model.graph for value in node.outputs}
        for tensor in placed:
            value = values.get(tensor)
            while value is not None and (node := value.producer()) is not None and _commutes(node):
                source = node.inputs[0]
                if source is None:
                    break
                configs.join(value.name or "", source.name or "")
                value = source

    def _join_concats(self, configs: JointConfigs) -> None:
        nodes = {node.name: node for node in self.model.graph}
        for decision in self.decisions.values():
            if decision.operator == "Concat" and decision.quantized:
                concat = nodes[decision.node]
                for source in concat.inputs:
                    configs.join(concat.outputs[0].name or "", source.name if source and source.name else "")

    def _join_fused(self, configs: JointConfigs, placed: Container[str]) -> None:
        """The last of a chain of fused operators stores its output, and dominates those before it."""
        for node in self.model.graph:
            if not (node.op_type in WEIGHTED and self._is_quantized(node)):
                continue
            chain = [node.outputs[0]]
            while (after := self._fused_reader(chain[-1])) is not None and chain[-1].name not in placed:
                chain.append(after.outputs[0])
            if chain[-1].name in placed:
                for value in chain[:-1]:
                    configs.join(value.name or "", chain[-1].name or "")

    def _fused_reader(self, value: ir.Value) -> ir.Node | None:
        """The one reader of a value that runs within the operator that makes it."""
        uses = tuple(value.uses())
        if len(uses) != 1 or value.is_graph_output():
            return None
        reader = uses[0][0]
        fuses = reader.op_type in _FUSED_AFTER or (reader.op_type == "Add" and self._is_quantized(reader))
        return reader if fuses and reader.domain == "" else None

    def _is_quantized(self, node: ir.Node) -> bool:
        decision = self.decisions.get(node.name or "")
        return decision is not None and decision.quantized

    def _decide(self, node: ir.Node, quantized: bool, reason: str) -> None:
        name = node.name or ""
        self.decisions[name] = Decision(name, node.op_type, quantized, reason)


def weight_axis(node: ir.Node, weight: ir.Value) -> int | None:
    """The axis of a node's constant operand along which TensorRT takes a scale a channel.

    Args:
        node: A weighted node.
        weight: Its constant operand.

    Returns:
        The output channels' axis; None where only one scale for the whole tensor is INT8.
    """
    if node.op_type == "Conv":
        return 0
    if node.op_type == "ConvTranspose":
        return 1 if node.attributes.get_int("group", 1) == 1 else None
    if weight is not node.inputs[1]:
        return None
    if node.op_type == "Gemm":
        return 0 if bool(node.attributes.get_int("transB", 0)) else 1
    return 1 if weight.shape is not None and len(weight.shape) == 2 else None


def _activations(model: ir.Model) -> Iterator[ir.Value]:
    graph = model.graph
    yield from (value for value in graph.inputs if value.name not in graph.initializers)
    yield from (value for node in graph for value in node.outputs if value.name)


def _edge(node: ir.Node, index: int) -> Edge:
    value = node.inputs[index]
    assert value is not None
    axis = weight_axis(node, value) if _is_constant(value) else None
    return Edge(node.name or "", index, value.name or "", axis)


def _producer_name(value: ir.Value) -> str:
    producer = value.producer()
    return (producer.name if producer is not None else None) or ""


def _candidates(model: ir.Model) -> Iterator[ir.Node]:
    return (
        node for node in model.graph if node.domain == "" and node.op_type in (*WEIGHTED, "Add", "Concat")
    )


def _kept(model: ir.Model, patterns: Sequence[str]) -> dict[str, str]:
    """Node name to the pattern that keeps it in float."""
    names = [node.name or "" for node in _candidates(model)]
    kept: dict[str, str] = {}
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        matched = [name for name in names if name == pattern] or fnmatch.filter(names, pattern)
        if not matched:
            examples = ", ".join(f"'{name}'" for name in names[:3])
            raise ModelError(
                f"keep_float: '{pattern}' matches no node that could be quantized; names look like {examples}"
            )
        kept |= dict.fromkeys(matched, pattern)
    return kept


def _commutes(node: ir.Node) -> bool:
    if node.domain != "":
        return False
    if node.op_type == "Resize":
        return node.attributes.get_string("mode", "nearest") == "nearest"
    if node.op_type == "Pad":
        return _pads_with_zero(node)
    return node.op_type in _COMMUTING


def _pads_with_zero(node: ir.Node) -> bool:
    if node.attributes.get_string("mode", "constant") != "constant":
        return True
    value = node.inputs[2] if len(node.inputs) > 2 else None
    if value is None:
        return True
    tensor = ir.convenience.get_const_tensor(value)
    return tensor is not None and not tensor.numpy().any()


def _only_read_by(value: ir.Value, edges: set[tuple[str, int]]) -> bool:
    """Whether every use of a value, through operators that round nothing, is one of the edges."""
    if value.is_graph_output() or not value.uses():
        return False
    for node, index in value.uses():
        if (node.name or "", index) in edges:
            continue
        if index != 0 or not _commutes(node):
            return False
        if not all(_only_read_by(output, edges) for output in node.outputs if output.uses()):
            return False
    return True


def _is_constant(value: ir.Value | None) -> bool:
    return value is not None and ir.convenience.get_const_tensor(value) is not None


def _same_shape(first: ir.Value, second: ir.Value) -> bool:
    """Whether two tensors add without broadcasting, as far as their shapes are known."""
    if first.shape is None or second.shape is None:
        return True
    return len(first.shape) == len(second.shape) and all(
        a == b
        for a, b in zip(first.shape, second.shape, strict=True)
        if isinstance(a, int) and isinstance(b, int)
    )
