"""Adds nodes and constants to a graph that is being written."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import numpy as np
import onnx_ir as ir

from calibrators.data.feeds import Array, Float32s
from trtint8.models.graph import add_initializer, may_be_float, take_name, value_names, values_read
from trtint8.models.shapes import open_shape


@dataclass(frozen=True, eq=False)
class Term:
    """A tensor of a graph that is being written. Calculating with it appends nodes.

    Attributes:
        writer: Writes to the graph.
        value: The tensor.
    """

    writer: GraphWriter
    value: ir.Value
    #: NumPy leaves operators between its arrays and terms to this class.
    __array_ufunc__: ClassVar[None] = None

    def op(self, kind: str, *others: Operand, **attributes: Any) -> Term:
        """Appends a node whose first input is this tensor; see :meth:`GraphWriter.op`."""
        return self.writer.op(kind, self, *others, **attributes)

    def reduced(self, kind: str, axes: Sequence[int], *, keep: bool = True) -> Term:
        """Appends a reduction over axes, such as ``ReduceSum``."""
        if kind == "ReduceSum" or self.writer.graph.opset_imports[""] >= 18:
            return self.op(kind, list(axes), keepdims=int(keep))
        return self.op(kind, axes=list(axes), keepdims=int(keep))

    def cast(self, to: ir.DataType) -> Term:
        """Appends a Cast to another type."""
        return self.op("Cast", to=to.value)

    def like(self, other: ir.Value) -> Term:
        """The same tensor, which gets the shape and the type of another one."""
        self.value.shape, self.value.type = other.shape, other.type
        return self

    def __add__(self, other: Operand) -> Term:
        return self.op("Add", other)

    def __radd__(self, other: Operand) -> Term:
        return self.writer.op("Add", other, self)

    def __sub__(self, other: Operand) -> Term:
        return self.op("Sub", other)

    def __rsub__(self, other: Operand) -> Term:
        return self.writer.op("Sub", other, self)

    def __mul__(self, other: Operand) -> Term:
        return self.op("Mul", other)

    def __rmul__(self, other: Operand) -> Term:
        return self.writer.op("Mul", other, self)

    def __truediv__(self, other: Operand) -> Term:
        return self.op("Div", other)

    def __rtruediv__(self, other: Operand) -> Term:
        return self.writer.op("Div", other, self)

    def __neg__(self) -> Term:
        return self.op("Neg")

    def __gt__(self, other: Operand) -> Term:
        return self.op("Greater", other)

    def __lt__(self, other: Operand) -> Term:
        return self.op("Less", other)

    def __and__(self, other: Operand) -> Term:
        return self.op("And", other)


#: What a node reads: a tensor, or a constant. Numbers of Python are float32, and lists of them int64.
Operand: TypeAlias = Term | ir.Value | float | list[int] | Array | np.generic | None


class GraphWriter:
    """Appends nodes to a graph.

    Args:
        graph: The graph; changed in place.
    """

    def __init__(self, graph: ir.Graph) -> None:
        self.graph = graph
        self._names = value_names(graph)
        self._count = 0
        self._constants: dict[tuple[str, tuple[int, ...], bytes], ir.Value] = {}

    def op(self, kind: str, *inputs: Operand, outputs: int = 1, **attributes: Any) -> Term:
        """Appends a node.

        Args:
            kind: The operator.
            *inputs: The node's inputs.
            outputs: How many outputs the node has.
            **attributes: The node's attributes; lists are of integers.

        Returns:
            The node's last output.
        """
        # With the type of lists, because it takes longer to find out than the node takes to make.
        typed = {
            name: ir.AttrInt64s(name, value) if isinstance(value, list) else value
            for name, value in attributes.items()
        }
        node = ir.node(kind, list(map(self._value, inputs)), typed, num_outputs=outputs)
        return Term(self, self.append(node))

    def copy(self, node: ir.Node, inputs: Sequence[Operand]) -> Term:
        """Appends a node like another one, with other inputs; returns its first output."""
        return Term(self, self.copies(node, inputs)[0])

    def copies(self, node: ir.Node, inputs: Sequence[Operand]) -> Sequence[ir.Value]:
        """Appends a node like another one, with other inputs; returns all of its outputs."""
        attributes, outputs = list(node.attributes.values()), len(node.outputs)
        read = list(map(self._value, inputs))
        made = ir.Node(node.domain, node.op_type, read, attributes, num_outputs=outputs)
        self.append(made)
        for output, original in zip(made.outputs, node.outputs, strict=True):
            output.shape, output.type = original.shape, original.type
        return made.outputs

    def append(self, node: ir.Node) -> ir.Value:
        """Appends a node, which gets names; returns its last output."""
        node.name = self._new_name(node.op_type)
        for output in node.outputs:
            output.name = self._new_name(f"{node.name}_out")
        self.graph.append(node)
        return node.outputs[-1]

    def _value(self, operand: Operand) -> ir.Value | None:
        if operand is None or isinstance(operand, ir.Value):
            return operand
        if isinstance(operand, Term):
            return operand.value
        if isinstance(operand, list):
            return self.constant(np.array(operand, np.int64))
        # A float64 of NumPy is a float of Python as well.
        is_number = not isinstance(operand, np.generic) and isinstance(operand, float | int)
        return self.constant(np.float32(operand) if is_number else np.asarray(operand))

    def constant(self, array: Array | np.generic) -> ir.Value:
        """A constant; equal small ones are the same value."""
        array = np.asarray(array)
        if array.size > 64:
            return add_initializer(self.graph, self._new_name("constant"), array)
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self._constants:
            self._constants[key] = add_initializer(self.graph, self._new_name("constant"), array)
        return self._constants[key]

    def weights(self, compute: Callable[[], Float32s], shape: Sequence[int]) -> ir.Value:
        """A float32 constant that is computed when the model is opened, so that memory is free until then.

        Args:
            compute: Computes the values.
            shape: Their shape.
        """
        name = self._new_name("weights")
        tensor = ir.LazyTensor(
            lambda: ir.Tensor(np.ascontiguousarray(compute())),
            dtype=ir.DataType.FLOAT,
            shape=ir.Shape(shape),
            name=name,
        )
        value = ir.Value(
            name=name, shape=ir.Shape(shape), type=ir.TensorType(ir.DataType.FLOAT), const_value=tensor
        )
        self.graph.register_initializer(value)
        return value

    def _new_name(self, name: str) -> str:
        self._count += 1
        return take_name(f"trtint8_{name}_{self._count}", self._names)


def reached_from(
    nodes: Iterable[ir.Node], tensors: Iterable[ir.Value], follows: Callable[[ir.Value], bool] = may_be_float
) -> set[ir.Value]:
    """The tensors that depend on some tensors by values of some kind, these included.

    Args:
        nodes: The nodes of a graph, in graph order.
        tensors: Where to begin.
        follows: Says of a tensor whether it has such values: floating-point ones by default.
    """
    reached = set(tensors)
    for node in nodes:
        if any(value in reached for value in values_read(node)):
            reached.update(filter(follows, node.outputs))
    return reached


def static_shape(value: ir.Value | None) -> list[int | str | None] | None:
    """A value's shape with symbols as text and None for unknown dimensions; None where it has no shape."""
    shape = open_shape(value)
    return None if shape is None else list(shape)


def attributes_of(node: ir.Node) -> Mapping[str, Any]:
    """A node's attributes by name, as Python values."""
    return {name: attribute.value for name, attribute in node.attributes.items()}
