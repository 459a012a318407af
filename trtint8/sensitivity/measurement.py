"""The sums of a measurement: how they grow batch by batch, when they are enough, and what they say."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from calibrators.checks import is_number
from calibrators.data.samples import DataFingerprint
from calibrators.errors import Argument, CalibrationDataError
from calibrators.host.checkpoint import Checkpoint, Timer
from calibrators.tables.table import CalibrationTable
from trtint8.models.model import Model
from trtint8.sensitivity.checkpoint import Measured
from trtint8.sensitivity.effects import ALL, ONLY, WITHOUT, Effect, EffectMeter, variants_of
from trtint8.sensitivity.local import LocalMeter
from trtint8.sensitivity.probe import BatchEffects
from trtint8.sensitivity.results import LayerSensitivity, Sensitivity
from trtint8.sensitivity.suspects import (
    Suspect,
    channel_suspects,
    neighbour_suspects,
    range_suspects,
    weight_suspects,
)
from trtint8.simulation.layers import Layer

#: Layers that make less than this share of the noise may stay uncertain.
_MATTERING = 0.02

#: The fewest samples before a figure counts as certain.
_FEWEST_SAMPLES = 64


class Measurement:
    """The sums so far.

    Args:
        prepared: The model.
        layers: The model's layers.
        tolerance_db: Half the width of the intervals that are wanted, in decibels; 0 takes all samples.
        checkpoint: Where the sums are kept while they grow, and where they are continued from; None keeps
            nothing.

    Attributes:
        skip: How many of the first samples are in the checkpoint. They are only compared with those that it
            has seen.

    Raises:
        CalibrationDataError: The tolerance is no number, or negative.
        TableError: The checkpoint is of another measurement.
    """

    def __init__(
        self,
        prepared: Model,
        layers: Sequence[Layer],
        tolerance_db: float,
        checkpoint: Checkpoint[Measured] | None,
    ) -> None:
        if not (is_number(tolerance_db) and tolerance_db >= 0):
            raise CalibrationDataError(
                f"{Argument('tolerance_db')} is {tolerance_db!r}; give a number of decibels, 0 or more"
            )
        self._prepared, self._layers, self._tolerance_db = prepared, tuple(layers), float(tolerance_db)
        self._checkpoint = checkpoint
        self._saved = checkpoint.load() if checkpoint else None
        self._timer = Timer(checkpoint.seconds if checkpoint else 0.0)
        self._fingerprint, self._labels = DataFingerprint(), DataFingerprint()
        self._effects: EffectMeter | None = None
        self._local = LocalMeter(tuple(layer.name for layer in self._layers))
        self._converged = False
        self.skip = 0
        if self._saved is not None:
            names = [layer.name for layer in self._layers]
            variants = variants_of(names, predicted=self._saved.effects.predicted)
            self._saved.check_layers(names, variants)
            self.skip = self._saved.samples
            self._effects, self._local = self._saved.effects, self._saved.local

    @property
    def effects(self) -> EffectMeter | None:
        """A meter like that of the checkpoint, without data; None where nothing was kept."""
        return None if self._saved is None else self._saved.effects.fresh()

    def run(self, results: Iterable[BatchEffects]) -> None:
        """Takes batches in the order of the data until the figures are certain, or there are no more.

        Raises:
            CalibrationDataError: There are no samples, not those that the checkpoint has seen, or not with
                the same labels.
        """
        for result in results:
            self._fingerprint = self._fingerprint.merge(result.fingerprint)
            self._labels = self._labels.merge(result.labels)
            if result.effects is None or result.local is None:
                self._check_same_data(ended=False)
                continue
            if self._effects is None:
                self._effects = result.effects.fresh()
            self._effects.merge(result.effects)
            self._local.merge(result.local)
            if self._checkpoint and self._timer.due():
                self._checkpoint.save(self._progress(self._effects))
            self._converged = self._tolerance_db > 0 and self._is_certain()
            if self._converged:
                break
        if self._effects is None:
            raise no_samples()
        # All samples were asked for, whatever they show.
        self._converged = self._converged or self._tolerance_db == 0
        self._check_same_data(ended=True)
        if self._checkpoint:
            self._checkpoint.remove()

    def _progress(self, effects: EffectMeter) -> Measured:
        """What a checkpoint keeps."""
        seen = self._fingerprint
        return Measured(seen.samples, seen.hexdigest(), self._labels.hexdigest(), effects, self._local)

    def _check_same_data(self, *, ended: bool) -> None:
        """Compares skipped samples, and their labels, with those that the checkpoint has seen."""
        if self._saved is None:
            return
        seen = self._fingerprint
        other = seen.samples == self.skip and seen.hexdigest() != self._saved.data
        beyond = seen.samples > self.skip and not ended
        if other or beyond or (ended and seen.samples < self.skip):
            raise CalibrationDataError(
                "the checkpoint was made with other samples, or in another order; give those, or remove the "
                "checkpoint to begin anew"
            )
        if seen.samples == self.skip and self._labels.hexdigest() != self._saved.labels:
            raise CalibrationDataError(
                "the checkpoint was made with other labels, or without any; give the same, or remove the "
                "checkpoint to begin anew"
            )

    def _is_certain(self) -> bool:
        assert self._effects is not None
        if self._fingerprint.samples < _FEWEST_SAMPLES:
            return False
        noise = {layer.name: self._effects.noise((ONLY, layer.name)) for layer in self._layers}
        least = _MATTERING * sum(noise.values())
        effects = self._effects.effects((ONLY, name) for name, power in noise.items() if power > least)
        return all(one.interval_db[1] - one.sqnr_db <= self._tolerance_db for one in effects)

    def result(self, table: CalibrationTable) -> Sensitivity:
        """What the sums say."""
        meter = self._effects
        assert meter is not None
        quantized = meter.effect(ALL)
        noise = {layer.name: meter.noise((ONLY, layer.name)) for layer in self._layers}
        total = sum(noise.values())
        shares = {name: power / total if total else 0.0 for name, power in noise.items()}
        alone = [(ONLY, layer.name) for layer in self._layers]
        only = meter.effects(alone)
        layers = tuple(
            LayerSensitivity(
                layer.name,
                layer.node.op_type,
                own,
                others,
                *self._local.levels(layer.name),
                shares[layer.name],
                tuple(self._suspects(layer, table, noisy=shares[layer.name] > 1 / len(self._layers))),
            )
            for layer, own, others in zip(self._layers, only, self._without(meter), strict=True)
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
            meter.shown(alone) or self._fingerprint.samples,
        )

    def _without(self, meter: EffectMeter) -> list[Effect]:
        """The effects of all layers except one, for each layer."""
        names = [layer.name for layer in self._layers]
        if meter.predicted:
            return meter.remaining_effects(names)
        return meter.effects((WITHOUT, name) for name in names)

    def _suspects(self, layer: Layer, table: CalibrationTable, *, noisy: bool) -> list[Suspect]:
        """What is suspicious about a layer; ``noisy`` says whether it makes more noise than the mean one."""
        found: list[Suspect] = []
        for edge in layer.activations:
            value = layer.node.inputs[edge.index]
            assert value is not None
            found += range_suspects(edge.tensor, table.amax[edge.tensor], table.histograms.get(edge.tensor))
            if noisy:  # most layers behind such operators do well
                found += neighbour_suspects(value)
        channels = self._local.channels(layer.name)
        if layer.activations and channels is not None:
            found += channel_suspects(layer.activations[0].tensor, channels)
        for edge in layer.weights:
            constant = layer.node.inputs[edge.index]
            assert constant is not None and constant.const_value is not None
            weights = np.asarray(constant.const_value.numpy(), np.float32)
            found += weight_suspects(edge.tensor, weights, edge.axis)
        return found


def no_samples() -> CalibrationDataError:
    """The error of a measurement without data."""
    return CalibrationDataError("the data holds no samples; give some")
