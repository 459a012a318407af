"""How far a model is from the reference: SQNR, cosine, largest error, PSNR, and picks that change."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial
from itertools import product
from operator import add
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import ArrayLike

from calibrators.data.feeds import Array, Floats, Indices, NamedArrays
from calibrators.data.inputs import shape_text
from calibrators.errors import CalibrationDataError
from calibrators.histograms.rules import decibels
from calibrators.operators import Shown
from trtint8.models.outputs.joined import OutputPart
from trtint8.models.outputs.picked import ShownPicks
from trtint8.validation.batch import Batch, BatchForm, by_sample
from trtint8.validation.meters import DECIBELS, Answers, Measurand, PartsMeter, SumsMeter
from trtint8.validation.significance import Interval, SameAnswer, by_group, totals_interval

#: Elements that are compared at once: as float64, so many fit into a processor's cache.
_BLOCK = 1 << 15


@dataclass(frozen=True)
class Fidelity:
    """How close one output is to FP32's.

    Attributes:
        name: The name of the output.
        sqnr_db: Signal to quantization noise, 10 log10(sum(fp32^2) / sum((fp32 - int8)^2)) over all
            samples, in decibels; infinite where they are equal. NaN, as the other figures, where values are
            NaN, or where the output's shape depends on the values and differs from FP32's, or the model does
            not give it, as an engine gives no tensors inside the network.
        cosine: Cosine of the angle between the two, over all samples.
        max_error: The largest |fp32 - int8|.
        token_cosine: Mean of the cosines of the vectors along the last axis, over samples and positions (all
            axes before the last), padding included; None where it was not asked for or the output has no
            such axes.
    """

    name: str
    sqnr_db: float
    cosine: float
    max_error: float
    token_cosine: float | None = None


def least_faithful(outputs: Iterable[Fidelity]) -> Fidelity | None:
    """The output with the lowest SQNR; None where no output has one.

    Args:
        outputs: The outputs.
    """
    comparable = [output for output in outputs if not math.isnan(output.sqnr_db)]
    return min(comparable, key=lambda output: output.sqnr_db, default=None)


class Sums(NamedTuple):
    """Sums over the elements of an output, or of a tensor, and of FP32's. Those of batches add up.

    Attributes:
        wanted: The sum of FP32's squares.
        got: The sum of the model's squares.
        product: The sum of their products.
        noise: The sum of the squares of their differences.
        cosines: The sum of the cosines of the vectors along the last axis.
        tokens: The number of these vectors; 0 where they were not asked for.
        error: The largest difference.
        amax: The largest of FP32's magnitudes; 0 where it was not asked for.
    """

    wanted: float = 0.0
    got: float = 0.0
    product: float = 0.0
    noise: float = 0.0
    cosines: float = 0.0
    tokens: float = 0.0
    error: float = 0.0
    amax: float = 0.0

    @classmethod
    def total(cls, parts: ArrayLike) -> Sums:
        """The sums over several batches, or over blocks of one.

        Args:
            parts: The sums of each, shape (parts, sums).
        """
        rows = np.asarray(parts, np.float64).reshape(-1, len(cls._fields))
        return cls(*rows[:, :-2].sum(axis=0).tolist(), *rows[:, -2:].max(axis=0, initial=0.0).tolist())


@dataclass(frozen=True)
class Figure:
    """A figure of single outputs, and a metric of this name.

    Attributes:
        name: The name of the metric.
        field: The field of :class:`Fidelity` that has it.
        title: What tables and sentences call it.
        of: The figure by the sums over all samples; None where these do not tell.
        perfect: The figure of equal outputs.
        unit: Its unit.
        digits: How tables show it.
        smaller_is_better: Whether it is an error.
        is_usual: Whether it is measured for every model; others are where they were asked for.
        of_tokens: Whether it needs the cosines of the vectors along the last axis.
    """

    name: str
    field: str
    title: str
    of: Callable[[Sums], float | None]
    perfect: float
    unit: str = ""
    digits: str = ".6f"
    smaller_is_better: bool = False
    is_usual: bool = True
    of_tokens: bool = False

    def in_output(self, output: Fidelity) -> float | None:
        """The figure of an output; None where it was not measured."""
        value: float | None = getattr(output, self.field)
        return value

    def text(self, output: Fidelity) -> str:
        """The figure of an output, for a table; what is not a number cannot be compared."""
        value = self.in_output(output)
        if value is None or math.isnan(value):
            return "not comparable"
        return f"{value:{self.digits}}{self.unit and ' '}{self.unit}"

    def worst(self, outputs: Iterable[Fidelity]) -> float:
        """The figure of the output where it is worst: where it is not a number, if there is one."""
        values = [value for output in outputs if (value := self.in_output(output)) is not None]
        return float((np.max if self.smaller_is_better else np.min)(values or [math.nan]))


def _cosine(sums: Sums) -> float:
    norm = math.sqrt(sums.wanted * sums.got)
    return sums.product / norm if norm else float(sums.noise == 0)


#: The figures of single outputs, by name.
FIGURES = {
    figure.name: figure
    for figure in (
        Figure("sqnr", "sqnr_db", "SQNR", lambda s: decibels(s.wanted, s.noise), math.inf, DECIBELS, ".2f"),
        Figure("cosine", "cosine", "cosine", _cosine, 1.0),
        Figure(
            "max_error",
            "max_error",
            "largest error",
            lambda s: s.error,
            0.0,
            digits=".4g",
            smaller_is_better=True,
        ),
        Figure(
            "token_cosine",
            "token_cosine",
            "token cosine",
            lambda s: s.cosines / s.tokens if s.tokens else None,
            1.0,
            is_usual=False,
            of_tokens=True,
        ),
    )
}

#: The figures that are measured for every model.
USUAL_FIGURES = tuple(figure for figure in FIGURES.values() if figure.is_usual)


def figure_of(metric: object) -> Figure | None:
    """The figure of single outputs that a metric is; None for other metrics."""
    return FIGURES.get(metric) if isinstance(metric, str) else None


class FidelityMeter(PartsMeter[Floats]):
    """Sums over the elements of outputs, kept for each sample until all are added up in their order.

    So the result does not depend on where a batch was run.

    Args:
        outputs: The outputs, or parts of them. Of those that are partly copied only the elements count in
            which the two models differ.
        asked: Names of the figures that were asked for; those of every model are measured in any case.
    """

    def __init__(self, outputs: Sequence[OutputPart], asked: Collection[str] = ()) -> None:
        super().__init__()
        self._outputs = tuple(outputs)
        self._figures = [name for name, one in FIGURES.items() if one.is_usual or name in asked]
        self._tokens = any(FIGURES[name].of_tokens for name in self._figures)
        self._by_sample = True

    def add(self, outputs: NamedArrays, reference: NamedArrays, rows: int) -> None:
        """Adds one batch.

        Args:
            outputs: The model's outputs, by name.
            reference: The reference's outputs. One that the model does not give, or in another shape, has no
                fidelity: all its figures are NaN.
            rows: Number of samples in the batch. A batch is one sample if an output's axis 0 is not the
                samples.
        """
        by_sample = all(one.ndim and len(one) == rows for one in reference.values())
        sums = [
            self._sums(part, outputs.get(part.name), reference[part.name], rows if by_sample else 1)
            for part in self._outputs
        ]
        self._parts.append(np.array(sums))
        self._by_sample = self._by_sample and by_sample

    def merge(self, other: PartsMeter[Floats]) -> None:
        """Adds what the same metric measured on the same model in later batches."""
        assert isinstance(other, FidelityMeter)
        super().merge(other)
        self._by_sample = self._by_sample and other._by_sample

    def value(self) -> tuple[Fidelity, ...]:
        """The fidelity over all batches, in the order of the outputs."""
        found = []
        for part, sums in zip(self._outputs, np.concatenate(self._parts, axis=1), strict=True):
            total = Sums.total(sums)
            figures: dict[str, Any] = {FIGURES[name].field: FIGURES[name].of(total) for name in self._figures}
            found.append(Fidelity(part.name, **figures))
        return tuple(found)

    def figure_interval(self, figure: Figure, groups: Indices | None = None) -> Interval | None:
        """The ends of the 95 % interval of a figure of the output where it is worst.

        Args:
            figure: A mean over all elements, and not the largest of them.
            groups: The number of each sample's group; None where each sample stands alone.

        Returns:
            The ends; None where the samples do not tell.
        """
        if not self._by_sample and groups is not None:
            return None

        def of(totals: Floats) -> Floats:
            rows = totals.reshape(-1, totals.shape[-1])
            found = [figure.of(Sums._make((*row, 0.0, 0.0))) for row in rows.tolist()]
            return np.array(found, np.float64).reshape(totals.shape[:-1])

        outputs = [sums[:, :-2] for sums in np.concatenate(self._parts, axis=1)]
        values = [float(of(sums.sum(axis=0))) for sums in outputs]
        worst = (np.argmax if figure.smaller_is_better else np.argmin)(values)
        return totals_interval(by_group(outputs[int(worst)], groups), of)

    def _sums(self, part: OutputPart, output: Array | None, reference: Array, samples: int) -> Floats:
        """The sums of each sample, shape (samples, sums)."""
        tokens = self._tokens and reference.ndim > 1
        if output is None or output.shape != reference.shape:
            nan = math.nan
            none = Sums(nan, nan, product=nan, noise=nan, cosines=nan, tokens=float(tokens), error=nan)
            return np.tile(np.array(none), (samples, 1))
        width = reference.shape[-1] if tokens else 1
        found = np.zeros((samples, len(Sums._fields)))
        sides = [array.reshape(samples, reference.size // max(samples, 1)) for array in (reference, output)]
        with np.errstate(invalid="ignore", over="ignore"):  # infinite values have no difference
            for rows, columns in _blocks(*sides[0].shape, width):
                wanted, got = (side[rows, columns].astype(np.float64) for side in sides)
                if part.partly_copied:
                    changed = wanted != got
                    wanted, got = (np.where(changed, array, 0.0) for array in (wanted, got))
                error = wanted - got
                own = found[rows]
                for index, (a, b) in enumerate(((wanted, wanted), (got, got), (wanted, got), (error, error))):
                    own[:, index] += np.einsum("ij,ij->i", a, b)
                if tokens:
                    vectors = [array.reshape(len(own), -1, width) for array in (got, wanted)]
                    counted = np.ones(vectors[0].shape[:2], bool)
                    if part.partly_copied:
                        counted = changed.reshape(vectors[0].shape).any(axis=2)
                    own[:, 4] += np.where(counted, row_cosines(*vectors), 0.0).sum(axis=1)
                    own[:, 5] += counted.sum(axis=1)
                own[:, 6] = np.maximum(own[:, 6], np.abs(error).max(axis=1, initial=0.0))
        return found


def _blocks(samples: int, elements: int, width: int) -> Iterator[tuple[slice, slice]]:
    """The rows and columns of blocks that fit into a processor's cache: samples, or whole vectors of one."""
    rows = max(1, _BLOCK // max(elements, 1))
    columns = max(1, _BLOCK // width) * width
    for row, column in product(range(0, samples, rows), range(0, elements, columns)):
        yield slice(row, row + rows), slice(column, column + columns)


def in_blocks(reference: Array, output: Array) -> Iterator[tuple[Floats, Floats]]:
    """Both arrays in runs of rows, float64 of shape (rows, last axis).

    As a whole the logits of a language model would take several times their memory.
    """
    if not reference.size:
        return
    width = reference.shape[-1] if reference.ndim else 1
    wanted, got = reference.reshape(-1, width), output.reshape(-1, width)
    rows = max(1, _BLOCK // width)
    for start in range(0, len(wanted), rows):
        yield wanted[start : start + rows].astype(np.float64), got[start : start + rows].astype(np.float64)


def inner_product(a: Floats, b: Floats) -> float:
    """The sum of the products of the elements of two arrays of one shape.

    Not ``numpy.vdot``, whose last bits depend on how many threads BLAS uses.
    """
    return float(np.einsum("i,i->", a.ravel(), b.ravel()))


def row_cosines(got: Floats, wanted: Floats) -> Floats:
    """Cosines of the vectors along the last axis.

    Args:
        got: float64, shape (..., width).
        wanted: float64, of the same shape.

    Returns:
        float64, shape (...). The cosine of two zero vectors is 1, that of a zero vector and another one 0.
    """
    squares = (wanted * wanted).sum(axis=-1) * (got * got).sum(axis=-1)
    equal = (wanted == got).all(axis=-1)
    cosines = (wanted * got).sum(axis=-1) / np.sqrt(np.where(squares == 0, 1.0, squares))
    return np.asarray(np.where(squares == 0, equal, cosines), np.float64)


@dataclass(frozen=True)
class PicksChanged:
    """How many of the picks that one node makes, by comparing computed values, are others than FP32's.

    Attributes:
        tensor: Name of the tensor that shows what is picked.
        operator: The operator that picks, such as ``ArgMax``.
        picks: How many picks FP32 makes, over all samples.
        changed: How many picks differ. Of a set, such as the peaks of a sample, it is the larger one of those
            that are lost and those that are gained.
        lost: How many of FP32's picks the model does not make.
        gained: How many picks the model makes and FP32 does not.
        share: ``changed`` as a share of ``picks``; infinite where FP32 picks nothing and the model does.
    """

    tensor: str
    operator: str
    picks: int
    changed: int
    lost: int
    gained: int
    share: float


def picks_text(picks: PicksChanged) -> str:
    """How many picks change, as a number and a share, and how many are lost and gained where that differs."""
    share = f" ({100 * picks.share:.2f} %)" if math.isfinite(picks.share) else ""
    ways = f": {picks.lost:,} lost, {picks.gained:,} gained" if picks.lost != picks.gained else ""
    return f"{picks.changed:,}{share}{ways}"


def picks_note(picks: PicksChanged) -> str:
    """How many picks change, as a line below a table."""
    return f"{picks.operator} '{picks.tensor}': of {picks.picks:,} picks INT8 changes {picks_text(picks)}"


#: How many picks the reference makes, how many differ, how many are lost, and how many are gained.
PickCounts = tuple[int, int, int, int]


def count_changes(shown: ShownPicks, reference: Array, picked: Array, rows: int) -> PickCounts | None:
    """Counts the picks of one batch that differ.

    Args:
        shown: How the tensor shows what is picked.
        reference: The tensor of the reference.
        picked: The tensor of the model.
        rows: Number of samples in the batch. Sets are those of a sample, where axis 0 is the samples.

    Returns:
        The counts; see :class:`PicksChanged`. None where the shapes do not say which picks belong together.
    """
    if shown.shows in (Shown.ROWS, Shown.COLUMNS):
        lists = (array.T if shown.shows is Shown.COLUMNS else array for array in (reference, picked))
        # Lists of a fixed length are filled up with -1.
        return _differing(*({pick for pick in map(tuple, one.tolist()) if pick[0] >= 0} for one in lists))
    if shown.shows is Shown.SETS:
        sets = [np.moveaxis(array, shown.axis, -1) for array in (reference, picked)]
        if sets[0].shape[:-1] != sets[1].shape[:-1]:
            return None
        return _differing(*({(row[:-1], place) for row, place in _entries(places)} for places in sets))
    if reference.shape != picked.shape:
        return None
    if shown.shows is Shown.PLACES:
        changed = int(np.count_nonzero(reference != picked))
        return reference.size, changed, changed, changed
    wanted, got = (by_sample(array != 0, rows) for array in (reference, picked))
    lost, gained = (wanted & ~got).sum(axis=1), (got & ~wanted).sum(axis=1)
    return int(wanted.sum()), int(np.maximum(lost, gained).sum()), int(lost.sum()), int(gained.sum())


def _entries(array: Array) -> Iterator[tuple[tuple[int, ...], Any]]:
    """The indices of the elements of an array, and the elements."""
    return zip(np.ndindex(array.shape), array.ravel().tolist(), strict=True)


def _differing(wanted: Set[tuple[Any, ...]], got: Set[tuple[Any, ...]]) -> PickCounts:
    """Counts for two sets of picks, each of which begins with what it belongs to."""
    lost, gained = (Counter(pick[0] for pick in picks) for picks in (wanted - got, got - wanted))
    changed = sum(max(lost[one], gained[one]) for one in lost.keys() | gained.keys())
    return len(wanted), changed, lost.total(), gained.total()


class PicksMeter:
    """Counts of picks that change, over batches.

    Args:
        shown: The tensors that show what is picked.
        counts: Name of each tensor to its counts so far; None where it cannot be compared.
    """

    def __init__(
        self, shown: Sequence[ShownPicks], counts: Mapping[str, PickCounts | None] | None = None
    ) -> None:
        self.shown = tuple(shown)
        self.counts: dict[str, PickCounts | None] = {one.tensor: (0, 0, 0, 0) for one in shown}
        self.counts |= counts or {}

    def empty(self) -> PicksMeter:
        """The same meter, which has counted nothing."""
        return PicksMeter(self.shown)

    def add(self, outputs: NamedArrays, reference: NamedArrays, rows: int) -> None:
        """Adds one batch.

        Args:
            outputs: What the model gives, by name; may lack tensors.
            reference: What the reference gives.
            rows: Number of samples in the batch.
        """
        for one in self.shown:
            got = outputs.get(one.tensor)
            counts = None if got is None else count_changes(one, reference[one.tensor], got, rows)
            self._add(one.tensor, counts)

    def merge(self, other: PicksMeter) -> None:
        """Adds what another meter of the same tensors has counted."""
        for name, counts in other.counts.items():
            self._add(name, counts)

    def _add(self, name: str, counts: PickCounts | None) -> None:
        before = self.counts[name]
        both = None if before is None or counts is None else tuple(map(add, before, counts))
        self.counts[name] = cast("PickCounts | None", both)

    def value(self) -> tuple[PicksChanged, ...]:
        """The counts of the tensors that can be compared, in order."""
        found = []
        for one in self.shown:
            if counts := self.counts[one.tensor]:
                picks, changed, *_ = counts
                share = changed / picks if picks else math.inf if changed else 0.0
                found.append(PicksChanged(one.tensor, one.operator, *counts, share))
        return tuple(found)


#: The name of the PSNR of all samples together.
PSNR_POOLED = "psnr_pooled"

#: Outputs whose values are all closer to zero than this are images from 0 to 1, or from -1 to 1.
_NORMALIZED = 1.5

#: The largest value of a dark image, for which an output from 0 to 255 may be as close to zero.
_BRIGHT = 16


def psnr(name: str, output: str, form: BatchForm) -> Measurand:
    """The peak signal-to-noise ratio of an output, as the mean over samples, or pooled.

    It is 10 log10(peak^2 / mean squared error), with the peak of :func:`peak`. It is measured against the
    labels where these have the output's shape, else against the reference. Either has to be finite.

    Each sample has a level, and ``psnr`` is their mean. Samples without any error have none and are left out;
    where no sample has an error, it is infinite. ``psnr_pooled`` has the errors of all elements of all
    samples in one mean.

    Args:
        name: The metric's name in results, ``psnr`` or ``psnr_pooled``, with the output's behind it.
        output: The output.
        form: The form of a batch.

    Raises:
        CalibrationDataError: The labels have the output's rank, or its number of elements, but another shape.
    """
    pooled = name.partition(":")[0] == PSNR_POOLED
    own, labels = form.outputs[output], form.labels
    if labels is not None and not form.has_class_indices and _are_meant_for(labels.shape, own.shape):
        raise CalibrationDataError(
            f"metric '{name}' cannot compare labels of shape {shape_text(labels.shape)} with output "
            f"'{output}' of shape {shape_text(own.shape)}; give labels of the output's shape, or none to "
            "compare with the float model"
        )
    with_labels = labels is not None and labels.shape == own.shape and not form.has_class_indices
    source = "the labels" if with_labels else "FP32"
    level = noise_level if pooled else mean_level

    def measure(batch: Batch) -> _PsnrMeter:
        target = batch.labels if with_labels and batch.labels is not None else batch.reference[output]
        wanted = target.astype(np.float64)
        _check_finite(name, wanted, batch, source if with_labels else f"FP32's output '{output}'")
        if target.dtype == np.uint8 and with_labels:
            _check_scale(name, output, wanted, batch)
        squares = _squares(by_sample(wanted - batch.outputs[output].astype(np.float64), batch.rows))
        sums = squares if pooled else _levels(squares)
        return _PsnrMeter(level, [sums], batch.rows, extents=[_extent(wanted, target.dtype)])

    def check_labels(batch: Batch, _form: BatchForm) -> None:
        if with_labels and batch.labels is not None:
            _check_finite(name, batch.labels.astype(np.float64), batch, source)

    def same_for_all(
        parts: Sequence[tuple[Floats, _Extent]], reference: float, _different: Indices
    ) -> SameAnswer:
        """The level of the mean of all values, everywhere."""
        sums, extents = zip(*parts, strict=True)
        total, squares, count = np.concatenate(sums).T
        mean = total.sum() / max(1.0, count.sum())
        errors = np.stack([squares - 2 * mean * total + mean * mean * count, count], axis=1)
        value = _peak_level(extents) + float(level((errors if pooled else _levels(errors)).sum(axis=0)))
        return SameAnswer(value, reference > value)

    return Measurand(
        name,
        not with_labels,
        partial(_PsnrMeter, level),
        measure,
        title=f"{'pooled ' if pooled else ''}PSNR of '{output}' against {source}",
        unit=DECIBELS,
        perfect=None if with_labels else math.inf,
        output=output,
        check_labels=check_labels,
        answers=Answers(_answers, same_for_all) if with_labels else None,
    )


def _are_meant_for(labels: tuple[int, ...], output: tuple[int, ...]) -> bool:
    """Whether labels of another shape than an output's were meant to be compared with it."""
    same_rank = len(labels) == len(output) > 1
    return labels != output and (same_rank or math.prod(labels) == math.prod(output))


def peak(low: float, high: float, *, is_uint8: bool) -> float:
    """The signal's peak in a peak signal-to-noise ratio.

    Args:
        low: The smallest value of the labels or of the reference's output, over the data set.
        high: The largest value of the labels or of the reference's output, over the data set.
        is_uint8: Whether these values are uint8.

    Returns:
        255 for uint8; 1 where all values lie in [0, 1]; else the largest value minus the smallest.
    """
    if is_uint8:
        return 255.0
    if low >= 0 and high <= 1:
        return 1.0
    return high - low or 1.0


def noise_level(totals: Floats) -> Floats:
    """The level of a mean squared error, for a peak of 1.

    Args:
        totals: The sum of squared errors and the number of elements, float64 of shape (..., 2).

    Returns:
        10 log10(elements / squared errors) in decibels, shape (...); infinite where there is no error.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(10 * np.log10(totals[..., 1] / totals[..., 0]))


def mean_level(totals: Floats) -> Floats:
    """The mean level of samples.

    Args:
        totals: The sum of the levels, and how many samples have one, float64 of shape (..., 2).

    Returns:
        Decibels, shape (...); infinite where no sample has a level, because none has an error.
    """
    count = totals[..., 1]
    return np.where(count == 0, math.inf, totals[..., 0] / np.where(count == 0, 1.0, count))


class _PsnrMeter(SumsMeter):
    """What each sample adds to the metric, and the extent of the values that were wanted.

    Args:
        sums: What :class:`~trtint8.validation.meters.SumsMeter` takes: squared errors and elements, or levels
            and samples.
        extents: The smallest and the largest value that was wanted in each batch, and whether they are uint8.
    """

    def __init__(self, *sums: Any, extents: Sequence[_Extent] = ()) -> None:
        super().__init__(*sums)
        self._extents = list(extents)

    def merge(self, other: PartsMeter[Floats]) -> None:
        """Adds what the same metric measured on the same model in later batches."""
        assert isinstance(other, _PsnrMeter)
        super().merge(other)
        self._extents += other._extents

    def value(self) -> float:
        """The peak signal-to-noise ratio over all samples, in decibels."""
        return _peak_level(self._extents) + super().value()


#: The smallest and the largest of some values, and whether they are uint8.
_Extent = tuple[float, float, bool]


def _extent(values: Floats, dtype: np.dtype[Any]) -> _Extent:
    return float(values.min(initial=math.inf)), float(values.max(initial=-math.inf)), dtype == np.uint8


def _peak_level(extents: Sequence[_Extent]) -> float:
    """The level of the peak of values of several batches."""
    low, high, is_uint8 = zip(*extents, strict=True)
    return 20 * math.log10(peak(min(low), max(high), is_uint8=is_uint8[-1]))


def _answers(batch: Batch) -> tuple[Floats, _Extent]:
    """The sum, the sum of squares and the number of elements of each sample's label; and their extent."""
    assert batch.labels is not None
    wanted = by_sample(batch.labels.astype(np.float64), batch.rows)
    return np.column_stack([wanted.sum(axis=1), _squares(wanted)]), _extent(wanted, batch.labels.dtype)


def _check_finite(name: str, wanted: Floats, batch: Batch, source: str) -> None:
    """Refuses what no error can be computed with.

    Raises:
        CalibrationDataError: A value is NaN or infinite.
    """
    broken = ~np.isfinite(by_sample(wanted, batch.rows)).all(axis=1)
    if broken.any():
        sample = batch.name_of(batch.first + int(broken.argmax()))
        raise CalibrationDataError(
            f"metric '{name}' compares with {source}, of which {sample} has values that are NaN or infinite; "
            "mend them, or leave the sample out"
        )


def _check_scale(name: str, output: str, labels: Floats, batch: Batch) -> None:
    """Refuses labels of pixels from 0 to 255 for an output from 0 to 1, or from -1 to 1.

    All models would be equally far from them.

    Raises:
        CalibrationDataError: The labels have another scale than the reference's output.
    """
    found = batch.reference[output]
    low, high, largest = found.min(initial=math.inf), found.max(initial=-math.inf), labels.max(initial=0)
    if largest > _BRIGHT and low > -_NORMALIZED and high < _NORMALIZED:
        raise CalibrationDataError(
            f"metric '{name}' cannot compare labels of uint8, up to {largest:g}, with output '{output}', "
            f"which is from {low:.3g} to {high:.3g} in FP32; give labels of the output's scale"
        )


def _levels(squares: Floats) -> Floats:
    """The level of each sample and 1, by what :func:`_squares` gives; zeros for those without an error."""
    with_error = squares[:, 0] != 0
    return np.stack([np.where(with_error, noise_level(squares), 0.0), with_error], axis=1)


def _squares(errors: Array) -> Floats:
    """The sum of squares and the number of elements of each row."""
    squares = np.einsum("ij,ij->i", errors, errors)
    return np.stack([squares, np.full(len(errors), float(errors.shape[1]))], axis=1)
