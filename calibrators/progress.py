"""How long work shows itself: how far it has come, and how long it still takes.

A job (:func:`job`) says up front which phases it has, and how much work each of them is. A phase
(:func:`progress_bar`) is a bar on a terminal and in a notebook. The command line writes a line a minute where
there is neither (:func:`lines_without_terminal`), so that a log shows that the work goes on.

Work is counted in one unit per job, such as runs of the float network on one sample. What was done says how
long a unit takes, so the time left covers the phases to come. Where some of them are not known yet, the time
is the least that it takes, and says so.
"""

from __future__ import annotations

import html
import importlib
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TextIO, cast

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Task, TaskID

#: The phases that jobs plan for: what they are called.
CALIBRATING, CHOOSING, VALIDATING, MEASURING = "Calibrating", "Choosing ranges", "Validating", "Measuring"
SEARCHING, JUDGING, BUILDING = "Searching", "Judging", "Building engine"

#: Gives the time in seconds.
_clock = time.monotonic

#: The share of a job that has to be done before its end is estimated: the first batch also opens the network.
_TOO_EARLY = 0.05

#: Seconds between two lines where there is no terminal.
_A_MINUTE = 60.0

#: The least seconds between two pictures of a bar in a notebook, which are sent to a browser.
_BETWEEN_PICTURES = 0.2


