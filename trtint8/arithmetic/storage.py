"""Which nodes of a network a backend runs on integers, and which tensors it stores as integers."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import onnx_ir as ir

from calibrators.errors import Argument, ModelError, TableError
from calibrators.operators import Axes, Values, operator_of
from calibrators.tables.table import CalibrationTable
from calibrators.words import enumerated
from trtint8.arithmetic.pairs import Pairs, Read
from trtint8.interop.unquantize import Bounds
from trtint8.models.graph import is_constant, read_constant
from trtint8.models.model import Model
from trtint8.quantization.config import Arithmetic, Storage, TensorQuantConfig
from trtint8.quantization.operators import commutes_with_quantization, weight_axis
from trtint8.quantization.placement import place
from trtint8.quantization.qdq import activation_scales
from trtint8.quantization.quantize import tensor_names
from trtint8.quantization.targets import TARGETS


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
    if isinstance(ranges, Pairs):
        return _Storage(prepared, ranges.table, arithmetic, keep_float, ranges).decide()
    return _Storage(prepared, ranges, arithmetic, keep_float).decide()


class _Storage:
    """The decisions on one network."""

    def __init__(
        self,
        prepared: Model,
        table: CalibrationTable,
        arithmetic: Arithmetic,
        keep_float: Collection[str],
        pairs: Pairs | None = None,
    ) -> None:
        self._graph = prepared.graph_model.graph
        self._prepared, self._table, self._arithmetic, self._had = prepared, table, arithmetic, pairs
        self._order = {node: position for position, node in enumerate(self._graph)}
        target = TARGETS[arithmetic.target or "tensorrt"]
        self._keep_float = frozenset(keep_float)
        self._placement = place(prepared.graph_model, tuple(keep_float), target)
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
                f"model again with {Argument('tensors', 'all')}, or set these ranges by hand, "
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
                f"'{self._arithmetic.name}' needs; calibrate the model with {Argument('tensors', 'all')}, or "
                "set them by hand"
            )

    def _stored(
        self,
        activations: Mapping[Read, TensorQuantConfig],
        outputs: Mapping[str, TensorQuantConfig] = MappingProxyType({}),
        without_range: tuple[str, ...] = (),
    ) -> Stored:
        """What is stored, and what computes in float."""
        reading = {name for name, _ in activations} | self._products
        nodes = [node for node in self._graph if self._computes_in_float(node, reading)]
        in_float = {node.op_type: 0 for node in nodes}
        for node in nodes:
            in_float[node.op_type] += 1
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
