"""Checks of feeds before and while they are fed: what would fail, or quietly ruin a range."""

from __future__ import annotations

import heapq
import itertools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrators.data.feeds import FeedDict, batch_rows, check_dtype, check_names, is_float
from calibrators.data.inputs import InputSpec, shape_text
from calibrators.data.samples import SampleSizes, numbered
from calibrators.errors import CalibrationDataError
from calibrators.words import counted


def check_feed(
    feed: FeedDict,
    inputs: Sequence[InputSpec],
    first_sample: int = 0,
    name_of: Callable[[int], str] = numbered,
) -> None:
    """Refuses a feed that the model cannot take or that holds values without meaning.

    Args:
        feed: Input name to array.
        inputs: What the model takes.
        first_sample: Number of the feed's first sample in the order of iteration, for messages.
        name_of: Gives what a sample is called in messages, by that number.

    Raises:
        CalibrationDataError: A name is unknown or missing; a type, rank or fixed dimension is not the
            input's; an array is empty; a value is NaN or infinite, except minus infinity in an input that
            hides scores; or inputs whose first dimensions are the same in the model have different numbers
            of samples.
    """
    check_names(feed, inputs)
    for spec in inputs:
        check_dtype(feed[spec.name], spec)
        _check_shape(feed[spec.name], spec)
    _check_not_empty(feed, inputs)
    _check_rows(feed, inputs)
    samples = batch_rows(feed) or 1
    for spec in inputs:
        if (bad := _first_not_finite(feed[spec.name], samples, spec.hides_scores)) is not None:
            count, sample = bad
            values = f"{count} {'value that is' if count == 1 else 'values that are'}"
            raise CalibrationDataError(
                f"the data for input '{spec.name}' has {values} NaN or infinite, the first in "
                f"{name_of(first_sample + sample)}; remove such samples or mend their preprocessing"
            )


class Preflight:
    """Watches all feeds of a data set and says at the end what looks wrong with it.

    Args:
        inputs: What the model takes.
        name_of: Gives what a sample is called where a feed is refused, by its number in the order of
            observation.

    Attributes:
        samples: How many samples were observed.
        sizes: Input name to the sizes of its samples, for inputs that leave some open besides the number of
            samples.
    """

    def __init__(self, inputs: Sequence[InputSpec], name_of: Callable[[int], str] = numbered) -> None:
        self.samples = 0
        self.sizes: dict[str, SampleSizes] = {}
        self._inputs, self._name_of = tuple(inputs), name_of
        self._ranges: dict[str, _Range] = {}
        self._peaks: dict[str, SamplePeaks] = {}

    def observe(self, feed: FeedDict) -> None:
        """Checks one feed.

        Raises:
            CalibrationDataError: The feed does not fit; see :func:`check_feed`.
        """
        check_feed(feed, self._inputs, self.samples, self._name_of)
        rows = batch_rows(feed)
        for spec in self._inputs:
            # A number that is fed with every sample is meant to be the same, and a mask may be.
            watched = is_float(spec.dtype) and not spec.hides_scores
            if watched and feed[spec.name].ndim and feed[spec.name].size:
                self._observe_values(spec.name, feed[spec.name], rows or 1)
            if spec.has_open_sizes:
                sizes = SampleSizes.of(feed[spec.name].shape)
                self.sizes[spec.name] = sizes.merge(self.sizes.get(spec.name, sizes))
        self.samples += 1 if rows is None else rows

    def _observe_values(self, name: str, array: NDArray[Any], samples: int) -> None:
        by_sample = array.reshape(samples, -1)
        low, high = by_sample.min(axis=1).astype(np.float64), by_sample.max(axis=1).astype(np.float64)
        self._ranges[name] = _range_of(array, float(low.min()), float(high.max()), self._ranges.get(name))
        peaks = SamplePeaks.of(np.maximum(-low, high), self.samples)
        self._peaks[name] = self._peaks.get(name, _NO_PEAKS).merge(peaks)

    def merge(self, other: Preflight) -> Preflight:
        """What watching the feeds of both would have shown.

        Args:
            other: A watcher of the same inputs, on other feeds.
        """
        merged = Preflight(self._inputs)
        merged.samples = self.samples + other.samples
        merged.sizes = dict(self.sizes)
        for name, sizes in other.sizes.items():
            merged.sizes[name] = sizes.merge(self.sizes.get(name, sizes))
        merged._ranges = dict(self._ranges)
        for name, found in other._ranges.items():
            mine = self._ranges.get(name, found)
            merged._ranges[name] = _Range(
                min(mine.low, found.low), max(mine.high, found.high), mine.pixels and found.pixels
            )
        for name in self._peaks | other._peaks:
            peaks, later = (one._peaks.get(name, _NO_PEAKS) for one in (self, other))
            merged._peaks[name] = peaks.merge(later, self.samples)
        return merged

    def finish(self, name_of: Callable[[int], str] = numbered) -> list[str]:
        """What looks wrong with the data as a whole.

        Args:
            name_of: Gives what a sample is called in messages, by its number in the order of observation.

        Returns:
            One sentence per finding: floating-point inputs that never change, those whose values look like
            raw pixels, and those whose values reach much further in a few samples than in all others.

        Raises:
            CalibrationDataError: There was no sample at all.
        """
        if not self.samples:
            raise CalibrationDataError("the data has no samples; pass at least one")
        findings = []
        for name, found in self._ranges.items():
            if found.low == found.high:
                value = found.low + 0.0  # -0 becomes 0
                findings.append(
                    f"input '{name}' is {value:g} in all {counted(self.samples, 'sample')}; "
                    "check that the data is not blank"
                )
            elif found.pixels and found.high > 1.5:
                findings.append(
                    f"input '{name}' has only integers from {found.low:g} to {found.high:g}, "
                    "like raw pixels; check that the model was trained on these and not on normalized values"
                )
            if unusual := self._peaks[name].unusual():
                findings.append(_finding_of(name, unusual, self.samples, name_of))
        return findings


