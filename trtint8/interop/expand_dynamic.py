"""Replaces ConvInteger and MatMulInteger by the float operators that they compute on integers."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnx_ir.passes import common

from trtint8.interop.integer_product import (
    FLOAT_COUNTERPARTS,
    Activation,
    IntegerProduct,
    MismatchError,
    Weights,
    flatten_per_channel,
    integer_product,
)
from trtint8.interop.pairs import Parameters, insert_dequantize, replace_value
from trtint8.models.graph_constants import add_initializer, read_constant


class ExpandDynamicPass(ir.passes.InPlacePass):
    """Replaces integer operators where all nodes of the pattern around them are found; the others stay.

    An operand whose scale is computed at run time is replaced by the input of its quantizer. An operand with
    a constant scale, and weights, are dequantized by a DequantizeLinear.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Expands the operators, and removes the nodes that computed their scales."""
        modified = False
        for node in list(model.graph):
            product = integer_product(node) if node.op_type in FLOAT_COUNTERPARTS else None
            if isinstance(product, IntegerProduct):
                _expand(model.graph, product)
                modified = True
        if modified:
            common.RemoveUnusedNodesPass()(model)
        return ir.passes.PassResult(model, modified=modified)


def _expand(graph: ir.Graph, product: IntegerProduct) -> None:
    node, result = product.node, product.scaled.outputs[0]
    cast = next(reader for reader, _ in node.outputs[0].uses())
    operands = [_operand(graph, node, index, operand) for index, operand in enumerate(product.operands)]
    attributes = list(node.attributes.values())
    new = ir.Node("", FLOAT_COUNTERPARTS[node.op_type], operands, attributes, name=node.name)
    new.outputs[0].dtype, new.outputs[0].shape = ir.DataType.FLOAT, node.outputs[0].shape
    graph.insert_after(node, new)
    replace_value(result, new.outputs[0])
    graph.remove([product.scaled, cast, node], safe=True)
    if new.op_type == "Conv":
        _fold_bias(graph, new)


def _operand(graph: ir.Graph, node: ir.Node, index: int, operand: Activation | Weights) -> ir.Value:
    name = f"{node.name}_input{index}"
    if isinstance(operand, Activation):
        if operand.is_dynamic:
            return operand.source
        return insert_dequantize(node, operand.data, operand.parameters, name)
    scale, zero_point = (
        add_initializer(graph, f"{name}_{what}", array)
        for what, array in (("scale", operand.scale), ("zero_point", operand.zero_point))
    )
    return insert_dequantize(node, operand.data, Parameters(scale, zero_point), name, operand.axis)


def _fold_bias(graph: ir.Graph, conv: ir.Node) -> None:
    """Replaces an Add of one number per output channel by the convolution's bias."""
    output, weights = conv.outputs[0], conv.inputs[1]
    uses = tuple(output.uses())
    if len(uses) != 1 or uses[0][0].op_type != "Add" or output.is_graph_output() or weights is None:
        return
    add, index = uses[0]
    bias, shape = _bias_constant(add.inputs[1 - index]), weights.shape
    if bias is None or shape is None or not shape.is_static() or bias.dtype != np.float32:
        return
    sizes = shape.numpy()
    try:
        channels = flatten_per_channel(bias, sizes[0], len(sizes), 1, output)
    except MismatchError:
        return
    conv.resize_inputs(3)
    conv.replace_input_with(2, add_initializer(graph, f"{conv.name}_bias", channels))
    replace_value(add.outputs[0], output)
    graph.remove(add, safe=True)


def _bias_constant(value: ir.Value | None) -> NDArray[Any] | None:
    """A constant, or the Reshape of one: ONNX Runtime writes both for biases."""
    array = read_constant(value)
    producer = value.producer() if value is not None else None
    if array is None and producer is not None and producer.op_type == "Reshape":
        source, shape = read_constant(producer.inputs[0]), read_constant(producer.inputs[1])
        if source is not None and shape is not None and (shape != 0).all():
            array = source.reshape(tuple(int(size) for size in shape))
    return array
