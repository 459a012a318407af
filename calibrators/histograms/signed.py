"""Histograms of a tensor and of what a Relu makes of it, from one look at the tensor."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from calibrators.histograms.binning import kernel
from calibrators.histograms.histogram import Histogram, count_all


@dataclass(eq=False)
class SignedHistogram:
    """Counts the values of a tensor by their sign.

    Attributes:
        upper: The values of 0 and more, and those that are not a number.
        lower: The values below zero.
    """

    upper: Histogram
    lower: Histogram

    @classmethod
    def of_bins(cls, bins: int) -> SignedHistogram:
        """One that has observed nothing.

        Args:
            bins: How many bins each side has; a power of two.
        """
        return cls(Histogram(np.zeros(bins, np.int64)), Histogram(np.zeros(bins, np.int64)))

    def observe(self, values: NDArray[np.floating]) -> None:
        """Adds every element of an array of any shape.

        Args:
            values: Floating-point array; taken as float32.
        """
        count_all(values, self._count, self._make_room)

    @property
    def magnitudes(self) -> Histogram:
        """What one histogram of all values would have counted."""
        return self.upper.merge(self.lower)

    @property
    def rectified(self) -> Histogram:
        """What one histogram of max(x, 0) would have counted."""
        found = self.upper.copy()
        found.zeros += self.lower.total + self.lower.infs
        return found

    def _count(self, flat: NDArray[np.float32]) -> int:
        """Counts values up to the first block that has one in no bin; returns how many."""
        count_sides = kernel().count_sides
        if count_sides is None:
            return 0
        widths = (self.upper.bin_width, self.lower.bin_width)
        found = count_sides(flat, widths, len(self.upper.counts))
        self.upper.add(found.counts[0], found.zeros, found.peaks[0], found.octaves[0])
        self.lower.add(found.counts[1], 0, found.peaks[1], found.octaves[1])
        return found.taken

    def _make_room(self, block: NDArray[np.float32]) -> int:
        """Widens the bins for a block, or counts it side by side; returns how many values were counted."""
        highest, lowest = float(block.max()), float(block.min())
        if kernel().count_sides and math.isfinite(highest) and math.isfinite(lowest):
            self.upper.reach(max(highest, 0.0))
            self.lower.reach(max(-lowest, 0.0))
            return 0
        below = block < 0
        self.upper.observe(block[~below])
        self.lower.observe(block[below])
        return block.size
