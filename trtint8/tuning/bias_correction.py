"""Bias correction: biases that compensate for the mean error of quantized layers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from calibrators.data.feeds import FeedDict
from calibrators.errors import CalibrationDataError
from trtint8.models.graph_constants import constant_input, set_constant_input
from trtint8.quantization.placement import Placement
from trtint8.sensitivity.segments import Form, Quantizer, Segment, Tensors, cut
from trtint8.tuning.layer_runs import float_layers

#: Operators with a bias; their output channels lie along axis 1.
_BIASED = ("Conv", "ConvTranspose", "Gemm")


@dataclass(frozen=True)
class BiasCorrected:
    """A model with corrected biases.

    Attributes:
        model: The new model.
        corrections: Layer name to what its bias now adds to its output, float32 of shape (channels,).
    """

    model: ir.Model
    corrections: Mapping[str, NDArray[np.float32]]


def correct_biases(
    model: ir.Model, placement: Placement, amax: Mapping[str, float], feeds: Iterable[FeedDict]
) -> BiasCorrected:
    """Adds to each quantized layer's bias the mean error that quantization causes in the layer's output.

    Empirical bias correction: float output minus INT8 output, averaged over samples and positions for each
    output channel (Nagel et al., "Data-Free Quantization Through Weight Equalization and Bias Correction",
    ICCV 2019, section 4.2 and appendix D). Each layer is run on its inputs from the float network, so one run
    over the data corrects all layers. A Conv, ConvTranspose or Gemm without a bias gets one. A MatMul has no
    input for a bias and is not changed, and neither are layers whose bias is computed.

    Args:
        model: From :func:`trtint8.models.model.prepare`; not changed.
        placement: The placement for this model; it fits the new model as well.
        amax: The range of every tensor in ``placement.tensors``.
        feeds: Calibration data, batch by batch. Only sums of it are kept.

    Returns:
        The new model. Before it is quantized, its outputs differ from those of the old one.

    Raises:
        CalibrationDataError: There is no data, or the model fails on it.
    """
    network = cut(model, Quantizer.of(placement, amax))
    means: dict[str, _Mean] = {}
    empty = True
    for feed in feeds:
        empty = False
        for segment, layer, tensors in float_layers(network, feed):
            if _takes_bias(layer.node):
                means.setdefault(layer.name, _Mean()).add(_error(segment, tensors))
    if empty:
        raise CalibrationDataError("the data holds no samples to correct biases with; give some")
    copy = model.clone()
    corrections = {name: mean.value.astype(np.float32) for name, mean in means.items()}
    for node in copy.graph:
        if node.name in corrections:
            _add_to_bias(node, means[node.name].value)
    return BiasCorrected(copy, corrections)


class _Mean:
    """The mean error of each channel, in float64."""

    def __init__(self) -> None:
        self._sums: NDArray[np.float64] | float = 0.0
        self._count = 0

    def add(self, errors: NDArray[np.float64]) -> None:
        """Adds errors, float64 of shape (N, channels, positions...)."""
        self._sums = self._sums + errors.sum(axis=tuple(axis for axis in range(errors.ndim) if axis != 1))
        self._count += errors.size // errors.shape[1]

    @property
    def value(self) -> NDArray[np.float64]:
        return np.asarray(self._sums / self._count, np.float64)


def _error(segment: Segment, tensors: Tensors) -> NDArray[np.float64]:
    exact, quantized = (segment.run_layer(form, tensors) for form in (Form.FLOAT, Form.INT8))
    difference: NDArray[np.float64] = np.subtract(exact, quantized, dtype=np.float64)
    return difference


def _takes_bias(node: ir.Node) -> bool:
    if node.op_type not in _BIASED or node.domain != "" or _beta(node) == 0:
        return False
    absent = len(node.inputs) < 3 or node.inputs[2] is None
    return absent or constant_input(node, 2) is not None


def _beta(node: ir.Node) -> float:
    """The factor that the operator multiplies its bias by."""
    return node.attributes.get_float("beta", 1.0) if node.op_type == "Gemm" else 1.0


def _add_to_bias(node: ir.Node, correction: NDArray[np.float64]) -> None:
    old = constant_input(node, 2)
    # A Gemm's bias may have any shape that broadcasts to the output (N, channels).
    new = correction / _beta(node) + (0.0 if old is None else old.astype(np.float64))
    set_constant_input(node, 2, new.astype(np.float32))
