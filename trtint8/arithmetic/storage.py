"""Which nodes of a network a backend runs on integers, and which tensors it stores as integers.

A Q/DQ model is taken as the float model, and what its pairs say of tensors and weights.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import NoReturn

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnx_ir.passes import common

from calibrators.data.feeds import Float32s
from calibrators.errors import Argument, ModelError, TableError, enumerated
from calibrators.operators import Axes, Values, operator_of
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
from trtint8.interop.unquantize import Bounds
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
from trtint8.quantization.config import Arithmetic, Storage, TensorQuantConfig
from trtint8.quantization.operators import commutes_with_quantization, weight_axis
from trtint8.quantization.placement import place
from trtint8.quantization.qdq import activation_scales
from trtint8.quantization.quantize import tensor_names
from trtint8.quantization.targets import DEFAULT, TARGETS

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
    scale: Float32s


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


@dataclass(frozen=True)
class Stored:
    """What a backend computes on integers of one network.

    Attributes:
        products: Names of the nodes that multiply integers.
        activations: What reads an activation as integers, to the activation's config with its scale.
        outputs: Name of each activation that is stored as integers where it is computed, to the same.
        weights: What reads weights as integers, to the axis of their channels; None for one scale.
        kept_weights: What reads weights that were quantized before, to their config with its scale.
        in_float: Operator to the number of its nodes that compute in float.
        without_range: Names of the activations that would be integers if the table had a range for them.
    """

    products: frozenset[str]
    activations: Mapping[Read, TensorQuantConfig]
    outputs: Mapping[str, TensorQuantConfig]
    weights: Mapping[Read, int | None]
    kept_weights: Mapping[Read, TensorQuantConfig]
    in_float: Mapping[str, int]
    without_range: tuple[str, ...]


def stored(
    prepared: Model,
    ranges: CalibrationTable | Pairs,
    arithmetic: Arithmetic,
    keep_float: Collection[str] = (),
) -> Stored:
    """Decides what a backend computes on integers.

    Args:
        prepared: A float model from :func:`trtint8.models.model.prepare`.
        ranges: Its calibration table, or the pairs that it had: then layers without pairs stay in float.
        arithmetic: The backend.
        keep_float: Names of layers that stay in float.

    Raises:
        TableError: The table lacks a range that the backend needs, or was made for another model.
        ModelError: A tensor that the backend stores as integers has no pair.
    """
    return _Storage(prepared, ranges, arithmetic, keep_float).decide()


class _Storage:
    """The decisions on one network."""

    def __init__(
        self,
        prepared: Model,
        ranges: CalibrationTable | Pairs,
        arithmetic: Arithmetic,
        keep_float: Collection[str],
    ) -> None:
        self._graph = prepared.graph_model.graph
        self._prepared, self._arithmetic = prepared, arithmetic
        self._had = ranges if isinstance(ranges, Pairs) else None
        self._table = ranges.table if isinstance(ranges, Pairs) else ranges
        self._order = {node: position for position, node in enumerate(self._graph)}
        target = TARGETS[arithmetic.target or DEFAULT.name]
        in_float = self._table.layers_in_float
        self._keep_float = frozenset((*keep_float, *in_float))
        self._placement = place(prepared.graph_model, tuple(keep_float), target, float_layers=in_float)
        self._products = self._named_products()

    def decide(self) -> Stored:
        """Decides on all nodes; see :func:`stored`."""
        if self._arithmetic.storage is Storage.GROUPS:
            return self._groups()
        return self._stored(self._pairs() if self._arithmetic.storage is Storage.PAIRS else self._inputs())

    def _named_products(self) -> frozenset[str]:
        if self._had is not None and self._arithmetic.storage is Storage.PAIRS:
            return self._had.products
        if self._arithmetic.target is not None:
            possible = frozenset(self._placement.quantized_nodes)
        else:
            possible = frozenset(node.name or "" for node in self._graph if self._is_product(node))
        possible -= self._keep_float
        return possible if self._had is None else possible & self._had.products

    def _is_product(self, node: ir.Node) -> bool:
        """True if a backend without a placement of its own multiplies integers in a node."""
        if node.domain or node.op_type not in self._arithmetic.products or len(node.inputs) < 2:
            return False
        values, weights = node.inputs[:2]
        kernel = read_constant(weights)
        if kernel is None or values is None or is_constant(values):
            return False
        turned = bool(node.attributes.get_int("transA", 0))
        return not turned and kernel.ndim == (4 if operator_of(node).is_convolution else 2)

    def _weights(self) -> dict[Read, int | None]:
        """The weights of products, with the axes of their channels."""
        return {
            (node.name or "", index): weight_axis(node, value) if self._arithmetic.per_channel else None
            for node in self._graph
            if node.name in self._products
            for index, value in enumerate(node.inputs[:2])
            if value is not None and is_constant(value)
        }

    def _inputs(self) -> dict[Read, TensorQuantConfig]:
        """The configs of what products read."""
        read = {
            (node.name or "", 0): value
            for node in self._graph
            if node.name in self._products and (value := node.inputs[0]) is not None
        }
        configs = self._configs(read.values())
        return {key: configs[value.name or ""] for key, value in read.items()}

    def _pairs(self) -> dict[Read, TensorQuantConfig]:
        """The configs of what a placement quantizes, or of what has a pair."""
        if self._had is not None:
            return {read: self._had.activations[name] for read, name in self._had.reads.items()}
        self._check(self._placement.tensors)
        scales = activation_scales(self._placement, self._table.amax)
        return {
            (edge.node, edge.index): self._arithmetic.activations.with_scale(scales[edge.tensor])
            for edge in self._placement.activations
        }

    def _groups(self) -> Stored:
        """What is stored between operators with integer kernels."""
        wanted = [value for value in self._values() if self._is_stored(value)]
        sources = list(dict.fromkeys(self._follow(value) for value in wanted))
        without = [value.name or "" for value in sources if value.name not in self._table.amax]
        needed = {
            self._follow(value).name or ""
            for node in self._graph
            if node.name in self._products
            for value in node.inputs[:2]
            if value is not None and not is_constant(value)
        }
        optional = set() if self._arithmetic.fixed_point else set(without) - needed
        configs = self._configs(value for value in sources if value.name not in optional)
        own = {
            value.name or "": configs[source.name or ""]
            for value in wanted
            if (source := self._follow(value)).name in configs
        }
        activations = {
            (node.name or "", index): own[value.name or ""]
            for node in self._graph
            for index, value in enumerate(node.inputs)
            if value is not None and value.name in own
        }
        outputs = {
            value.name or "": own[value.name or ""]
            for value in wanted
            if self._arithmetic.fixed_point and value.name in own
        }
        return self._stored(activations, outputs, tuple(name for name in without if name in optional))

    def _values(self) -> Iterator[ir.Value]:
        values = (*self._graph.inputs, *(value for node in self._graph for value in node.outputs))
        return (value for value in values if value.dtype == ir.DataType.FLOAT and not is_constant(value))

    def _is_stored(self, value: ir.Value) -> bool:
        """True if a value lies between operators with integer kernels and no kernel keeps it to itself."""
        readers = [node for node, _ in value.uses()]
        producer = value.producer()
        whole = self._arithmetic.fixed_point
        if value.is_graph_output() and not whole:
            return any(self._multiplies(node) for node in readers)
        if producer is not None and self._is_inside(producer, value, readers):
            return False
        if any(self._multiplies(node) for node in readers):
            return True
        made = producer is None or self._runs(producer)
        return made and (any(self._runs(node) for node in readers) or (whole and value.is_graph_output()))

    def _multiplies(self, node: ir.Node) -> bool:
        return node.name in self._products

    def _runs(self, node: ir.Node) -> bool:
        """True if a node has a kernel that reads integers and writes integers."""
        if self._multiplies(node):
            return True
        row = operator_of(node)
        if node.domain or row.multiplies:
            return False
        return row.axes is Axes.ELEMENTWISE or row.values <= Values.AVERAGED_WITH_ZEROS

    def _is_inside(self, producer: ir.Node, value: ir.Value, readers: list[ir.Node]) -> bool:
        """True if the only reader of a value is part of the kernel that computes it."""
        if len(readers) != 1 or value.is_graph_output() or readers[0].domain:
            return False
        reader, product = readers[0], self._product_of(value)
        if product is not None and bias_of(reader) is not None:
            return True
        if product is not None or (producer.op_type == "Add" and self._arithmetic.fixed_point):
            function = reader.op_type in self._arithmetic.fused - {"Add"}
            return function or self._takes_sum(product or producer, value, reader)
        both = all(operator_of(node).axes is Axes.ELEMENTWISE for node in (producer, reader))
        return both and self._arithmetic.fuses_elementwise

    def _product_of(self, value: ir.Value) -> ir.Node | None:
        """The product that gives a value, with or without a bias that another node adds."""
        node = value.producer()
        if node is not None and bias_of(node) is not None:
            product = _added_to(node)
            node = product.producer() if product is not None and len(product.uses()) == 1 else None
        return node if node is not None and self._multiplies(node) else None

    def _takes_sum(self, producer: ir.Node, value: ir.Value, reader: ir.Node) -> bool:
        """True if a product adds another operand to its result: of two products the later one does."""
        if reader.op_type != "Add" or "Add" not in self._arithmetic.fused:
            return False
        others = [other for other in reader.inputs if other is not value]
        if len(others) != 1 or others[0] is None or is_constant(others[0]):
            return False
        before = others[0].producer()
        return before is None or self._order[before] < self._order[producer]

    def _follow(self, value: ir.Value) -> ir.Value:
        """The value whose integers another one holds: operators that only move values round nothing."""
        while (node := value.producer()) is not None and commutes_with_quantization(node):
            source = node.inputs[0]
            if source is None or is_constant(source) or not self._is_stored(source):
                break
            value = source
        return value

    def _configs(self, values: Iterable[ir.Value]) -> dict[str, TensorQuantConfig]:
        """The configs of activations, with their scales."""
        names = list(dict.fromkeys(value.name or "" for value in values))
        self._check(names)
        if self._had is not None:
            return {name: self._had.activations[name] for name in names}
        config, amax = self._arithmetic.activations, self._table.amax
        if config.symmetric:
            return {name: config.with_range(-amax[name], amax[name]) for name in names}
        return {name: config.with_range(*ends) for name, ends in self._signed_ranges(names).items()}

    def _signed_ranges(self, names: Iterable[str]) -> dict[str, tuple[float, float]]:
        """The ends of the ranges of activations, whose two sides need not be the same."""
        positive, table = self._never_negative(), self._table
        fixed = {
            value.name: self._arithmetic.output_ranges[node.op_type]
            for node in self._graph
            if not node.domain and node.op_type in self._arithmetic.output_ranges
            for value in node.outputs
        }
        ranges = {
            name: fixed.get(name)
            or ((0.0, table.amax[name]) if name in positive else table.signed_range(name))
            for name in names
        }
        unknown = [name for name, ends in ranges.items() if ends is None]
        if unknown:
            raise TableError(
                "the table does not say how far above and below zero the values of "
                f"{enumerated(map(repr, unknown))} lie, which '{self._arithmetic.name}' needs; calibrate the "
                f"model again with {Argument('tensors', 'all', 'calibrate')}, or set these ranges by hand, "
                "which then hold for both sides"
            )
        return {name: ends for name, ends in ranges.items() if ends is not None}

    def _never_negative(self) -> frozenset[str]:
        """Names of the tensors that hold no value below zero, whatever the input."""
        bounds = Bounds()
        for node in self._graph:
            bounds.follow(node)
        return frozenset(value.name or "" for value in self._values() if bounds[value][0] >= 0)

    def _check(self, names: Iterable[str]) -> None:
        if self._had is not None:
            if without := [name for name in names if name not in self._had.activations]:
                raise ModelError(
                    f"'{self._prepared.name}' has no Q/DQ pair for {enumerated(map(repr, without))}, and "
                    f"'{self._arithmetic.name}' stores it as integers; give the float model and a table"
                )
            return
        known = tensor_names(self._prepared.graph_model)
        self._table.check_model(self._prepared.fingerprint, (), known)
        if missing := [name for name in names if name not in self._table.amax]:
            raise TableError(
                f"the table has no range for {enumerated(map(repr, missing))}, which "
                f"'{self._arithmetic.name}' needs; calibrate the model with "
                f"{Argument('tensors', 'all', 'calibrate')}, or set them by hand"
            )

    def _stored(
        self,
        activations: Mapping[Read, TensorQuantConfig],
        outputs: Mapping[str, TensorQuantConfig] = MappingProxyType({}),
        without_range: tuple[str, ...] = (),
    ) -> Stored:
        """What is stored, and what computes in float."""
        reading = {name for name, _ in activations} | self._products
        in_float = Counter(node.op_type for node in self._graph if self._computes_in_float(node, reading))
        kept = {} if self._had is None else self._had.weights
        return Stored(self._products, activations, outputs, self._weights(), kept, in_float, without_range)

    def _computes_in_float(self, node: ir.Node, reading: Collection[str]) -> bool:
        """True if a node computes floats of floats, and is no part of the kernel before it."""
        makes_floats = any(value.dtype == ir.DataType.FLOAT for value in node.outputs)
        if not makes_floats or operator_of(node).moves or node.name in reading:
            return False
        value = _added_to(node) if bias_of(node) is not None else node.inputs[0] if node.inputs else None
        if value is None or len(value.uses()) != 1:
            return True
        if bias_of(node) is not None:
            return self._product_of(value) is None
        before = value.producer()
        computed = before is not None and before.name in reading
        return not (
            node.op_type in self._arithmetic.fused and (computed or self._product_of(value) is not None)
        )


def bias_of(node: ir.Node) -> ir.Value | None:
    """The constant that an Add adds to an activation, as exporters write the bias of a MatMul; else None."""
    if node.op_type != "Add" or node.domain:
        return None
    constants = [value for value in node.inputs if is_constant(value)]
    return constants[0] if len(constants) == 1 else None


def _added_to(node: ir.Node) -> ir.Value | None:
    """What an Add adds a constant to."""
    return next((value for value in node.inputs if not is_constant(value)), None)
