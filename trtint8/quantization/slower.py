"""Chooses the products that are faster in INT8 than in FP16, by the bytes and multiply-adds of all kernels.

A product in INT8 writes its sums as FP16, and a second kernel reads them, adds the bias and rounds to INT8;
in FP16 one kernel does all of that. So INT8 gains where operands are large beside the output, where there are
many products per byte, or where generated kernels stand before and behind, which take rounding and scaling
in. A border between the two types costs a kernel more. A minimum cut finds the cheapest choice of all, with
every border counted.

What a byte costs depends on where it is: in memory, or still in the L2 cache since the kernel before. Which
of the two holds is not known without the GPU. So the choice is made for both ends, and a product is slower in
INT8 only where it is so at both, on every GPU that the engine is for.

Which kernels TensorRT for RTX makes of a graph was read from its layer dumps (docs/audit.md). In FP16 a
convolution or matrix product takes in its bias, the activation function behind it and the addition of a
residual. Operators that copy values move INT8 as well as FP16. Everything else is generated kernels, in which
neighbours are fused with one another.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import onnx_ir as ir

from calibrators.data.inputs import InputShapes
from calibrators.operators import Product, operator_of
from trtint8.models.graph import is_constant, made_by
from trtint8.models.shapes import StaticShapes, multiply_adds
from trtint8.quantization.operators import commutes_with_quantization
from trtint8.quantization.targets import KernelCosts

#: How the reason begins why a product is in FP16 that could be in INT8.
_SLOWER = "INT8 would be slower"

#: The reason where an engine was built, and takes longer than in FP16.
SLOWER_WHEN_BUILT = f"{_SLOWER}: the engine with it in INT8 takes longer than in FP16"

#: What an open dimension counts as: samples per batch, and pixels or tokens along one axis.
_SAMPLES, _SIZE = 8, 256

#: Bytes per element.
_INT8, _FP16 = 1, 2

#: A product in INT8 has to gain this part of a kernel's start. Pairs change what generated kernels fuse,
#: which no rule foresees, and many products that gain a few nanoseconds each do not pay for one kernel more.
_LEAST_GAIN = 50

#: What a byte from memory costs: a number that the speeds of caches divide.
_OF_MEMORY = 60


@dataclass(frozen=True)
class Products:
    """The products of a model.

    Attributes:
        possible: Those that can be in INT8, those of attentions included.
        required: Those of ``possible`` that are in INT8 whatever that costs.
        attentions: The first and the second product of each attention that is one kernel in FP16. In INT8 it
            is one as well where both can be in INT8.
    """

    possible: Collection[ir.Node]
    required: Collection[ir.Node] = ()
    attentions: Sequence[tuple[ir.Node, ir.Node]] = ()


def slower_in_int8(
    model: ir.Model,
    products: Products,
    costs: Sequence[KernelCosts],
    sizes: InputShapes | None = None,
) -> dict[ir.Node, str]:
    """Finds the products that are estimated to be slower in INT8.

    Args:
        model: A prepared model.
        products: What can be in INT8; all other products are in FP16.
        costs: What the target's kernels cost on each of its GPUs, one at least.
        sizes: Input name to the shape that costs are added up for, where that is known. Elsewhere an open
            first dimension counts as 8, and any other one as 256.

    Returns:
        The products that are to stay in FP16, each with the reason in words for the user: those that are
        slower in INT8 on all GPUs, whether activations come from memory or from the L2 cache.
    """
    chosen = [
        _Chooser(model, graph, products=products, costs=one, sizes=sizes or {}, cached=cached).choose()
        for one, graph in ((one, KernelGraph(model, one, products.attentions)) for one in costs)
        for cached in (False, True)
    ]
    return {node: reason for node, reason in chosen[0].items() if all(node in other for other in chosen)}


class FloatCosts:
    """How much longer a network in INT8 takes if some of its products are in FP16.

    Args:
        model: A prepared model.
        products: What can be in INT8.
        costs: What the kernels cost on each GPU that counts, one at least.
        sizes: Input name to the shape that costs are added up for.
    """

    def __init__(
        self, model: ir.Model, products: Products, costs: Sequence[KernelCosts], sizes: InputShapes
    ) -> None:
        self._products = products
        self._choosers = [
            partial(_Chooser, model, graph, costs=one, sizes=sizes, cached=cached)
            for one, graph in ((one, KernelGraph(model, one, products.attentions)) for one in costs)
            for cached in (False, True)
        ]
        self._before = self._times(products.possible)

    def share(self, in_float: Collection[ir.Node]) -> float:
        """What products in FP16 add to the time of all kernels around products, as a share of it.

        Args:
            in_float: These products; all others are in INT8.

        Returns:
            The share on the GPU where it is most, with activations in memory or in the L2 cache; less than 0
            where they are faster in FP16, and beyond 1 where products that are one kernel would be divided.
        """
        after = self._times([node for node in self._products.possible if node not in in_float])
        return max((new - old) / max(1, old) for old, new in zip(self._before, after, strict=True))

    def _times(self, int8: Collection[ir.Node]) -> list[int]:
        wanted = replace(self._products, possible=int8, required=int8)
        return [chooser(products=wanted).least_cost() for chooser in self._choosers]


class _Chooser:
    def __init__(
        self,
        model: ir.Model,
        graph: KernelGraph,
        *,
        products: Products,
        costs: KernelCosts,
        sizes: InputShapes,
        cached: bool,
    ) -> None:
        self._possible, self._required = frozenset(products.possible), products.required
        self._graph, self._costs, self._cached = graph, costs, cached
        shapes = {
            value.name or "": tuple(sizes.get(value.name or "") or _closed(value))
            for value in model.graph.inputs
            if value.shape is not None
        }
        self._shapes = StaticShapes(model, shapes)
        self._choice = BinaryChoice()
        #: Products to the cost of a byte per element that another product in the same kernel has read.
        self._read_before: dict[ir.Node, int] = {}

    def choose(self) -> dict[ir.Node, str]:
        self._add_all()
        in_int8 = self._choice.solve()
        return {
            node: self._reason(self._graph.products[node])
            for node in self._graph.products
            if node in self._possible and node not in in_int8
        }

    def least_cost(self) -> int:
        """What all kernels cost in the cheapest choice."""
        self._add_all()
        self._choice.solve()
        return self._choice.cost

    def _add_all(self) -> None:
        stored, choice = self._graph.stored, self._choice
        for value, _, readers in stored:
            self._add_siblings(value, readers)
        for product in self._graph.products.values():
            attention = self._graph.attention_of(product.node)
            if product.node not in self._possible:
                choice.add_cost(product.node, true=_NEVER)
            elif attention is None:
                self._add_product(product)
            elif product.node is attention[0]:
                self._add_attention(*attention)
        for value, writer, readers in stored:
            self._add_stored(value, writer, readers)
        for node in self._required:
            self._require_int8(node)

    def _add_siblings(self, value: ir.Value, readers: Readers) -> None:
        """Matrix products of one tensor with weights, as those of queries, keys and values, are one kernel.

        It reads the tensor once, where all of them have one type.
        """
        siblings = [
            product.node
            for product in readers.products
            if _multiplies_weights(product.node) and product.node in self._possible
        ]
        for first, second in itertools.pairwise(siblings):
            self._choice.tie(first, second)
            self._read_before[second] = self._cost(value)

    def _add_product(self, product: FusedProduct) -> None:
        """The kernel of the product itself, which writes FP16 in either case."""
        node = product.node
        if not all(self._cost(value) for value in (*node.inputs[:2], node.outputs[0])):
            self._require_int8(node)  # nothing is known of what it costs
            return
        operands = sum(self._cost(value) for value in node.inputs[:2]) - self._read_before.get(node, 0)
        output = _FP16 * self._cost(node.outputs[0])
        computing = self._computing(node)
        fp16 = round(max(_FP16 * operands + output, computing))
        int8 = round(max(_INT8 * operands + output, computing / 2)) + self._padding(node)
        self._choice.add_cost(node, true=int8 + self._start // _LEAST_GAIN, false=fp16)

    def _add_attention(self, scores: ir.Node, context: ir.Node) -> None:
        """The kernel of an attention, whose operands and output have one type."""
        self._choice.tie(scores, context)
        moved = [*scores.inputs[:2], context.inputs[1], context.outputs[0]]
        if not all(map(self._cost, moved)):
            self._require_int8(scores)
            return
        values = sum(map(self._cost, moved))
        computing = self._computing(scores) + self._computing(context)
        fp16, int8 = max(_FP16 * values, computing), max(_INT8 * values, computing / 2)
        self._choice.add_cost(scores, true=round(int8), false=round(fp16))

    def _computing(self, node: ir.Node) -> float:
        """What the multiply-adds of a product cost in FP16; INT8 computes twice as many in the same time."""
        operations = 2 * (multiply_adds(node, self._dimensions) or 0)
        return _OF_MEMORY * operations / self._costs.operations_per_byte

    def _padding(self, node: ir.Node) -> int:
        """What the padding of channels costs: zeros are read, values and zeros are written and read."""
        if node.op_type != "Conv" or node.attributes.get_int("group", 1) == 1:
            return 0
        channels = self._dimensions(node.inputs[1])[1:2]
        read = self._cost(node.inputs[0])
        padded = math.ceil(channels[0] / self._costs.channels) * self._costs.channels if channels else 0
        added = read * padded // channels[0] - read if channels else 0
        return 3 * added * _INT8

    def _add_stored(self, value: ir.Value, product: FusedProduct | None, readers: Readers) -> None:
        """The kernels that write a tensor in the types in which it is read."""
        byte = self._cost(value)
        if not byte or (product is None and not readers.products):
            return
        int8_too, int8_only, add_pair = ("some INT8", value), ("only INT8", value), self._choice.add_pair
        for reader in readers.products:
            add_pair(reader.node, int8_too, _NEVER)
        for reader in (*readers.products, *readers.adding):
            add_pair(int8_only, reader.node, _NEVER)
        if readers.kernels:
            self._choice.add_cost(int8_only, true=_NEVER)
        pooled = sum(map(self._cost, readers.pooled))
        self._choice.add_cost(int8_too, true=_INT8 * pooled)
        self._choice.add_cost(int8_only, false=_FP16 * pooled)
        if product is not None and self._graph.attention_of(product.node):
            self._add_attention_output(value, product, readers, byte)
        elif product is None or readers.transposed or (product.inside and readers.attended > 1):
            # A product of queries, keys and values leaves its bias to the kernels that divide them.
            self._choice.add_cost(int8_too, true=_INT8 * byte)
            self._choice.add_cost(int8_only, false=_FP16 * byte)
            producer = value.producer()
            if readers.kernels and producer is not None and producer.op_type in self._costs.float32:
                # What other kernels read is FP32 then, which is written and read.
                self._choice.add_cost(int8_too, true=2 * _FP16 * byte)
        else:
            self._add_product_output(value, product, readers, byte)
        for reader in readers.adding:
            # The pair of a residual costs nothing where the residual is INT8 already.
            self._choice.add_cost(reader.node, true=_INT8 * byte, false=_FP16 * byte)
            if product is not None:
                add_pair(reader.node, product.node, _INT8 * byte)

    def _add_attention_output(
        self, value: ir.Value, product: FusedProduct, readers: Readers, byte: int
    ) -> None:
        """An attention writes the type in which it computes; a kernel more converts that."""
        int8_too, cost = ("some INT8", value), (_FP16 + _INT8) * byte + self._start
        # Whatever reads the output of an attention in INT8 reads a pair.
        self._choice.add_pair(product.node, int8_too, _NEVER)
        self._choice.add_pair(int8_too, product.node, cost)
        if not readers.kernels:  # which take the conversion in
            self._choice.add_pair(product.node, ("only INT8", value), cost)

    def _add_product_output(
        self, value: ir.Value, product: FusedProduct, readers: Readers, byte: int
    ) -> None:
        node, others = product.node, len(readers.products)
        alone = not others and not readers.adding and readers.kernels == 1 and not readers.pooled
        if alone and readers.scaling:
            return  # the kernel that reads it scales the sums
        if not others and not readers.kernels and len(readers.adding) == 1:
            # The second kernel of the product that adds it reads both sums.
            self._choice.add_pair(node, readers.adding[0].node, 2 * _FP16 * byte)
            return
        # Queries, keys and values that are parts of one tensor are requantized by a kernel each.
        self._choice.add_cost(node, true=_FP16 * byte + self._start * max(1, readers.attended))
        self._choice.add_cost(("some INT8", value), true=_INT8 * byte)
        self._choice.add_pair(("some INT8", value), node, _FP16 * byte + self._start)
        self._choice.add_pair(node, ("only INT8", value), _FP16 * byte)

    def _require_int8(self, node: ir.Node) -> None:
        self._choice.add_cost(node, false=_NEVER)

    def _reason(self, product: FusedProduct) -> str:
        node = product.node
        if self._graph.attention_of(node):
            return f"{_SLOWER}: to requantize what its attention reads takes longer than that saves"
        if self._padding(node):
            channels = self._dimensions(node.inputs[1])[1]
            are = "input channel are" if channels == 1 else "input channels are"
            return f"{_SLOWER}: groups of {channels} {are} padded to {self._costs.channels}"
        return f"{_SLOWER}: to requantize its output takes longer than its products save"

    def _cost(self, value: ir.Value | None) -> int:
        """What it costs to move a byte of each element of a tensor; 0 where its sizes are not known."""
        elements = math.prod(self._dimensions(value))
        stays = self._cached and not is_constant(value) and _FP16 * elements <= self._costs.cached_bytes
        return elements * (_OF_MEMORY // self._costs.cache_speed if stays else _OF_MEMORY)

    @property
    def _start(self) -> int:
        """What it costs to start one kernel more."""
        return _OF_MEMORY * self._costs.start_bytes

    def _dimensions(self, value: ir.Value | None) -> tuple[int, ...]:
        """The sizes of a tensor; (0,) where they are not known."""
        sizes = self._shapes.of(value)
        if sizes is None or None in sizes[1:]:
            return (0,)
        return tuple(_SAMPLES if size is None else size for size in sizes)


#: What something impossible costs: more than all kernels of a network.
_NEVER = 1 << 80


def _closed(value: ir.Value) -> tuple[int, ...]:
    """The shape of an input with numbers in place of open dimensions."""
    open_sizes = (_SAMPLES if axis == 0 else _SIZE for axis in range(len(value.shape or ())))
    return tuple(
        size if isinstance(size, int) else other
        for size, other in zip(value.shape or (), open_sizes, strict=True)
    )


_SOURCE, _SINK = 0, 1


class BinaryChoice:
    """Variables that are true or false, and the costs of their values, alone and in pairs.

    A minimum cut finds the exact optimum: a variable is true where it is on the source's side of the cut.
    Costs are integers that are not negative.

    Attributes:
        cost: What the cheapest choice costs, once it is found.
    """

    def __init__(self) -> None:
        self.cost = 0
        self._numbers: dict[Hashable, int] = {}
        #: For each vertex, its neighbours and the capacities that are left.
        self._capacities: list[dict[int, int]] = [{}, {}]

    def add_cost(self, variable: Hashable, *, true: int = 0, false: int = 0) -> None:
        """Adds what a variable costs in each of its states."""
        number = self._number(variable)
        self._add(_SOURCE, number, false)
        self._add(number, _SINK, true)

    def add_pair(self, true: Hashable, false: Hashable, cost: int) -> None:
        """Adds what it costs that one variable is true and another one false."""
        self._add(self._number(true), self._number(false), cost)

    def tie(self, first: Hashable, second: Hashable) -> None:
        """Gives two variables one value."""
        self.add_pair(first, second, _NEVER)
        self.add_pair(second, first, _NEVER)

    def solve(self) -> frozenset[Hashable]:
        """The variables that are true in the cheapest choice; as few as possible where several are as cheap.

        It can be called once, because it uses the capacities up.
        """
        while True:
            levels = self._levels()
            if _SINK not in levels:
                return frozenset(name for name, number in self._numbers.items() if number in levels)
            self._saturate(levels)

    def _number(self, variable: Hashable) -> int:
        if variable not in self._numbers:
            self._numbers[variable] = len(self._capacities)
            self._capacities.append({})
        return self._numbers[variable]

    def _add(self, begin: int, end: int, capacity: int) -> None:
        if capacity:
            self._capacities[begin][end] = self._capacities[begin].get(end, 0) + capacity
            self._capacities[end].setdefault(begin, 0)

    def _levels(self) -> dict[int, int]:
        """The distance from the source of every vertex that can still be reached."""
        levels, pending = {_SOURCE: 0}, deque([_SOURCE])
        while pending:
            vertex = pending.popleft()
            for other, capacity in self._capacities[vertex].items():
                if capacity and other not in levels:
                    levels[other] = levels[vertex] + 1
                    pending.append(other)
        return levels

    def _saturate(self, levels: dict[int, int]) -> None:
        """Pushes flow along shortest paths until none is left (Dinic's algorithm)."""
        # The edges that each vertex has left, the next one last, without those that lead to no sink.
        untried = {vertex: list(self._capacities[vertex]) for vertex in levels}
        path = [_SOURCE]
        while path:
            vertex = path[-1]
            if vertex == _SINK:
                path = self._push(path)
                continue
            others, capacities = untried[vertex], self._capacities[vertex]
            while others and not (capacities[others[-1]] and levels.get(others[-1]) == levels[vertex] + 1):
                others.pop()
            if others:
                path.append(others[-1])
            else:
                path.pop()
                if path:
                    untried[path[-1]].pop()

    def _push(self, path: list[int]) -> list[int]:
        """Uses up what a path has left; returns the path as far as its first edge that is full now."""
        edges = list(itertools.pairwise(path))
        flow = min(self._capacities[begin][end] for begin, end in edges)
        self.cost += flow
        for begin, end in edges:
            self._capacities[begin][end] -= flow
            self._capacities[end][begin] += flow
        full = next(index for index, (begin, end) in enumerate(edges) if not self._capacities[begin][end])
        return path[: full + 1]


#: The most dimensions of a matrix product that takes anything in.
_LARGEST_RANK = 3

#: The most dimensions of a Transpose that an attention takes in: samples, tokens, heads and channels.
_LARGEST_TURNED = 4


@dataclass(eq=False)
class FusedProduct:
    """A product, with what an FP16 kernel of it takes in.

    Attributes:
        node: The convolution or matrix product.
        output: The value behind everything that it takes in.
        inside: The nodes that it takes in.
    """

    node: ir.Node
    output: ir.Value
    inside: list[ir.Node] = field(default_factory=list)


@dataclass(frozen=True)
class Readers:
    """What reads a stored tensor, through operators that only copy values.

    Attributes:
        products: The products that read it as an operand, each with the value that it reads.
        adding: The products that add it.
        kernels: The number of generated kernels that read it. An output of the model counts as one, and so
            does an attention whose mask it is.
        pooled: The values that a MaxPool reads or writes.
        transposed: Whether a Transpose is between that is a generated kernel whatever the type is. Attentions
            read and write in any order.
        scaling: Whether all of ``kernels`` are generated ones, which can scale what they read.
        attended: The number of operands of attentions that it holds.
    """

    products: Sequence[FusedProduct]
    adding: Sequence[FusedProduct]
    kernels: int
    pooled: Sequence[ir.Value]
    transposed: bool
    scaling: bool
    attended: int


class KernelGraph:
    """The products of a model, and the tensors that are stored between kernels.

    Args:
        model: A prepared model.
        costs: What kernels take in.
        attentions: The two products of each attention that is one kernel in FP16.
    """

    def __init__(
        self,
        model: ir.Model,
        costs: KernelCosts,
        attentions: Sequence[tuple[ir.Node, ir.Node]] = (),
    ) -> None:
        self._model, self._costs = model, costs
        self._attentions = {node: attention for attention in attentions for node in attention}
        #: What attentions take in: the nodes between their products, and scales of their operands.
        self._attended = {node for attention in attentions for node in _between(*attention)}
        self._scales = {node for attention in attentions for node in _scales(*attention)}
        self._scores = {scores for scores, _ in attentions}
        self._order = {node: position for position, node in enumerate(model.graph)}
        weighted = [node for node in model.graph if operator_of(node).is_weighted]
        self.products: Mapping[ir.Node, FusedProduct] = {node: self._with_epilogue(node) for node in weighted}
        self._taken = {node: product for product in self.products.values() for node in product.inside}
        self._kernels = self._generated()

    def attention_of(self, node: ir.Node) -> tuple[ir.Node, ir.Node] | None:
        """The products of the attention that a product is a part of; None where it is of none."""
        return self._attentions.get(node)

    @cached_property
    def stored(self) -> Sequence[tuple[ir.Value, FusedProduct | None, Readers]]:
        """Every stored tensor with the product that writes it, if one does, and its readers."""
        return list(self._find_stored())

    def _find_stored(self) -> Iterator[tuple[ir.Value, FusedProduct | None, Readers]]:
        for value in self._model.graph.inputs:
            yield value, None, self._readers(value)
        for node in self._model.graph:
            if node in self.products:
                product = self.products[node]
                if node not in self._scores:
                    yield product.output, product, self._readers(product.output)
            elif node not in self._taken and node not in self._attended and not self._copies(node):
                for value in node.outputs:
                    yield value, None, self._readers(value)

    def _with_epilogue(self, node: ir.Node) -> FusedProduct:
        product = FusedProduct(node, node.outputs[0])
        shape = product.output.shape
        if node.op_type == "MatMul" and shape is not None and len(shape) > _LARGEST_RANK:
            return product
        if node in self._attentions or _has_siblings(node):
            return product
        while nodes := self._next_inside(product):
            product.inside += nodes
            product.output = nodes[-1].outputs[0]
        return product

    def _next_inside(self, product: FusedProduct) -> list[ir.Node]:
        """The nodes behind a product that its kernel takes in next; none where it takes in no more."""
        value = product.output
        users = list(dict.fromkeys(node for node, _ in value.uses()))
        if value.is_graph_output() or not users or any(node not in self._order for node in users):
            return []
        if len(users) == 2:
            return self._gate(value, users)
        node = users[0]
        if node.domain != "" or len(users) > 1:
            return []
        others = [other for other in node.inputs if other is not None and other is not value]
        if node.op_type in self._costs.fused:
            return [node]
        if node.op_type in self._costs.fused_with_constant and others and all(map(is_constant, others)):
            return [node]
        if node.op_type == "Add" and len(others) == 1 and self._adds(product, others[0]):
            return [node]
        return []

    def _adds(self, product: FusedProduct, other: ir.Value) -> bool:
        """Whether a convolution takes in the addition of another value."""
        if not operator_of(product.node).is_convolution:
            return False
        sizes = (product.output.shape, other.shape)
        if None not in sizes and len(sizes[0] or ()) != len(sizes[1] or ()):
            return False
        producer = other.producer()
        # Of two convolutions, the later one adds.
        rival = producer is not None and operator_of(producer).is_convolution and len(other.uses()) == 1
        return not rival or producer is None or self._order[producer] < self._order[product.node]

    def _gate(self, value: ir.Value, users: Sequence[ir.Node]) -> list[ir.Node]:
        """The nodes of a product of a value and a function of it, such as SiLU."""
        function, product = users if users[1].op_type == "Mul" else users[::-1]
        if function.op_type not in self._costs.gates or product.op_type != "Mul":
            return []
        inner = function.outputs[0]
        operands = set(product.inputs)
        if operands != {value, inner} or len(inner.uses()) != 1 or inner.is_graph_output():
            return []
        return [function, product]

    def _generated(self) -> dict[ir.Node, ir.Node]:
        """Every node of a generated kernel, to one node that is the same for all nodes of the kernel."""
        first: dict[ir.Node, ir.Node] = {}
        inside = self._attended | self._scales

        def find(node: ir.Node) -> ir.Node:
            while first[node] is not node:
                node = first[node]
            return node

        for node in self._model.graph:
            if node in self.products or node in self._taken or node in inside:
                continue
            first[node] = node
            for value in node.inputs:
                before = made_by(value)
                if before in first and not self._is_alone(node) and not self._is_alone(before):
                    first[find(node)] = find(before)
        return {node: find(node) for node in first}

    def _readers(self, value: ir.Value) -> Readers:
        products: list[FusedProduct] = []
        adding: list[FusedProduct] = []
        kernels: set[object] = set()
        pooled: list[ir.Value] = []
        attended: set[ir.Value] = set()
        transposed, scaling = False, True
        # Each value with the most dimensions of the Transposes before it.
        pending, seen = [(value, 0)], {value}
        while pending:
            read, turned = pending.pop()
            if read.is_graph_output():
                kernels.add(read)
                scaling, transposed = False, transposed or turned > 0
            for node, index in read.uses():
                if node in self._attentions:
                    products.append(self.products[node])
                    attended.add(read)
                    transposed = transposed or turned > _LARGEST_TURNED
                    continue
                if node in self.products and index < 2:
                    products.append(self.products[node])
                elif node in self._taken:
                    adding.append(self._taken[node])
                elif self._copies(node):
                    # Copies that meet again, as in a Concat, hold the value once more, and are read once.
                    if (index == 0 or node.op_type == "Concat") and not seen.issuperset(node.outputs):
                        behind = max(turned, len(node.attributes.get_ints("perm", ())))
                        pending += [(output, behind) for output in node.outputs]
                        seen.update(node.outputs)
                        pooled += [read, *node.outputs] if node.op_type == "MaxPool" else []
                    continue
                elif operator_of(node).reads_shape:
                    continue
                else:
                    kernels.add(self._kernels.get(node, node))
                    scaling = scaling and node not in self._attended and not self._is_alone(node)
                transposed = transposed or turned > 0
        return Readers(
            products, adding, len(kernels), pooled, transposed, scaling=scaling, attended=len(attended)
        )

    def _is_alone(self, node: ir.Node) -> bool:
        """Whether a node is a kernel of its own, which is not generated and takes nothing in."""
        return node.domain == "" and node.op_type in self._costs.alone

    def _copies(self, node: ir.Node) -> bool:
        return node.op_type == "Concat" or node in self._scales or commutes_with_quantization(node)


def _multiplies_weights(node: ir.Node) -> bool:
    """Whether a node is a product of a matrix and constant weights."""
    return operator_of(node).product is Product.MATRICES and is_constant(node.inputs[1])


def _has_siblings(node: ir.Node) -> bool:
    """Whether a product is one kernel with others of the same tensor, which takes nothing in."""
    value = node.inputs[0]
    if value is None or not _multiplies_weights(node):
        return False
    return sum(index == 0 and _multiplies_weights(user) for user, index in value.uses()) > 1


def _between(scores: ir.Node, context: ir.Node) -> set[ir.Node]:
    """The nodes between the two products of an attention."""
    found: set[ir.Node] = set()
    pending = [scores]
    while pending:
        users = {node for output in pending.pop().outputs for node, _ in output.uses()} - found - {context}
        found |= users
        pending += users
    return found


def _scales(scores: ir.Node, context: ir.Node) -> Iterator[ir.Node]:
    """The multiplications of an attention's operands by constants, which its kernel takes in."""
    pending = [*scores.inputs[:2], context.inputs[1]]
    while pending:
        value = pending.pop()
        node = made_by(value)
        if node is None or value is None or len(value.uses()) > 1 or value.is_graph_output():
            continue
        constant = [is_constant(operand) for operand in node.inputs]
        if node.domain == "" and node.op_type in ("Mul", "Div") and sum(constant) == 1 and len(constant) == 2:
            yield node
            pending.append(node.inputs[constant.index(False)])
        elif commutes_with_quantization(node):
            pending.append(node.inputs[0])
