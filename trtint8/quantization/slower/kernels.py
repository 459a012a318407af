"""Which kernels TensorRT for RTX makes of a graph, as far as it matters to the bytes that INT8 moves.

What is said here was read from its layer dumps (docs/audit.md). In FP16 a convolution or matrix product takes
in its bias, the activation function behind it and the addition of a residual. Operators that copy values move
INT8 as well as FP16. Everything else is generated kernels, in which neighbours are fused with one another.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from calibrators.operators import operator_of
from trtint8.models.graph_constants import is_constant
from trtint8.quantization.operators import commutes_with_quantization
from trtint8.quantization.targets import KernelCosts

#: The most dimensions of a matrix product that takes anything in.
_LARGEST_RANK = 3


@dataclass(eq=False)
class FusedProduct:
    """A product, with what an FP16 kernel of it takes in.

    Attributes:
        node: The convolution or matrix product.
        output: The value behind everything that it takes in.
        residual: The value that it adds; None where it adds none.
        inside: The nodes that it takes in.
    """

    node: ir.Node
    output: ir.Value
    residual: ir.Value | None = None
    inside: list[ir.Node] = field(default_factory=list)


@dataclass(frozen=True)
class Readers:
    """What reads a stored tensor, through operators that only copy values.

    Attributes:
        products: The products that read it as an operand, each with the value that it reads.
        adding: The products that add it.
        kernels: The number of generated kernels that read it; an output of the model counts as one.
        pooled: The values that a MaxPool reads or writes.
        transposed: Whether a Transpose is between, which is a generated kernel whatever the type is.
    """

    products: Sequence[FusedProduct]
    adding: Sequence[FusedProduct]
    kernels: int
    pooled: Sequence[ir.Value]
    transposed: bool


class KernelGraph:
    """The products of a model, and the tensors that are stored between kernels.

    Args:
        model: A prepared model.
        costs: What kernels take in.
    """

    def __init__(self, model: ir.Model, costs: KernelCosts) -> None:
        self._model, self._costs = model, costs
        self._order = {node: position for position, node in enumerate(model.graph)}
        weighted = [node for node in model.graph if operator_of(node).is_weighted]
        self.products: Mapping[ir.Node, FusedProduct] = {node: self._with_epilogue(node) for node in weighted}
        self._taken = {node: product for product in self.products.values() for node in product.inside}
        self._kernels = self._generated()

    def stored(self) -> Iterator[tuple[ir.Value, FusedProduct | None, Readers]]:
        """Every stored tensor with the product that writes it, if one does, and its readers."""
        for value in self._model.graph.inputs:
            yield value, None, self._readers(value)
        for node in self._model.graph:
            if node in self.products:
                product = self.products[node]
                yield product.output, product, self._readers(product.output)
            elif node not in self._taken and not _copies(node):
                for value in node.outputs:
                    yield value, None, self._readers(value)

    def _with_epilogue(self, node: ir.Node) -> FusedProduct:
        product = FusedProduct(node, node.outputs[0])
        shape = product.output.shape
        if node.op_type == "MatMul" and shape is not None and len(shape) > _LARGEST_RANK:
            return product
        while (taken := self._next_inside(product)) is not None:
            nodes, residual = taken
            product.inside += nodes
            product.output = nodes[-1].outputs[0]
            product.residual = product.residual or residual
        return product

    def _next_inside(self, product: FusedProduct) -> tuple[list[ir.Node], ir.Value | None] | None:
        """The nodes behind a product that its kernel takes in next, and the residual that they add."""
        value = product.output
        users = list(dict.fromkeys(node for node, _ in value.uses()))
        if value.is_graph_output() or not users or any(node not in self._order for node in users):
            return None
        if len(users) == 2:
            return self._gate(value, users)
        node = users[0]
        if node.domain != "" or len(users) > 1:
            return None
        others = [other for other in node.inputs if other is not None and other is not value]
        if node.op_type in self._costs.fused:
            return [node], None
        if node.op_type in self._costs.fused_with_constant and others and all(map(is_constant, others)):
            return [node], None
        if node.op_type == "Add" and len(others) == 1 and self._adds(product, others[0]):
            return [node], others[0]
        return None

    def _adds(self, product: FusedProduct, other: ir.Value) -> bool:
        """Whether a convolution takes in the addition of another value."""
        if not operator_of(product.node).is_convolution or product.residual is not None:
            return False
        sizes = (product.output.shape, other.shape)
        if None not in sizes and len(sizes[0] or ()) != len(sizes[1] or ()):
            return False
        producer = other.producer()
        # Of two convolutions, the later one adds.
        rival = producer is not None and operator_of(producer).is_convolution and len(other.uses()) == 1
        return not rival or producer is None or self._order[producer] < self._order[product.node]

    def _gate(self, value: ir.Value, users: Sequence[ir.Node]) -> tuple[list[ir.Node], None] | None:
        """The nodes of a product of a value and a function of it, such as SiLU."""
        function, product = users if users[1].op_type == "Mul" else users[::-1]
        if function.op_type not in self._costs.gates or product.op_type != "Mul":
            return None
        inner = function.outputs[0]
        operands = set(product.inputs)
        if operands != {value, inner} or len(inner.uses()) != 1 or inner.is_graph_output():
            return None
        return [function, product], None

    def _generated(self) -> dict[ir.Node, ir.Node]:
        """Every node of a generated kernel, to one node that is the same for all nodes of the kernel."""
        first: dict[ir.Node, ir.Node] = {}

        def find(node: ir.Node) -> ir.Node:
            while first[node] is not node:
                node = first[node]
            return node

        for node in self._model.graph:
            if node in self.products or node in self._taken:
                continue
            first[node] = node
            for value in node.inputs:
                before = value.producer() if value is not None else None
                if before in first:
                    first[find(node)] = find(before)
        return {node: find(node) for node in first}

    def _readers(self, value: ir.Value) -> Readers:
        products: list[FusedProduct] = []
        adding: list[FusedProduct] = []
        kernels: set[object] = set()
        pooled: list[ir.Value] = []
        transposed, pending, seen = False, [value], {value}
        while pending:
            read = pending.pop()
            if read.is_graph_output():
                kernels.add(read)
            for node, index in read.uses():
                if node in self.products and index < 2:
                    products.append(self.products[node])
                elif node in self._taken:
                    adding.append(self._taken[node])
                elif _copies(node):
                    # Copies that meet again, as in a Concat, hold the value once more, and are read once.
                    if (index == 0 or node.op_type == "Concat") and not seen.issuperset(node.outputs):
                        pending += node.outputs
                        seen.update(node.outputs)
                        transposed = transposed or node.op_type == "Transpose"
                        pooled += [read, *node.outputs] if node.op_type == "MaxPool" else []
                elif not operator_of(node).reads_shape:
                    kernels.add(self._kernels.get(node, node))
        return Readers(products, adding, len(kernels), pooled, transposed)


def _copies(node: ir.Node) -> bool:
    return node.op_type == "Concat" or commutes_with_quantization(node)
