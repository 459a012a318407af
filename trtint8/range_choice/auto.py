"""The method ``auto``: from a model, histograms and a few samples to the range of every tensor."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

import onnx_ir as ir

from calibrators.data.feeds import FeedDict
from calibrators.data.samples.kept import Outputs
from calibrators.errors import ModelError
from calibrators.histograms.histogram import Histogram
from calibrators.tables.choice import RangeChoice
from trtint8.models.model import Model
from trtint8.models.outputs.cached import without_cached_outputs
from trtint8.models.outputs.picked import before_picks
from trtint8.models.samples.activation_memory import FittingBatchSize
from trtint8.models.samples.separate import joined_by_graph
from trtint8.models.serialization import weight_bytes
from trtint8.quantization.placement import Placement, place
from trtint8.range_choice.choose import MOST_ROWS, choose_ranges, plain_ranges
from trtint8.range_choice.trial_network import Reference, TrialNetwork

#: Bytes of constants from which models are not open beside each other: each has its weights once more, in the
#: order in which it reads them.
_LARGE_WEIGHTS = 1 << 28


class AutoRanges:
    """A model whose ranges are to be chosen.

    A context manager, at whose end no thread of it works any more.

    Args:
        prepared: From :func:`trtint8.models.model.prepare`.
        threads: Threads per operator; ONNX Runtime's choice where None.
        device: Where the model runs.
    """

    def __init__(self, prepared: Model, threads: int | None, device: str) -> None:
        part = before_picks(prepared.graph_model)
        self._model = without_cached_outputs(part)
        self._is_part = self._model is not prepared.graph_model
        self._threads, self._device = threads, device
        self._placement = _placement(part)
        self._quantized = tuple(self._placement.tensors) if self._placement else ()
        self._fitting = FittingBatchSize(self._model, self._quantized)
        self._network: TrialNetwork | None = None
        #: Whether the weights are so large that the caller should close the model that it has observed.
        self.is_large = weight_bytes(self._model) >= _LARGE_WEIGHTS

    @cached_property
    def takes_outputs(self) -> bool:
        """Whether :meth:`choose` can do with outputs that others computed, in batches of any size."""
        return not self._is_part and self._separate

    @cached_property
    def _separate(self) -> bool:
        return joined_by_graph(self._model).has_rows

    def __enter__(self) -> AutoRanges:
        return self

    def __exit__(self, *_error: object) -> None:
        if self._network:
            self._network.close()

    def open_ahead(self) -> None:
        """Opens the network that ranges are tried on while the caller goes on, for :meth:`choose`.

        It does not depend on the data, except for the memory that one sample takes where the model leaves
        sizes of its inputs open; then :meth:`choose` opens it, and where the model is large.
        """
        if self._placement and self._fitting.for_all is not None and not self.is_large:
            self._network = self._open(self._placement, self._fitting.for_all)

    def choose(
        self,
        histograms: Mapping[str, Histogram],
        samples: Sequence[FeedDict],
        calibrated: int,
        *,
        alone: bool = False,
        outputs: Sequence[Outputs | None] = (),
        reference: Callable[[], Reference | None] = lambda: None,
        progress: bool,
    ) -> tuple[dict[str, float], RangeChoice]:
        """Chooses the ranges: see :func:`trtint8.range_choice.choose.choose_ranges`.

        Args:
            histograms: Tensor name to the histogram of its magnitudes.
            samples: Samples to try ranges on; how many are used depends on the network.
            calibrated: How many samples the histograms are of.
            alone: Whether each sample has to be run by itself.
            outputs: What the float network gives out for each sample, where :attr:`takes_outputs`; None
                for what is not known. All have to be run where it is empty.
            reference: Gives what runs the float network on a feed, or None where that is not open; called
                where it has to be run. It is not used where the model is large, or where other tensors than
                its outputs are compared (:mod:`trtint8.models.outputs.picked`,
                :mod:`trtint8.models.outputs.cached`).
            progress: Whether to show a progress bar on a terminal.

        Returns:
            Tensor name to amax for all histograms, and how it was chosen. Where nothing of the network is
            quantized, or nothing was sampled, every tensor gets the range of least squared error.

        Raises:
            CalibrationDataError: The model fails on a sample.
        """
        placement = self._placement
        # A tensor that was zero throughout has no range to choose; the network takes one for it.
        if not (placement and samples and any(histograms[name].amax for name in self._quantized)):
            return plain_ranges(histograms)
        rows = self._fitting(samples[0])
        with self._network or self._open(placement, rows) as network:
            if not outputs or None in outputs:
                network.open_float(None if self._is_part or self.is_large else reference())
            return choose_ranges(
                network,
                histograms,
                self._quantized,
                samples,
                calibrated,
                rows=1 if alone else min(MOST_ROWS, rows),
                separate=self._separate,
                known=outputs,
                progress=progress,
            )

    def _open(self, placement: Placement, rows: int) -> TrialNetwork:
        """Opens the network, of which so many samples fit into memory at once."""
        return TrialNetwork(
            self._model,
            placement,
            threads=self._threads,
            device=self._device,
            return_memory=rows == 1,
            one_at_a_time=self.is_large,
        )


def _placement(graph_model: ir.Model) -> Placement | None:
    try:
        return place(graph_model)
    except ModelError:  # there is nothing to quantize
        return None
