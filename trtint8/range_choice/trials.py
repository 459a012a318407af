"""Runs of the quantized network with the ranges of each rule, several at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain

import numpy as np

from trtint8.range_choice.noise import noise_levels
from trtint8.range_choice.references import References
from trtint8.range_choice.trial_network import TrialNetwork

#: The noise levels of some samples, which are still being measured, part by part.
_Waiting = list[Future[list[float]]]


class Trials:
    """Measures the noise of the quantized network, on some samples and with the ranges of some rules.

    A context manager, at whose end nothing of it runs any more.

    Args:
        network: The network.
        references: The float network's outputs.
        advance: Called with the number of samples that were run.
    """

    def __init__(self, network: TrialNetwork, references: References, advance: Callable[[int], None]) -> None:
        self._network, self._references, self._advance = network, references, advance
        self._pool = ThreadPoolExecutor(network.runs_at_once, "trtint8-trial")
        self._scales: dict[str, Mapping[str, np.float32]] = {}
        self._begun: dict[tuple[str, int, int], _Waiting] = {}

    def __enter__(self) -> Trials:
        return self

    def __exit__(self, *_error: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def add(self, rule: str, scales: Mapping[str, np.float32], stop: int) -> None:
        """Adds a rule, and begins with the samples before ``stop`` while the caller goes on.

        Args:
            rule: Its name.
            scales: The scale of every quantized activation, from :meth:`TrialNetwork.scales`.
            stop: The number after that of the last sample for which its noise will be asked first.
        """
        self._scales[rule] = scales
        self._begun[rule, 0, stop] = self._begin(rule, 0, stop)

    def noise(self, rules: Iterable[str], start: int, stop: int) -> dict[str, list[float]]:
        """The noise of the quantized network: see :func:`noise_levels`.

        Args:
            rules: Names of rules that were added.
            start: The number of the first sample.
            stop: The number after that of the last one.

        Returns:
            For each rule one level per sample, in decibels.

        Raises:
            CalibrationDataError: The model fails on a sample.
        """
        waiting = {
            rule: self._begun.pop((rule, start, stop), []) or self._begin(rule, start, stop) for rule in rules
        }
        levels = {}
        for rule, parts in waiting.items():
            levels[rule] = [*chain.from_iterable(part.result() for part in parts)]
            self._advance(stop - start)
        return levels

    def _begin(self, rule: str, start: int, stop: int) -> _Waiting:
        # Each of the runs at once has its share of the samples, and of the memory.
        share = self._network.runs_at_once
        rows = max(1, min(self._references.rows // share, math.ceil((stop - start) / share)))
        return [
            self._pool.submit(self._run, rule, first, min(first + rows, stop))
            for first in range(start, stop, rows)
        ]

    def _run(self, rule: str, start: int, stop: int) -> list[float]:
        feed, wanted = self._references.batch(start, stop)
        got = self._network.outputs(feed, self._scales[rule])
        levels: list[float] = noise_levels(wanted, got, stop - start).tolist()
        return levels
