"""The code of the documentation's pages, and how it is run.

A page is Markdown. Its blocks of ``python`` are run in order, in one namespace; its blocks of
``console`` are command lines, each behind ``$``, which ``trtint8.cli.main`` runs in this process. Lines
that follow a command are what it prints, on standard output and on standard error, where ``...`` is
anything. A block of ``text`` with the title "Output" is what the Python block before it prints.

A comment before a block says why it is not run: ``<!-- not run: needs a GPU -->``. One at the top of a page
says what the page needs: ``<!-- tested: slow, torch -->`` marks its test as slow and skips it without torch;
``<!-- files: digits, examples/03_detector -->`` puts the files of the tutorial, and those of a folder of the
repository, into the folder in which it runs.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import shutil
import textwrap
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from trtint8.cli.main import main
from trtint8.data import DEMO_MODEL, load_digits_split

_FENCE = re.compile(r"^(?P<indent> *)```(?P<language>\w*)(?P<options>[^\n]*)$")
_NOT_RUN = re.compile(r"<!-- not run: (?P<reason>.+) -->$")
_REMARK = re.compile(r"^<!-- (?P<kind>tested|files): (?P<entries>.+) -->$", re.MULTILINE)

ROOT = Path(__file__).parents[2]

#: Languages of blocks that are run.
RUN = ("python", "console")


@dataclass(frozen=True)
class Block:
    """One fenced block of a page.

    Attributes:
        language: What stands behind the fence; empty where nothing does.
        output: Whether it is what the Python block before it prints.
        code: The text, without the indentation of the fence.
        line: The number of its first line, from 1.
        not_run: Why it is not run; None where it is.
    """

    language: str
    output: bool
    code: str
    line: int
    not_run: str | None = None


def blocks_of(text: str) -> list[Block]:
    """The fenced blocks of a page, in order."""
    blocks, lines, index = [], text.split("\n"), 0
    while index < len(lines):
        fence = _FENCE.match(lines[index])
        if fence is None:
            index += 1
            continue
        end = next(i for i in range(index + 1, len(lines)) if lines[i] == f"{fence['indent']}```")
        before = next((line.strip() for line in reversed(lines[:index]) if line.strip()), "")
        reason = _NOT_RUN.match(before)
        code = textwrap.dedent("\n".join(lines[index + 1 : end])) + "\n"
        output = 'title="Output"' in fence["options"]
        blocks.append(Block(fence["language"], output, code, index + 2, reason["reason"] if reason else None))
        index = end + 1
    return blocks


def needs_of(text: str) -> list[str]:
    """What a page says that its test needs."""
    return _remarks(text, "tested")


def _remarks(text: str, kind: str) -> list[str]:
    found = [match["entries"] for match in _REMARK.finditer(text) if match["kind"] == kind]
    return [entry.strip() for entries in found for entry in entries.split(",")]


def bring_files(text: str) -> None:
    """Puts the files that a page says it needs into the current folder."""
    for entry in _remarks(text, "files"):
        if entry != "digits":
            shutil.copytree(ROOT / entry, ".", dirs_exist_ok=True)
            continue
        digits = load_digits_split()
        shutil.copy(DEMO_MODEL, "digits.onnx")
        np.savez("calibration.npz", images=digits.calibration_images)
        np.savez("heldout.npz", images=digits.heldout_images, labels=digits.heldout_labels)


def commands_of(code: str) -> list[tuple[str, str]]:
    """The commands of a console block, each with what it is to print."""
    commands: list[tuple[str, str]] = []
    for line in code.replace("\\\n", " ").split("\n"):
        if line.startswith("$ "):
            commands.append((line[2:], ""))
        elif commands:
            commands[-1] = (commands[-1][0], commands[-1][1] + line + "\n")
        else:
            assert not line, f"a console block begins with '$ ', not with {line!r}"
    return commands


def run_page(path: Path) -> int:
    """Runs a page's blocks in the current folder, which gets its files first.

    Returns:
        How many blocks were run.
    """
    namespace: dict[str, object] = {"__name__": "__main__"}
    printed, ran = "", 0
    bring_files(path.read_text())
    for block in blocks_of(path.read_text()):
        where = f"{path.name}:{block.line}"
        if block.output:
            _compare(block.code, printed, where)
        elif block.language in RUN and block.not_run is None:
            ran += 1
            if block.language == "console":
                for command, wanted in commands_of(block.code):
                    _compare(wanted, run_command(command, where), where)
            else:
                with contextlib.redirect_stdout(io.StringIO()) as out:
                    # The name and the line of the page, for the traceback of what fails.
                    exec(compile("\n" * (block.line - 1) + block.code, str(path), "exec"), namespace)
                printed = out.getvalue()
    return ran


def run_command(command: str, where: str) -> str:
    """Runs one command line, of trtint8 or ``python SCRIPT``.

    Returns:
        What it printed, on both streams.
    """
    program, *arguments = shlex.split(command, comments=True)
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(out):
        if program == "python":
            exec(compile(Path(arguments[0]).read_text(), arguments[0], "exec"), {"__name__": "__main__"})
            status = 0
        else:
            assert program == "trtint8", f"{where}: '{program}' is not run; say so before the block"
            status = main(arguments)
    assert status == 0, f"{where}: {command}\n{out.getvalue()}"
    return out.getvalue()


def _compare(wanted: str, printed: str, where: str) -> None:
    assert not wanted.strip() or fits(wanted, printed), f"{where} says\n{wanted}\nbut printed was\n{printed}"


def fits(wanted: str, printed: str) -> bool:
    """Whether a text is as a page says, where ``...`` is anything and the amount of white space is free."""
    parts = re.split(r"\s*\.\.\.\s*", " ".join(wanted.split()))
    return re.fullmatch(".*".join(map(re.escape, parts)), " ".join(printed.split())) is not None
