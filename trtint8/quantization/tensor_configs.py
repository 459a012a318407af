"""The config of every tensor of a model whose quantized nodes are known, and which tensors share a scale."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from calibrators.data.feeds import Float32s
from calibrators.operators import operator_of
from calibrators.tables.choice import QMAX, scale_of
from trtint8.models.graph import is_constant
from trtint8.quantization.config import FUSED_ACTIVATIONS, State, TensorQuantConfig
from trtint8.quantization.operators import commutes_with_quantization
from trtint8.quantization.targets import Target


def join_configs(
    model: ir.Model,
    target: Target,
    *,
    activations: Iterable[str],
    weights: Mapping[str, int | None],
    quantized: Iterable[str],
    kept: Iterable[str],
    slower: Iterable[str] = (),
) -> JointConfigs:
    """Gives every tensor a config; tensors that hold the same integers, or none, are joined.

    Args:
        model: The prepared float model.
        target: The target whose configs quantized tensors get.
        activations: Names of the activations that get a Q/DQ pair, in graph order.
        weights: Name of each weight that gets a pair to the axis of its channels; None for one scale. Of
            weights that are read along several axes it is one of them.
        quantized: Names of the quantized nodes, in the order in which they were decided on.
        kept: Names of the nodes that the user keeps in float and that could be quantized.
        slower: Names of the nodes that stay in float because INT8 would be slower.

    Returns:
        The configs.
    """
    configs = JointConfigs()
    nodes = {node.name or "": node for node in model.graph}
    placed, chosen = dict.fromkeys(activations), dict.fromkeys(quantized)
    _join_copies(model, configs, placed)
    _join_concats([nodes[name] for name in chosen], configs)
    _join_fused(model, configs, placed, chosen)
    dominators = {configs.dominator(tensor) for tensor in placed}
    read_by_kept = _first_operands(nodes[name] for name in kept)
    read_by_slower = _first_operands(nodes[name] for name in slower)
    for value in _activations(model):
        name = value.name or ""
        if value.dtype is not None and value.dtype != ir.DataType.FLOAT:
            configs.add(name, TensorQuantConfig(state=State.SHAPE_OR_INDEX))
        elif configs.dominator(name) in dominators:
            configs.add(name, target.arithmetic.activations)
        elif name in read_by_kept:
            configs.add(name, target.arithmetic.activations.to(State.DEQUANTIZED))
        elif name in read_by_slower:
            configs.add(name, target.arithmetic.activations.to(State.DEACTIVATED))
        else:
            configs.add(name, TensorQuantConfig(state=State.FLOAT))
    for tensor, axis in weights.items():
        configs.add(tensor, target.arithmetic.weights.along(axis))
    return configs


def _join_copies(model: ir.Model, configs: JointConfigs, placed: Iterable[str]) -> None:
    """Joins the output of every operator that rounds nothing with its input.

    A constant is not joined: what a Gather copies of a weight has a scale of its own, and the weight, which
    layers may multiply by as well (tied embeddings), the scales of its channels.
    """
    values = {value.name: value for node in model.graph for value in node.outputs}
    for tensor in placed:
        value = values.get(tensor)
        while value is not None and (node := value.producer()) is not None:
            source = node.inputs[0] if commutes_with_quantization(node) else None
            if source is None or is_constant(source):
                break
            configs.join(value.name or "", source.name or "")
            value = source


def _join_concats(quantized: Iterable[ir.Node], configs: JointConfigs) -> None:
    """Joins the inputs and the output of every quantized Concat."""
    for node in quantized:
        if node.op_type == "Concat":
            for source in node.inputs:
                configs.join(node.outputs[0].name or "", source.name if source and source.name else "")


def _join_fused(
    model: ir.Model, configs: JointConfigs, placed: Collection[str], quantized: Collection[str]
) -> None:
    """Joins the outputs of fused operators: only the last one is stored, and it dominates those before it."""
    for node in model.graph:
        if not operator_of(node).is_weighted or node.name not in quantized:
            continue
        chain = [node.outputs[0]]
        while chain[-1].name not in placed and (reader := _fused_reader(chain[-1], quantized)) is not None:
            chain.append(reader.outputs[0])
        if chain[-1].name in placed:
            for value in chain[:-1]:
                configs.join(value.name or "", chain[-1].name or "")


def _fused_reader(value: ir.Value, quantized: Collection[str]) -> ir.Node | None:
    """The only reader of a value, where TensorRT fuses it into the operator that computes the value."""
    uses = tuple(value.uses())
    if len(uses) != 1 or value.is_graph_output():
        return None
    reader = uses[0][0]
    fuses = reader.op_type in FUSED_ACTIVATIONS or (reader.op_type == "Add" and reader.name in quantized)
    return reader if fuses and reader.domain == "" else None


def _first_operands(nodes: Iterable[ir.Node]) -> set[str]:
    """Names of the first two inputs of nodes, which are those that would have a pair."""
    values = (value for node in nodes for value in node.inputs[:2])
    return {value.name for value in values if value is not None and value.name}


def _activations(model: ir.Model) -> Iterator[ir.Value]:
    graph = model.graph
    yield from (value for value in graph.inputs if value.name not in graph.initializers)
    yield from (value for node in graph for value in node.outputs if value.name)


def ppq_document(configs: JointConfigs, weights: Collection[str]) -> dict[str, dict[str, Any]]:
    """The configs of a model in the forms in which PPQ writes JSON.

    ``act_quant_info`` is what PPQ exports for TensorRT: tensor name to amax. It has the activations whose
    config is a dynamic range of TensorRT: 8 bits from -128 to 127, without offset, one scale. ``quant_info``
    is what PPQ exports for its own backend, with the offset, and the rest of the config beside it. Tensors
    that are not quantized are in neither.

    Args:
        configs: The configs, with scales.
        weights: Names of the tensors that are constant.
    """
    numbers = {tensor: number for number, tensor in enumerate(configs)}
    ranges: dict[str, Any] = {}
    every: dict[str, Any] = {}
    for tensor in configs:
        config, own = configs.effective(tensor), configs[tensor]
        if config.scale is None or own.state in (State.DEQUANTIZED, State.DEACTIVATED):
            continue
        plain = (config.bits, config.quant_min, config.quant_max, config.offset) == (8, -128, QMAX, 0)
        if plain and config.axis is None and not config.power_of_two and tensor not in weights:
            ranges[tensor] = float(config.scale) * QMAX
        low, high = config.ends
        every[tensor] = {
            "bit_width": config.bits,
            "per_channel": config.axis is not None,
            "quant_flag": True,
            "sym": config.symmetric,
            "scale": config.scale.tolist(),
            "zero_point": np.full(config.scale.shape, config.offset).tolist(),
            "tensor_min": low.tolist(),
            "tensor_max": high.tolist(),
            "q_min": config.quant_min,
            "q_max": config.quant_max,
            "hash": numbers[tensor],
            "dominator": numbers.get(configs.dominator(tensor), numbers[tensor]),
            "state": own.state.value,
            "axis": config.axis,
            "power_of_two": config.power_of_two,
            "rounding": config.rounding.value,
            "inverse": config.inverse,
            "observer": config.observer,
        }
    return {"act_quant_info": ranges, "quant_info": every}


class JointConfigs:
    """Tensor names to configs, in groups: one tensor of each group dominates, and the others take its scale.

    A dominated tensor is *overlapped*: it holds the same integers under another name, or is never stored
    because the operator that computes it is fused with the next one.
    """

    def __init__(self) -> None:
        self._parent: dict[str, str] = {}
        self._configs: dict[str, TensorQuantConfig] = {}

    def add(self, tensor: str, config: TensorQuantConfig) -> None:
        """Gives a tensor a config; the config becomes overlapped where another tensor dominates this one."""
        dominated = config.state is State.INITIAL and self.dominator(tensor) != tensor
        self._configs[tensor] = config.to(State.OVERLAPPED) if dominated else config

    def join(self, tensor: str, dominator: str) -> None:
        """Puts the group of ``tensor`` under the dominator of another tensor.

        Args:
            tensor: A tensor; all tensors of its group move with it.
            dominator: A tensor whose dominator becomes that of the group.
        """
        root, other = self.dominator(tensor), self.dominator(dominator)
        if root == other:
            return
        self._parent[root] = other
        if root in self._configs and self._configs[root].state is State.INITIAL:
            self._configs[root] = self._configs[root].to(State.OVERLAPPED)

    def dominator(self, tensor: str) -> str:
        """The tensor whose config counts for ``tensor``; a tensor that was never joined dominates itself."""
        path = []
        while (parent := self._parent.get(tensor, tensor)) != tensor:
            path.append(tensor)
            tensor = parent
        for visited in path:
            self._parent[visited] = tensor
        return tensor

    def effective(self, tensor: str) -> TensorQuantConfig:
        """The config that counts for a tensor: its own, or that of its dominator, which may have none."""
        return self._configs.get(self.dominator(tensor), self._configs[tensor])

    def __getitem__(self, tensor: str) -> TensorQuantConfig:
        """The tensor's own config, which may be overlapped."""
        return self._configs[tensor]

    def __contains__(self, tensor: object) -> bool:
        return tensor in self._configs

    def __iter__(self) -> Iterator[str]:
        return iter(self._configs)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, JointConfigs):
            return NotImplemented
        names = {*self._parent, *other._parent}
        same_groups = all(self.dominator(name) == other.dominator(name) for name in names)
        return same_groups and self._configs == other._configs

    __hash__ = None  # type: ignore[assignment]

    def groups(self, tensors: Iterable[str]) -> tuple[tuple[str, ...], ...]:
        """The groups of two or more of the given tensors; other members of the groups are left out."""
        groups: dict[str, list[str]] = {}
        for tensor in tensors:
            groups.setdefault(self.dominator(tensor), []).append(tensor)
        return tuple(tuple(group) for group in groups.values() if len(group) > 1)

    def scaled(self, scales: Mapping[str, Float32s], observers: Mapping[str, str]) -> JointConfigs:
        """The same groups, with scales.

        Args:
            scales: Tensor name to scale; tensors of a group have the same one.
            observers: Tensor name to how its range was found.
        """
        of_groups = {self.dominator(tensor): (scale, tensor) for tensor, scale in scales.items()}
        found = JointConfigs()
        found._parent = dict(self._parent)
        for tensor, config in self._configs.items():
            scale, source = of_groups.get(tensor, (None, tensor))
            observed = dataclasses.replace(config, observer=observers.get(source))
            takes = scale is not None and config.state is State.INITIAL
            found._configs[tensor] = observed.with_scale(scale) if takes and scale is not None else config
        return found

    def activated(self, ranges: Mapping[str, float]) -> dict[str, TensorQuantConfig]:
        """Configs with scales for tensors of known range; each group takes the widest range of its tensors.

        Args:
            ranges: Tensor name to amax, which is positive.

        Returns:
            Tensor name to the activated config of the tensor's dominator.
        """
        widest: dict[str, float] = {}
        for tensor, amax in ranges.items():
            root = self.dominator(tensor)
            widest[root] = max(amax, widest.get(root, 0.0))
        activated = {}
        for tensor in ranges:
            root = self.dominator(tensor)
            # A dominator without a config of its own takes that of the tensors that it dominates.
            config = dataclasses.replace(self._configs.get(root, self._configs[tensor]), state=State.INITIAL)
            activated[tensor] = config.with_scale(scale_of(widest[root]))
        return activated
