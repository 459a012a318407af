"""The code of the documentation's pages, how it is run, and what a page shows of what it prints.

A page is Markdown. Its blocks of ``python`` are run in order, in one namespace. Its blocks of ``sh`` are
command lines, which ``trtint8.cli.main`` runs in this process; they hold commands only, so that they can be
copied. A block of ``text`` with the title "Output" is what the block before it prints, on standard output and
for commands on standard error as well, all of it. ``python -m tests.docs.write`` fills these blocks in.

A comment before a block says why it is not run: ``<!-- not run: needs a GPU -->``. One at the top of a page
says what the page needs: ``<!-- tested: slow, torch -->`` marks its test as slow and skips it without torch;
``<!-- files: digits, examples/03_detector -->`` puts the files of the tutorial, and those of a folder of the
repository, into the folder in which it runs. ``<!-- rows may differ: WHY -->`` stands before output of which
half of the rows are enough on another machine.
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
RUN = ("python", "sh")


@dataclass(frozen=True)
class Block:
    """One fenced block of a page.

    Attributes:
        language: What stands behind the fence; empty where nothing does.
        output: Whether it is what the block before it prints.
        code: The text, without the indentation of the fence.
        indent: The indentation of the fence.
        line: The number of its first line, from 1.
        not_run: Why it is not run; None where it is.
        rows_differ: Whether other machines may print other rows.
    """

    language: str
    output: bool
    code: str
    indent: str
    line: int
    not_run: str | None = None
    rows_differ: bool = False


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
        code = textwrap.dedent("".join(f"{line}\n" for line in lines[index + 1 : end]))
        output = 'title="Output"' in fence["options"]
        not_run = reason["reason"] if reason else None
        differ = before.startswith("<!-- rows may differ: ")
        blocks.append(Block(fence["language"], output, code, fence["indent"], index + 2, not_run, differ))
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


def commands_of(code: str) -> list[str]:
    """The commands of a block: one a line, or more lines with a backslash at the end of all but the last."""
    lines = code.replace("\\\n", " ").split("\n")
    return [line for line in lines if line and not line.startswith("#")]


def run_page(path: Path) -> list[tuple[Block, str]]:
    """Runs a page's blocks in the current folder, which gets its files first.

    Returns:
        The blocks of output that follow what was run, each with what was printed.
    """
    namespace: dict[str, object] = {"__name__": "__main__"}
    printed: str | None = None
    outputs = []
    bring_files(path.read_text())
    for block in blocks_of(path.read_text()):
        where = f"{path.name}:{block.line}"
        if block.output and printed is not None:
            outputs.append((block, printed))
        elif block.language in RUN and block.not_run is not None:
            printed = None
        elif block.language == "sh":
            printed = "".join(run_command(command, where) for command in commands_of(block.code))
        elif block.language == "python":
            with contextlib.redirect_stdout(io.StringIO()) as out:
                # The name and the line of the page, for the traceback of what fails.
                exec(compile("\n" * (block.line - 1) + block.code, str(path), "exec"), namespace)
            printed = out.getvalue()
    return outputs


def run_command(command: str, where: str) -> str:
    """Runs one command line, of trtint8 or ``python SCRIPT``, which may end in ``> FILE``.

    Returns:
        What it printed, on both streams; with a file, on standard error.
    """
    program, *arguments = shlex.split(command, comments=True)
    out, file = io.StringIO(), None
    if ">" in arguments:
        arguments, (file,) = arguments[: arguments.index(">")], arguments[arguments.index(">") + 1 :]
    results = io.StringIO() if file else out
    with contextlib.redirect_stdout(results), contextlib.redirect_stderr(out):
        if program == "python":
            exec(compile(Path(arguments[0]).read_text(), arguments[0], "exec"), {"__name__": "__main__"})
            status = 0
        else:
            assert program == "trtint8", f"{where}: '{program}' is not run; say so before the block"
            status = main(arguments)
    assert status == 0, f"{where}: {command}\n{out.getvalue()}"
    if file:
        Path(file).write_text(results.getvalue())
    return out.getvalue()


def shown(printed: str) -> str:
    """What was printed, as a page shows it."""
    return "\n".join(line.rstrip() for line in printed.strip("\n").split("\n")) + "\n"


def fits(block: Block, printed: str) -> bool:
    """Whether a page shows what was printed, up to what differs between machines.

    Numbers may differ by a tenth, or by two in the last digit of a decimal one. Times, sizes in bytes and
    versions may be anything. Rows may stand in another order, because figures that are nearly equal order
    them. White space and the lines of tables are passed over.
    """
    left, found = _rows(printed), 0
    wanted = _rows(block.code)
    for row in wanted:
        same = next((other for other in left if _row_fits(row, other)), None)
        if same is not None:
            found += 1
            left.remove(same)
    if block.rows_differ:
        return found >= len(wanted) / 2
    return found == len(wanted) and not left


#: Box-drawing characters and bars.
_DRAWN = re.compile("[\u2500-\u259f]+")
_NUMBER = re.compile(r"(\d+(?:\.\d+)*(?:e[-+]?\d+)?)")
#: Times and sizes in bytes.
_MEASURED = re.compile(r"\d+(?:\.\d+)?\s?(?:[mµ]?s|min|h|[kMG]?i?B)\b")


def _rows(text: str) -> list[str]:
    rows = (_MEASURED.sub("?", " ".join(_DRAWN.sub(" ", line).split())) for line in text.split("\n"))
    return [row for row in rows if row]


def _row_fits(wanted: str, printed: str) -> bool:
    ours, theirs = _NUMBER.split(wanted), _NUMBER.split(printed)
    return ours[::2] == theirs[::2] and all(map(_number_fits, ours[1::2], theirs[1::2]))


def _number_fits(wanted: str, printed: str) -> bool:
    if wanted.count(".") > 1:  # a version
        return True
    a, b = float(wanted), float(printed)
    digits = len(wanted.partition("e")[0].partition(".")[2])
    last = 2 * 10.0**-digits if digits and "e" not in wanted else 0
    return abs(a - b) <= max(0.1 * max(a, b), last) * (1 + 1e-9)
