"""How long a search may take."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from calibrators.checks import is_number
from calibrators.errors import Argument, CalibrationDataError

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
