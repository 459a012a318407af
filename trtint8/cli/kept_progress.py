"""What Ctrl-C, or wrong data, leaves of a long run."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

from calibrators.errors import CalibrationDataError
from trtint8.cli.output import say


@contextlib.contextmanager
def saying_what_is_kept(
    checkpoint: Path | None, how: str, *, survives_errors: Callable[[], bool] = lambda: False
) -> Iterator[None]:
    """Says after Ctrl-C that a run can be continued, where it can; and after an error in the data.

    Args:
        checkpoint: The file in which the run keeps what it has done; None where it keeps nothing.
        how: What continues from it.
        survives_errors: Whether the run has come so far that it can be continued with the data corrected.
    """
    try:
        yield
    except (KeyboardInterrupt, CalibrationDataError) as error:
        goes_on = isinstance(error, KeyboardInterrupt) or survives_errors()
        if goes_on and checkpoint is not None and checkpoint.exists():
            say(f"'{checkpoint}' keeps what was done; {how} continues from it")
        raise
