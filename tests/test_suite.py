"""The suite runs in the background as in the foreground."""

import subprocess
import sys
from pathlib import Path

SIGNALS = "SIGHUP", "SIGINT", "SIGQUIT"


def test_what_a_test_starts_heeds_signals_that_the_suite_is_to_ignore():
    ignoring = f"import signal, subprocess, sys\nfor name in {SIGNALS}:\n"
    ignoring += "    signal.signal(getattr(signal, name), signal.SIG_IGN)\n"
    asking = f"import signal; print([n for n in {SIGNALS} if signal.getsignal(getattr(signal, n)) == 1])"
    starting = f"sys.stdout.flush(); subprocess.run([sys.executable, '-c', {asking!r}])\n"
    command = [sys.executable, "-c", f"{ignoring}{starting}import tests.conftest\n{starting}"]
    done = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == (f"{[*SIGNALS]}\n[]\n", "")
