"""Computes nodes whose inputs are all constant."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any

import onnx
import onnx_ir as ir
from numpy.typing import NDArray
from onnx import defs, helper, numpy_helper, shape_inference

from calibrators.errors import ModelError
from calibrators.operators import operator_of
from trtint8.models.inner_graphs import holds_graphs
from trtint8.models.passes.constant_nodes import compute_node

logger = logging.getLogger(__name__)

#: How many bytes a constant may be larger than the inputs of its node: a Tile or ConstantOfShape of a scalar
#: can be gigabytes.
_LARGEST_GROWTH = 1 << 20

#: How many times larger than its inputs a dequantized constant may be: FP32 in place of int8.
_DEQUANTIZED_GROWTH = 4

#: Values of a constant on which the shape of a result may depend: sizes, repeats, axes.
_FEW = 64

#: The most bytes of a Range of constants, all values of which ONNX's shape inference computes.
_LARGEST_RANGE = 1 << 28


class FoldConstantsPass(ir.passes.InPlacePass):
    """Replaces nodes of the main graph that compute constants by initializers of the same name.

    Some exporters write weights as a Transpose, a Reshape or a Cast of a constant; quantization per output
    channel needs the weights themselves. Without any QuantizeLinear, a model stores only its weights as
    integers, and a DequantizeLinear is folded like other nodes.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Folds in graph order, so that chains of nodes are folded in one pass."""
        folded = 0
        has_pairs = any(node.op_type == "QuantizeLinear" for node in model.graph)
        for node in list(model.graph):
            # Q/DQ pairs of constants must be kept, and random values must stay random.
            operator = operator_of(node)
            if not (operator.half_of_pair and has_pairs) and not operator.random:
                folded += _fold(model, node)
        if folded:
            logger.debug("folded %d constant nodes", folded)
        return ir.passes.PassResult(model, modified=bool(folded))


def _fold(model: ir.Model, node: ir.Node) -> bool:
    inputs = [value for value in node.inputs if value is not None]
    if (
        node.domain != ""
        or not inputs
        or not node.outputs
        or node.outputs[0].is_graph_output()
        # Others, such as the statistics of a BatchNormalization in training mode, may be there unread.
        or any(output.uses() or output.is_graph_output() for output in node.outputs[1:])
        or holds_graphs(node)
    ):
        return False
    tensors = [ir.convenience.get_const_tensor(value) for value in inputs]
    if any(tensor is None for tensor in tensors):
        return False
    arrays = {
        value.name or "": tensor.numpy()
        for value, tensor in zip(inputs, tensors, strict=True)
        if tensor is not None
    }
    growth = _DEQUANTIZED_GROWTH if node.op_type == "DequantizeLinear" else 1
    most = growth * sum(array.nbytes for array in arrays.values()) + _LARGEST_GROWTH
    predicted = _predicted_bytes(model, node, arrays)
    if predicted is not None and predicted > most:
        if node.op_type == "Range" and predicted > _LARGEST_RANGE:
            raise ModelError(
                f"the node '{node.name}' makes a constant of {predicted:,} bytes, and shape inference would "
                "compute it; remove it from the model"
            )
        return False
    try:
        result = compute_node(node, arrays, model.opset_imports[""])
        tensor = ir.tensor(result, name=node.outputs[0].name)
    except Exception:
        logger.debug("could not fold %s '%s'", node.op_type, node.name, exc_info=True)
        return False
    if tensor.nbytes > most:
        return False

    output, graph = node.outputs[0], model.graph
    value = ir.Value(
        name=output.name, shape=ir.Shape(result.shape), type=ir.TensorType(tensor.dtype), const_value=tensor
    )
    output.replace_all_uses_with(value)
    graph.remove(node, safe=True)
    graph.register_initializer(value)
    return True


def _predicted_bytes(model: ir.Model, node: ir.Node, arrays: Mapping[str, NDArray[Any]]) -> int | None:
    """How large the result of a node with constant inputs will be; None where that is not known before."""
    if node.op_type == "Range":  # whose shape inference computes the values themselves
        numbers = [arrays[value.name or ""] for value in node.inputs if value is not None]
        if len(numbers) != 3 or any(array.size != 1 for array in numbers):
            return None
        start, limit, delta = (float(array.reshape(-1)[0]) for array in numbers)
        steps = (limit - start) / delta if delta else 0.0
        # Also false for NaN, which is no number of steps.
        return int(min(steps, float(1 << 62))) * numbers[0].itemsize if steps > 0 else 0
    try:
        inferred = shape_inference.infer_node_outputs(
            defs.get_schema(node.op_type, model.opset_imports[""], ""),
            ir.serde.serialize_node(node),
            {name: _type(array) for name, array in arrays.items()},
            {name: numpy_helper.from_array(array) for name, array in arrays.items() if array.size <= _FEW},
            opset_imports=[helper.make_opsetid("", model.opset_imports[""])],
        )[node.outputs[0].name or ""]
    except Exception:
        logger.debug("no shape of %s '%s' is known", node.op_type, node.name, exc_info=True)
        return None
    tensor = inferred.tensor_type
    if not tensor.HasField("shape") or not all(dim.HasField("dim_value") for dim in tensor.shape.dim):
        return None
    values = math.prod(dim.dim_value for dim in tensor.shape.dim)
    return int(values * helper.tensor_dtype_to_np_dtype(tensor.elem_type).itemsize)


def _type(array: NDArray[Any]) -> onnx.TypeProto:
    return helper.make_tensor_type_proto(helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
