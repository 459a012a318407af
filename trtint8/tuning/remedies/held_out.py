"""Bias correction and adaptive rounding for everybody: taken where they gain on samples of their own.

Every fourth sample corrects biases and rounds weights, and the others judge the result. How much is done is
decided by counts, and never by a clock: the same data gives the same model on any machine.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from calibrators.checks import without_warnings
from calibrators.data.batches import Batches
from calibrators.data.feeds import FeedDict, batch_rows, copied_feed, joined
from calibrators.data.inputs import DataOptions
from calibrators.data.opening import DataSource, open_data
from calibrators.data.samples import DataFingerprint, check_feed
from calibrators.tables.table import CalibrationTable
from trtint8.models.garbage_collection import pause_garbage_collection
from trtint8.models.graph import weight_bytes
from trtint8.models.model import Model, record_remedies
from trtint8.models.outputs.joined import compared_tensors, giving
from trtint8.models.outputs.picked import before_picks, find_picks, runnable_part, with_plugins
from trtint8.models.samples.separate import joined_by_graph
from trtint8.models.session import ModelSession, open_graph_model
from trtint8.models.shapes import FittingBatchSize
from trtint8.models.states import with_recorded_states
from trtint8.quantization.placement import Placement
from trtint8.quantization.quantize import tensor_names
from trtint8.range_choice.trial_network import Noise, difference
from trtint8.simulation.networks import Quantizer, quantized_network
from trtint8.tuning.remedies.bias_correction import (
    CORRECTION,
    correct_biases,
    single_samples,
    with_corrections,
)
from trtint8.tuning.remedies.rounding import ROUNDING, adapt_rounding

#: Every so many-th sample changes weights. Corrections of biases with 8 and with 64 samples gained the same,
#: and it takes many samples to see how much that is.
_EVERY = 4

#: Of fewer different samples nothing is decided: twelve judge then.
_FEWEST_SAMPLES = 16

#: The most samples that are read where it may take as long as a calibration, and where it may take longer;
#: and about how many bytes they have.
_MOST_WITHIN, _MOST_SAMPLES, _MOST_BYTES = 128, 256, 64 << 20

#: One in so many samples of a calibration is read again, so that it takes about as long as that.
_SHARE = 5

#: The most samples that are run at once.
_MOST_ROWS = 12

#: No more samples judge once each difference is so many times its standard error, or known to so many
#: decibels; and the fewest that judge.
_CLEAR, _CLOSE, _FEWEST_JUDGES = 4, 0.1, 12

#: The most bytes of constants for which weights are changed unasked: four networks are open at once.
_LARGEST_WEIGHTS = 1 << 29


@dataclass(frozen=True)
class Compensation:
    """What came of correcting biases and of rounding weights adaptively.

    Attributes:
        remedies: What was done to the weights, in order; empty where they are as they were.
        gain_db: How much higher the SQNR is on the samples that judged; None where nothing was tried.
        error_db: The standard error of that.
        samples: How many samples judged.
        reason: Why the weights are as they were; empty where they were changed.
    """

    remedies: tuple[str, ...] = ()
    gain_db: float | None = None
    error_db: float | None = None
    samples: int = 0
    reason: str = ""

    def __str__(self) -> str:
        if not self.remedies:
            return f"none: {self.reason}"
        gain = f"{self.gain_db:+.2f} +- {self.error_db:.2f} dB on {self.samples} other samples"
        return f"{', '.join(self.remedies)} ({gain})"


@dataclass(frozen=True)
class Compensated:
    """A float model after that, as it was where nothing was gained.

    Attributes:
        model: The prepared float model. Its fingerprint is that of the model that was given, whose table and
            placement fit it.
        compensation: What was done; None where it was not decided.
    """

    model: Model
    compensation: Compensation | None


def compensate(
    prepared: Model,
    table: CalibrationTable,
    placement: Placement,
    data: DataSource,
    data_options: DataOptions,
    *,
    again: bool,
) -> Compensated:
    """Corrects biases, and rounds weights, where that gains on samples that it was not made with.

    A quarter of the samples corrects biases (:func:`correct_biases`), of weights rounded to nearest and of
    weights rounded adaptively (:func:`adapt_rounding`). The others judge by the SQNR of the network's outputs
    for each sample. Biases are corrected where the mean difference is above zero by more than its standard
    error, and weights are rounded too where that gains once more. From twelve samples on no more judge where
    both differences are clear.

    Args:
        prepared: The float model, from :func:`trtint8.models.model.prepare`; not changed.
        table: The model's calibration table.
        placement: Which tensors of the model are quantized.
        data: Calibration samples, spread evenly where their number is known.
        data_options: How the samples are read.
        again: Whether the model was just calibrated with the same data. Then it takes about as long as that:
            a fifth of the samples is used, at least 16 and at most 128, and large weights stay as they are.
            Nothing is warned of once more, and data that cannot be read a second time changes nothing.
            Otherwise up to 256 samples are used, and weights may be of any size.

    Returns:
        The model, with changed weights or as it was, and what was done.

    Raises:
        TableError: The table is of another model, or lacks a range.
        CalibrationDataError: The samples do not fit the model.
    """

    def unchanged(reason: str) -> Compensated:
        return Compensated(prepared, Compensation(reason=reason))

    table.check_model(prepared.fingerprint, placement.tensors, tensor_names(prepared.graph_model))
    if not placement.weights:
        return unchanged("no weights in INT8")
    if again and weight_bytes(prepared.graph_model) > _LARGEST_WEIGHTS:
        return unchanged("not tried unasked, as the weights are large")
    part = runnable_part(prepared)
    try:
        with without_warnings() if again else contextlib.nullcontext():
            samples = _read(part, data, data_options, table.provenance.samples if again else None)
    except Exception:
        # A generator is used up, and a loader of the user's may fail in any way. The first time it did not.
        if not again:
            raise
        return unchanged("the data cannot be read a second time")
    if not samples:
        return unchanged("random samples show no gain")
    if len(samples) < _FEWEST_SAMPLES:
        return unchanged(f"this needs at least {_FEWEST_SAMPLES} different samples")
    rows = _rows(part, placement, samples)
    fit = _batches(samples[::_EVERY], rows)
    judging = _batches([one for number, one in enumerate(samples) if number % _EVERY], rows)
    # Whoever quantizes the model warns of tensors that were zero. What is not finite does not gain.
    with without_warnings(), np.errstate(all="ignore"):
        graph_models = _ways(part.graph_model, placement, table, fit)
        if len(graph_models) == 1:
            return unchanged("no biases to correct, and no weights to round")
        quantizer = Quantizer.of(placement, table.amax)
        levels = _noise_levels(graph_models, quantizer, judging, single=rows == 1)
    return _best(prepared, graph_models, levels)


#: What was done to a network's weights, in order.
_Way: TypeAlias = tuple[str, ...]

_PLAIN: _Way = ()


def _ways(
    graph_model: ir.Model, placement: Placement, table: CalibrationTable, fit: Sequence[FeedDict]
) -> dict[_Way, ir.Model]:
    """A network as it is, and with ever more done to its weights, as far as there is something to do.

    Args:
        graph_model: The float network; not changed.
        placement: Which of its tensors are quantized.
        table: Their ranges.
        fit: The samples that weights are changed with.
    """
    corrected = correct_biases(graph_model, placement, table.amax, fit)
    rounded = adapt_rounding(graph_model, placement, fit)
    # Other weights only add something to the mean error of a layer: it need not be run once more.
    corrections = {
        name: correction - rounded.shifts[name] if name in rounded.shifts else correction
        for name, correction in corrected.corrections.items()
    }
    ways: dict[_Way, ir.Model] = {_PLAIN: graph_model}
    correction = (CORRECTION,) if corrections else ()
    if correction:
        ways[correction] = corrected.model
    if rounded.shifts:
        ways[(ROUNDING, *correction)] = with_corrections(rounded.model, corrections)
    return ways


def _choice(levels: Mapping[_Way, list[float]]) -> tuple[_Way, bool]:
    """Takes each way that is better than what was taken before it, by more than the error of the difference.

    Args:
        levels: The noise of each on the samples that judge; first of the network as it is, and then with ever
            more done to it.

    Returns:
        The best way, and whether more samples would hardly decide otherwise, or hardly gain by it.
    """
    best, clear = _PLAIN, True
    for way in itertools.islice(levels, 1, None):
        gain, error = difference(levels[best], levels[way])
        clear = clear and (abs(gain) > _CLEAR * error or error < _CLOSE)
        if gain > error:
            best = way
    return best, clear


def _best(
    prepared: Model, graph_models: Mapping[_Way, ir.Model], levels: Mapping[_Way, list[float]]
) -> Compensated:
    """The model with the weights that were best on the samples that judge."""
    best, _ = _choice(levels)
    first_tried = next(way for way in levels if way)
    gain, error = difference(levels[_PLAIN], levels[best or first_tried])
    judged = len(levels[_PLAIN])
    if not best:
        return Compensated(prepared, Compensation((), gain, error, judged, "no clear gain on other samples"))
    graph_model = with_plugins(graph_models[best], prepared.graph_model)
    record_remedies(graph_model, best)
    return Compensated(prepared.part(graph_model), Compensation(best, gain, error, judged))


def _read(part: Model, data: DataSource, data_options: DataOptions, calibrated: int | None) -> list[FeedDict]:
    """Reads some different samples, spread evenly over the data.

    Args:
        part: The model.
        data: The data.
        data_options: How it is read.
        calibrated: How many samples the model was calibrated with, of which a fifth is read; None where
            that does not matter.

    Returns:
        One feed per sample; none of random data.
    """
    size = data_options.batch_size
    # Samples that change each other stay together as the user has put them.
    together = size is not None and not joined_by_graph(part.graph_model).separate
    options = replace(
        data_options, batch_size=size if together else None, default_batch_size=1, split="train"
    )
    batches = open_data(with_recorded_states(data, part), part.inputs, options)
    if batches.source.is_random:
        return []
    most = (
        _MOST_SAMPLES if calibrated is None else min(_MOST_WITHIN, max(_FEWEST_SAMPLES, calibrated // _SHARE))
    )
    spread = _spread(batches, max(_FEWEST_SAMPLES, most // (batches.batch_size or 1)))
    feeds: Iterator[FeedDict] = iter(spread)
    samples: dict[int, FeedDict] = {}
    read = nbytes = 0
    for feed in itertools.islice(feeds if together else single_samples(part, feeds), most):
        if len(samples) >= _FEWEST_SAMPLES and (read >= most or nbytes > _MOST_BYTES):
            break
        check_feed(feed, part.inputs, read, spread.name_of)
        read += batch_rows(feed) or 1
        # One that was there before would judge what was made with it.
        digest = sum(DataFingerprint().observe(feed))
        if digest not in samples:
            samples[digest] = copied_feed(feed)
            nbytes += sum(array.nbytes for array in feed.values())
    return list(samples.values())


def _spread(batches: Batches, most: int) -> Batches:
    """Gives so many batches that are spread evenly, or all if there are fewer; reads no others.

    Where nobody knows how many there are, these are all of them, from the first one on.
    """
    count, size = batches.num_batches or 0, batches.batch_size or 1
    taken = sorted({number * count // most for number in range(most)})
    if len(taken) < most:
        return batches

    def start() -> Iterator[Any]:
        wanted = set(taken)
        return (batch for number, batch in enumerate(batches.start()) if number in wanted)

    def name_of(sample: int) -> str:
        return batches.name_of(taken[sample // size] * size + sample % size)

    return batches.passing(start, name_of=name_of)


def _rows(part: Model, placement: Placement, samples: Sequence[FeedDict]) -> int:
    """How many samples are run at once: one unless the graph shows that outputs have a row for each."""
    alike = len({tuple((name, array.shape) for name, array in feed.items()) for feed in samples}) == 1
    if (
        not alike
        or batch_rows(samples[0]) != 1
        or not joined_by_graph(before_picks(part.graph_model)).has_rows
    ):
        return 1
    return min(_MOST_ROWS, FittingBatchSize(part.graph_model, placement.tensors)(samples[0]))


def _batches(samples: Sequence[FeedDict], rows: int) -> list[FeedDict]:
    return [joined(samples[first : first + rows]) for first in range(0, len(samples), rows)]


def _noise_levels(
    graph_models: Mapping[_Way, ir.Model], quantizer: Quantizer, feeds: Iterable[FeedDict], *, single: bool
) -> dict[_Way, list[float]]:
    """The level of the noise of quantized networks for each sample, in decibels.

    Args:
        graph_models: Float networks; the first one is what all are compared with.
        quantizer: How they are quantized.
        feeds: The samples. Those that are left when the choice is clear are not run.
        single: Whether each feed is one sample.
    """
    reference, picks = graph_models[_PLAIN], find_picks(graph_models[_PLAIN])

    names = compared_tensors(before_picks(reference, picks), quantizer.placement.reading_pairs)

    def opened(graph_model: ir.Model) -> ModelSession:
        # What is picked says little; what it is picked from is compared in its place.
        compared = giving(before_picks(graph_model, picks), names)
        return open_graph_model(compared, used_up=graph_model is not reference and compared is not reference)

    with pause_garbage_collection():
        exact = opened(reference)
        networks = {way: opened(quantized_network(one, quantizer)) for way, one in graph_models.items()}
    levels: dict[_Way, list[float]] = {way: [] for way in networks}
    for feed in feeds:
        wanted, rows = exact.run(feed), 1 if single else batch_rows(feed) or 1
        for way, network in networks.items():
            levels[way] += Noise.of(wanted, network.run(feed), rows).levels.tolist()
        if len(levels[_PLAIN]) >= _FEWEST_JUDGES and _choice(levels)[1]:
            break
    return levels
