"""The error at the output of a layer whose input and weights are quantized."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from calibrators.histograms.histogram import Histogram
from calibrators.histograms.thresholds import METHODS
from trtint8.quantization.placement import Placement
from trtint8.simulation.layers import Layer
from trtint8.simulation.segments import LayerAlone

#: Stands in for methods that choose ranges with more than a histogram.
_METHOD = "mse"


class ReaderError(LayerAlone):
    """A layer by itself, without its bias, whose error with quantized operands is measured.

    Args:
        model: The model that the layer belongs to.
        layer: A layer with constant weights as its second input.
        placement: The placement for this model.
        method: The calibration method.
    """

    def __init__(self, model: ir.Model, layer: Layer, placement: Placement, method: str) -> None:
        super().__init__(model, layer, placement)
        self._threshold = METHODS.get(method, METHODS[_METHOD])

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
        # Squares of float32 numbers may be beyond float32.
        signal = exact.astype(np.float64).reshape(-1)
        error = self.run_int8(values, weights, amax).reshape(-1) - signal
        return float(error @ error) / (float(signal @ signal) or 1.0)
