"""The method ``auto``: from a model, histograms and a few samples to the range of every tensor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from calibrators.data.feeds import FeedDict
from calibrators.errors import ModelError
from calibrators.histograms.histogram import Histogram
from calibrators.tables.choice import RangeChoice
from trtint8.models.activation_memory import FittingBatchSize
from trtint8.models.model import Model
from trtint8.models.picked_outputs import before_picks
from trtint8.models.separate_samples import computes_samples_separately
from trtint8.quantization.placement import Placement, place
from trtint8.range_choice.choose import MOST_ROWS, choose_ranges, plain_ranges
from trtint8.range_choice.trial_network import Reference, TrialNetwork


@dataclass(frozen=True)
class AutoRanges:
    """A model whose ranges are to be chosen.

    Attributes:
        prepared: From :func:`trtint8.models.model.prepare`.
        threads: Threads per operator; ONNX Runtime's choice where None.
        device: Where the model runs.
    """

    prepared: Model
    threads: int | None
    device: str

    def choose(
        self,
        histograms: Mapping[str, Histogram],
        samples: Sequence[FeedDict],
        calibrated: int,
        *,
        reference: Reference | None = None,
        progress: bool,
    ) -> tuple[dict[str, float], RangeChoice]:
        """Chooses the ranges: see :func:`trtint8.range_choice.choose.choose_ranges`.

        Args:
            histograms: Tensor name to the histogram of its magnitudes.
            samples: Samples to try ranges on; how many are used depends on the network.
            calibrated: How many samples the histograms are of.
            reference: Runs the float network on a feed, where it is open already. It is not used where the
                network picks elements at its end (:mod:`trtint8.models.picked_outputs`).
            progress: Whether to show a progress bar on a terminal.

        Returns:
            Tensor name to amax for all histograms, and how it was chosen. Where nothing of the network is
            quantized, or nothing was sampled, every tensor gets the range of least squared error.

        Raises:
            CalibrationDataError: The model fails on a sample.
        """
        judged = before_picks(self.prepared.graph_model)
        placement = _placement(judged)
        quantized = placement.tensors if placement else ()
        # A tensor that was zero throughout has no range to choose; the network takes one for it.
        if not (placement and samples and any(histograms[name].amax for name in quantized)):
            return plain_ranges(histograms)
        rows = min(MOST_ROWS, FittingBatchSize(judged, quantized)(samples[0]))
        with TrialNetwork(
            judged,
            placement,
            reference=reference if judged is self.prepared.graph_model else None,
            threads=self.threads,
            device=self.device,
            return_memory=rows == 1,
        ) as network:
            return choose_ranges(
                network,
                histograms,
                quantized,
                samples,
                calibrated,
                rows=rows,
                separate=computes_samples_separately(judged),
                progress=progress,
            )


def _placement(graph_model: ir.Model) -> Placement | None:
    try:
        return place(graph_model)
    except ModelError:  # there is nothing to quantize
        return None
