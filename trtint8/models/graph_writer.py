"""Adds nodes and constants to a graph that is being written."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from trtint8.models.graph import add_initializer, may_be_float, take_name, value_names, values_read
from trtint8.models.shapes import open_shape


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

    def op(
        self,
        kind: str,
        *inputs: ir.Value | None,
        outputs: int = 1,
        like: ir.Value | None = None,
        **attributes: Any,
    ) -> ir.Value:
        """Appends a node.

        Args:
            kind: The operator.
            *inputs: The node's inputs.
            outputs: How many outputs the node has.
            like: A value with the shape of the output, where that is known.
            **attributes: The node's attributes; lists are of integers.

        Returns:
            The node's last output.
        """
        # With the type of lists, because it takes longer to find out than the node takes to make.
        typed = {
            name: ir.AttrInt64s(name, value) if isinstance(value, list) else value
            for name, value in attributes.items()
        }
        node = ir.node(kind, list(inputs), typed, num_outputs=outputs)
        return self.append(node, like)

    def copy(self, node: ir.Node, inputs: Sequence[ir.Value | None]) -> ir.Value:
        """Appends a node like another one, with other inputs; returns its first output."""
        return self.copies(node, inputs)[0]

    def copies(self, node: ir.Node, inputs: Sequence[ir.Value | None]) -> Sequence[ir.Value]:
        """Appends a node like another one, with other inputs; returns all of its outputs."""
        attributes, outputs = list(node.attributes.values()), len(node.outputs)
        made = ir.Node(node.domain, node.op_type, list(inputs), attributes, num_outputs=outputs)
        self.append(made)
        for output, original in zip(made.outputs, node.outputs, strict=True):
            output.shape, output.type = original.shape, original.type
        return made.outputs

    def append(self, node: ir.Node, like: ir.Value | None = None) -> ir.Value:
        """Appends a node, which gets names; returns its last output. See :meth:`op` for ``like``."""
        node.name = self._new_name(node.op_type)
        for output in node.outputs:
            output.name = self._new_name(f"{node.name}_out")
        self.graph.append(node)
        last = node.outputs[-1]
        if like is not None:
            last.shape, last.type = like.shape, like.type
        return last

    def constant(self, array: NDArray[Any] | np.generic) -> ir.Value:
        """A constant; equal small ones are the same value."""
        array = np.asarray(array)
        if array.size > 64:
            return add_initializer(self.graph, self._new_name("constant"), array)
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self._constants:
            self._constants[key] = add_initializer(self.graph, self._new_name("constant"), array)
        return self._constants[key]

    def weights(self, compute: Callable[[], NDArray[np.float32]], shape: Sequence[int]) -> ir.Value:
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

    def integers(self, values: Sequence[int]) -> ir.Value:
        """A constant of int64 values, shape (values,)."""
        return self.constant(np.array(values, np.int64))

    def number(self, value: float) -> ir.Value:
        """A float32 constant, shape ()."""
        return self.constant(np.float32(value))

    def reduced(
        self,
        kind: str,
        value: ir.Value,
        axes: Sequence[int],
        *,
        keep: bool = True,
        like: ir.Value | None = None,
    ) -> ir.Value:
        """Appends a reduction over axes, such as ``ReduceSum``; see :meth:`op` for ``like``."""
        if kind == "ReduceSum" or self.graph.opset_imports[""] >= 18:
            return self.op(kind, value, self.integers(axes), like=like, keepdims=int(keep))
        return self.op(kind, value, like=like, axes=list(axes), keepdims=int(keep))

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
