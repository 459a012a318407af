"""A calibration method for each tensor: all from the histograms that are stored already."""

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

#: What the method of a table is called whose tensors have different ones.
MIXED = "mixed"


def with_methods(table: CalibrationTable, choices: Mapping[str, str]) -> CalibrationTable:
    """A table whose ranges come from a method for each tensor.

    Args:
        table: With histograms.
        choices: Tensor name to a key of :data:`calibrators.histograms.thresholds.METHODS`. Others, and
            ranges that were set by hand, stay as they are.

    Returns:
        The new table.
    """
    chosen = {
        name: METHODS[method](table.histograms[name])
        for name, method in choices.items()
        if name in table.histograms and name not in table.overridden
    }
    methods = set(choices.values())
    return dataclasses.replace(
        table, amax={**table.amax, **chosen}, method=methods.pop() if len(methods) == 1 else MIXED
    )


def choose_methods(
    model: ir.Model, placement: Placement, table: CalibrationTable, feeds: Iterable[FeedDict]
) -> dict[str, str]:
    """The method for each tensor with which the layers that read it lose least.

    Every layer is run by itself on the float network's activations, once a method; errors are taken in
    parts of the layer's signal. Tensors of one scale choose together.

    Args:
        model: From :func:`trtint8.models.model.prepare`.
        placement: Of this model.
        table: With histograms.
        feeds: Batches; few samples are enough.

    Returns:
        Tensor name to method, for every quantized activation with a histogram.
    """
    names = [name for name in placement.tensors if name in table.histograms]
    networks = {
        method: cut(model, Quantizer.of(placement, with_methods(table, dict.fromkeys(names, method)).amax))
        for method in METHODS
    }
    groups = {name: placement.configs.dominator(name) for name in names}
    noise = {group: dict.fromkeys(METHODS, 0.0) for group in groups.values()}
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
                    noise[group][method] += float(error @ error) / signal
    # The first of equals: methods are listed with the field's favourite first.
    return {name: min(METHODS, key=lambda method: noise[groups[name]][method]) for name in names}
