"""Bias correction: biases that compensate for the mean error of quantized layers.

Ranges chosen anew from the histograms of a table, by what they cost the network's outputs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from calibrators.data.feeds import FeedDict, Float32s, Floats, pieces
from calibrators.data.inputs import has_fixed_batch
from calibrators.errors import CalibrationDataError
from calibrators.operators import operator_of
from calibrators.tables.table import CalibrationTable
from trtint8.models.garbage_collection import pause_garbage_collection
from trtint8.models.graph import constant_input, set_constant_input
from trtint8.models.model import Model
from trtint8.models.session import open_graph_model
from trtint8.quantization.placement import Placement
from trtint8.range_choice.auto import AutoRanges
from trtint8.range_choice.compared import ComparedModel
from trtint8.simulation.networks import BesideFloat, Quantizer

#: What the remedy is called in results.
CORRECTION = "bias correction"


@dataclass(frozen=True)
class BiasCorrected:
    """A model with corrected biases.

    Attributes:
        model: The new model.
        corrections: Layer name to what its bias now adds to its output, float32 of shape (channels,).
    """

    model: ir.Model
    corrections: Mapping[str, Float32s]


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
    network = _ErrorNetwork(model, Quantizer.of(placement, amax))
    sums, counts = dict[str, Floats](), dict[str, int]()
    empty = True
    for feed in feeds:
        empty = False
        for name, (errors, count) in network.errors(feed).items():
            if count:  # where a network picks rows by its own values, there may be none
                sums[name] = sums.get(name, 0.0) - errors
                counts[name] = counts.get(name, 0) + count
    if empty:
        raise CalibrationDataError("the data holds no samples to correct biases with; give some")
    corrections = {name: (total / counts[name]).astype(np.float32) for name, total in sums.items()}
    return BiasCorrected(with_corrections(model, corrections), corrections)


def with_corrections(model: ir.Model, corrections: Mapping[str, Float32s]) -> ir.Model:
    """A copy of a model with changed biases.

    Args:
        model: From :func:`trtint8.models.model.prepare`; not changed.
        corrections: Layer name to what its bias adds to its output from now on, float32 of shape (channels,).
    """
    copy: ir.Model = model.clone()
    for node in copy.graph:
        if (correction := corrections.get(node.name or "")) is not None:
            _add_to_bias(node, correction)
    return copy


class _ErrorNetwork:
    """The float network, with every layer that has a bias a second time, in INT8, on the same inputs.

    Args:
        model: The model; not changed.
        quantizer: How its tensors are quantized.
    """

    @pause_garbage_collection()
    def __init__(self, model: ir.Model, quantizer: Quantizer) -> None:
        beside = BesideFloat(model, quantizer)
        layers = [layer for layer in beside.layers if _takes_bias(layer.node)]
        self._names = [layer.name for layer in layers]
        # Nothing else is wanted of the float network.
        beside.model.graph.outputs.clear()
        for layer in layers:
            error = beside.error(layer)
            axes = [axis for axis in range(_rank(layer.node)) if axis != 1]
            beside.give(error.reduced("ReduceSum", axes, keep=False))
            beside.give(error.op("Size"), ir.DataType.INT64)
        self._session = open_graph_model(beside.model, used_up=True) if layers else None

    def errors(self, feed: FeedDict) -> dict[str, tuple[Floats, int]]:
        """Name of the layer to the sums of its errors, float64 of shape (channels,), and their number."""
        if self._session is None:
            return {}
        found = iter(self._session.run(feed))
        return {
            name: (sums.astype(np.float64), int(size) // len(sums))
            for name, sums, size in zip(self._names, found, found, strict=True)
        }


def _rank(node: ir.Node) -> int:
    """The rank of a layer's output, which is that of its weights."""
    shape = node.inputs[1].shape if node.inputs[1] is not None else None
    assert shape is not None, "a placement quantizes layers whose weights have a shape"
    return len(shape)


def _takes_bias(node: ir.Node) -> bool:
    operator = operator_of(node)
    # Of operators with a bias, the output channels lie along axis 1.
    if not (operator.is_weighted and operator.addends) or _beta(node) == 0:
        return False
    absent = len(node.inputs) < 3 or node.inputs[2] is None
    return absent or constant_input(node, 2) is not None


def _beta(node: ir.Node) -> float:
    """The factor that the operator multiplies its bias by."""
    return node.attributes.get_float("beta", 1.0) if node.op_type == "Gemm" else 1.0


def _add_to_bias(node: ir.Node, correction: Float32s) -> None:
    old = constant_input(node, 2)
    # A Gemm's bias may have any shape that broadcasts to the output (N, channels).
    new = correction.astype(np.float64) / _beta(node) + (0.0 if old is None else old.astype(np.float64))
    set_constant_input(node, 2, new.astype(np.float32))


def choose_ranges_anew(
    model: Model, table: CalibrationTable, names: Iterable[str], feeds: Iterable[FeedDict]
) -> CalibrationTable | None:
    """Applies the method ``auto`` to a table that was made with another one.

    Args:
        model: From :func:`trtint8.models.model.prepare`.
        table: The model's table.
        names: The tensors that are quantized.
        feeds: Batches to try ranges on.

    Returns:
        The table with the chosen ranges; ranges that were set by hand stay as they are. None where the table
        has the ranges of ``auto`` already, or no histograms of all tensors that are quantized.

    Raises:
        CalibrationDataError: The model fails on a sample.
    """
    if table.method == "auto" or not all(name in table.histograms for name in names):
        return None
    compared = ComparedModel(model, threads=None, device="cpu")
    samples = compared.samples(list(single_samples(model, feeds)), ())
    chooser = AutoRanges(compared)
    amax, choice = chooser.choose(table.histograms, samples, len(samples), progress=False)
    return table.with_choice(amax, choice)


def single_samples(model: Model, feeds: Iterable[FeedDict]) -> Iterator[FeedDict]:
    """One feed per sample; whole batches where the model takes no others.

    Args:
        model: From :func:`trtint8.models.model.prepare`.
        feeds: Batches.
    """
    rows = None if has_fixed_batch(model.inputs) else 1
    for feed in feeds:
        yield from pieces(feed, rows)
