"""Histograms of many tensors, counted by several threads."""

from __future__ import annotations

import functools
from collections import ChainMap, deque
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrators.histograms.histogram import Histogram
from calibrators.histograms.signed import SignedHistogram

#: Values that a thread takes at once: enough to be worth it, few enough to share a large tensor.
_PIECE = 1 << 20


class ParallelHistograms:
    """Counts arrays in pieces, each thread into histograms of its own, which merge exactly.

    A context manager, for its threads. Only ``observe_in_thread`` and ``first_with_nan`` may be called while
    another call runs.
    """

    def __init__(
        self, histograms: Mapping[str, Histogram], threads: int, rectified: Mapping[str, str] | None = None
    ) -> None:
        """Begins with what was counted before.

        Args:
            histograms: Tensor name to histogram; they are not changed.
            threads: How many count at once, the caller's among them.
            rectified: Outputs of Relu to their inputs, each of another input. They are counted with their
                inputs, and not given to ``observe``.
        """
        self._rectified = dict(rectified or {})
        self._parts = [{name: found.copy() for name, found in histograms.items()}]
        self._parts += [
            {name: Histogram(np.zeros_like(found.counts)) for name, found in histograms.items()}
            for _ in range(threads - 1)
        ]
        self._signed = [
            {name: SignedHistogram.of_bins(len(histograms[name].counts)) for name in self._rectified.values()}
            for _ in range(threads)
        ]
        self._pool = ThreadPoolExecutor(max(1, threads - 1), "trtint8-count")

    def __enter__(self) -> ParallelHistograms:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._pool.shutdown()

    def observe(self, arrays: Iterable[tuple[str, NDArray[np.floating]]]) -> None:
        """Counts every element of arrays of any shape; returns when all are counted.

        Args:
            arrays: Tensor names and their values, taken as float32.
        """
        pieces = deque(
            (name, flat[start : start + _PIECE])
            for name, values in arrays
            for flat in [np.ascontiguousarray(values).reshape(-1)]
            for start in range(0, flat.size, _PIECE)
        )
        first, *others = (self._of_thread(number) for number in range(len(self._parts)))
        waiting = [self._pool.submit(_count, pieces, part) for part in others[: len(pieces) - 1]]
        _count(pieces, first)
        for future in waiting:
            future.result()

    def observe_in_thread(self, number: int, arrays: Iterable[tuple[str, NDArray[np.floating]]]) -> None:
        """Counts every element in the calling thread; others may call this with other numbers meanwhile.

        Args:
            number: Which of the threads it is, from 0.
            arrays: Tensor names and their values, taken as float32.
        """
        histograms = self._of_thread(number)
        for name, values in arrays:
            histograms[name].observe(values)

    def _of_thread(self, number: int) -> Mapping[str, Histogram | SignedHistogram]:
        """Tensor name to what one of the threads counts into."""
        maps: tuple[dict[str, Any], ...] = (self._signed[number], self._parts[number])
        return ChainMap(*maps)

    def first_with_nan(self) -> str | None:
        """The first tensor that held NaN so far; None where none did."""
        for name in self._parts[0]:
            signed = any(part[name].upper.nans for part in self._signed if name in part)
            if signed or any(part[name].nans for part in self._parts):
                return name
        return None

    def merged(self) -> dict[str, Histogram]:
        """New histograms of all that was counted so far."""
        merged = {
            name: functools.reduce(Histogram.merge, (part[name] for part in self._parts[1:]), found.copy())
            for name, found in self._parts[0].items()
        }
        for output, source in self._rectified.items():
            for part in self._signed:
                merged[source] = merged[source].merge(part[source].magnitudes)
                merged[output] = merged[output].merge(part[source].rectified)
        return merged


def _count(
    pieces: deque[tuple[str, NDArray[np.floating]]], histograms: Mapping[str, Histogram | SignedHistogram]
) -> None:
    while True:
        try:
            name, values = pieces.popleft()
        except IndexError:
            return
        histograms[name].observe(values)
