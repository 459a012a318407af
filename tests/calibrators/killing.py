"""The command line in a process of its own, killed at a known place while it writes its checkpoint."""

import itertools
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

#: The new content is complete under a temporary name, and the old file still in place.
BEFORE = "before"
#: The new file has taken the old one's place.
AFTER = "after"


def kill_at_write(place, number, arguments):
    """Runs the command line and kills it where it writes a checkpoint for the ``number``-th time.

    Args:
        place: ``BEFORE`` or ``AFTER`` the rename.
        number: Which write, counted from 1.
        arguments: Of the command line.
    """
    with subprocess.Popen(
        [sys.executable, "-m", __name__, place, str(number), *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=ROOT,
        text=True,
    ) as process:
        said = process.stdout.readline()
        process.kill()
    assert said == "here\n"
    assert process.returncode == -signal.SIGKILL


def _wait_to_be_killed():
    sys.stdout.write("here\n")
    sys.stdout.flush()
    sys.stdin.read()


def _main():
    from trtint8.cli.main import main

    place, number, *arguments = sys.argv[1:]
    replace, writes = Path.replace, itertools.count(1)

    def stopping(self, target):
        here = str(target).endswith(".checkpoint") and next(writes) == int(number)
        if here and place == BEFORE:
            _wait_to_be_killed()
        replaced = replace(self, target)
        if here and place == AFTER:
            _wait_to_be_killed()
        return replaced

    Path.replace = stopping
    sys.exit(main(arguments))


if __name__ == "__main__":
    _main()
