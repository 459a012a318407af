"""Calls per second of functions that are compared: they alternate, so that a warmer GPU favours none."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

_PROBES = 3
_FEWEST, _MOST = 3, 5000


def _nothing() -> None:
    """Waits for nothing."""


@dataclass(frozen=True)
class Contender:
    """A function that is measured.

    Attributes:
        call: Makes one call.
        finish: Waits for all calls.
    """

    call: Callable[[], object]
    finish: Callable[[], object] = _nothing


def take_turns(
    contenders: Mapping[str, Contender],
    *,
    seconds: float,
    rounds: int,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """Measures each contender in every round.

    Args:
        contenders: Name to the function that is measured.
        seconds: About how long each function is called in a round, in seconds.
        rounds: How many rounds there are.
        clock: Returns the present time, in seconds.

    Returns:
        Name to calls per second, the median of the rounds.
    """
    counts = {}
    for name, contender in contenders.items():
        _lasting(contender, 1, clock)
        probe = _lasting(contender, _PROBES, clock) / _PROBES
        # Decided before, not while it runs: calls that only queue work would be repeated for far too long.
        counts[name] = max(_FEWEST, min(_MOST, int(seconds / max(probe, 1e-9))))
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, contender in contenders.items():
            rates[name].append(counts[name] / _lasting(contender, counts[name], clock))
    return {name: statistics.median(values) for name, values in rates.items()}


def _lasting(contender: Contender, count: int, clock: Callable[[], float]) -> float:
    began = clock()
    for _ in range(count):
        contender.call()
    contender.finish()
    return clock() - began
