"""Chooses the products that are faster in INT8 than in FP16, by the bytes and multiply-adds of all kernels.

A product in INT8 writes its sums as FP16, and a second kernel reads them, adds the bias and rounds to INT8;
in FP16 one kernel does all of that. So INT8 gains where operands are large beside the output, where there are
many products per byte, or where generated kernels stand before and behind, which take rounding and scaling
in. A border between the two types costs a kernel more. The choice is the cheapest of all, with every border
counted.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from calibrators.operators import Product, operator_of
from trtint8.models.graph_constants import is_constant
from trtint8.models.multiply_adds import multiply_adds
from trtint8.models.static_shapes import StaticShapes
from trtint8.quantization.slower.kernels import FusedProduct, KernelGraph, Readers
from trtint8.quantization.slower.minimum_cut import BinaryChoice
from trtint8.quantization.targets import KernelCosts

#: How the reason begins why a product is in FP16 that could be in INT8.
SLOWER_IN_INT8 = "INT8 would be slower"

#: What an open dimension counts as: samples per batch, and pixels or tokens along one axis.
_SAMPLES, _SIZE = 8, 256

#: Bytes per element.
_INT8, _FP16 = 1, 2


@dataclass(frozen=True)
class Products:
    """The products of a model.

    Attributes:
        possible: Those that can be in INT8.
        required: Those of ``possible`` that are in INT8 whatever that costs.
        attention: Those of attentions that are one INT8 kernel.
    """

    possible: Collection[ir.Node]
    required: Collection[ir.Node] = ()
    attention: Collection[ir.Node] = ()


def slower_in_int8(
    model: ir.Model,
    products: Products,
    costs: KernelCosts,
    largest: Mapping[str, Sequence[int]] | None = None,
) -> dict[ir.Node, str]:
    """Finds the products that are estimated to be slower in INT8.

    Args:
        model: A prepared model.
        products: What can be in INT8; all other products are in FP16.
        costs: What the target's kernels cost.
        largest: Input name to its largest shape, where that is known. Elsewhere an open first dimension
            counts as 8, and any other one as 256.

    Returns:
        The products that are to stay in FP16, each with the reason in words for the user.
    """
    return _Chooser(model, products, costs, largest or {}).choose()


class _Chooser:
    def __init__(
        self,
        model: ir.Model,
        products: Products,
        costs: KernelCosts,
        largest: Mapping[str, Sequence[int]],
    ) -> None:
        self._possible, self._required = frozenset(products.possible), products.required
        self._certain, self._costs = frozenset(products.attention), costs
        shapes = {
            value.name or "": tuple(largest.get(value.name or "") or _closed(value))
            for value in model.graph.inputs
            if value.shape is not None
        }
        self._shapes = StaticShapes(model, shapes)
        self._graph = KernelGraph(model, costs)
        self._choice = BinaryChoice()
        #: Products to the elements that another product in the same kernel has read.
        self._read_before: dict[ir.Node, int] = {}

    def choose(self) -> dict[ir.Node, str]:
        stored = list(self._graph.stored())
        for value, _, readers in stored:
            self._add_siblings(value, readers)
        for product in self._graph.products.values():
            if product.node in self._possible:
                self._add_product(product)
        for value, writer, readers in stored:
            self._add_stored(value, writer, readers)
        for node in self._required:
            self._require_int8(node)
        in_int8 = self._choice.solve()
        return {
            node: self._reason(self._graph.products[node])
            for node in self._graph.products
            if node in self._possible and node not in in_int8
        }

    def _add_siblings(self, value: ir.Value, readers: Readers) -> None:
        """Matrix products of one tensor with weights, as those of queries, keys and values, are one kernel.

        It reads the tensor once, where all of them have one type.
        """
        siblings = [
            product.node
            for product in readers.products
            if operator_of(product.node).product is Product.MATRICES
            and is_constant(product.node.inputs[1])
            and product.node in self._possible
        ]
        for first, second in itertools.pairwise(siblings):
            self._choice.add_pair(first, second, _NEVER * self._elements(value))
            self._choice.add_pair(second, first, _NEVER * self._elements(value))
            self._read_before[second] = self._elements(value)

    def _add_product(self, product: FusedProduct) -> None:
        """The kernel of the product itself, which writes FP16 in either case."""
        node = product.node
        if not all(self._elements(value) for value in (*node.inputs[:2], node.outputs[0])):
            self._require_int8(node)  # nothing is known of what it costs
            return
        operands = sum(self._elements(value) for value in node.inputs[:2]) - self._read_before.get(node, 0)
        output = _FP16 * self._elements(node.outputs[0])
        computing = 2 * (multiply_adds(node, self._dimensions) or 0) / self._costs.operations_per_byte
        fp16 = max(_FP16 * operands + output, computing)
        int8 = max(_INT8 * operands + output, computing / 2) + self._padding(node)
        self._choice.add_cost(node, true=round(int8), false=round(fp16))

    def _padding(self, node: ir.Node) -> int:
        """Bytes that the padding of channels adds: zeros are read, values and zeros are written and read."""
        if node.op_type != "Conv" or node.attributes.get_int("group", 1) == 1:
            return 0
        channels = self._dimensions(node.inputs[1])[1:2]
        elements = self._elements(node.inputs[0])
        padded = math.ceil(channels[0] / self._costs.channels) * self._costs.channels if channels else 0
        added = elements * padded // channels[0] - elements if channels else 0
        return 3 * added * _INT8

    def _add_stored(self, value: ir.Value, product: FusedProduct | None, readers: Readers) -> None:
        """The kernels that write a tensor in the types in which it is read."""
        elements = self._elements(value)
        if not elements or (product is None and not readers.products):
            return
        int8_too, int8_only = ("some INT8", value), ("only INT8", value)
        for reader in readers.products:
            self._require(reader.node, int8_too, elements)
            self._require_all(int8_only, reader.node, elements)
        for reader in readers.adding:
            self._require_all(int8_only, reader.node, elements)
        if readers.kernels:
            self._choice.add_cost(int8_only, true=_NEVER * elements)
        pooled = sum(map(self._elements, readers.pooled))
        self._choice.add_cost(int8_too, true=_INT8 * pooled)
        self._choice.add_cost(int8_only, false=_FP16 * pooled)
        if product is None or product.node in self._certain or readers.transposed:
            self._choice.add_cost(int8_too, true=_INT8 * elements)
            self._choice.add_cost(int8_only, false=_FP16 * elements)
            producer = value.producer()
            if readers.kernels and producer is not None and producer.op_type in self._costs.float32:
                # What other kernels read is FP32 then, which is written and read.
                self._choice.add_cost(int8_too, true=2 * _FP16 * elements)
        else:
            self._add_product_output(value, product, readers, elements)
        for reader in readers.adding:
            # The pair of a residual costs nothing where the residual is INT8 already.
            self._choice.add_cost(reader.node, true=_INT8 * elements, false=_FP16 * elements)
            if product is not None and product.node in self._possible:
                self._choice.add_pair(reader.node, product.node, _INT8 * elements)

    def _add_product_output(
        self, value: ir.Value, product: FusedProduct, readers: Readers, elements: int
    ) -> None:
        node, others = product.node, len(readers.products)
        if node not in self._possible:
            self._choice.add_cost(("some INT8", value), true=(_FP16 + _INT8) * elements)
            return
        if not others and not readers.adding and readers.kernels == 1 and not readers.pooled:
            return  # the kernel that reads it scales the sums
        if not others and not readers.kernels and len(readers.adding) == 1:
            # The second kernel of the product that adds it reads both sums.
            self._choice.add_pair(node, readers.adding[0].node, 2 * _FP16 * elements)
            return
        self._choice.add_cost(node, true=_FP16 * elements)
        self._choice.add_cost(("some INT8", value), true=_INT8 * elements)
        self._choice.add_pair(("some INT8", value), node, _FP16 * elements)
        self._choice.add_pair(node, ("only INT8", value), _FP16 * elements)

    def _require_int8(self, node: ir.Node) -> None:
        self._choice.add_cost(node, false=_NEVER * _LARGEST)

    def _require(self, node: ir.Node, variable: object, elements: int) -> None:
        """A product in INT8 reads an INT8 tensor."""
        if node in self._possible:
            self._choice.add_pair(node, variable, _NEVER * elements)
        elif node in self._certain:
            self._choice.add_cost(variable, false=_NEVER * elements)

    def _require_all(self, variable: object, node: ir.Node, elements: int) -> None:
        """A product in FP16 reads an FP16 tensor."""
        if node in self._possible:
            self._choice.add_pair(variable, node, _NEVER * elements)
        elif node not in self._certain:
            self._choice.add_cost(variable, true=_NEVER * elements)

    def _reason(self, product: FusedProduct) -> str:
        node = product.node
        if self._padding(node):
            channels = self._dimensions(node.inputs[1])[1]
            are = "input channel are" if channels == 1 else "input channels are"
            return f"{SLOWER_IN_INT8}: groups of {channels} {are} padded to {self._costs.channels}"
        return f"{SLOWER_IN_INT8}: to requantize its output takes longer than its products save"

    def _elements(self, value: ir.Value | None) -> int:
        return math.prod(self._dimensions(value))

    def _dimensions(self, value: ir.Value | None) -> tuple[int, ...]:
        """The sizes of a tensor; (0,) where they are not known."""
        sizes = self._shapes.of(value)
        if sizes is None or None in sizes[1:]:
            return (0,)
        return tuple(_SAMPLES if size is None else size for size in sizes)


#: How many times its elements something impossible costs: more than all kernels that read or write it.
_NEVER = 1000

#: More elements than a tensor has.
_LARGEST = 1 << 40


def _closed(value: ir.Value) -> tuple[int, ...]:
    """The shape of an input with numbers in place of open dimensions."""
    open_sizes = (_SAMPLES if axis == 0 else _SIZE for axis in range(len(value.shape or ())))
    return tuple(
        size if isinstance(size, int) else other
        for size, other in zip(value.shape or (), open_sizes, strict=True)
    )
