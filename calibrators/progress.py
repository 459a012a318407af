"""How long work shows itself: how far it has come, and how long it still takes.

A job (:func:`job`) says up front which phases it has, and how much work each of them is. A phase
(:func:`progress_bar`) is a bar on a terminal and in a notebook. The command line writes a line a minute where
there is neither (:func:`lines_without_terminal`), so that a log shows that the work goes on.

Work is counted in one unit per job, such as runs of the float network on one sample. What was done says how
long a unit takes, best of all what was done under the same name. So the time left covers the phases to come.
Where some of them are not known yet, the time is the least that it takes, and says so. Nothing is said before
there is something to go by.
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

#: How often a phase has to complete steps before these say how long others take.
_FEWEST_TIMES = 4

#: Of times at which steps were completed, those are kept at which so many times as many were done.
_CLOSE = 1.1

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
    #: Times at which steps were completed, with the number of all that were done then: a few of the later
    #: half, and the last one. The first ones take longer, because they open what the others use.
    _marks: list[tuple[float, int]] = field(default_factory=list)
    #: How often steps were completed.
    _times: int = 0

    def __post_init__(self) -> None:
        self._counts = self.total is not None

    def advance(self, steps: int) -> None:
        """Counts steps that were just completed."""
        self.done += steps
        if self.total is not None:
            self.total = max(self.total, self.done)
        self._times += 1
        marks = self._marks
        if len(marks) > 1 and marks[-1][1] < _CLOSE * marks[-2][1]:
            marks.pop()
        marks.append((_clock(), self.done))
        while len(marks) > 2 and marks[1][1] <= self.done / 2:
            del marks[0]

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

    @property
    def _own_rate(self) -> float | None:
        """The seconds that a step takes, by the later half of those done; None before that is known."""
        if not self.work or self._times < _FEWEST_TIMES:
            return None
        (first, before), (last, done) = self._marks[0], self._marks[-1]
        return (last - first) / (done - before) if done > before else None

    def measured(self, now: float) -> tuple[float, float]:
        """How long the steps took that are done, and their work; 0 where that does not tell of others."""
        rate = self._own_rate
        if rate is None:
            return 0.0, 0.0
        first, before = self._marks[0]
        return now - first + rate * before, self.work_done

    def seconds_left(self, per_unit: float | None) -> float | None:
        """How long the phase still takes; None where that is not known.

        Args:
            per_unit: How many seconds a unit of work took elsewhere, which counts until the phase has done
                steps of its own; None where that is not known.
        """
        left, rate = self.work_left, self._own_rate
        if left is None:
            return None
        if rate is None:
            return None if per_unit is None else left * per_unit
        return max(0.0, left / self.work * rate - (_clock() - self._marks[-1][0]))


@dataclass(eq=False)
class Plan:
    """The phases of a job, or of a part of it, that are still to come.

    Attributes:
        to_come: What each of them does, to its work; None where that is not known yet.
        keep: Whether the bars of its phases stay when these have ended.
        part_of: What an outer job calls this part.
        planned: The work that the outer job has planned for this part, which it counts as; None where it has
            planned none.
        begun: When the part began.
        is_whole: Whether it is measured as a whole, because it has no phases that were planned.
    """

    to_come: dict[str, float | None]
    keep: bool = True
    part_of: str = ""
    planned: float | None = None
    begun: float = math.nan
    is_whole: bool = False


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
        self._begun = math.nan
        #: How long all that was done took, its work, and when its last piece ended.
        self._spent, self._done, self._ended = 0.0, 0.0, math.nan
        #: The same of what has a name, the last of which counts as much as all before it.
        self._known: dict[str, tuple[float, float]] = {}
        self._lock = threading.Lock()

    @contextmanager
    def part(
        self, to_come: Mapping[str, float | None], part_of: str, work: float | None, *, keep: bool
    ) -> Iterator[Plan]:
        """Does a part that has phases of its own, and counts it as it was planned."""
        planned = self._begin(part_of, work)
        is_whole = planned is not None and not to_come and not self._is_within_whole
        self._start(_clock())
        # What was done since something ended belongs to what it is done for.
        begun = self._ended if is_whole else _clock()
        plan = Plan(dict(to_come), keep, part_of, planned, begun, is_whole)
        self.plans.append(plan)
        try:
            yield plan
        finally:
            self.plans.remove(plan)
            if planned is not None:
                self._learn(part_of, _clock() - begun, planned)
            if is_whole:
                self._count(planned or 0.0)

    @contextmanager
    def phase(self, what: str, total: int | None, work: float) -> Iterator[Phase]:
        """Does a phase."""
        phase = Phase(what, total, work, self._begin(what), _clock())
        self._start(phase.begun)
        self.phases.append(phase)
        if self._display:
            self._display.begin(self, phase)
        complete = False
        try:
            yield phase
            complete = True
        finally:
            phase.end(complete=complete)
            self.phases.remove(phase)
            self._learn(what, _clock() - phase.begun, phase.work_done)
            if not self._is_within_whole:
                self._count(phase.work_done)
            if self._display:
                self._display.end(phase, keep=not complete or all(plan.keep for plan in self.plans))

    def _begin(self, what: str, work: float | None = None) -> float | None:
        """Takes what begins off the plan: so much work, or all that is planned of that name.

        Returns:
            The work that was planned for it.
        """
        for plan in reversed(self.plans):
            if what in plan.to_come:
                planned = plan.to_come.pop(what)
                if work is None or planned is None:
                    return planned if work is None else work
                if planned > work:
                    plan.to_come[what] = planned - work
                return work
        return None

    @property
    def _is_within_whole(self) -> bool:
        return any(plan.is_whole for plan in self.plans)

    def _start(self, now: float) -> None:
        if math.isnan(self._begun):
            self._begun = self._ended = now

    def _count(self, work: float) -> None:
        """Counts what has just ended, with what came before it; what has no work tells nothing."""
        now = _clock()
        if work:
            self._spent, self._done = self._spent + now - self._ended, self._done + work
        self._ended = now

    def _learn(self, what: str, seconds: float, work: float) -> None:
        before, known = self._known.get(what, (0.0, 0.0))
        self._known[what] = before / 2 + seconds, known / 2 + work

    def advance(self, phase: Phase, steps: int) -> None:
        """Counts steps that were just completed."""
        with self._lock:
            phase.advance(steps)
        if self._display:
            self._display.update(phase)

    def time_left(self) -> TimeLeft | None:
        """How long the job still takes; None where that is not known, as before anything was done."""
        now = _clock()
        usual = self._usual(now)

        def seconds_for(what: str, work: float | None) -> float | None:
            """How long work takes, by what was done under its name, or else by all that was done."""
            spent, done = self._known.get(what, (0.0, 0.0))
            rate = spent / done if done else usual
            return None if work is None or rate is None else work * rate

        parts = [
            phase.seconds_left(seconds_for(phase.what, 1.0))
            if phase is self.phases[-1]
            else seconds_for(phase.what, phase.work_left)
            for phase in self.phases
        ]
        seconds, unknown = sum(filter(None, parts)), None in parts
        for plan in reversed(self.plans):
            parts = [seconds_for(what, work) for what, work in plan.to_come.items()]
            seconds, unknown = seconds + sum(filter(None, parts)), unknown or None in parts
            whole = seconds_for(plan.part_of, plan.planned)
            if whole is not None:  # which covers what is not known of its phases
                seconds, unknown = max(seconds, whole - (now - plan.begun)), False
        spent = 0.0 if math.isnan(self._begun) else now - self._begun
        if not seconds or spent < _TOO_EARLY * (spent + seconds):
            return None
        return TimeLeft(seconds, unknown)

    def _usual(self, now: float) -> float | None:
        """The seconds that a unit of work took so far; None before something was done."""
        spent, done = self._spent, self._done
        if self.phases and not self._is_within_whole:
            seconds, work = self.phases[-1].measured(now)
            spent, done = spent + seconds, done + work
        return spent / done if done else None


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
    to_come: Mapping[str, float | None],
    *,
    part_of: str = "",
    work: float | None = None,
    keep: bool = True,
    enabled: bool = True,
) -> Iterator[Plan]:
    """Says up front which phases there will be, for as long as the block runs.

    A job within another one is a part of it, and shows itself where that does.

    Args:
        to_come: The descriptions of the phases, as :func:`progress_bar` will have them, to their work; None
            where that is not known yet. What is left of them after the block is not to come any more.
        part_of: The phase of the outer job in place of which these phases come.
        work: The work that this is of that phase; all of it where None.
        keep: Whether the bars stay when their phases have ended. They do not where messages say what came of
            them.
        enabled: False shows nothing.

    Yields:
        The plan, which may be changed.
    """
    with _in_job(enabled=enabled) as current, current.part(to_come, part_of, work, keep=keep) as plan:
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
        from rich.table import Column
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
                Time(Column(no_wrap=True)),
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
    return _left(job) if phase.ended is None else duration(phase.ended - phase.begun)


def _left(job: _Job) -> str:
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
        self._shown: tuple[_Job, Phase | None] | None = None

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
            self._shown = job, (job.phases[-1] if job.phases else None)

    def _line(self) -> str:
        parts = [f"at work for {duration(_clock() - self._begun)}"]
        if shown := self._shown:
            job, phase = shown
            if phase is not None:
                share = f" ({100 * phase.done // phase.total} %)" if phase.total else ""
                parts.append(f"{phase.what} {_counted(phase)}{share}")
            parts.append(_left(job))
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
