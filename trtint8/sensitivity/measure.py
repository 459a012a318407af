"""Measures what each layer's quantization costs, batch by batch until the figures are certain enough."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from calibrators.batches import Batches
from calibrators.errors import CalibrationDataError
from calibrators.feeds import FeedDict, batch_rows
from calibrators.fingerprint import DataFingerprint
from calibrators.preflight import check_feed
from calibrators.progress import progress_bar
from calibrators.table import CalibrationTable
from trtint8.model import Model
from trtint8.quantization.placement import place
from trtint8.sensitivity.checkpoint import Checkpoint
from trtint8.sensitivity.effects import EffectMeter, output_scales
from trtint8.sensitivity.local import LocalMeter
from trtint8.sensitivity.propagation import estimate_seconds, propagate
from trtint8.sensitivity.results import LayerSensitivity, Sensitivity
from trtint8.sensitivity.segments import Layer, Network, Quantizer, Tensors, cut
from trtint8.sensitivity.suspects import (
    Suspect,
    channel_suspects,
    neighbour_suspects,
    range_suspects,
    weight_suspects,
)

#: The variant with every layer in INT8; the others are a word and a layer.
_ALL = ("all", "")
_ONLY, _WITHOUT = "only", "without"

#: Layers by themselves are looked at with so many samples: their errors are much alike from one to the next.
_LOCAL_SAMPLES = 32

#: Layers that make less than this share of the noise may stay uncertain.
_MATTERING = 0.02

#: No figure is believed before so many samples.
_FEWEST_SAMPLES = 64


@dataclass(frozen=True)
class Plan:
    """What a measurement will cost.

    Attributes:
        layers: How many layers are looked at.
        samples: The most samples that will be fed; None where the data does not tell.
        seconds_a_sample: How long one takes, told from the first batch.
    """

    layers: int
    samples: int | None
    seconds_a_sample: float


def measure(
    prepared: Model,
    table: CalibrationTable,
    batches: Batches,
    *,
    keep_float: Sequence[str] = (),
    tolerance_db: float = 1.0,
    checkpoint: Path | None = None,
    threads: int | None = None,
    on_plan: Callable[[Plan], None] = lambda _plan: None,
    progress: bool = True,
) -> Sensitivity:
    """Quantizes one layer alone, and all but one, for every layer, and compares with the float network.

    Stops before the data ends once the SQNR of every layer alone is known to within the tolerance (95 %
    interval) from 64 samples or more; layers that make less than 2 % of the noise may stay uncertain.

    Args:
        prepared: From :func:`trtint8.model.prepare`; not changed.
        table: The ranges.
        batches: Samples; labels, where there are some, are class indices.
        keep_float: Names of nodes, or patterns, that stay in float in every variant.
        tolerance_db: Half the width of the intervals, in decibels.
        checkpoint: Where the sums are kept while they grow: what is there already is gone on from, and the
            file is removed at the end.
        threads: Threads within an operator; ONNX Runtime's choice where None.
        on_plan: Told what it will cost, before it starts.
        progress: Show a progress bar on a terminal.

    Returns:
        What was found.

    Raises:
        CalibrationDataError: There is no data, or it does not fit the model or the checkpoint.
        TableError: The table does not fit the model, or the checkpoint is of another measurement.
    """
    placement = place(prepared.graph_model, keep_float)
    table.check_model(prepared.fingerprint, placement.tensors)
    network = cut(prepared.graph_model, Quantizer.of(placement, table.amax), threads=threads)
    identity = {
        "model": prepared.fingerprint,
        "table": table.fingerprint,
        "keep_float": list(keep_float),
        "batch_size": batches.batch_size,
    }
    measurement = _Measurement(prepared, network, batches, tolerance_db)
    measurement.run(Checkpoint(checkpoint, identity), on_plan, progress=progress)
    return measurement.result(table)


class _Measurement:
    """The sums of one measurement, and how they grow."""

    def __init__(self, prepared: Model, network: Network, batches: Batches, tolerance_db: float) -> None:
        self._prepared, self._network, self._batches = prepared, network, batches
        self._tolerance_db = tolerance_db
        self._fingerprint = DataFingerprint()
        self._local = LocalMeter(tuple(layer.name for layer in network.layers))
        self._meter: EffectMeter | None = None
        self._converged = False

    def run(self, checkpoint: Checkpoint, on_plan: Callable[[Plan], None], *, progress: bool) -> None:
        """Feeds batches until the figures are certain, or the data ends."""
        saved = checkpoint.load()
        if saved is not None:
            self._meter = EffectMeter.from_state(saved["meter"])
            self._local = LocalMeter.from_state(saved["local"])
        announced = False
        with progress_bar("Measuring", self._batches.num_samples, enabled=progress) as advance:
            for feed in self._batches:
                before = self._fingerprint.samples
                check_feed(feed, self._prepared.inputs, before)
                self._fingerprint.observe(feed)
                advance(self._fingerprint.samples - before)
                if saved is not None and before < saved["samples"]:
                    self._check_same_data(saved)
                    continue
                if not announced:
                    self._announce(feed, on_plan)
                    announced = True
                self._add(feed, before)
                checkpoint.save_now_and_then(self._state)
                self._converged = self._is_certain()
                if self._converged:
                    break
        if self._meter is None:
            raise CalibrationDataError("the data holds no samples; give some")
        checkpoint.remove()

    def _state(self) -> dict[str, Any]:
        assert self._meter is not None
        return {
            "samples": self._fingerprint.samples,
            "data": self._fingerprint.hexdigest(),
            "meter": self._meter.state(),
            "local": self._local.state(),
        }

    def _check_same_data(self, saved: Mapping[str, Any]) -> None:
        seen = self._fingerprint
        other = seen.samples == saved["samples"] and seen.hexdigest() != saved["data"]
        if other or seen.samples > saved["samples"]:
            raise CalibrationDataError(
                "the checkpoint was made with other samples, or in another order; give those, or remove the "
                "checkpoint to begin anew"
            )

    def _announce(self, feed: FeedDict, on_plan: Callable[[Plan], None]) -> None:
        seconds = estimate_seconds(self._network, feed) / (batch_rows(feed) or 1)
        on_plan(Plan(len(self._network.layers), self._batches.num_samples, seconds))

    def _add(self, feed: FeedDict, before: int) -> None:
        samples = self._fingerprint.samples - before
        found = propagate(self._network, feed, self._local.watch(samples, alone=before < _LOCAL_SAMPLES))
        labels = self._batches.labels
        if self._meter is None:
            self._meter = self._new_meter(found.reference)
        batch_labels = None if labels is None else labels[before : before + samples]
        self._meter.add(_ALL, found.quantized, found.reference, batch_labels)
        for word, variants in ((_ONLY, found.only), (_WITHOUT, found.without)):
            for name, outputs in variants.items():
                self._meter.add((word, name), outputs, found.reference, batch_labels)

    def _new_meter(self, reference: Tensors) -> EffectMeter:
        names = [layer.name for layer in self._network.layers]
        variants = (_ALL, *((word, name) for word in (_ONLY, _WITHOUT) for name in names))
        first = reference[self._network.outputs[0]]
        return EffectMeter(
            variants,
            output_scales(reference),
            classes=first.ndim == 2 and first.shape[1] > 1,
            labelled=self._batches.labels is not None,
        )

    def _is_certain(self) -> bool:
        assert self._meter is not None
        if self._fingerprint.samples < _FEWEST_SAMPLES:
            return False
        noise = {layer.name: self._meter.noise((_ONLY, layer.name)) for layer in self._network.layers}
        least = _MATTERING * sum(noise.values())
        effects = [self._meter.effect((_ONLY, name)) for name, power in noise.items() if power > least]
        return all(one.interval_db[1] - one.sqnr_db <= self._tolerance_db for one in effects)

    def result(self, table: CalibrationTable) -> Sensitivity:
        """What the sums say."""
        meter = self._meter
        assert meter is not None
        quantized = meter.effect(_ALL)
        noise = {layer.name: meter.noise((_ONLY, layer.name)) for layer in self._network.layers}
        total = sum(noise.values())
        layers = tuple(
            LayerSensitivity(
                layer.name,
                layer.node.op_type,
                meter.effect((_ONLY, layer.name)),
                meter.effect((_WITHOUT, layer.name)),
                *self._local.levels(layer.name),
                noise[layer.name] / total if total else 0.0,
                tuple(self._suspects(layer, table)),
            )
            for layer in self._network.layers
        )
        return Sensitivity(
            self._fingerprint.samples,
            self._converged,
            self._tolerance_db,
            quantized,
            meter.reference_top1(),
            layers,
            self._prepared.fingerprint,
            table.fingerprint,
            self._fingerprint.hexdigest(),
        )

    def _suspects(self, layer: Layer, table: CalibrationTable) -> list[Suspect]:
        found: list[Suspect] = []
        for edge in layer.activations:
            value = layer.node.inputs[edge.index]
            assert value is not None
            found += range_suspects(edge.tensor, table.amax[edge.tensor], table.histograms.get(edge.tensor))
            found += neighbour_suspects(value)
        channels = self._local.channels(layer.name)
        if layer.activations and channels is not None:
            found += channel_suspects(layer.activations[0].tensor, channels, self._local.samples)
        for edge in layer.weights:
            constant = layer.node.inputs[edge.index]
            assert constant is not None and constant.const_value is not None
            weights = np.asarray(constant.const_value.numpy(), np.float32)
            found += weight_suspects(edge.tensor, weights, edge.axis)
        return found
