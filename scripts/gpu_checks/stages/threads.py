"""Many threads and contexts on one engine: bit for bit the same, and no memory that grows."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from gpu_checks import limits
from gpu_checks.checking import Check
from gpu_checks.records import Finding
from gpu_checks.stages.host import host_side
from gpu_checks.stages.implicit import build_implicit
from gpu_checks.subjects import Subject, subjects
from trtint8 import Engine

_TABLE = "Threads and soak"
_BATCH, _FEEDS = 8, 16
_SAMPLE_SECONDS = 0.25
#: Share of the soak that may fill pools; what is used grows no further after it.
_SETTLING = 0.2
_ALLOWED_GROWTH = 2 << 20

_Logits = NDArray[np.float32]


def run(check: Check) -> None:
    """Runs the stage."""
    # The first that can be had: one network is enough.
    for subject in itertools.islice(subjects(check, _TABLE, ("resnet20", "demo")), 1):
        engines: list[Engine] = []
        check.attempt(_TABLE, f"{subject.name}, build", partial(_build, check, subject, engines))
        if engines:
            with engines[0] as engine:
                feeds, seconds = subject.feeds(_BATCH)[:_FEEDS], check.settings.soak
                check.attempt(_TABLE, f"{subject.name}, threads", partial(_threads, engine, feeds))
                check.attempt(_TABLE, f"{subject.name}, soak", partial(_soak, engine, feeds, seconds))


def _build(check: Check, subject: Subject, engines: list[Engine]) -> Finding:
    result = build_implicit(check, subject, host_side(check, subject).table, fp16=True)
    engines.append(Engine.load(result.engine))
    return Finding({"build s": result.seconds})


@dataclass(frozen=True)
class _Work:
    """One engine's feeds, and what a single thread makes of them."""

    engine: Engine
    feeds: Sequence[dict[str, _Logits]]
    wanted: Sequence[_Logits]

    @classmethod
    def of(cls, engine: Engine, feeds: Sequence[dict[str, _Logits]]) -> _Work:
        output = engine.outputs[0].name
        return cls(engine, feeds, [engine.infer(feed)[output] for feed in feeds])

    def wrong(self, infer: Callable[[dict[str, _Logits]], dict[str, _Logits]], step: int) -> bool:
        """Runs one feed; whether any bit differs."""
        index = step % len(self.feeds)
        outputs = infer(self.feeds[index])
        return not np.array_equal(outputs[self.engine.outputs[0].name], self.wanted[index])


def _threads(engine: Engine, feeds: Sequence[dict[str, _Logits]]) -> Finding:
    work = _Work.of(engine, feeds)
    repeated = sum(work.wrong(engine.infer, step) for step in range(len(feeds)))

    def one(shift: int) -> int:
        contexts = [engine.new_context() for _ in range(limits.CONTEXTS)]
        steps = range(limits.INFERENCES)
        count = sum(work.wrong(context.infer, shift + step) for step in steps for context in contexts)
        for context in contexts:
            context.close()
        return count

    began = time.monotonic()
    counts = in_threads(one, limits.THREADS)
    took = time.monotonic() - began
    done = limits.THREADS * limits.CONTEXTS * limits.INFERENCES
    figures = {
        "inferences": done,
        "differ": sum(counts),
        "differ in one thread": repeated,
        "inferences per second": done / took,
    }
    return Finding(figures, not sum(counts) and not repeated, f"batch {_BATCH}")


def _soak(engine: Engine, feeds: Sequence[dict[str, _Logits]], seconds: float) -> Finding:
    work, stop = _Work.of(engine, feeds), threading.Event()
    done = [0] * limits.THREADS

    def one(number: int) -> int:
        count = 0
        while not stop.is_set():
            count += work.wrong(engine.infer, number + done[number])
            done[number] += 1
        return count

    used: list[int] = []

    def watch() -> None:
        began = time.monotonic()
        while time.monotonic() - began < seconds and not stop.is_set():
            with engine.device.active():
                free, total = engine.device.memory()
            used.append(total - free)
            time.sleep(_SAMPLE_SECONDS)
        stop.set()

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        wrong = sum(in_threads(one, limits.THREADS))
    finally:
        stop.set()
        watcher.join()
    growth = settled_growth(used)
    figures = {
        "inferences": sum(done),
        "differ": wrong,
        "soak s": seconds,
        "device MB at first": used[0] / 1e6,
        "at most": max(used) / 1e6,
        "growth once settled, MB": growth / 1e6,
    }
    return Finding(figures, not wrong and growth <= _ALLOWED_GROWTH)


def settled_growth(used: Sequence[int]) -> int:
    """How far memory in use rose above what it was after the first fifth of the samples.

    Args:
        used: Bytes in use over time, at least one.
    """
    start = int(len(used) * _SETTLING)
    return max(used[start:]) - used[start]


def in_threads(work: Callable[[int], int], count: int) -> list[int]:
    """Runs ``work`` with 0, 1, … in threads of their own, and raises what one of them raised.

    Args:
        work: Takes the thread's number.
        count: How many threads.

    Returns:
        What each returned.
    """
    results: list[int] = [0] * count
    failures: list[BaseException] = []

    def one(number: int) -> None:
        try:
            results[number] = work(number)
        except BaseException as error:  # noqa: BLE001 raised below, in the thread that waits
            failures.append(error)

    threads = [threading.Thread(target=one, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return results
