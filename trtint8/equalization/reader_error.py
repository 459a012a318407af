"""The error at the output of a layer whose input and weights are quantized."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray
from onnx import TensorProto, helper

from calibrators.histograms.histogram import Histogram
from calibrators.histograms.thresholds import METHODS
from calibrators.host.onnx_session import open_session
from calibrators.tables.scales import scale_of
from trtint8.quantization.config import State
from trtint8.quantization.integer.arithmetic import fake_quantize
from trtint8.quantization.operators import weight_axis
from trtint8.quantization.placement import Placement
from trtint8.quantization.qdq import weight_scale

#: Stands in for methods that choose ranges with more than a histogram.
_METHOD = "mse"


class ReaderError:
    """Runs one layer by itself, without its bias, in float and with quantized operands.

    Args:
        model: The model that the layer belongs to.
        node: A layer that the placement quantizes, with constant weights as its second input.
        placement: The placement for this model.
        method: The calibration method.
    """

    def __init__(self, model: ir.Model, node: ir.Node, placement: Placement, method: str) -> None:
        source, weights = node.inputs[:2]
        assert source is not None and weights is not None
        # Tensors that share the scale of another one have a config that takes none of its own.
        config = placement.configs[source.name or ""]
        self._activation = dataclasses.replace(config, state=State.INITIAL)
        self._axis = weight_axis(node, weights)
        self._weights = placement.configs[weights.name or ""].along(self._axis)
        self._threshold = METHODS.get(method, METHODS[_METHOD])
        self._session = open_session(_alone(model, node), optimize=True, one_of_many=True)

    def run(self, values: NDArray[np.float32], weights: NDArray[np.float32]) -> NDArray[np.float32]:
        """The layer's output in float.

        Args:
            values: The layer's input.
            weights: The layer's weights.
        """
        output: NDArray[np.float32] = self._session.run(None, {"values": values, "weights": weights})[0]
        return output

    def threshold(self, values: NDArray[np.float32]) -> float:
        """The range that calibration finds for the layer's input.

        Args:
            values: The layer's input.
        """
        histogram = Histogram()
        histogram.observe(values)
        return self._threshold(histogram) or 1.0

    def relative_error(
        self,
        values: NDArray[np.float32],
        weights: NDArray[np.float32],
        exact: NDArray[np.float32],
        amax: float,
    ) -> float:
        """The squared error with quantized operands, over the sum of squares of the exact output.

        Args:
            values: The layer's input.
            weights: The layer's weights.
            exact: The exact output.
            amax: The range of the input.
        """
        quantized = fake_quantize(values, self._activation.with_scale(scale_of(amax)))
        rounded = fake_quantize(weights, self._weights.with_scale(weight_scale(weights, self._axis)))
        # Squares of float32 numbers may be beyond float32.
        signal = exact.astype(np.float64).reshape(-1)
        error = self.run(quantized, rounded).reshape(-1) - signal
        return float(error @ error) / (float(signal @ signal) or 1.0)


def _alone(model: ir.Model, node: ir.Node) -> bytes:
    """A model of one node, whose first two inputs are inputs of the model."""
    message: onnx.NodeProto = ir.to_proto(node)
    del message.input[:], message.output[:]
    message.input.extend(["values", "weights"])
    message.output.append("output")
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in message.input]
    outputs = [helper.make_tensor_value_info("output", TensorProto.FLOAT, None)]
    graph = helper.make_graph([message], "layer", inputs, outputs)
    opsets = [helper.make_opsetid("", model.opset_imports[""])]
    made = helper.make_model(graph, opset_imports=opsets, ir_version=model.ir_version)
    serialized: bytes = made.SerializeToString()
    return serialized
