"""Turns a model that computes in FP16 or BF16 into one that computes in FP32.

Lets QuantizeLinear compute in FP32 what it is given in FP16.
"""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping

import numpy as np
import onnx_ir as ir

from calibrators.errors import ModelError
from trtint8.models.graph import (
    TYPE_ATTRIBUTES,
    computes_in,
    constant_tensor,
    inner_graphs,
    set_element_type,
    take_name,
    unused_name,
    value_names,
)

_HALF, _BRAIN, _FLOAT = ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.FLOAT
#: Floating-point types of 16 bits.
NARROW_TYPES = (_HALF, _BRAIN)


def _cast_node(value: ir.Value, dtype: ir.DataType, name: str | None) -> ir.Node:
    """A node, of no graph yet, that converts a value to a type, and gives it out under a name."""
    output = ir.Value(name=name, shape=value.shape, type=ir.TensorType(dtype))
    return ir.Node("", "Cast", [value], [ir.AttrInt64("to", int(dtype))], outputs=[output])


class ComputeInFloat32Pass(ir.passes.InPlacePass):
    """Makes every FP16 tensor FP32, except inputs and outputs of the model, which a Cast converts.

    BF16 tensors become FP32 as well, and so do inputs and outputs in BF16, because NumPy has no such type.

    Ranges are of FP32 activations, and what is not quantized can become FP16 again when it is built. Every
    number of 16 bits is an FP32 number, so only the rounding of intermediate results differs.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Changes nothing in a model that computes in neither FP16 nor BF16.

        Raises:
            ModelError: An input is a sequence of FP16 tensors, which no Cast converts.
        """
        graph = model.graph
        inputs = [value for value in graph.inputs if value.dtype == _HALF and not value.is_initializer()]
        outputs = [index for index, value in enumerate(graph.outputs) if value.dtype == _HALF]
        stored = (value for one in model.graphs() for value in one.initializers.values())
        weights = [value for value in stored if _is_narrow(value)]
        if not any(computes_in(model, dtype) for dtype in NARROW_TYPES):
            return ir.passes.PassResult(model, False)
        _check_types(inputs)
        for value in weights:
            assert value.const_value is not None
            value.const_value = ir.tensor(value.const_value.numpy().astype(np.float32), name=value.name)
            set_element_type(value, _FLOAT)
        _change_nodes(graph)
        taken = value_names(graph)
        for value in inputs:
            _convert_input(graph, value, unused_name(f"{value.name}_float32", taken))
        for value in graph.inputs:
            if value.dtype == _BRAIN:
                set_element_type(value, _FLOAT)
        for index in outputs:
            if graph.outputs[index].dtype == _FLOAT:  # an input that is given out as it is stays FP16
                _convert_output(graph, index, unused_name(f"{graph.outputs[index].name}_float32", taken))
        return ir.passes.PassResult(model, True)


def _check_types(inputs: Iterable[ir.Value]) -> None:
    """Refuses inputs of the model that are no tensors."""
    for value in inputs:
        if not isinstance(value.type, ir.TensorType):
            raise ModelError(
                f"'{value.name}', an input of the model, holds FP16 tensors and is no tensor "
                "itself, so it cannot be converted to FP32; export the model in FP32"
            )


def _change_nodes(graph: ir.Graph) -> None:
    """Makes all that the nodes of a graph give out, and all that the graphs inside them declare, FP32."""
    for node in ir.traversal.RecursiveGraphIterator(graph):
        _change_attributes(node.attributes)
        inside = (value for inner in inner_graphs(node) for value in inner.inputs)
        for value in (*node.outputs, *inside):
            if value.dtype in NARROW_TYPES:
                set_element_type(value, _FLOAT)


def _convert_input(graph: ir.Graph, value: ir.Value, name: str) -> None:
    """Lets the readers of an input read it after a Cast; those that convert it themselves stay."""
    readers = [(node, index) for node, index in value.uses() if not _casts_to_float(node)]
    if value.uses() and not readers:
        return
    cast = _cast_node(value, _FLOAT, name)
    for node, index in readers:
        node.replace_input_with(index, cast.outputs[0])
    first = next(iter(graph), None)
    graph.append(cast) if first is None else graph.insert_before(first, cast)


def _casts_to_float(node: ir.Node) -> bool:
    return node.op_type == "Cast" and node.domain == "" and node.attributes["to"].as_int() == _FLOAT


def _convert_output(graph: ir.Graph, index: int, name: str) -> None:
    """Gives an output out after a Cast, under its own name."""
    value = graph.outputs[index]
    cast = _cast_node(value, _HALF, value.name)
    value.name = name
    graph.append(cast)
    graph.outputs[index] = cast.outputs[0]


def _change_attributes(attributes: MutableMapping[str, ir.Attr]) -> None:
    """Makes attributes that say or hold what has 16 bits say or hold FP32."""
    for name, attribute in list(attributes.items()):
        if attribute.value is None:  # a reference to an attribute of the function
            continue
        if (
            name in TYPE_ATTRIBUTES
            and attribute.type == ir.AttributeType.INT
            and attribute.as_int() in NARROW_TYPES
        ):
            attributes[name] = ir.AttrInt64(name, int(_FLOAT))
        elif attribute.type == ir.AttributeType.TENSOR and attribute.as_tensor().dtype in NARROW_TYPES:
            values = attribute.as_tensor().numpy().astype(np.float32)
            attributes[name] = ir.AttrTensor(name, ir.tensor(values))


def _is_narrow(value: ir.Value) -> bool:
    return value.const_value is not None and value.const_value.dtype in NARROW_TYPES


def quantizes_half(model: ir.Model) -> bool:
    """Whether a QuantizeLinear of a model has a scale in FP16, and so an input in FP16."""
    return any(map(_has_half_scale, model.graph.all_nodes()))


class QuantizeInFloat32Pass(ir.passes.InPlacePass):
    """Puts a Cast to FP32 before the input and the scale of every QuantizeLinear in FP16.

    The result is the same, as every FP16 number is an FP32 number. ONNX Runtime before 1.30 rounds FP16
    towards zero there, and FP32 to the nearest, as the operator's definition has it.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Changes nothing in a model without such a node."""
        found = [node for node in model.graph.all_nodes() if _has_half_scale(node)]
        taken = value_names(model.graph) if found else set()
        for node in found:
            for index, value in enumerate(node.inputs[:2]):
                assert value is not None and node.graph is not None
                cast = _cast_node(value, _FLOAT, take_name(f"{value.name}_float32", taken))
                node.graph.insert_before(node, cast)
                node.replace_input_with(index, cast.outputs[0])
            node.attributes.pop("precision", None)  # would have it divide in FP16 all the same
        return ir.passes.PassResult(model, bool(found))


def _has_half_scale(node: ir.Node) -> bool:
    if node.op_type != "QuantizeLinear":
        return False
    scale = node.inputs[1]
    assert scale is not None
    constant = constant_tensor(scale)
    return (scale.dtype if constant is None else constant.dtype) == _HALF