def _finding_of(name: str, unusual: UnusualSamples, samples: int, name_of: Callable[[int], str]) -> str:
    more = unusual.count - len(unusual.samples)
    names = ", ".join(map(name_of, unusual.samples)) + (f" and {more} more" if more else "")
    return (
        f"input '{name}' reaches {unusual.peak:.4g} in {unusual.count} of {samples} samples ({names}), "
        f"and at most {unusual.usual:.4g} in 95% of them; check these, as a few such samples make the ranges "
        "worse for all others"
    )


@dataclass(frozen=True)
class _Range:
    """Extent of an input's values, and whether all could be those of uint8 pixels."""

    low: float
    high: float
    pixels: bool


def _range_of(array: NDArray[Any], low: float, high: float, before: _Range | None) -> _Range:
    pixels = low >= 0 and high <= 255
    if before is not None:
        low, high, pixels = min(low, before.low), max(high, before.high), pixels and before.pixels
    # The costly comparison comes last: normalized data fails it once and is never compared again.
    return _Range(low, high, pixels and bool(np.array_equal(array, np.rint(array))))


def _check_shape(array: NDArray[Any], spec: InputSpec) -> None:
    if spec.shape is None:
        return
    shape = shape_text(array.shape)
    if array.ndim != len(spec.shape):
        advice = "reshape it"
        if not spec.shape:
            advice = "give one number, an array without axes, which is fed with every sample"
        elif array.ndim == len(spec.shape) - 1:
            advice = "add a batch axis with array[None]"
        raise CalibrationDataError(
            f"the data for input '{spec.name}' has shape {shape} but the model takes "
            f"{shape_text(spec.shape)}: rank {array.ndim} instead of {len(spec.shape)}; {advice}"
        )
    if not _fits(array.shape, spec.shape):
        advice = "bring the data to this shape"
        if array.ndim == 4 and any(_fits(_moved(array.shape, axes), spec.shape) for axes in _OTHER_LAYOUTS):
            # Preprocessing, which has a layout, makes floating-point images only.
            ways = "set layout to NCHW or NHWC, or transpose it" if is_float(spec.dtype) else "transpose it"
            advice = f"the data has the other layout: {ways}"
        raise CalibrationDataError(
            f"the data for input '{spec.name}' has shape {shape} but the model takes "
            f"{shape_text(spec.shape)}; {advice}"
        )


#: NHWC to NCHW and back.
_OTHER_LAYOUTS = ((0, 3, 1, 2), (0, 2, 3, 1))


