"""Folds BatchNormalization into the convolution before it."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from calibrators.errors import ModelError
from calibrators.operators import operator_of
from trtint8.models.graph_constants import add_initializer, read_constant, take_name, value_names

logger = logging.getLogger(__name__)


class FoldBatchNormPass(ir.passes.InPlacePass):
    """Folds each BatchNormalization into the Conv or ConvTranspose whose only reader it is.

    TensorRT does the same, and its INT8 kernels have no normalization between the convolution and its
    activation function; so weights must be quantized after the fold, not before. The output of the
    convolution gets the name of the normalization's output.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Folds the nodes that can be folded, and leaves the others unchanged."""
        folded, taken = 0, value_names(model.graph)
        for node in list(model.graph):
            if node.op_type == "BatchNormalization" and node.domain == "" and _fold(node, taken):
                folded += 1
        if folded:
            logger.debug("folded %d batch normalizations", folded)
        return ir.passes.PassResult(model, modified=bool(folded))


def _fold(norm: ir.Node, taken: set[str]) -> bool:
    """Folds one node where that is possible; the names of new values join those that are taken."""
    graph = norm.graph
    source = norm.inputs[0]
    conv = source.producer() if source is not None else None
    if (
        not isinstance(graph, ir.Graph)
        or source is None
        or conv is None
        or not operator_of(conv).is_convolution
        or conv.graph is not graph
        or len(source.uses()) != 1
        or source.is_graph_output()
        or bool(norm.attributes.get_int("training_mode", 0))
        or any(output.uses() or output.is_graph_output() for output in norm.outputs[1:])
        or (conv.op_type == "ConvTranspose" and conv.attributes.get_int("group", 1) != 1)
    ):
        return False
    parameters = [
        ir.convenience.get_const_tensor(value) for value in (*conv.inputs[1:], *norm.inputs[1:]) if value
    ]
    if any(parameter is None for parameter in parameters):
        return False

    weight, *bias = (parameter.numpy() for parameter in parameters[:-4] if parameter is not None)
    gamma, beta, mean, variance = (
        parameter.numpy() for parameter in parameters[-4:] if parameter is not None
    )
    axis = operator_of(conv).weights_axis
    assert axis is not None, "a convolution has one"
    channels = weight.shape[axis] if weight.ndim > axis else 0
    for value in (*conv.inputs[2:], *norm.inputs[1:]):
        _check_channels(value, channels, norm, conv)
    # In float64, which costs little: the folded weights are quantized later, so they should be exact.
    shifted = variance.astype(np.float64) + norm.attributes.get_float("epsilon", 1e-5)
    if not (shifted > 0).all():
        return False
    factor = gamma.astype(np.float64) / np.sqrt(shifted)
    broadcast = [1] * weight.ndim
    broadcast[axis] = -1
    new_weight = (weight * factor.reshape(broadcast)).astype(weight.dtype)
    old_bias = bias[0].astype(np.float64) if bias else 0.0
    new_bias = ((old_bias - mean) * factor + beta).astype(weight.dtype)

    output, result = norm.outputs[0], conv.outputs[0]
    weight_name = conv.inputs[1].name if conv.inputs[1] is not None else None
    conv.replace_input_with(1, _add_initializer(graph, f"{weight_name}_folded", new_weight, taken))
    bias_value = _add_initializer(graph, f"{weight_name}_folded_bias", new_bias, taken)
    conv.resize_inputs(3)
    conv.replace_input_with(2, bias_value)
    name, shape, dtype = output.name, output.shape, output.type
    output.replace_all_uses_with(result, replace_graph_outputs=True)
    graph.remove(norm, safe=True)
    result.name, result.shape, result.type = name, shape, dtype
    return True


def _check_channels(value: ir.Value | None, channels: int, norm: ir.Node, conv: ir.Node) -> None:
    """Refuses a parameter that does not have one number per output channel of the convolution."""
    parameter = read_constant(value)
    if value is not None and parameter is not None and parameter.shape != (channels,):
        raise ModelError(
            f"the tensor '{value.name}' has the shape {list(parameter.shape)}, but "
            f"'{norm.name or norm.op_type}' normalizes the {channels} channels of "
            f"'{conv.name or conv.op_type}'; give it one number per channel"
        )


def _add_initializer(graph: ir.Graph, stem: str, array: NDArray[Any], taken: set[str]) -> ir.Value:
    return add_initializer(graph, take_name(stem, taken), array)
