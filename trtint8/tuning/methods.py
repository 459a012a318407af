"""One calibration method per tensor, chosen and applied with the histograms of a calibration table."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

import numpy as np
import onnx_ir as ir

from calibrators.data.feeds import FeedDict
from calibrators.histograms.thresholds import METHODS
from calibrators.tables.table import CalibrationTable
from trtint8.quantization.placement import Placement
from trtint8.sensitivity.segments import Form, Quantizer, cut
from trtint8.tuning.layer_runs import float_layers

#: The name of a table's method where its tensors have different methods.
MIXED = "mixed"


def with_methods(table: CalibrationTable, choices: Mapping[str, str]) -> CalibrationTable:
    """Applies one calibration method per tensor to a table.

    Args:
        table: A calibration table with histograms.
        choices: Tensor name to a key of :data:`calibrators.histograms.thresholds.METHODS`. Ranges of other
            tensors, and ranges that were set by hand, stay as they are.

    Returns:
        The new table; the same one where there are no choices.
    """
    if not choices:
        return table
    chosen = {
        name: METHODS[method](table.histograms[name])
        for name, method in choices.items()
        if name in table.histograms and name not in table.overridden
    }
    methods = set(choices.values())
    method = methods.pop() if len(methods) == 1 else MIXED
    return dataclasses.replace(table, amax={**table.amax, **chosen}, method=method, choice=None)


def choose_methods(
    model: ir.Model, placement: Placement, table: CalibrationTable, feeds: Iterable[FeedDict]
) -> dict[str, str]:
    """Finds for each tensor the method with which the layers that read it have the least error.

    Every layer is run by itself on the float network's activations, once per method. The squared error of
    its output is divided by the output's sum of squares, so that all layers count equally. Tensors that share
    one scale get the same method.

    Args:
        model: From :func:`trtint8.models.model.prepare`.
        placement: The placement for this model.
        table: A calibration table with histograms.
        feeds: Batches; a small number of samples is enough.

    Returns:
        Tensor name to method, for every quantized activation with a histogram.

    Raises:
        CalibrationDataError: The model fails on a batch.
    """
    names = [name for name in placement.tensors if name in table.histograms]
    networks = {
        method: cut(model, Quantizer.of(placement, with_methods(table, dict.fromkeys(names, method)).amax))
        for method in METHODS
    }
    groups = {name: placement.configs.dominator(name) for name in names}
    errors = {group: dict.fromkeys(METHODS, 0.0) for group in groups.values()}
    float_network = next(iter(networks.values()))
    numbers = {segment: number for number, segment in enumerate(float_network.segments)}
    for feed in feeds:
        for segment, layer, tensors in float_layers(float_network, feed):
            read = {groups[edge.tensor] for edge in layer.activations if edge.tensor in groups}
            if not read:
                continue
            exact = segment.run_layer(Form.FLOAT, tensors).astype(np.float64).ravel()
            signal = float(exact @ exact) or 1.0
            for method, network in networks.items():
                other = network.segments[numbers[segment]]
                error = exact - other.run_layer(Form.ACTIVATIONS, tensors).astype(np.float64).ravel()
                for group in read:
                    errors[group][method] += float(error @ error) / signal
    # Of methods with equal errors the first is taken; the most common method is listed first.
    return {name: min(METHODS, key=lambda method: errors[groups[name]][method]) for name in names}
