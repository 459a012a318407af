"""Verbs run in this process, and what they do as lines of text."""

import contextlib
import gc
import io
import json
import os
import re
import shlex
import struct
import sys
from pathlib import Path

import onnx

from tests.behaviour.graphs import operators
from tests.behaviour.text import json_lines, number
from trtint8.__main__ import main

#: Names in a message stand in quotes.
_QUOTED = re.compile(r"'([^'\s]+)'")

_CONFIGURATIONS = ("config.pbtxt", "config_infer.txt")


@contextlib.contextmanager
def inside(folder):
    """The current folder is another one, so that paths in messages are the same everywhere."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def run(command):
    """Runs one verb in the current folder; returns its status and what it wrote to both streams."""
    argv, sys.argv = sys.argv, ["trtint8", *shlex.split(command)]
    out, error = io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
            try:
                status = main()
            except SystemExit as ended:
                status = ended.code
    finally:
        sys.argv = argv
        gc.unfreeze()  # the program freezes what is alive, because it ends
    return status, out.getvalue(), error.getvalue()


def command_lines(command, masked=()):
    """One verb as lines: exit status, names in its messages, its JSON, and the files that it wrote."""
    before = _files()
    status, out, error = run(command)
    lines = [f"$ {command}", f"status {status}"]
    if "Traceback" in error:
        lines += ["TRACEBACK", *error.splitlines()]
    if named := sorted(set(_QUOTED.findall(error))):
        lines.append(f"names {' '.join(named)}")
    if "warning: " in error:
        lines.append("warns")
    if "--json" in command and status in (0, 1):
        lines += [f"  {line}" for line in json_lines(json.loads(out), masked=masked)]
    elif out:
        lines.append("prints")
    after = _files()
    lines += [f"removed {name}" for name in sorted(before.keys() - after.keys())]
    for name in sorted(name for name, stamp in after.items() if before.get(name) != stamp):
        lines += [f"wrote {name}", *_content(Path(name))]
    return lines


def _files():
    return {
        path.as_posix(): (path.stat().st_mtime_ns, path.stat().st_size)
        for path in Path().rglob("*")
        if path.is_file()
    }


def _content(path):
    """What is shown of a file's content: small tables, and what runs an engine elsewhere."""
    if path.suffix == ".onnx":
        return [f"  {operators(onnx.load(path, load_external_data=False))}"]
    if path.suffix == ".cache":
        return [f"  {_decoded(line)}" for line in path.read_text().splitlines()]
    if (path.suffix in (".txt", ".csv") and path.parent == Path()) or path.name in _CONFIGURATIONS:
        return [f"  {line}" for line in path.read_text().splitlines()]
    return []


def _decoded(line):
    """A line of TensorRT's calibration cache, whose scales are floats in hexadecimal digits."""
    name, _, digits = line.rpartition(": ")
    return f"{name}: {number(struct.unpack('>f', bytes.fromhex(digits))[0])}" if name else line
