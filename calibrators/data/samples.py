"""What a pass over samples shows: which they are, their names, sizes and values, and those that are kept.

A feed that the model cannot take, or that holds values without meaning, is refused here before it is run.
"""

from __future__ import annotations

import hashlib
import heapq
import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias, TypeVar

import numpy as np

from calibrators.data.feeds import (
    Array,
    FeedDict,
    Floats,
    NameOf,
    batch_rows,
    check_dtype,
    check_names,
    copied_feed,
    fits,
    is_float,
    moved_axis,
    part_of,
)
from calibrators.data.inputs import InputSpec, Shape, shape_text
from calibrators.errors import Argument, CalibrationDataError, counted
from calibrators.records import Count


def numbered(sample: int) -> str:
    """A sample by its number, from 0."""
    return f"sample {sample}"


def file_name(files: Sequence[Path], sample: int) -> str:
    """A sample by its file.

    Args:
        files: The file of each sample.
        sample: The sample's number in the data.
    """
    return f"'{files[sample]}'"


@dataclass(frozen=True)
class NamesOfPart:
    """What the samples of a part of the data are called, for a process that has this part alone.

    Attributes:
        first: How many samples of the data come before it.
        names: What its samples are called.
    """

    first: int
    names: tuple[str, ...]

    @classmethod
    def of(cls, name_of: NameOf, first: int, samples: int) -> NamesOfPart:
        """The names of so many samples.

        Args:
            name_of: Gives what a sample of the data is called.
            first: How many samples of the data come before the part.
            samples: How many samples it has.
        """
        return cls(first, tuple(map(name_of, range(first, first + samples))))

    def __call__(self, sample: int) -> str:
        """What a sample is called, by its number in the data."""
        return self.names[sample - self.first]


@dataclass(frozen=True)
class SampleSizes:
    """How large samples are along each axis of an input but the first, along which samples lie.

    Attributes:
        smallest: The smallest size along each axis.
        largest: The largest size along each axis.

    Raises:
        ValueError: The two have different lengths, or a smallest size is larger than the largest.
    """

    smallest: tuple[Count, ...]
    largest: tuple[Count, ...]

    def __post_init__(self) -> None:
        if len(self.smallest) != len(self.largest):
            raise ValueError(f"{self.smallest} and {self.largest} are sizes along different axes")
        if any(low > high for low, high in zip(self.smallest, self.largest, strict=True)):
            raise ValueError(f"the smallest sizes {self.smallest} are above the largest {self.largest}")

    @classmethod
    def of(cls, shape: Sequence[int]) -> SampleSizes:
        """The sizes in one batch.

        Args:
            shape: The batch's shape, whose first axis has the samples.
        """
        sizes = tuple(int(size) for size in shape[1:])
        return cls(sizes, sizes)

    def merge(self, other: SampleSizes) -> SampleSizes:
        """The sizes of both."""
        return SampleSizes(
            tuple(map(min, self.smallest, other.smallest)), tuple(map(max, self.largest, other.largest))
        )


_BITS = 256


