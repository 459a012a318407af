"""A Q/DQ model as an arithmetic takes it: the float model, and what its pairs say of tensors and weights.

The tensors inside a model, as those who read them get them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NoReturn

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnx_ir.passes import common

from calibrators.errors import ModelError
from calibrators.operators import operator_of
from calibrators.tables.table import CalibrationTable
from trtint8.interop.integer_models import expand
from trtint8.interop.pairs import (
    Grid,
    float_values,
    grid_of,
    parameters,
    quantized_type,
    quantized_values,
    type_ends,
    weight_grid,
)
from trtint8.models.graph import (
    add_initializer,
    graph_values,
    is_constant,
    may_be_float,
    read_constant,
    take_name,
    value_names,
)
from trtint8.models.model import Model
from trtint8.models.passes.fold_constants import FoldConstantsPass
from trtint8.quantization.config import Arithmetic, TensorQuantConfig
from trtint8.quantization.operators import commutes_with_quantization, weight_axis

#: What a node reads: its name, and the index of its input.
Read = tuple[str, int]


@dataclass(frozen=True)
class Pairs:
    """What the Q/DQ pairs of a model say.

    Attributes:
        model: The prepared model without its pairs; weights have the values that their integers stand for.
        table: The range of every activation that has a pair.
        activations: Name of each activation that has a pair, to its config with the scale.
        reads: What reads an activation through a pair, to the activation's name.
        weights: What reads weights through a pair, to their config with the scales of the pair.
    """

    model: Model
    table: CalibrationTable
    activations: Mapping[str, TensorQuantConfig]
    reads: Mapping[Read, str]
    weights: Mapping[Read, TensorQuantConfig]

    @property
    def products(self) -> frozenset[str]:
        """Names of the nodes of which both operands have a pair."""
        paired = self.reads.keys() | self.weights.keys()
        return frozenset(
            node.name or ""
            for node in self.model.graph_model.graph
            if operator_of(node).is_weighted and all((node.name or "", index) in paired for index in (0, 1))
        )


@dataclass(frozen=True)
class InnerTensor:
    """Where a model has a tensor as those who read it get it.

    Attributes:
        output: Name of the value in the model's graph; of a tensor in INT8, that of the floats which its
            integers stand for.
        scale: The step of the integers; None for a tensor in float.
    """

    output: str
    scale: float | None = None


def inner_tensors(graph_model: ir.Model) -> dict[str, InnerTensor]:
    """The floating-point tensors of a model that are computed or fed, by name in the graph's order.

    What a Q/DQ pair reads is a tensor in INT8, and the pair's own values are left out.

    Args:
        graph_model: The model, with or without pairs.
    """
    found = {}
    for value in graph_values(graph_model.graph):
        producer = value.producer()
        of_pair = producer is not None and operator_of(producer).half_of_pair
        if value.name and may_be_float(value) and not is_constant(value) and not of_pair:
            found[value.name] = _stored_in_pair(value) or InnerTensor(value.name)
    return found


def further_outputs(
    graph_model: ir.Model, sources: Sequence[str], inside: Mapping[str, InnerTensor]
) -> tuple[str, ...]:
    """Names of the values that a model has to give behind its outputs, without those that it is fed.

    Args:
        graph_model: The model.
        sources: Names of tensors that are wanted behind the outputs.
        inside: Tensors inside the model.
    """
    graph = graph_model.graph
    known = {*sources, *(value.name for value in (*graph.inputs, *graph.outputs))}
    values = dict.fromkeys(tensor.output for tensor in inside.values())
    return (*sources, *(name for name in values if name not in known))


def _stored_in_pair(value: ir.Value) -> InnerTensor | None:
    """A tensor as the first Q/DQ pair that reads it gives it; None where there is no pair."""
    for quantize, _ in value.uses():
        if quantize.op_type != "QuantizeLinear" or quantize.inputs[0] is not value:
            continue
        scale = read_constant(quantize.inputs[1])
        for dequantize, _ in quantize.outputs[0].uses():
            if dequantize.op_type == "DequantizeLinear" and scale is not None and scale.size:
                return InnerTensor(dequantize.outputs[0].name or "", float(np.abs(scale).max()))
    return None


def take_pairs(prepared: Model, arithmetic: Arithmetic) -> Pairs:
    """Takes the pairs out of a model, and keeps what they say.

    Args:
        prepared: A Q/DQ model from :func:`trtint8.models.model.prepare`; not changed.
        arithmetic: The backend that is to compute what the pairs say.

    Raises:
        ModelError: A pair is one that the backend cannot compute; its node is named.
    """
    return _Taker(prepared, arithmetic).take()


@dataclass(frozen=True)
class _Constant:
    """The flat scales of a quantized constant, and the node that dequantizes it."""

    node: str
    scale: NDArray[np.float32]


class _Taker:
    """Takes the pairs out of one model."""

    def __init__(self, prepared: Model, arithmetic: Arithmetic) -> None:
        self._prepared, self._arithmetic = prepared, arithmetic
        self._graph_model = expand(prepared.graph_model, prepared.name).graph_model
        self._graph = self._graph_model.graph
        self._names = value_names(self._graph)
        self._given = frozenset(self._graph.initializers)
        self._grids: dict[str, Grid] = {}
        self._activations: dict[str, TensorQuantConfig] = {}
        self._reads: dict[Read, str] = {}
        self._constants: dict[str, _Constant] = {}

    def take(self) -> Pairs:
        """See :func:`take_pairs`."""
        self._graph.sort()
        for node in list(self._graph):
            if node.op_type == "DequantizeLinear":
                self._take(node)
        FoldConstantsPass()(self._graph_model)
        common.RemoveUnusedNodesPass()(self._graph_model)
        weights = {
            (node.name or "", index): self._weights(node, value, axis)
            for node in self._graph
            if operator_of(node).is_weighted
            for index, value in enumerate(node.inputs[:2])
            # What is constant and was not given as it is was made of quantized constants.
            if value is not None and is_constant(value) and value.name not in self._given
            for axis in (weight_axis(node, value) if self._arithmetic.per_channel else None,)
        }
        self._spread()
        return Pairs(
            replace(self._prepared, graph_model=self._graph_model, light=None),
            CalibrationTable({name: grid.amax for name, grid in self._grids.items()}),
            self._activations,
            self._reads,
            weights,
        )

    def _take(self, node: ir.Node) -> None:
        """Replaces a DequantizeLinear by what it dequantizes."""
        source = node.inputs[0]
        assert source is not None
        self._check_type(node)
        quantize = source.producer()
        given = quantize.inputs[0] if quantize is not None else None
        stored = read_constant(source)
        if quantize is not None and quantize.op_type == "QuantizeLinear":
            values = read_constant(given)
            stored = None if values is None else quantized_values(quantize, values)
        if stored is not None:
            self._take_constant(node, stored)
            return
        if quantize is None or quantize.op_type != "QuantizeLinear" or given is None:
            self._refuse(node, f"dequantizes '{source.name}', which no QuantizeLinear makes")
        self._note(quantize, given.name or "")
        for reader, index in tuple(node.outputs[0].uses()):
            self._reads[reader.name or "", index] = given.name or ""
            reader.replace_input_with(index, given)

    def _take_constant(self, node: ir.Node, stored: NDArray[np.generic]) -> None:
        scale, point = parameters(node)
        values = float_values(node, stored, scale, point)
        name = take_name(f"{node.outputs[0].name}_float", self._names)
        floats = add_initializer(self._graph, name, values)
        self._constants[name] = _Constant(node.name or "", scale)
        node.outputs[0].replace_all_uses_with(floats)

    def _check_type(self, node: ir.Node) -> None:
        """Refuses a pair of another type than 8-bit integers, and one with a scale per block."""
        if block := node.attributes.get_int("block_size", 0):
            self._refuse(node, f"has one scale for every {block} values")
        dtype = quantized_type(node)
        wide = dtype == ir.DataType.INT32 and read_constant(node.inputs[0]) is not None  # a bias
        if dtype not in (ir.DataType.INT8, ir.DataType.UINT8) and not wide:
            self._refuse(node, f"holds {dtype.name if dtype else 'an unknown type'}")

    def _note(self, node: ir.Node, tensor: str) -> None:
        """Keeps what a pair says of an activation."""
        self._check_type(node)
        if read_constant(node.inputs[1]) is None:
            self._refuse(node, f"has a scale for '{tensor}' that is computed at run time")
        scale, _ = parameters(node)
        if scale.size != 1:
            self._refuse(node, f"has {scale.size} scales for the activation '{tensor}'")
        grid = grid_of(node)
        config = self._arithmetic.activations
        low, high = int(grid.low[0]), int(grid.high[0])
        if config.symmetric and not grid.fits:
            dtype = quantized_type(node)
            assert dtype is not None, "it was checked"
            point = type_ends(dtype)[0] - low
            self._refuse(node, f"has the zero point {point} in {dtype.name} for '{tensor}'")
        known = self._grids.setdefault(tensor, grid)
        if (known.scale[0], known.low[0], known.high[0]) != (grid.scale[0], low, high):
            self._refuse(
                node, f"quantizes '{tensor}' up to {grid.amax:g}, and another pair up to {known.amax:g}"
            )
        if not config.symmetric:
            config = replace(config, offset=config.quant_max - high)
        self._activations[tensor] = config.with_scale(grid.scale[0])

    def _spread(self) -> None:
        """Gives what nodes that only move values read the config of what they give, where it has none."""
        for node in reversed(list(self._graph)):
            source = node.inputs[0].name or "" if node.inputs and node.inputs[0] is not None else ""
            config = self._activations.get(node.outputs[0].name or "")
            if source and config is not None and commutes_with_quantization(node):
                self._activations.setdefault(source, config)
                self._grids.setdefault(source, self._grids[node.outputs[0].name or ""])

    def _weights(self, node: ir.Node, value: ir.Value, axis: int | None) -> TensorQuantConfig:
        """The config of weights with the scales that keep their integers."""
        weights, direct = read_constant(value), self._constants.get(value.name or "")
        assert weights is not None
        config = self._arithmetic.weights
        if not config.symmetric and direct is not None and direct.scale.size == 1:
            low = int(np.rint(weights / direct.scale[0]).min(initial=0))
            high = int(np.rint(weights / direct.scale[0]).max(initial=0))
            offset = min(max(-low, config.quant_max - 127), config.quant_max - high)
            return replace(config, offset=offset).with_scale(direct.scale[0])
        hints = (direct.scale,) if direct is not None else ()
        scale = weight_grid(weights, axis, hints)
        if scale is None:
            what = "one scale for all weights" if axis is None else f"one scale per channel along axis {axis}"
            source = direct.node if direct is not None else node.name or ""
            raise ModelError(
                f"the weights of node '{node.name}', quantized by '{source}', have no integers with {what}, "
                f"which is all that '{self._arithmetic.name}' has; give the float model and a table"
            )
        if not config.symmetric:
            return replace(config, offset=config.quant_max - 127).with_scale(scale)
        kept = config.along(axis).with_scale(scale)
        shape = [1] * weights.ndim
        if axis is not None:
            shape[axis] = -1
        lowest = int(np.rint(weights / scale.reshape(shape)).min(initial=0))
        if lowest < config.quant_min:
            raise ModelError(
                f"the weights of node '{node.name}' hold the integer {lowest}, and those of "
                f"'{self._arithmetic.name}' begin at {config.quant_min}; give the float model and a table"
            )
        return kept

    def _refuse(self, node: ir.Node, why: str) -> NoReturn:
        raise ModelError(
            f"node '{node.name}' of '{self._prepared.name}' {why}, which the arithmetic "
            f"'{self._arithmetic.name}' cannot express; give the float model and a calibration table"
        )