class _Terminal:
    """A terminal that may go away: what cannot be written any more is left out, and the work goes on.

    Args:
        stream: The terminal.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Writes a text where that is possible."""
        with suppress(OSError, ValueError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Hands on what is in the buffer where that is possible."""
        with suppress(OSError, ValueError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _is_terminal(stream: TextIO | None) -> bool:
    """Whether a stream is a terminal; standard error is None, or closed, where a program was started so."""
    with suppress(OSError, ValueError):
        return stream is not None and stream.isatty()
    return False


def _draws(stream: TextIO | None) -> bool:
    """Whether bars can be drawn on a stream: on a terminal that can go back to the start of a line."""
    return _is_terminal(stream) and os.environ.get("TERM") not in ("dumb", "unknown")


def literal_console(file: TextIO | None = None, width: int | None = None) -> Console:
    """Returns a console of rich that shows texts as they are: ``[b]`` is no markup and ``:bug:`` no picture.

    Args:
        file: Where it writes; standard output where None.
        width: How many characters wide it is; as wide as the terminal where None.
    """
    # Imported late: `import trtint8` must stay cheap, and scripts without a terminal never need it.
    from rich.console import Console

    return Console(file=file, width=width, markup=False, emoji=False, highlight=False)


def duration(seconds: float) -> str:
    """Returns a time in words, not more precisely than an estimate is, such as ``40 s`` or ``3 min``."""
    if seconds < 90:
        return f"{math.ceil(seconds)} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


@dataclass(eq=False)
class Phase:
    """A phase that has begun.

    Attributes:
        what: What is being done, in a word or two.
        total: How many steps there are; None where that is not known.
        work: The work of one step; 0 where steps are of unlike sizes, so that they only show that it goes on.
        planned: The work that the job has planned for the phase; None where it has planned none.
        begun: When it began.
        done: How many steps are done.
        ended: When it ended; None as long as it goes on.
    """

    what: str
    total: int | None
    work: float
    planned: float | None
    begun: float
    done: int = 0
    ended: float | None = None
    #: Whether it was known from the start how many steps there are.
    _counts: bool = field(init=False)
    #: The time and the number of steps at the first and at the last time that some were completed. The first
    #: ones take longer than others, because they open what the others use.
    _first: tuple[float, int] | None = None
    _last: tuple[float, int] | None = None

    def __post_init__(self) -> None:
        self._counts = self.total is not None

    def advance(self, steps: int) -> None:
        """Counts steps that were just completed."""
        self.done += steps
        if self.total is not None:
            self.total = max(self.total, self.done)
        self._last = (_clock(), self.done)
        self._first = self._first or self._last

    def end(self, *, complete: bool) -> None:
        """Ends the phase; one that is complete has no steps left, even where it stopped early."""
        self.ended = _clock()
        if complete:
            self.total = self.done = self.done or self.total or 1

    @property
    def work_done(self) -> float:
        """The work of the steps that are done; that of a phase whose steps were not known is as planned."""
        if self.ended is not None and not self._counts and self.planned is not None:
            return self.planned
        return self.done * self.work

    @property
    def work_left(self) -> float | None:
        """The work of the steps that are left; None where that is not known."""
        if self.ended is not None:
            return 0.0
        if self.total is not None:
            return (self.total - self.done) * self.work
        return self.planned

    def seconds_left(self, per_unit: float) -> float | None:
        """How long the phase still takes; None where that is not known.

        Args:
            per_unit: How many seconds a unit of work took in the whole job, which counts until the phase has
                done steps of its own.
        """
        left = self.work_left
        if left is None or not self.work or self._first is None or self._last is None:
            return None if left is None else left * per_unit
        (first, before), (last, done) = self._first, self._last
        own = (last - first) / (done - before) if done > before else (first - self.begun) / before
        return max(0.0, left / self.work * own - (_clock() - last))


@dataclass(eq=False)
class Plan:
    """The phases of a job, or of a part of it, that are still to come.

    Attributes:
        to_come: What each of them does, to its work; None where that is not known yet.
        at_least: Whether there may be phases that are not planned.
        keep: Whether the bars of its phases stay when these have ended.
        planned: The work that an outer job has planned for this part, which it counts as; None where it has
            planned none.
        before: The work that was done before.
    """

    to_come: dict[str, float | None]
    at_least: bool = False
    keep: bool = True
    planned: float | None = None
    before: float = 0.0


@dataclass(frozen=True)
class TimeLeft:
    """How long a job still takes.

    Attributes:
        seconds: The time.
        at_least: Whether it may take longer, because not all that is to come is known yet.
    """

    seconds: float
    at_least: bool

    def __str__(self) -> str:
        return f"{'at least' if self.at_least else 'about'} {duration(self.seconds)} left"


class _Display(Protocol):
    """Shows the phases of a job."""

    def begin(self, job: _Job, phase: Phase) -> None:
        """Shows a phase that begins."""

    def update(self, phase: Phase) -> None:
        """Shows how far a phase has come."""

    def end(self, phase: Phase, *, keep: bool) -> None:
        """Shows a phase that has ended, or shows nothing of it any more."""


class _Job:
    """A job that is being done.

    Args:
        display: What shows it; None where nothing does.
    """

    def __init__(self, display: _Display | None) -> None:
        self._display = display
        #: Of the job and of the parts of it that are being done, the innermost last.
        self.plans: list[Plan] = []
        #: The phases that are being done, the innermost last.
        self.phases: list[Phase] = []
        self._work_done, self._begun = 0.0, math.nan
        self._lock = threading.Lock()

    @contextmanager
    def part(self, to_come: Mapping[str, float | None], part_of: str, *, keep: bool) -> Iterator[Plan]:
        """Does a part that has phases of its own, and counts it as it was planned."""
        plan = Plan(dict(to_come), keep=keep, planned=self._begin(part_of), before=self._work_done)
        self.plans.append(plan)
        try:
            yield plan
        finally:
            self.plans.remove(plan)
            if plan.planned is not None:
                self._work_done = plan.before + plan.planned

    @contextmanager
    def phase(self, what: str, total: int | None, work: float) -> Iterator[Phase]:
        """Does a phase."""
        phase = Phase(what, total, work, self._begin(what), _clock())
        self._begun = phase.begun if math.isnan(self._begun) else self._begun
        self.phases.append(phase)
        if self._display:
            self._display.begin(self, phase)
        complete = False
        try:
            yield phase
            complete = True
        finally:
            phase.end(complete=complete)
            self._work_done += phase.work_done
            self.phases.remove(phase)
            if self._display:
                self._display.end(phase, keep=not complete or all(plan.keep for plan in self.plans))

    def _begin(self, what: str) -> float | None:
        """Takes a phase that begins off the plan; returns the work that was planned for it."""
        for plan in reversed(self.plans):
            if what in plan.to_come:
                return plan.to_come.pop(what)
        return None

    def advance(self, phase: Phase, steps: int) -> None:
        """Counts steps that were just completed."""
        with self._lock:
            phase.advance(steps)
        if self._display:
            self._display.update(phase)

    def time_left(self) -> TimeLeft | None:
        """How long the job still takes; None where that is not known, as before anything was done."""
        now = _clock()
        spent = 0.0 if math.isnan(self._begun) else now - self._begun
        done = self._work_done + sum(phase.work_done for phase in self.phases)
        if not done:
            return None
        # What has no work until it ends does not say how long a unit takes.
        unmeasured = sum(now - phase.begun for phase in self.phases[-1:] if not phase.work)
        usual = (spent - unmeasured) / done  # seconds for a unit of work
        at_least = any(plan.at_least for plan in self.plans)
        parts = [phase.seconds_left(usual) for phase in self.phases[-1:]]
        parts += [None if phase.work_left is None else usual * phase.work_left for phase in self.phases[:-1]]
        seconds, unknown = sum(part for part in parts if part is not None), None in parts
        for plan in reversed(self.plans):
            to_come = plan.to_come.values()
            unknown = unknown or None in to_come
            seconds += usual * sum(work for work in to_come if work is not None)
            if plan.planned is not None:  # which covers what is not known of its phases
                rest = usual * (plan.planned - (done - plan.before)) - unmeasured
                seconds, unknown = max(seconds, rest), False
        if not seconds or spent < _TOO_EARLY * (spent + seconds):
            return None
        return TimeLeft(seconds, at_least or unknown)


_current: ContextVar[_Job | None] = ContextVar("job", default=None)


@contextmanager
def _in_job(*, enabled: bool) -> Iterator[_Job]:
    """The job that is being done, or a new one."""
    current = _current.get()
    if current is not None:
        yield current
        return
    new = _Job(_display() if enabled else None)
    _current.set(new)
    try:
        yield new
    finally:
        _current.set(None)


@contextmanager
def job(
    to_come: Mapping[str, float | None], *, part_of: str = "", keep: bool = True, enabled: bool = True
) -> Iterator[Plan]:
    """Says up front which phases there will be, for as long as the block runs.

    A job within another one is a part of it, and shows itself where that does.

    Args:
        to_come: The descriptions of the phases, as :func:`progress_bar` will have them, to their work; None
            where that is not known yet. What is left of them after the block is not to come any more.
        part_of: The phase of the outer job in place of which these phases come.
        keep: Whether the bars stay when their phases have ended. They do not where messages say what came of
            them.
        enabled: False shows nothing.

    Yields:
        The plan, which may be changed.
    """
    with _in_job(enabled=enabled) as current, current.part(to_come, part_of, keep=keep) as plan:
        yield plan


@contextmanager
def progress_bar(
    description: str, total: int | None, *, work: float = 1.0, enabled: bool = True
) -> Iterator[Callable[[int], None]]:
    """Does a phase, and shows a bar while the block runs: on standard error, or in a notebook.

    Args:
        description: What is being done, in a word or two.
        total: How many steps there are; None where that is not known.
        work: The work of one step, in the unit of the job; 0 where steps are of unlike sizes.
        enabled: False shows nothing, unless it is a phase of a job that does.

    Yields:
        A function to call with the number of steps that were just completed.
    """
    with _in_job(enabled=enabled) as current, current.phase(description, total, work) as phase:
        yield lambda steps: current.advance(phase, steps)


def time_left() -> TimeLeft | None:
    """Returns how long the job that is being done still takes; None where that is not known."""
    current = _current.get()
    return current.time_left() if current else None


def _display() -> _Display | None:
    if _lines is not None:
        return _lines
    if _draws(sys.stderr):
        return _TerminalBars(cast(TextIO, _Terminal(sys.stderr)))
    return _NotebookBars() if _in_notebook() else None


class _TerminalBars:
    """Bars on a terminal.

    Args:
        terminal: Where they are drawn.
    """

    def __init__(self, terminal: TextIO) -> None:
        self._terminal = terminal
        self._bars: Any = None
        self._tasks: dict[int, TaskID] = {}

    def begin(self, job: _Job, phase: Phase) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn
        from rich.text import Text

        class Time(ProgressColumn):
            """The time left of the job; of a phase that has ended, the time that it took."""

            def render(self, task: Task) -> Text:
                return Text(_time(task.fields["job"], task.fields["phase"]))

        if self._bars is None:
            self._bars = Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                MofNCompleteColumn(),
                Time(),
                console=literal_console(self._terminal),
            )
            self._bars.start()
        self._tasks[id(phase)] = self._bars.add_task(phase.what, total=phase.total, job=job, phase=phase)

    def update(self, phase: Phase) -> None:
        self._bars.update(self._tasks[id(phase)], completed=phase.done, total=phase.total)

    def end(self, phase: Phase, *, keep: bool) -> None:
        self.update(phase)
        task = self._tasks.pop(id(phase))
        if not keep:
            self._bars.remove_task(task)
        if not self._tasks:  # between two phases nothing is drawn, so that anything may be printed
            self._bars.stop()
            self._bars = None


def _time(job: _Job, phase: Phase) -> str:
    if phase.ended is not None:
        return duration(phase.ended - phase.begun)
    left = job.time_left()
    return "" if left is None else str(left)


def _in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    module = sys.modules.get("IPython")
    shell = module.get_ipython() if module is not None else None
    return hasattr(shell, "kernel")


class _NotebookBars:
    """Bars in the output of a notebook's cell, which need nothing but IPython."""

    def __init__(self) -> None:
        self._display = importlib.import_module("IPython.display")
        self._handles: dict[int, tuple[Any, _Job]] = {}
        #: Outputs whose bars are gone. They cannot be taken out of a cell, so the next bars are drawn there.
        self._empty: list[Any] = []
        self._drawn = -math.inf

    def begin(self, job: _Job, phase: Phase) -> None:
        picture = self._display.HTML(_as_html(job, phase))
        if self._empty:
            shown = self._empty.pop()
            shown.update(picture)
        else:
            shown = self._display.display(picture, display_id=True)
        self._handles[id(phase)] = shown, job

    def update(self, phase: Phase) -> None:
        if _clock() - self._drawn >= _BETWEEN_PICTURES:
            self._draw(phase)

    def end(self, phase: Phase, *, keep: bool) -> None:
        self._draw(phase, keep=keep)
        shown, _job = self._handles.pop(id(phase))
        if not keep:
            self._empty.append(shown)

    def _draw(self, phase: Phase, *, keep: bool = True) -> None:
        self._drawn = _clock()
        handle, job = self._handles[id(phase)]
        handle.update(self._display.HTML(_as_html(job, phase) if keep else ""))


def _as_html(job: _Job, phase: Phase) -> str:
    """A bar as every browser draws it; one that moves to and fro where the number of steps is not known."""
    value = "" if phase.total is None else f" value={phase.done} max={phase.total}"
    text = " ".join((_counted(phase), _time(job, phase)))
    return f"<div>{html.escape(phase.what)} <progress{value}></progress> {html.escape(text)}</div>"


def _counted(phase: Phase) -> str:
    return f"{phase.done}/{'?' if phase.total is None else phase.total}"


class _Lines:
    """A line from time to time, where there is no terminal.

    Args:
        say: Writes a line.
        wait: Waits for some seconds; True where there are to be no more lines.
    """

    def __init__(self, say: Callable[[str], object], wait: Callable[[float], bool]) -> None:
        self._say, self._wait, self._begun = say, wait, _clock()
        self._shown: tuple[_Job, Phase] | None = None

    def run(self) -> None:
        """Writes lines until there are to be no more."""
        while not self._wait(_A_MINUTE):
            self._say(self._line())

    def begin(self, job: _Job, phase: Phase) -> None:
        self._shown = job, phase

    def update(self, phase: Phase) -> None:
        pass

    def end(self, phase: Phase, *, keep: bool) -> None:  # noqa: ARG002  # as in the protocol
        if self._shown and self._shown[1] is phase:
            job = self._shown[0]
            self._shown = (job, job.phases[-1]) if job.phases else None

    def _line(self) -> str:
        parts = [f"at work for {duration(_clock() - self._begun)}"]
        if shown := self._shown:
            job, phase = shown
            share = f" ({100 * phase.done // phase.total} %)" if phase.total else ""
            parts.append(f"{phase.what} {_counted(phase)}{share}")
            parts.append(_time(job, phase))
        return ", ".join(filter(None, parts))


#: What writes lines, where the command line runs without a terminal.
_lines: _Lines | None = None


@contextmanager
def lines_without_terminal(
    say: Callable[[str], object], wait: Callable[[float], bool] | None = None
) -> Iterator[None]:
    """Writes a line a minute while the block runs, where standard error is no terminal.

    Args:
        say: Writes a line.
        wait: Waits for some seconds, or until the block has ended, and returns True then; a clock where None.
    """
    global _lines
    if _draws(sys.stderr):
        yield
        return
    ended = threading.Event()
    before, _lines = _lines, _Lines(say, wait or ended.wait)
    thread = threading.Thread(target=_lines.run, name="trtint8-lines", daemon=True)
    thread.start()
    try:
        yield
    finally:
        _lines = before
        ended.set()
        thread.join()
