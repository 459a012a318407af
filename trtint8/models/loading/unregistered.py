"""Operators that ONNX does not have in a model's opset, and that ONNX Runtime and TensorRT take."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnx
import onnx_ir as ir
from onnx import helper

from trtint8.models.graph_constants import take_name
from trtint8.models.inner_graphs import message_containers

#: The domain of such operators while onnx looks at a model, which would refuse them.
HIDDEN = "trtint8.hidden"

#: Operators that only ONNX Runtime and TensorRT have in ONNX's domain.
OF_RUNTIMES = frozenset({"SimplifiedLayerNormalization"})

#: Operators that ONNX has withdrawn from some opsets because a later one changed them.
_WITHDRAWN = frozenset({"GroupNormalization"})

#: The opset from which on ONNX Runtime has no experimental operators, and the oldest one whose arithmetic
#: broadcasts as today's.
_WITHOUT_EXPERIMENTS, _BROADCASTS = 10, 7


def hide(message: onnx.ModelProto) -> onnx.ModelProto:
    """Puts the operators that onnx would refuse into a domain of which it does not know anything.

    Args:
        message: The model; changed.

    Returns:
        The same message.
    """
    hidden = False
    for container in message_containers(message):
        for node in container.node:
            if not node.domain and _is_unregistered(node.op_type, _opset(message)):
                node.domain, hidden = HIDDEN, True
    if hidden:
        message.opset_import.append(helper.make_opsetid(HIDDEN, 1))
    return message


def show(graph_model: ir.Model) -> None:
    """Puts the operators back that :func:`hide` has hidden.

    Args:
        graph_model: The model; changed.
    """
    for node in graph_model.graph.all_nodes():
        if node.domain == HIDDEN:
            node.domain = ""
    graph_model.opset_imports.pop(HIDDEN, None)


def needed_opset(message: onnx.ModelProto) -> int:
    """The oldest opset that has all operators of ONNX in a model, where its own has not; else its own.

    ONNX Runtime's optimizer for transformers writes LayerNormalization into models of any opset.

    Args:
        message: The model.
    """
    operators = {
        node.op_type
        for container in message_containers(message)
        for node in container.node
        if not node.domain and onnx.defs.has(node.op_type)
    }
    return max([_opset(message), *(_first_version(operator) for operator in operators)])


def _opset(message: onnx.ModelProto) -> int:
    return next((opset.version for opset in message.opset_import if not opset.domain), 0)


def _is_unregistered(operator: str, opset: int) -> bool:
    if operator in OF_RUNTIMES:
        return True
    if not onnx.defs.has(operator):
        return False
    try:
        return bool(onnx.defs.get_schema(operator, opset, "").deprecated) and operator in _WITHDRAWN
    except onnx.defs.SchemaError:
        return True


def _first_version(operator: str) -> int:
    version = int(onnx.defs.get_schema(operator).since_version)
    while version > 1:
        try:
            version = int(onnx.defs.get_schema(operator, version - 1, "").since_version)
        except onnx.defs.SchemaError:
            break
    return version


def write_experimental_operators(message: onnx.ModelProto) -> None:
    """Writes operators that ONNX once tried as the arithmetic that they stand for.

    Converters of Core ML wrote them into models before opset 10. Those of half precision stay as they are,
    unless the model declares the type of what they read.

    Args:
        message: The model; changed.
    """
    if not _BROADCASTS <= _opset(message) < _WITHOUT_EXPERIMENTS:
        return
    graph = message.graph
    if not any(node.op_type in _EXPERIMENTAL and not node.domain for node in graph.node):
        return
    types = {value.name: value.type.tensor_type.elem_type for value in (*graph.input, *graph.value_info)}
    taken = {name for node in graph.node for name in (*node.input, *node.output)} | types.keys()
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        write = None if node.domain else _EXPERIMENTAL.get(node.op_type)
        if write is None:
            nodes.append(node)
        else:
            element = types.get(node.input[0], onnx.TensorProto.FLOAT) or onnx.TensorProto.FLOAT
            nodes += write(node, _Constants(node, element, taken))
    del graph.node[:]
    graph.node.extend(nodes)


class _Constants:
    """Makes the constants and the names of what takes an operator's place."""

    def __init__(self, node: onnx.NodeProto, element: int, taken: set[str]) -> None:
        self._node, self._element, self._taken = node, element, taken
        self._attributes = {one.name: helper.get_attribute_value(one) for one in node.attribute}
        self.nodes: list[onnx.NodeProto] = []

    def attribute(self, name: str, default: float | Sequence[float]) -> Sequence[float]:
        found = self._attributes.get(name, default)
        return found if isinstance(found, Sequence) else (found,)

    def constant(self, values: Sequence[float], shape: Sequence[int] = ()) -> str:
        tensor = helper.make_tensor("value", self._element, shape, values)
        return self.op("Constant", [], value=tensor)

    def op(self, operator: str, inputs: Sequence[str], last: bool = False, **attributes: Any) -> str:
        output = self._node.output[0]
        name = output if last else take_name(f"{output}_{operator}", self._taken)
        self.nodes.append(helper.make_node(operator, inputs, [name], **attributes))
        return name


def _image_scaler(node: onnx.NodeProto, made: _Constants) -> list[onnx.NodeProto]:
    """``x * scale + bias``, with one bias per channel."""
    bias = made.attribute("bias", ())
    scaled = made.op("Mul", [node.input[0], made.constant(made.attribute("scale", 1.0))], last=not bias)
    if bias:
        made.op("Add", [scaled, made.constant(bias, (len(bias), 1, 1))], last=True)
    return made.nodes


def _scaled(activation: str) -> Callable[[onnx.NodeProto, _Constants], list[onnx.NodeProto]]:
    """``alpha * activation(beta * x)``."""

    def write(node: onnx.NodeProto, made: _Constants) -> list[onnx.NodeProto]:
        inner = made.op("Mul", [node.input[0], made.constant(made.attribute("beta", 1.0))])
        outer = made.op(activation, [inner])
        made.op("Mul", [outer, made.constant(made.attribute("alpha", 1.0))], last=True)
        return made.nodes

    return write


_EXPERIMENTAL: Mapping[str, Callable[[onnx.NodeProto, _Constants], list[onnx.NodeProto]]] = {
    "ImageScaler": _image_scaler,
    "ParametricSoftplus": _scaled("Softplus"),
    "ScaledTanh": _scaled("Tanh"),
}
