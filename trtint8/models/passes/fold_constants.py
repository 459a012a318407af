"""Computes nodes whose inputs are all constant."""

from __future__ import annotations

import logging

import numpy as np
import onnx_ir as ir

logger = logging.getLogger(__name__)

#: Operators that are not folded: Q/DQ pairs of constants must be kept, and random values must stay random.
_KEPT = {
    "QuantizeLinear",
    "DequantizeLinear",
    "RandomNormal",
    "RandomNormalLike",
    "RandomUniform",
    "RandomUniformLike",
    "Bernoulli",
    "Multinomial",
}

#: How many bytes a constant may be larger than the inputs of its node: a Tile or ConstantOfShape of a scalar
#: can be gigabytes.
_LARGEST_GROWTH = 1 << 20


class FoldConstantsPass(ir.passes.InPlacePass):
    """Replaces nodes of the main graph that compute constants by initializers of the same name.

    Some exporters write weights as a Transpose, a Reshape or a Cast of a constant; quantization per output
    channel needs the weights themselves.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Folds in graph order, so that chains of nodes are folded in one pass."""
        folded = 0
        for node in list(model.graph):
            folded += _fold(model, node)
        if folded:
            logger.debug("folded %d constant nodes", folded)
        return ir.passes.PassResult(model, modified=bool(folded))


def _fold(model: ir.Model, node: ir.Node) -> bool:
    inputs = [value for value in node.inputs if value is not None]
    if (
        node.domain != ""
        or node.op_type in _KEPT
        or not inputs
        or len(node.outputs) != 1
        or node.outputs[0].is_graph_output()
        or any(
            attribute.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)
            for attribute in node.attributes.values()
        )
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
    try:
        # Imported late: few models have anything to fold, and the import takes a twentieth of a second.
        from onnx.reference import ReferenceEvaluator

        evaluator = ReferenceEvaluator(ir.to_proto(node), opsets={"": model.opset_imports[""]})
        result = np.asarray(next(iter(evaluator.run(None, arrays))))
        tensor = ir.tensor(result, name=node.outputs[0].name)
    except Exception:
        logger.debug("could not fold %s '%s'", node.op_type, node.name, exc_info=True)
        return False
    if tensor.nbytes > sum(array.nbytes for array in arrays.values()) + _LARGEST_GROWTH:
        return False

    output, graph = node.outputs[0], model.graph
    value = ir.Value(
        name=output.name, shape=ir.Shape(result.shape), type=ir.TensorType(tensor.dtype), const_value=tensor
    )
    output.replace_all_uses_with(value)
    graph.remove(node, safe=True)
    graph.register_initializer(value)
    return True
