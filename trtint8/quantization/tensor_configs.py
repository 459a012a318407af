"""The config of every tensor of a model whose quantized nodes are known, and which tensors share a scale."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping

import onnx_ir as ir

from calibrators.operators import operator_of
from trtint8.models.graph_constants import is_constant
from trtint8.quantization.arithmetics import FUSED_ACTIVATIONS
from trtint8.quantization.config import State, TensorQuantConfig
from trtint8.quantization.joint import JointConfigs
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
    for value in _activations(model):
        name = value.name or ""
        if value.dtype is not None and value.dtype != ir.DataType.FLOAT:
            configs.add(name, TensorQuantConfig(state=State.SHAPE_OR_INDEX))
        elif configs.dominator(name) in dominators:
            configs.add(name, target.arithmetic.activations)
        elif name in read_by_kept:
            configs.add(name, dataclasses.replace(target.arithmetic.activations, state=State.DEQUANTIZED))
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
