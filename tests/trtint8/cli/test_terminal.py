"""What tables look like on a terminal."""

import os
import re
import subprocess
import sys

import pytest

pty = pytest.importorskip("pty", reason="this system has no terminals")

SCRIPT = """
from trtint8.cli.output import print_table
print_table("Title", ("name", "size"), [("tensor/" * 20, "1"), ("short", "22")], [None, "red"])
"""


def as_json(**environment):
    """What a program prints on a terminal of 80 columns."""
    plain = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "CI")}
    controller, terminal = pty.openpty()
    done = subprocess.Popen(
        [sys.executable, "-c", SCRIPT],
        stdout=terminal,
        env={**plain, "TERM": "xterm-256color", "COLUMNS": "80", **environment},
    )
    os.close(terminal)
    received = b""
    try:
        while chunk := os.read(controller, 1 << 16):
            received += chunk
    except OSError:  # how Linux says that the other side is closed
        pass
    os.close(controller)
    assert done.wait(60) == 0
    return received.decode()


def lines_of(text):
    return [re.sub(r"\x1b\[[\d;]*m", "", line) for line in text.split("\r\n")]


def test_tables_fit_80_columns_and_have_colours():
    text = as_json()
    assert max(map(len, lines_of(text))) <= 80
    assert "\x1b[31m" in text and "tensor/" * 8 in "".join(lines_of(text))


def test_no_color_leaves_colours_out():
    text = as_json(NO_COLOR="1")
    assert not re.search(r"\x1b\[(?:\d+;)*3\d", text)
    assert lines_of(text) == lines_of(as_json())
