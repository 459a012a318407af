"""Rounding and bias correction for everybody: taken where they gain on samples that they were not made with.

Every other sample rounds weights and corrects biases. The samples between judge the result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import onnx_ir as ir

from calibrators.data.feeds import FeedDict, first_feeds
from calibrators.data.inputs import DataOptions
from calibrators.data.opening import DataSource, open_data
from calibrators.data.sources.random_samples import RANDOM
from calibrators.tables.table import CalibrationTable
from trtint8.models.garbage_collection import pause_garbage_collection
from trtint8.models.model import Model, rebuilt, record_remedies
from trtint8.models.outputs.joined import without_cached_outputs
from trtint8.models.outputs.picked import Picks, before_picks, find_picks, runnable_part, with_plugins
from trtint8.models.session import ModelSession, open_graph_model
from trtint8.models.shapes import FittingBatchSize
from trtint8.models.states import with_recorded_states
from trtint8.quantization.placement import Placement
from trtint8.quantization.quantize import tensor_names
from trtint8.range_choice.trial_network import is_clearly_better, mean_level, noise_levels
from trtint8.simulation.networks import Quantizer, quantized_network
from trtint8.tuning.remedies.bias_correction import correct_biases, single_samples
from trtint8.tuning.remedies.rounding import adapt_rounding

#: What the remedies are called in results.
ROUNDING, CORRECTION = "adaptive rounding", "bias correction"

#: The most samples that are read: one half changes the weights, the other half judges them.
_MOST_SAMPLES = 64

#: Of fewer different samples nothing is decided.
_FEWEST_SAMPLES = 16

#: By how many standard errors, and by how many decibels, the noise has to be lower on the other samples.
_CLEARLY, _LEAST_GAIN_DB = 2.0, 0.1

#: So many samples judge at first, and all of them only where these do not tell.
_AT_FIRST = 8


@dataclass(frozen=True)
class Compensation:
    """What came of rounding weights and correcting biases.

    Attributes:
        remedies: What was done to the weights, in order; empty where they are as they were.
        gain_db: How much higher the SQNR is on the samples that judged; None where it was not measured.
        samples: How many samples judged.
        reason: Why the weights are as they were; empty where they were changed.
    """

    remedies: tuple[str, ...] = ()
    gain_db: float | None = None
    samples: int = 0
    reason: str = ""

    def __str__(self) -> str:
        if not self.remedies:
            return f"to nearest ({self.reason})"
        return f"{', '.join(self.remedies)} (+{self.gain_db:.2f} dB on {self.samples} other samples)"


@dataclass(frozen=True)
class Compensated:
    """A float model and its table after that; both as they were where nothing was gained.

    Attributes:
        model: The prepared float model.
        table: Its calibration table: the same ranges.
        compensation: What was done; None where that was not asked for.
    """

    model: Model
    table: CalibrationTable
    compensation: Compensation | None


def compensate(
    prepared: Model,
    table: CalibrationTable,
    place: Callable[[Model], Placement],
    data: DataSource,
    data_options: DataOptions,
) -> Compensated:
    """Rounds weights and corrects biases where that gains on samples that it was not made with.

    Args:
        prepared: The float model, from :func:`trtint8.models.model.prepare`; not changed.
        table: The model's calibration table.
        place: Gives the placement of a model.
        data: Calibration samples, of which at most 64 are read.
        data_options: How the samples are read.

    Returns:
        The model with changed weights where the noise of its outputs is clearly lower on every other sample,
        which did not take part; else the model itself, and the reason.

    Raises:
        TableError: The table is of another model, or lacks a range.
        CalibrationDataError: The samples do not fit the model.
    """

    def unchanged(reason: str, **known: float) -> Compensated:
        return Compensated(prepared, table, Compensation(reason=reason, **known))  # type: ignore[arg-type]

    if isinstance(data, str) and data.startswith(RANDOM):
        return unchanged("random samples")
    if isinstance(data, Iterator):
        return unchanged("the data can be read only once")
    part = runnable_part(prepared)
    placement = place(part)
    table.check_model(prepared.fingerprint, placement.tensors, tensor_names(prepared.graph_model))
    if not placement.weights:
        return unchanged("no weights in INT8")
    samples = _different(_samples(part, placement, data, data_options))
    if len(samples) < _FEWEST_SAMPLES:
        return unchanged("too few samples")
    judge = _Judge(part, placement, table, samples[1::2])
    plain = judge.levels(part.graph_model)
    seen = samples[::2]
    rounded = adapt_rounding(part.graph_model, placement, iter(seen)).model
    corrected = correct_biases(rounded, placement, table.amax, iter(seen)).model
    for changed, remedies in ((corrected, (ROUNDING, CORRECTION)), (rounded, (ROUNDING,))):
        levels = judge.levels(changed, plain)
        gain = mean_level(plain[: len(levels)]) - mean_level(levels)
        if is_clearly_better(levels, plain[: len(levels)], -_LEAST_GAIN_DB, _CLEARLY):
            compensation = Compensation(remedies, gain, len(levels))
            record_remedies(changed, remedies)
            model = rebuilt(with_plugins(changed, prepared.graph_model), prepared.name)
            provenance = replace(table.provenance, model=model.fingerprint)
            return Compensated(model, replace(table, provenance=provenance), compensation)
    return unchanged("no clear gain", gain_db=gain, samples=len(levels))


def _samples(
    part: Model, placement: Placement, data: DataSource, data_options: DataOptions
) -> Iterator[FeedDict]:
    """The first samples, one feed each; whole batches where the model takes no others."""
    size = FittingBatchSize(part.graph_model, placement.tensors).rule
    options = replace(data_options, default_batch_size=None)
    batches = open_data(with_recorded_states(data, part), part.inputs, options).fitting(size)
    for number, sample in enumerate(single_samples(part, first_feeds(batches, _MOST_SAMPLES))):
        if number >= _MOST_SAMPLES:
            return
        yield sample


def _different(samples: Iterator[FeedDict]) -> list[FeedDict]:
    """The samples without those that were there before, which would judge what was made with them."""
    found: dict[tuple[tuple[str, bytes], ...], FeedDict] = {}
    for sample in samples:
        found.setdefault(tuple((name, array.tobytes()) for name, array in sorted(sample.items())), sample)
    return list(found.values())


class _Judge:
    """Measures the noise of quantized networks on samples that nothing was made with.

    Args:
        part: The float model.
        placement: What is quantized.
        table: The ranges.
        samples: The samples.
    """

    def __init__(
        self, part: Model, placement: Placement, table: CalibrationTable, samples: Sequence[FeedDict]
    ) -> None:
        self._quantizer, self._samples = Quantizer.of(placement, table.amax), samples
        self._picks = find_picks(part.graph_model)
        session = open_graph_model(_compared(part.graph_model, self._picks))
        self._wanted = [[array.copy() for array in session.run(sample)] for sample in samples]

    @pause_garbage_collection()
    def _open(self, graph_model: ir.Model) -> ModelSession:
        quantized = quantized_network(graph_model, self._quantizer)
        return open_graph_model(_compared(quantized, self._picks), used_up=True)

    def levels(self, graph_model: ir.Model, plain: Sequence[float] = ()) -> list[float]:
        """The level of the noise for each sample, in decibels.

        Args:
            graph_model: The float model, with its own weights or changed ones.
            plain: The levels of the model that it is compared with. Where the first samples show that it is
                clearly better, the others are not run.
        """
        session, found = self._open(graph_model), []
        for wanted, sample in zip(self._wanted, self._samples, strict=True):
            found.append(float(noise_levels(wanted, session.run(sample), 1)[0]))
            first = plain[:_AT_FIRST] if len(found) == _AT_FIRST else ()
            if first and is_clearly_better(found, first, -_LEAST_GAIN_DB, 2 * _CLEARLY):
                break
        return found


def _compared(graph_model: ir.Model, picks: Picks) -> ir.Model:
    """A network with the outputs that are compared: what is picked from in place of what is picked."""
    return without_cached_outputs(before_picks(graph_model, picks))
