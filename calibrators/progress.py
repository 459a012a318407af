"""A progress bar on the terminal, and silence where standard error is not one."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


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
    if not (enabled and sys.stderr.isatty()):
        yield lambda _steps: None
        return
    # Imported late: `import trtint8` must stay cheap, and scripts without a terminal never need it.
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(elapsed_when_finished=True),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(description, total=total)
        yield lambda steps: bar.advance(task, steps)
