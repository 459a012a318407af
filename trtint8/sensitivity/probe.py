"""What one batch shows of every layer. Each batch is measured by itself, in any process."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from calibrators.data.array_files import first_labels, is_class_indices
from calibrators.data.feeds import FeedDict, batch_rows
from calibrators.data.inputs import InputSpec, shape_text
from calibrators.data.preflight import check_feed
from calibrators.data.samples import DataFingerprint, numbered
from calibrators.errors import CalibrationDataError, TableError
from trtint8.sensitivity.effects import ALL, ONLY, WITHOUT, EffectMeter, output_scales, variants_of
from trtint8.sensitivity.gradients.rule import NoGradientError
from trtint8.sensitivity.local import LocalMeter
from trtint8.sensitivity.quick_probe import QuickNetwork
from trtint8.simulation.layers import Quantizer
from trtint8.simulation.segments import Tensors, cut, estimate_seconds, propagate
from trtint8.validation.batch import ArrayForm

logger = logging.getLogger(__name__)

#: Samples with which layers are measured by themselves: their errors hardly differ from sample to sample.
_LOCAL_SAMPLES = 32


@dataclass(frozen=True)
class BatchEffects:
    """What one batch showed.

    Attributes:
        fingerprint: Fingerprint of the batch's samples.
        effects: What each variant costs; None where the batch was skipped.
        local: Errors at every layer; None where the batch was skipped.
        labels: Fingerprint of the labels, each with its sample; empty where there are none that the network's
            classes are compared with.
    """

    fingerprint: DataFingerprint
    effects: EffectMeter | None = None
    local: LocalMeter | None = None
    labels: DataFingerprint = field(default_factory=DataFingerprint)

    @property
    def samples(self) -> int:
        """How many samples the batch has."""
        return self.fingerprint.samples


class Probe:
    """A network that is ready to be fed.

    Effects of single layers are predicted by gradients where these are known for all operators of the
    network. Elsewhere every layer is run alone and left out alone.

    Args:
        graph_model: From :func:`trtint8.models.model.prepare`; not changed.
        quantizer: How the model's tensors are quantized.
        inputs: The network's inputs.
        skip: How many of the first samples are checked and not run.
        effects: A meter whose scales hold, and which says whether effects are predicted; None decides by the
            first batch, see :meth:`begin`.
        samples: How many samples the data has, where that is known.
        every_sample: Whether each of them shows what the layers cost, where gradients predict it; see
            :class:`trtint8.sensitivity.quick_probe.QuickNetwork`.
        threads: Threads per operator; ONNX Runtime's choice where None.

    Raises:
        TableError: The meter is of other outputs than the network's.

    Attributes:
        effects: A meter without data, whose scales hold; None before they are known.
        layers: The network's layers, in the order in which they run.
    """

    def __init__(
        self,
        graph_model: ir.Model,
        quantizer: Quantizer,
        inputs: Sequence[InputSpec],
        skip: int,
        effects: EffectMeter | None,
        *,
        samples: int | None = None,
        every_sample: bool = False,
        threads: int | None = None,
    ) -> None:
        self.effects = effects
        self._network = cut(graph_model, quantizer, threads=threads)
        self._inputs, self._skip = tuple(inputs), skip
        if effects and not set(effects.scales).issubset(part.name for part in self._network.parts):
            raise TableError(
                f"the checkpoint is of the outputs {', '.join(effects.scales)}, which are not those of the "
                "model; remove it to begin anew"
            )
        self.layers = self._network.layers
        self._quick: QuickNetwork | None = None
        if self.layers and (effects is None or effects.predicted):
            try:
                self._quick = QuickNetwork(
                    graph_model,
                    quantizer,
                    self._network,
                    samples=samples,
                    every_sample=every_sample,
                    threads=threads,
                )
            except NoGradientError as error:
                logger.info("every layer is run by itself: %s", error)

    def begin(
        self, feed: FeedDict, first: int, *, labelled: bool, name_of: Callable[[int], str] = numbered
    ) -> float:
        """Takes the scales of the outputs from a batch, where they are not known yet, and estimates the time.

        Args:
            feed: The batch.
            first: How many samples come before it, for messages.
            labelled: Whether the data has class indices as labels.
            name_of: Gives what a sample is called in messages, by its number in the order of iteration.

        Returns:
            Seconds per sample.
        """
        check_feed(feed, self._inputs, first, name_of)
        reference, samples, seconds = self._begin(feed)
        if self.effects is None:
            self.effects = self._new_effects(reference, samples, labelled=labelled)
        return seconds / (batch_rows(feed) or 1)

    def _begin(self, feed: FeedDict) -> tuple[Tensors, int, float]:
        """The float network's outputs for some samples, how many they are, and seconds for the batch."""
        if self._quick is not None:
            try:
                return self._quick.begin(feed)
            except (CalibrationDataError, NoGradientError) as error:
                # Where it is the batch that does not fit, the network itself fails as well.
                logger.info("every layer is run by itself: %s", error)
                self._quick = None
        reference = self._network.run_float(feed)
        return reference, batch_rows(feed) or 1, estimate_seconds(self._network, feed)

    def run(
        self,
        feed: FeedDict,
        labels: NDArray[Any] | None,
        first: int,
        name_of: Callable[[int], str] = numbered,
    ) -> BatchEffects:
        """Measures all layers with a batch.

        Args:
            feed: The batch.
            labels: Labels from the batch's first sample on; None without labels.
            first: How many samples of the data come before it.
            name_of: Gives what a sample is called in messages, by its number in the order of iteration.

        Raises:
            CalibrationDataError: The batch does not fit the model, or there are too few labels.
        """
        check_feed(feed, self._inputs, first, name_of)
        assert self.effects is not None
        fingerprint = DataFingerprint()
        digests = fingerprint.observe(feed)
        own_labels = first_labels(labels, fingerprint.samples, first)
        seen_labels = _seen_labels(digests, own_labels if self.effects.classes else None)
        if first < self._skip:
            return BatchEffects(fingerprint, labels=seen_labels)
        effects = self.effects.fresh()
        if self._quick is not None:
            try:
                local = self._quick.measure(feed, own_labels, first, effects)
            except NoGradientError as error:
                shapes = ", ".join(f"'{name}' {shape_text(array.shape)}" for name, array in feed.items())
                raise CalibrationDataError(
                    f"a batch of other shapes than the first one, {shapes}, cannot be measured like it "
                    f"({error}); give samples of one shape"
                ) from error
            return BatchEffects(fingerprint, effects, local, seen_labels)
        local = LocalMeter(tuple(layer.name for layer in self.layers))
        watch = local.watch(fingerprint.samples, alone=first < _LOCAL_SAMPLES)
        found = propagate(self._network, feed, watch)
        reference = self._network.split(found.reference)
        effects.add(ALL, self._network.split(found.quantized), reference, own_labels, first)
        for word, variants in ((ONLY, found.only), (WITHOUT, found.without)):
            for name, outputs in variants.items():
                effects.add((word, name), self._network.split(outputs), reference, own_labels, first)
        return BatchEffects(fingerprint, effects, local, seen_labels)

    def _new_effects(self, reference: Tensors, samples: int, *, labelled: bool) -> EffectMeter:
        scores = reference[self._network.outputs[0]]
        first = ArrayForm.of(scores)
        predicted = self._quick is not None
        variants = variants_of((layer.name for layer in self.layers), predicted=predicted)
        return EffectMeter(
            variants,
            output_scales(self._network.split(reference)),
            classes=first.is_table and not first.is_embedding and len(scores) == samples,
            labelled=labelled,
            predicted=predicted,
        )


def _seen_labels(digests: Sequence[int], labels: NDArray[Any] | None) -> DataFingerprint:
    """The fingerprint of class indices; empty for other labels, which are not used.

    Args:
        digests: The digest of each sample: the same labels for other samples are not the same.
        labels: One label per sample, or None.
    """
    seen = DataFingerprint()
    if is_class_indices(labels):
        samples = np.array([f"{digest:064x}" for digest in digests])
        seen.observe({"sample": samples, "label": labels.astype(np.int64)})
    return seen
