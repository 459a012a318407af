"""The trials of a search in the order in which they were made, so that an interrupted search goes on.

How long a search may take.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from calibrators.checks import FilePath, is_number
from calibrators.errors import Argument, CalibrationDataError, TableError
from calibrators.host.checkpoint import Checkpoint, Kind, check_place
from calibrators.records import Probability
from trtint8.tuning.candidates import Trial
from trtint8.tuning.stopwatch import Timing


@dataclass(frozen=True)
class SearchProgress:
    """What a search has found out.

    Attributes:
        trials: All trials, in order.
        shares: Name of a layer to its share of the network's noise; empty before it was measured.
        keep_float: Names of the layers that were in float from the start.
        timings: Key of a choice of layers, and of what else times depend on, to the time of its engine; None
            where it cannot be built or run.
    """

    trials: tuple[Trial, ...] = ()
    shares: Mapping[str, Probability] = field(default_factory=dict)
    keep_float: tuple[str, ...] = ()
    timings: Mapping[str, Timing | None] = field(default_factory=dict)


def _checked(progress: SearchProgress) -> SearchProgress:
    if len(set(progress.keep_float)) < len(progress.keep_float):
        raise ValueError("a layer stands twice among those in float")
    return progress


#: The checkpoint of a search, which holds its progress as it is.
_SEARCH = Kind("search", SearchProgress, lambda progress: progress, _checked)


class Journal:
    """Records trials, and gives those of an interrupted search again.

    A search is deterministic, so what was scored once has the same score again, and what was rejected need
    not even be made.

    Args:
        checkpoint: The file, which holds the trials of the interrupted search; None for none.

    Raises:
        TableError: The file is damaged, or of another search.
    """

    def __init__(self, checkpoint: Checkpoint[SearchProgress] | None = None) -> None:
        self._checkpoint = checkpoint
        known = checkpoint.load() if checkpoint else None
        self._known = known or SearchProgress()
        self._trials: list[Trial] = []

    @property
    def trials(self) -> tuple[Trial, ...]:
        """The trials so far, in order."""
        return tuple(self._trials)

    @property
    def next(self) -> Trial | None:
        """The trial that followed in the interrupted search; None where it came no further."""
        known = self._known.trials
        return known[len(self._trials)] if len(self._trials) < len(known) else None

    def add(self, trial: Trial) -> None:
        """Records a trial, and writes the file where there is one.

        Raises:
            TableError: The interrupted search had another score for the network as it was calibrated.
            OutputError: The file cannot be written.
        """
        known = self.next
        if known is not None and (known.what, known.score) != (trial.what, trial.score):
            assert self._checkpoint is not None
            raise TableError(
                f"the checkpoint '{self._checkpoint.path}' was made with other samples: '{trial.what}' has "
                f"another score; give the same samples, or remove the checkpoint to begin anew"
            )
        self._trials.append(trial)
        if known is None:
            self._save()

    @property
    def shares(self) -> Mapping[str, float]:
        """Each layer's share of the noise as it was measured, also by the interrupted search; else empty."""
        return self._known.shares

    def add_shares(self, shares: Mapping[str, float]) -> None:
        """Records each layer's share of the noise.

        Raises:
            OutputError: The file cannot be written.
        """
        self._known = replace(self._known, shares=shares)
        self._save()

    def start_from(self, keep_float: tuple[str, ...]) -> None:
        """Says which layers are in float from the start; trials that started from others are forgotten."""
        if self._known.keep_float != keep_float:
            self._known = replace(self._known, trials=(), shares={}, keep_float=keep_float)

    @property
    def timings(self) -> Mapping[str, Timing | None]:
        """The times of engines so far, also those of the interrupted search."""
        return self._known.timings

    def add_timing(self, key: str, timing: Timing | None) -> None:
        """Records the time of an engine; None where it cannot be built or run.

        Raises:
            OutputError: The file cannot be written.
        """
        self._known = replace(self._known, timings={**self.timings, key: timing})
        self._save()

    def remove(self) -> None:
        """Deletes the file where there is one: to continue would end as this search did.

        Raises:
            OutputError: The file cannot be removed.
        """
        if self._checkpoint:
            self._checkpoint.remove()

    def _save(self) -> None:
        if self._checkpoint:
            # While engines are timed, none of the known trials was replayed yet.
            trials = (*self._trials, *self._known.trials[len(self._trials) :])
            self._checkpoint.save(replace(self._known, trials=trials))


@dataclass(frozen=True)
class JournalFile:
    """Where a search keeps its trials.

    Attributes:
        path: The file.
        resume: Continue from the file where there is one; else it is overwritten.
    """

    path: FilePath
    resume: bool = False

    def open(self, identity: Mapping[str, object]) -> Journal:
        """Opens the journal.

        Args:
            identity: What the search depends on besides the samples, by name.

        Raises:
            TableError: The file is damaged, or of another search.
            OutputError: The file cannot be written.
        """
        checkpoint = Checkpoint(check_place(self.path), dict(identity), _SEARCH, resume=self.resume)
        return Journal(checkpoint)


T = TypeVar("T")


class OutOfTimeError(Exception):
    """The search has taken as long as it may; it never leaves the search."""


@dataclass(frozen=True)
class TimeLimit:
    """A moment after which nothing further is tried.

    Attributes:
        minutes: How long the search may take from the making of this object on; None for no limit.

    Raises:
        CalibrationDataError: The minutes are not positive.
    """

    minutes: float | None = None
    _begun: float = field(default_factory=time.monotonic, repr=False)

    def __post_init__(self) -> None:
        if self.minutes is not None and not (is_number(self.minutes) and 0 < self.minutes < math.inf):
            raise CalibrationDataError(f"{Argument('minutes')} is {self.minutes!r}; give a positive number")

    def half(self) -> TimeLimit:
        """A limit of half the time, which begins now."""
        return TimeLimit(None if self.minutes is None else self.minutes / 2)

    def check(self) -> None:
        """Raises OutOfTimeError after the limit."""
        if self.minutes is not None and time.monotonic() - self._begun > 60 * self.minutes:
            raise OutOfTimeError

    def watched(self, items: Iterable[T]) -> Iterator[T]:
        """The items, as long as there is time.

        Raises:
            OutOfTimeError: The limit is passed before an item.
        """
        for item in items:
            self.check()
            yield item
