"""A progress bar on the terminal, and silence where standard error is not one."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TextIO, cast

if TYPE_CHECKING:
    from rich.console import Console


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


def literal_console(file: TextIO | None = None, width: int | None = None) -> Console:
    """Returns a console of rich that shows texts as they are: ``[b]`` is no markup and ``:bug:`` no picture.

    Args:
        file: Where it writes; standard output where None.
        width: How many characters wide it is; as wide as the terminal where None.
    """
    # Imported late: `import trtint8` must stay cheap, and scripts without a terminal never need it.
    from rich.console import Console

    return Console(file=file, width=width, markup=False, emoji=False, highlight=False)


@contextmanager
def progress_bar(
    description: str, total: int | None, *, enabled: bool = True
) -> Iterator[Callable[[int], None]]:
    """Shows a bar on standard error while the block runs.

    Args:
        description: What is being done, in a word or two.
        total: How many steps there are; None where that is not known.
        enabled: False shows nothing.

    Yields:
        A function to call with the number of steps that were just completed.
    """
    if not (enabled and _is_terminal(sys.stderr)):
        yield lambda _steps: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(elapsed_when_finished=True),
    )
    with Progress(*columns, console=literal_console(cast(TextIO, _Terminal(sys.stderr)))) as bar:
        task = bar.add_task(description, total=total)
        yield lambda steps: bar.advance(task, steps)
