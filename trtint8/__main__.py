"""The program ``trtint8``, which ends in order after Ctrl-C and SIGTERM from the first moment on."""

from __future__ import annotations

import gc
import os
import sys


def main() -> int:
    """Runs the command line; see :func:`trtint8.cli.main.main`."""
    work = _run
    while True:
        try:
            from calibrators.interruption import heeding_signals

            return heeding_signals(work)
        except KeyboardInterrupt:  # signals were not heeded yet
            work = _interrupted


def _interrupted() -> int:
    """Stands for the work after Ctrl-C while the module was imported that heeds it."""
    raise KeyboardInterrupt


def _run() -> int:
    # Imported late, because a signal may come while that is done.
    from trtint8.cli.main import main as run
    from trtint8.cli.output import replace_unprintable

    replace_unprintable()
    try:
        return run()
    finally:
        # The process ends. Without this, all that is alive is searched for garbage first, for 60 ms and more.
        gc.freeze()


def _forget_current_folder() -> None:
    """Takes the current folder off the search path, where ``python -m`` has put it first.

    Files of a stranger there would be imported in place of what is installed. A clone that is run from its
    own folder keeps it.
    """
    # Nothing may be imported before, so there is no pathlib.
    first, root = sys.path[0] or os.curdir, os.path.dirname(os.path.dirname(__file__))  # noqa: PTH120
    if not getattr(sys.flags, "safe_path", False) and _is_current(first) and not _is_current(root):
        del sys.path[0]


def _is_current(folder: str) -> bool:
    return os.path.exists(folder) and os.path.samefile(folder, os.curdir)  # noqa: PTH110, PTH121


if __name__ == "__main__":
    _forget_current_folder()
    sys.exit(main())
