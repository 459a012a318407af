"""A model whose outputs are compared with those of the same model in INT8."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import onnx_ir as ir

from calibrators.data.feeds import FeedDict, pieces
from calibrators.data.samples import DataFingerprint, Outputs, SampleKeeper
from calibrators.errors import ModelError
from trtint8.models.graph import weight_bytes
from trtint8.models.model import Model
from trtint8.models.outputs.joined import compared_tensors, giving
from trtint8.models.outputs.picked import before_picks
from trtint8.models.samples.joining import with_open_batch
from trtint8.models.samples.separate import joined_by_graph
from trtint8.models.shapes import FittingBatchSize
from trtint8.quantization.placement import Placement, place
from trtint8.range_choice.trial_network import TrialNetwork

#: The most samples that are run to compare the model.
MOST_SAMPLES = 64

#: The most samples that are run at once.
MOST_ROWS = 16

#: Bytes of constants from which models are not open beside each other: each has its weights once more, in the
#: order in which it reads them.
_LARGE_WEIGHTS = 1 << 28


class ComparedModel:
    """The part of a model that ends in what is compared.

    Args:
        prepared: From :func:`trtint8.models.model.prepare`.
        threads: Threads per operator; ONNX Runtime's choice where None.
        device: Where the model runs.

    Attributes:
        threads: Threads per operator; ONNX Runtime's choice where None.
        part: The part before what it picks, which is quantized.
        model: The same, which gives what is compared.
        placement: What is quantized; None where there is nothing to quantize.
        rows: Into how large parts feeds are divided: samples, where the network allows that.
        is_part: Whether the model gives other tensors than its outputs.
        is_large: Whether its weights are so large that models are not to be open beside each other.
    """

    def __init__(self, prepared: Model, threads: int | None, device: str) -> None:
        self.part = before_picks(prepared.graph_model)
        self.placement: Placement | None
        try:
            self.placement = place(self.part)
        except ModelError:
            self.placement = None
        nodes = self.placement.reading_pairs if self.placement else ()
        compared = giving(self.part, compared_tensors(self.part, nodes))
        self.model: ir.Model = with_open_batch(compared)
        self.rows = None if self.model is compared else 1
        self.is_part = self.model is not prepared.graph_model
        self.is_large = weight_bytes(self.model) >= _LARGE_WEIGHTS
        self.threads, self._device = threads, device

    @cached_property
    def takes_outputs(self) -> bool:
        """Whether outputs that others computed, in batches of any size, are those that are compared."""
        return not self.is_part and self.separate

    @cached_property
    def separate(self) -> bool:
        """Whether all outputs are known to have samples along axis 0, each computed by itself."""
        return joined_by_graph(self.model).has_rows

    @cached_property
    def quantized(self) -> tuple[str, ...]:
        """Names of the activations that are quantized."""
        return tuple(self.placement.tensors) if self.placement else ()

    @cached_property
    def fitting(self) -> FittingBatchSize:
        """How many samples fit into memory at once."""
        return FittingBatchSize(self.model, self.quantized)

    def samples(self, samples: Sequence[FeedDict], outputs: Sequence[Outputs | None]) -> Sequence[FeedDict]:
        """Samples in an order that depends on what they hold and not on where they stand, equal ones once.

        Args:
            samples: Feeds in any order.
            outputs: What the float network gives out for each of them. Where that is given, they are single
                samples in such an order already.

        Returns:
            One feed per sample, at most :data:`MOST_SAMPLES`.
        """
        if outputs:
            return samples
        keeper, fingerprint = SampleKeeper(MOST_SAMPLES, whole_batches=True), DataFingerprint()
        for sample in (part for feed in samples for part in pieces(feed, self.rows)):
            keeper.observe(sample, fingerprint.observe(sample))
        return keeper.samples

    def open(self, placement: Placement, rows: int, *, closed: bool = False) -> TrialNetwork:
        """Opens the network, of which so many samples fit into memory at once.

        Args:
            placement: What is quantized.
            rows: How many samples fit.
            closed: Whether the quantized network is opened only where it is run, as that of a large model.
        """
        return TrialNetwork(
            self.model,
            placement,
            threads=self.threads,
            device=self._device,
            return_memory=rows == 1,
            one_at_a_time=closed or self.is_large,
        )