class DataFingerprint:
    """Identifies the multiset of samples that was observed.

    Every sample has a digest of its inputs' names, types, shapes and bytes; the digests are added up, which
    forgets their order but, unlike XOR, not how often each occurs. Where the inputs of a feed do not share
    axis 0, the feed is one sample.

    Attributes:
        samples: How many samples were observed.
    """

    def __init__(self) -> None:
        self.samples = 0
        self._sum = 0

    def observe(self, feed: FeedDict) -> list[int]:
        """Adds the samples of one feed.

        Args:
            feed: Input name to array, any shapes and types.

        Returns:
            The digest of each sample, in order.
        """
        rows = batch_rows(feed)
        if rows is None:
            return [self._add(feed)]
        return [self._add({name: array[row, ...] for name, array in feed.items()}) for row in range(rows)]

    def merge(self, other: DataFingerprint) -> DataFingerprint:
        """The fingerprint of what either of the two has observed.

        Args:
            other: The fingerprint of other samples.
        """
        merged = DataFingerprint()
        merged.samples = self.samples + other.samples
        merged._sum = (self._sum + other._sum) % (1 << _BITS)
        return merged

    def copy(self) -> DataFingerprint:
        """An independent copy."""
        return self.merge(DataFingerprint())

    def hexdigest(self) -> str:
        """The fingerprint of everything observed so far: 64 hexadecimal digits."""
        summary = f"{self.samples} {self._sum:x}"
        return hashlib.blake2b(summary.encode(), digest_size=_BITS // 8).hexdigest()

    def _add(self, sample: FeedDict) -> int:
        digest = hashlib.blake2b(digest_size=_BITS // 8)
        for name, array in sorted(sample.items()):
            # repr() quotes the name, so that no name can pass for another's type or shape.
            digest.update(f"{name!r} {array.dtype.str} {array.shape}\n".encode())
            digest.update(array.tobytes())
        number = int.from_bytes(digest.digest(), "big")
        self._sum = (self._sum + number) % (1 << _BITS)
        self.samples += 1
        return number


#: The most bytes of a model's outputs for one sample that are kept with it.
_MOST_OUTPUT_BYTES = 1 << 20

#: What a model gives out for one sample, one array for each of its outputs.
Outputs: TypeAlias = list[Array]


class SampleKeeper:
    """Keeps the samples with the smallest digests, which is a random choice that depends on nothing else.

    Equal samples are kept once. In the order of the digests, samples are kept up to the first that exceeds a
    limit, and none beyond it, even if it is small enough: which samples came first leaves no trace.

    Args:
        count: How many samples are kept; 0 keeps none.
        whole_batches: Whether batches are kept in place of single samples, as a model takes them whose batch
            size is fixed.
        most_bytes: The most bytes that they may have together; one sample is kept however large it is.
    """

    def __init__(self, count: int = 0, *, whole_batches: bool = False, most_bytes: int = 64 << 20) -> None:
        self._count, self._whole, self._most_bytes = count, whole_batches, most_bytes
        #: Digest to sample, and the digests as a heap whose first is the largest, negated.
        self._samples: dict[int, FeedDict] = {}
        #: Digest to what the model gives out for the sample, as far as that is known.
        self._outputs: dict[int, Outputs] = {}
        self._heap: list[int] = []
        self._bytes = 0
        #: The smallest digest that exceeded a limit; infinite where none has.
        self._refused: float = math.inf if count else -math.inf

    def observe(self, feed: FeedDict, digests: Sequence[int]) -> dict[int, int]:
        """Looks at the samples of one feed.

        Args:
            feed: Input name to array.
            digests: One digest per sample, in order; a single one where the whole feed is one sample.

        Returns:
            For the samples that are kept until others take their place: row of the feed to digest. Nothing
            where the whole feed is one sample.
        """
        rows = None if self._whole else batch_rows(feed)
        if self._whole:
            digests = [sum(digests)]
        kept = {}
        for row, digest in enumerate(digests):
            if self._wants(digest):
                own = feed if rows is None else part_of(feed, row, row + 1)
                self._add(digest, copied_feed(own))
                if rows is not None and digest in self._samples:
                    kept[row] = digest
        return kept

    def add_outputs(self, outputs: Mapping[int, Outputs]) -> None:
        """Keeps what the model gives out for samples, as long as they are kept; large outputs are not.

        Args:
            outputs: Digest to the outputs for that sample.
        """
        for digest, arrays in outputs.items():
            if digest in self._samples and sum(array.nbytes for array in arrays) <= _MOST_OUTPUT_BYTES:
                self._outputs[digest] = arrays

    def merge(self, other: SampleKeeper) -> SampleKeeper:
        """The samples that one keeper would have kept of both parts of the data.

        Args:
            other: The keeper of other samples, with the same limits.
        """
        merged = SampleKeeper(self._count, whole_batches=self._whole, most_bytes=self._most_bytes)
        merged._refused = min(self._refused, other._refused)
        for keeper in (self, other):
            for digest, sample in keeper._samples.items():
                if merged._wants(digest):
                    merged._add(digest, sample)
            merged.add_outputs(keeper._outputs)
        return merged

    @property
    def samples(self) -> list[FeedDict]:
        """The samples in the order of their digests; one row each where samples lie along axis 0."""
        return [self._samples[digest] for digest in sorted(self._samples)]

    @property
    def outputs(self) -> list[Outputs | None]:
        """What the model gives out for each of the samples, in their order; None where it is not known."""
        return [self._outputs.get(digest) for digest in sorted(self._samples)]

    def _wants(self, digest: int) -> bool:
        return digest not in self._samples and digest < self._refused

    def _add(self, digest: int, sample: FeedDict) -> None:
        self._samples[digest] = sample
        heapq.heappush(self._heap, -digest)
        self._bytes += _size(sample)
        while len(self._samples) > 1 and (len(self._samples) > self._count or self._bytes > self._most_bytes):
            self._refused = -heapq.heappop(self._heap)
            self._bytes -= _size(self._samples.pop(self._refused))
            self._outputs.pop(self._refused, None)


def _size(sample: FeedDict) -> int:
    """The bytes of a sample's arrays."""
    return sum(array.nbytes for array in sample.values())


def check_feed(
    feed: FeedDict,
    inputs: Sequence[InputSpec],
    first_sample: int = 0,
    name_of: NameOf = numbered,
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

    def __init__(self, inputs: Sequence[InputSpec], name_of: NameOf = numbered) -> None:
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
                _add(self.sizes, spec.name, SampleSizes.of(feed[spec.name].shape))
        self.samples += 1 if rows is None else rows

    def _observe_values(self, name: str, array: Array, samples: int) -> None:
        by_sample = array.reshape(samples, -1)
        low, high = by_sample.min(axis=1).astype(np.float64), by_sample.max(axis=1).astype(np.float64)
        pixels = low.min() >= 0 and high.max() <= 255
        if name in self._ranges:
            pixels = pixels and self._ranges[name].pixels
        # The costly comparison comes last: normalized data fails it once and is never compared again.
        pixels = bool(pixels and np.array_equal(array, np.rint(array)))
        _add(self._ranges, name, _Range(float(low.min()), float(high.max()), pixels))
        peaks = SamplePeaks.of(np.maximum(-low, high), self.samples)
        self._peaks[name] = self._peaks.get(name, _NO_PEAKS).merge(peaks)

    def merge(self, other: Preflight) -> Preflight:
        """What watching the feeds of both would have shown.

        Args:
            other: A watcher of the same inputs, on other feeds.
        """
        merged = Preflight(self._inputs)
        merged.samples = self.samples + other.samples
        for part in (self, other):
            for name, sizes in part.sizes.items():
                _add(merged.sizes, name, sizes)
            for name, found in part._ranges.items():
                _add(merged._ranges, name, found)
        for name in self._peaks | other._peaks:
            peaks, later = (one._peaks.get(name, _NO_PEAKS) for one in (self, other))
            merged._peaks[name] = peaks.merge(later, self.samples)
        return merged

    def finish(self, name_of: NameOf = numbered) -> list[str]:
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


def _finding_of(name: str, unusual: UnusualSamples, samples: int, name_of: NameOf) -> str:
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

    def merge(self, other: _Range) -> _Range:
        """The extent of the values of both."""
        return _Range(min(self.low, other.low), max(self.high, other.high), self.pixels and other.pixels)


_Seen = TypeVar("_Seen", SampleSizes, _Range)


def _add(seen: dict[str, _Seen], name: str, more: _Seen) -> None:
    """Adds what was seen of an input."""
    seen[name] = seen[name].merge(more) if name in seen else more


def _check_shape(array: Array, spec: InputSpec) -> None:
    if spec.shape is None:
        return
    shape = shape_text(array.shape)
    if array.ndim != len(spec.shape):
        advice = "reshape it"
        if not spec.shape:
            advice = "give one number, an array without axes, which is fed with every sample"
        elif array.ndim == len(spec.shape) - 1:
            advice = f"add the missing axis with {_widening(array.shape, spec.shape)}"
        raise CalibrationDataError(
            f"the data for input '{spec.name}' has shape {shape} but the model takes "
            f"{shape_text(spec.shape)}: rank {array.ndim} instead of {len(spec.shape)}; {advice}"
        )
    if not fits(array.shape, spec.shape):
        advice = "bring the data to this shape"
        if fits(array.shape[1:], spec.shape[1:]):
            advice += f": {Argument('batch_size', str(spec.shape[0]))} makes such batches"
        if (move := moved_axis(array.shape, spec.shape)) is not None:
            move_it = f"numpy.moveaxis(array, {move[0]}, {move[1]})"
            advice = f"the data has the other layout: bring it to this one with {move_it}"
        raise CalibrationDataError(
            f"the data for input '{spec.name}' has shape {shape} but the model takes "
            f"{shape_text(spec.shape)}; {advice}"
        )


def _widening(shape: Shape, wanted: tuple[int | str | None, ...]) -> str:
    """How an array gets the axis that it lacks, in Python.

    It may be one sample, whose axes may lie in another order, as those of a video's frames do.
    """
    axes = [axis for axis in range(len(wanted)) if fits((*shape[:axis], 1, *shape[axis:]), wanted)]
    sure = [axis for axis in axes if not axis or wanted[axis] == 1]
    if not sure and (move := moved_axis((1, *shape), wanted)) is not None:
        return f"numpy.moveaxis(array, {move[0]}, {move[1]})[None]"
    return f"numpy.expand_dims(array, {(sure or axes or [0])[0]})"


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


def _first_not_finite(array: Array, samples: int, hides_scores: bool) -> tuple[int, int] | None:
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
    def of(cls, peaks: Floats, first: int = 0) -> SamplePeaks:
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