def _moved(shape: tuple[int, ...], axes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(shape[axis] for axis in axes)


def _fits(shape: tuple[int, ...], wanted: tuple[int | str | None, ...]) -> bool:
    return all(not isinstance(dim, int) or dim == size for size, dim in zip(shape, wanted, strict=True))


def _check_not_empty(feed: FeedDict, inputs: Sequence[InputSpec]) -> None:
    """Refuses arrays without samples, and a feed without values.

    One input may be empty beside others: what a decoder of text has cached is, before the first token.
    """
    nothing = not any(feed[spec.name].size for spec in inputs)
    for spec in inputs:
        array = feed[spec.name]
        if not array.size and (nothing or not len(array)):
            shape = shape_text(array.shape)
            raise CalibrationDataError(
                f"the data for input '{spec.name}' is empty (shape {shape}); pass some samples"
            )


def _check_rows(feed: FeedDict, inputs: Sequence[InputSpec]) -> None:
    """Inputs with the same first dimension in the model share it; differently named ones may differ."""
    firsts = {spec.shape[:1] if spec.shape else None for spec in inputs}
    lengths = {feed[spec.name].shape[:1] for spec in inputs}
    if len(firsts) == 1 and None not in firsts and len(lengths) > 1:
        sizes = ", ".join(f"'{spec.name}' {feed[spec.name].shape[0]}" for spec in inputs)
        raise CalibrationDataError(
            f"the inputs of a feed have different numbers of samples: {sizes}; give all of them the same"
        )


def _first_not_finite(array: NDArray[Any], samples: int, hides_scores: bool) -> tuple[int, int] | None:
    """How many values are NaN or infinite, and the number of the first sample with one; None without any.

    Minus infinity does not count in an input that hides scores.
    """
    if not is_float(array.dtype) or np.isfinite(array).all():
        return None
    bad = ~np.isfinite(array)
    if hides_scores:
        bad &= array != -np.inf
    if not bad.any():
        return None
    return int(bad.sum()), int(bad.reshape(samples, -1).any(axis=1).argmax())


#: Peaks are counted in bins, so many per doubling.
_BINS_PER_DOUBLING = 4

#: The bin of samples whose values are all zero.
_ZERO = -(1 << 20)

#: The share of the samples whose peaks are taken to be usual.
_USUAL_SHARE = 0.95

#: Doublings above the usual peaks from which a peak is unusual.
_DOUBLINGS = 3

#: How many samples are remembered by their number.
_REMEMBERED = 5


@dataclass(frozen=True)
class UnusualSamples:
    """Samples whose values reach much further than those of nearly all others.

    Attributes:
        count: How many there are.
        samples: Numbers of those that reach furthest, ascending; at most five.
        peak: The largest magnitude in them.
        usual: A magnitude that 95 % of all samples do not exceed.
    """

    count: int
    samples: tuple[int, ...]
    peak: float
    usual: float


@dataclass(frozen=True)
class SamplePeaks:
    """The largest magnitudes of samples, as counts of a size that does not grow with the data.

    Attributes:
        counts: Bin to the number of samples whose largest magnitude lies in it; a quarter of a doubling each.
        largest: The largest magnitudes with the numbers of their samples, descending; at most five.
    """

    counts: Mapping[int, int] = field(default_factory=dict)
    largest: tuple[tuple[float, int], ...] = ()

    @classmethod
    def of(cls, peaks: NDArray[np.float64], first: int = 0) -> SamplePeaks:
        """Counts peaks.

        Args:
            peaks: The largest magnitude of each sample, shape (samples,); finite.
            first: The number of the first sample.
        """
        bins = np.full(len(peaks), _ZERO)
        positive = peaks > 0
        bins[positive] = np.floor(_BINS_PER_DOUBLING * np.log2(peaks[positive]))
        furthest = np.argsort(-peaks, kind="stable")[:_REMEMBERED]
        return cls(
            Counter(bins.tolist()), tuple((float(peaks[index]), first + int(index)) for index in furthest)
        )

    def merge(self, other: SamplePeaks, offset: int = 0) -> SamplePeaks:
        """The peaks of both.

        Args:
            other: Those of later samples.
            offset: What is added to the numbers of these.
        """
        moved = ((peak, sample + offset) for peak, sample in other.largest)
        furthest = heapq.nsmallest(_REMEMBERED, (*self.largest, *moved), key=lambda one: (-one[0], one[1]))
        return SamplePeaks(Counter(self.counts) + Counter(other.counts), tuple(furthest))

    def unusual(self) -> UnusualSamples | None:
        """The samples that reach more than eight times as far as 95 % of all samples, if there are some.

        There has to be a sample. Of fewer than 20 none is called unusual.
        """
        bins = sorted(self.counts)
        seen = itertools.accumulate(self.counts[found] for found in bins)
        wanted = math.ceil(_USUAL_SHARE * sum(self.counts.values()))
        usual = next(found for found, samples in zip(bins, seen, strict=True) if samples >= wanted)
        if usual == _ZERO:
            return None
        limit = usual + _DOUBLINGS * _BINS_PER_DOUBLING
        count = sum(number for found, number in self.counts.items() if found > limit)
        if not count:
            return None
        numbers = sorted(sample for _, sample in self.largest[:count])
        return UnusualSamples(
            count, tuple(numbers), self.largest[0][0], 2 ** ((usual + 1) / _BINS_PER_DOUBLING)
        )


#: What is known of an input before its first sample.
_NO_PEAKS = SamplePeaks()
