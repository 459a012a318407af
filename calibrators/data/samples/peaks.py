"""How far the values of samples reach, to find the few samples that reach much further than the others."""

from __future__ import annotations

import heapq
import itertools
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

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
