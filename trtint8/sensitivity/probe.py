"""What one batch shows of every layer. Each batch is measured by itself, in any process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from calibrators.data.feeds import FeedDict, batch_rows
from calibrators.data.fingerprint import DataFingerprint
from calibrators.data.inputs import InputSpec
from calibrators.data.preflight import check_feed
from calibrators.data.sources import first_labels
from trtint8.sensitivity.effects import EffectMeter, Variant, output_scales
from trtint8.sensitivity.local import LocalMeter
from trtint8.sensitivity.propagation import estimate_seconds, propagate, run_float
from trtint8.sensitivity.segments import Network

#: The variant with every layer in INT8; the other variants are a word and a layer's name.
ALL: Variant = ("all", "")
ONLY, WITHOUT = "only", "without"

#: Samples with which layers are measured by themselves: their errors hardly differ from sample to sample.
_LOCAL_SAMPLES = 32


@dataclass(frozen=True)
class BatchEffects:
    """What one batch showed.

    Attributes:
        fingerprint: Fingerprint of the batch's samples.
        effects: What each variant costs; None where the batch was skipped.
        local: Errors at every layer; None where the batch was skipped.
    """

    fingerprint: DataFingerprint
    effects: EffectMeter | None = None
    local: LocalMeter | None = None

    @property
    def samples(self) -> int:
        """How many samples the batch has."""
        return self.fingerprint.samples


class Probe:
    """A cut network that is ready to be fed.

    Args:
        network: The network.
        inputs: The network's inputs.
        skip: How many of the first samples are checked and not run.
        effects: A meter whose scales hold; None takes the scales of the first batch, see :meth:`begin`.

    Attributes:
        effects: A meter without data, whose scales hold; None before they are known.
    """

    def __init__(
        self, network: Network, inputs: Sequence[InputSpec], skip: int, effects: EffectMeter | None
    ) -> None:
        self.effects = effects
        self._network, self._inputs, self._skip = network, tuple(inputs), skip
        self._names = tuple(layer.name for layer in network.layers)

    def begin(self, feed: FeedDict, first: int, *, labelled: bool) -> float:
        """Takes the scales of the outputs from a batch, where they are not known yet, and estimates the time.

        Args:
            feed: The batch.
            first: How many samples come before it, for messages.
            labelled: Whether the data has class indices as labels.

        Returns:
            Seconds per sample.
        """
        check_feed(feed, self._inputs, first)
        if self.effects is None:
            self.effects = self._new_effects(feed, labelled=labelled)
        return estimate_seconds(self._network, feed) / (batch_rows(feed) or 1)

    def run(self, feed: FeedDict, labels: NDArray[Any] | None, first: int) -> BatchEffects:
        """Runs all variants on a batch.

        Args:
            feed: The batch.
            labels: Labels from the batch's first sample on; None without labels.
            first: How many samples of the data come before it.

        Raises:
            CalibrationDataError: The batch does not fit the model, or there are too few labels.
        """
        check_feed(feed, self._inputs, first)
        fingerprint = DataFingerprint()
        fingerprint.observe(feed)
        if first < self._skip:
            return BatchEffects(fingerprint)
        assert self.effects is not None
        samples = fingerprint.samples
        own_labels = first_labels(labels, samples, first)
        effects, local = self.effects.fresh(), LocalMeter(self._names)
        found = propagate(self._network, feed, local.watch(samples, alone=first < _LOCAL_SAMPLES))
        effects.add(ALL, found.quantized, found.reference, own_labels)
        for word, variants in ((ONLY, found.only), (WITHOUT, found.without)):
            for name, outputs in variants.items():
                effects.add((word, name), outputs, found.reference, own_labels)
        return BatchEffects(fingerprint, effects, local)

    def _new_effects(self, feed: FeedDict, *, labelled: bool) -> EffectMeter:
        tensors = run_float(self._network, feed)
        # In the order of the outputs: an input that is an output too is there before the others.
        reference = {name: tensors[name] for name in self._network.outputs}
        output = reference[self._network.outputs[0]]
        variants = (ALL, *((word, name) for word in (ONLY, WITHOUT) for name in self._names))
        classes = output.ndim == 2 and output.shape[1] > 1
        return EffectMeter(variants, output_scales(reference), classes=classes, labelled=labelled)
