"""How long work shows itself: how far it has come, and how long it still takes.

A phase of the work (:func:`progress_bar`) is a bar of rich, on a terminal and in a notebook, with the time
that is left of the phase. The command line writes a line a minute where there is neither
(:func:`lines_without_terminal`), so that a log shows that the work goes on.
"""

from __future__ import annotations

import importlib
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TextIO, cast

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, Task

#: What phases are called that several modules know.
CALIBRATING, CHOOSING, VALIDATING, MEASURING = "Calibrating", "Choosing ranges", "Validating", "Measuring"
JUDGING, BUILDING, SPENDING = "Judging", "Building engine", "Choosing layers in float"

#: Gives the time in seconds.
_clock = time.monotonic

#: Steps of so many seconds tell how long those take that are left: some batches take minutes.
_LATELY = 600.0

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


class _Bars:
    """The bars of some work, for as long as it goes on.

    Args:
        enabled: False shows nothing.
    """

    def __init__(self, *, enabled: bool) -> None:
        #: Whether bars stay when their phases have ended.
        self.keep = True
        #: The phases that are being done, the innermost last.
        self.tasks: list[Task] = []
        self._on_terminal = enabled and _lines is None and _draws(sys.stderr)
        self._in_notebook = enabled and _lines is None and not self._on_terminal and _in_notebook()
        self._enabled = self._on_terminal or self._in_notebook or (enabled and _lines is not None)
        self._progress: Progress | None = None
        #: The output of a notebook's cell that shows the bars, and when they were drawn.
        self._output: Any = None
        self._drawn = -math.inf
        if self._enabled and _lines is not None:
            _lines.bars = self

    @contextmanager
    def phase(self, description: str, total: int | None) -> Iterator[Callable[[int], None]]:
        """Shows a phase; see :func:`progress_bar`."""
        if not self._enabled:
            yield lambda _steps: None
            return
        progress = self._progress = self._progress or self._opened()
        progress.add_task(description, total=total)
        task = progress.tasks[-1]
        self.tasks.append(task)
        self._draw()

        def advance(steps: int) -> None:
            progress.advance(task.id, steps)
            if task.total is not None and task.completed > task.total:  # a loader may give more than it says
                progress.update(task.id, total=task.completed)
            if _clock() - self._drawn >= _BETWEEN_PICTURES:
                self._draw()

        complete = False
        try:
            yield advance
            complete = True
        finally:
            self.tasks.remove(task)
            if complete:  # also where it stopped early
                done = task.completed or task.total or 1
                progress.update(task.id, total=done, completed=done)
                if not self.keep:
                    progress.remove_task(task.id)
            self._draw()
            if self._on_terminal and not self.tasks:  # between two phases anything may be printed
                progress.stop()
                self._progress = None

    def _opened(self) -> Progress:
        # Imported late: `import trtint8` must stay cheap, and scripts without a terminal never need it.
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(compact=True, elapsed_when_finished=True),
            console=literal_console(cast(TextIO, _Terminal(sys.stderr))) if self._on_terminal else None,
            get_time=_clock,
            speed_estimate_period=_LATELY,
            disable=not self._on_terminal,
        )
        progress.start()
        return progress

    def _draw(self) -> None:
        """Draws the bars in a notebook; on a terminal they draw themselves."""
        if self._in_notebook:
            self._drawn = _clock()
            if self._output is None:
                display = importlib.import_module("IPython.display").display
                self._output = display(self._progress, display_id=True)
            self._output.update(self._progress)


def _in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    module = sys.modules.get("IPython")
    shell = module.get_ipython() if module is not None else None
    return hasattr(shell, "kernel")


_current: ContextVar[_Bars | None] = ContextVar("bars", default=None)


@contextmanager
def job(*, keep: bool = True, enabled: bool = True) -> Iterator[None]:
    """Shows all phases of the block, or none.

    A job within another one shows itself where that does.

    Args:
        keep: Whether the bars stay when their phases have ended. They do not where messages say what came of
            them.
        enabled: False shows nothing.
    """
    outer = _current.get()
    bars = outer or _Bars(enabled=enabled)
    kept, bars.keep = bars.keep, bars.keep and keep
    _current.set(bars)
    try:
        yield
    finally:
        bars.keep = kept
        if outer is None:  # generators may end before what was begun within them
            _current.set(None)


@contextmanager
def progress_bar(
    description: str, total: int | None, *, enabled: bool = True
) -> Iterator[Callable[[int], None]]:
    """Does a phase, and shows a bar while the block runs: on standard error, or in a notebook.

    Args:
        description: What is being done, in a word or two.
        total: How many steps there are; None where that is not known.
        enabled: False shows nothing, unless it is a phase of a job that does.

    Yields:
        A function to call with the number of steps that were just completed.
    """
    with job(enabled=enabled), cast(_Bars, _current.get()).phase(description, total) as advance:
        yield advance


class _Lines:
    """A line from time to time, where there is no terminal.

    Args:
        say: Writes a line.
        wait: Waits for some seconds; True where there are to be no more lines.
    """

    def __init__(self, say: Callable[[str], object], wait: Callable[[float], bool]) -> None:
        self._say, self._wait, self._begun = say, wait, _clock()
        #: The bars in place of which lines are written.
        self.bars: _Bars | None = None

    def run(self) -> None:
        """Writes lines until there are to be no more."""
        while not self._wait(_A_MINUTE):
            self._say(self._line())

    def _line(self) -> str:
        parts = [f"at work for {duration(_clock() - self._begun)}"]
        for task in self.bars.tasks[-1:] if self.bars else ():
            total, left = task.total, task.time_remaining
            of = f"/{total:.0f} ({int(task.percentage)} %)" if total else "/?"
            parts.append(f"{task.description} {task.completed:.0f}{of}")
            parts += [f"about {duration(left)} left"] if left else []
        return ", ".join(parts)


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
