"""What Ctrl-C leaves of a long run."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from trtint8.cli.output import say


@contextlib.contextmanager
def saying_what_is_kept(checkpoint: Path | None, how: str) -> Iterator[None]:
    """Says after Ctrl-C that a run can be continued, where it can.

    Args:
        checkpoint: The file in which the run keeps what it has done; None where it keeps nothing.
        how: What continues from it.
    """
    try:
        yield
    except KeyboardInterrupt:
        if checkpoint is not None and checkpoint.exists():
            say(f"'{checkpoint}' keeps what was done; {how} continues from it")
        raise
