"""Lets QuantizeLinear compute in FP32 what it is given in FP16."""

from __future__ import annotations

import onnx_ir as ir

from trtint8.models.graph_constants import take_name, value_names
from trtint8.models.passes.float32 import cast_node

_HALF, _FLOAT = ir.DataType.FLOAT16, ir.DataType.FLOAT


def quantizes_half(model: ir.Model) -> bool:
    """Whether a QuantizeLinear of a model has a scale in FP16, and so an input in FP16."""
    return any(_has_half_scale(node) for graph in model.graphs() for node in graph)


class QuantizeInFloat32Pass(ir.passes.InPlacePass):
    """Puts a Cast to FP32 before the input and the scale of every QuantizeLinear in FP16.

    The result is the same, as every FP16 number is an FP32 number. ONNX Runtime before 1.30 rounds FP16
    towards zero there, and FP32 to the nearest, as the operator's definition has it.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Changes nothing in a model without such a node."""
        found = [node for graph in model.graphs() for node in graph if _has_half_scale(node)]
        taken: set[str] = set()
        for graph in model.graphs() if found else ():
            taken |= value_names(graph)
        for node in found:
            for index in (0, 1):
                _convert_input(node, index, taken)
            node.attributes.pop("precision", None)  # would have it divide in FP16 all the same
        return ir.passes.PassResult(model, bool(found))


def _has_half_scale(node: ir.Node) -> bool:
    if node.op_type != "QuantizeLinear":
        return False
    scale = node.inputs[1]
    assert scale is not None
    constant = ir.convenience.get_const_tensor(scale)
    return (scale.dtype if constant is None else constant.dtype) == _HALF


def _convert_input(node: ir.Node, index: int, taken: set[str]) -> None:
    value = node.inputs[index]
    assert value is not None and node.graph is not None
    name = take_name(f"{value.name}_float32", taken)
    cast = cast_node(value, _FLOAT, ir.Value(name=name, shape=value.shape, type=ir.TensorType(_FLOAT)))
    node.graph.insert_before(node, cast)
    node.replace_input_with(index, cast.outputs[0])
