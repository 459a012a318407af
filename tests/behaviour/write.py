"""Writes what is expected: ``python -m tests.behaviour.write [NAME ...]``, all records without names."""

import sys
import tempfile
from pathlib import Path

from tests.behaviour.records import RECORDS, expected_file, missing
from tests.behaviour.text import difference


def write(names):
    """Writes records that say something new; those that differ by rounding alone stay as they are."""
    for name in names or RECORDS:
        if reason := missing(name):
            _say(f"{name} stays: {reason}")
            continue
        with tempfile.TemporaryDirectory() as folder:
            lines = RECORDS[name](Path(folder))
        path = expected_file(name)
        before = path.read_text().splitlines() if path.exists() else []
        if changed := difference(before, lines):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("\n".join(lines) + "\n")
            _say(f"{name}: {len(changed)} lines of difference")
    if not names:
        known = {expected_file(name) for name in RECORDS}
        for path in set(expected_file("").parent.rglob("*.txt")) - known:
            path.unlink()
            _say(f"{path.relative_to(expected_file('').parent)} is gone")


def _say(message):
    sys.stdout.write(f"{message}\n")


if __name__ == "__main__":
    write(sys.argv[1:])
