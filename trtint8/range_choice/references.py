"""The float network's outputs for the samples that ranges are tried on."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from functools import cached_property
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrators.data.feeds import FeedDict, OneSample, is_float, joined
from calibrators.data.samples import Outputs
from calibrators.errors import CalibrationDataError
from calibrators.host.threads import in_thread
from trtint8.range_choice.trial_network import Reference


class References:
    """Runs the float network on samples, several at once where it takes batches, and each once.

    Several threads may ask for batches.

    Args:
        run: Runs the float network on a feed.
        samples: One feed per sample, at least one.
        rows: The most samples that are run at once.
        first: So many samples are run first, to see what the outputs are.
        separate: Whether all outputs are known to have samples along axis 0, each computed by itself; it is
            tried where that is not known.
        known: The outputs for each sample, where they are known, each of one row; None for those that are
            not. Empty where they have to be run to see what they are like.

    Raises:
        CalibrationDataError: The network fails on a sample.
    """

    def __init__(
        self,
        run: Reference,
        samples: Sequence[FeedDict],
        rows: int,
        *,
        first: int,
        separate: bool,
        known: Sequence[Outputs | None] = (),
    ) -> None:
        self._run, self._samples = run, samples
        self._ahead: Future[None] | None = None
        self._lock = Lock()
        first = min(len(samples), rows, first) if self._alike else 1
        if known:
            #: How many samples are run at once.
            self.rows = rows if self._alike else 1
            #: The outputs for each sample, as far as they are known.
            self._known = list(known)
            self.run_until(first)
        else:
            together = self._together(first, separate)
            found = together or [run(samples[0])]
            self.rows = rows if together else 1
            self._known = [*found, *[None] * (len(samples) - len(found))]

    @property
    def elements(self) -> int:
        """How many elements the floating-point outputs have for one sample."""
        return sum(output.size for output in self._outputs(0, 1)[0] if is_float(output.dtype))

    def run_ahead(self, stop: int) -> None:
        """Runs the samples before one while the caller goes on."""
        self._ahead = in_thread(self.run_until, stop)

    def batch(self, start: int, stop: int) -> tuple[FeedDict, list[NDArray[Any]]]:
        """Some samples as one feed, and the outputs of the float network for them.

        Args:
            start: The number of the first sample.
            stop: The number after that of the last one.

        Raises:
            CalibrationDataError: The network fails on a sample.
        """
        with self._lock:
            if self._ahead:
                self._ahead.result()
                self._ahead = None
            self.run_until(stop)
        feed, known = joined(self._samples[start:stop]), self._outputs(start, stop)
        outputs = [np.concatenate(rows) for rows in zip(*known, strict=True)] if len(known) > 1 else known[0]
        return feed, outputs

    def run_until(self, stop: int) -> None:
        """Runs the samples before one, as far as their outputs are not known."""
        missing = [number for number in range(stop) if self._known[number] is None]
        for first in range(0, len(missing), self.rows):
            numbers = missing[first : first + self.rows]
            outputs = self._run(joined([self._samples[number] for number in numbers]))
            rows = _rows(outputs, len(numbers)) if len(numbers) > 1 else [outputs]
            for number, row in zip(numbers, rows, strict=True):
                self._known[number] = row

    def _outputs(self, start: int, stop: int) -> list[Outputs]:
        """The outputs for some samples, which are known."""
        return [outputs for outputs in self._known[start:stop] if outputs is not None]

    @cached_property
    def _alike(self) -> bool:
        """Whether all samples may be joined as far as their shapes tell, which differ in axis 0 at most."""
        if any(isinstance(feed, OneSample) for feed in self._samples):
            return False
        return len({tuple((name, a.shape[1:]) for name, a in feed.items()) for feed in self._samples}) == 1

    def _together(self, count: int, separate: bool) -> list[Outputs] | None:
        """The outputs for the first samples, run at once; None where that gives no row per sample."""
        if count < 2:
            return None
        try:
            outputs = self._run(joined(self._samples[:count]))
        except (CalibrationDataError, ValueError):  # a batch of one only, or inputs without axes
            return None
        if any(not output.ndim or len(output) != count for output in outputs):
            return None
        if not separate and any(len(output) != 1 for output in self._run(self._samples[0])):
            return None
        return _rows(outputs, count)


def _rows(outputs: Sequence[NDArray[Any]], count: int) -> list[Outputs]:
    """The outputs for each sample of a batch."""
    return [[output[row : row + 1] for output in outputs] for row in range(count)]
