"""The program ``trtint8``, which ends in order after Ctrl-C and SIGTERM from the first moment on."""

from __future__ import annotations

import gc
import sys

from trtint8.cli.interruption import heeding_signals


def main() -> int:
    """Runs the command line; see :func:`trtint8.cli.main.main`."""
    return heeding_signals(_run)


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


if __name__ == "__main__":
    sys.exit(main())
