"""What the verbs print: tables for people, JSON for programs, messages on standard error.

What several verbs say alike stands here too: what an interrupted run has left, and what a calibration cache
does not keep of a table.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
import re
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TextIO, TypeVar

from calibrators.checks import kept_warnings, warn_user
from calibrators.errors import CalibrationDataError, OutputError, UnsupportedError, counted, enumerated
from calibrators.interruption import NOTHING
from calibrators.progress import literal_console

if TYPE_CHECKING:
    from calibrators.tables.table import CalibrationTable
    from trtint8.validation.accuracy import Judgement


#: How wide a table in a pipe or a file is, which have no width of their own, unless its figures are wider.
_PIPE_WIDTH = 100

#: The widest texts of a column, other than the first, that are figures and stay on one line.
_WIDEST_FIGURE = 24

#: The widest word that stands on one line in a table with more columns than there is room for.
_WIDEST_WORD = 11

#: The narrowest column of names or sentences, in characters.
_NARROWEST = 16

#: What stands in the middle of a name that was shortened, where the output can and cannot show it.
_LEFT_OUT, _LEFT_OUT_ASCII = "…", "..."

#: The most rows of a table that are drawn with lines and colours: a thousand take a second.
_MOST_DRAWN = 1000

#: The longest message on standard error, in characters.
_LONGEST_MESSAGE = 499

#: Unicode's categories of what a terminal may obey instead of showing: control characters, characters that
#: turn the direction of text, halves of a character, and separators of lines and paragraphs.
_NOT_SHOWN = ("Cc", "Cf", "Cs", "Zl", "Zp")

#: What Python lets a stream do by default with characters that its encoding lacks: it fails.
_FAILING = ("strict", "surrogateescape")


def shown(text: str) -> str:
    """A text as a terminal may show it, on one line: characters that it would obey become escapes."""
    if text.isprintable():  # quick, and true of most texts
        return text
    return "".join(
        letter.encode("unicode_escape").decode() if unicodedata.category(letter) in _NOT_SHOWN else letter
        for letter in text
    )


def named_nodes(nodes: Mapping[str, str]) -> str:
    """Some nodes in words, such as ``2 nodes: 'nms' (EfficientNMS_TRT), 'scores' (Cast)``.

    Args:
        nodes: Their names, to their operators.
    """
    named = enumerated(f"'{name}' ({operator})" for name, operator in nodes.items())
    return f"{counted(len(nodes), 'node')}: {named}"


def say(message: str, *, whole: bool = False) -> None:
    """Writes one message to standard error, on one line.

    Args:
        message: The message.
        whole: Whether it is not cut where it is longer than a few lines, as a command that is to be copied.
    """
    line = shown(message.replace("\n", " "))
    if len(line) > _LONGEST_MESSAGE and not whole:
        line = line[: _LONGEST_MESSAGE - 1] + "…"
    with contextlib.suppress(OutputError):  # a full or closed standard error stops no work
        _write(sys.stderr, line + "\n")


def warn_where_uncertain(judgement: Judgement | None) -> None:
    """Warns where samples keep a budget, and do not show that others do.

    Args:
        judgement: What the samples say; None where there is no budget.
    """
    if judgement is not None and judgement.verdict == "uncertain":
        warn_user(judgement.notes[0])


def print_line(text: str) -> None:
    """Writes one line of results to standard output."""
    _write(sys.stdout, shown(text) + "\n")


def print_json(value: Any, *, warnings: bool = True) -> None:
    """Writes a value as JSON to standard output, with what the verb has warned of until now.

    Numbers that are not finite become null, but for infinite values of metrics, which become ``inf`` or
    ``-inf``.

    Args:
        value: The value.
        warnings: Whether an object gets the warnings as its key ``warnings``, beside those of its own.
    """
    # Imported late here and below, so that --help needs neither this nor NumPy.
    from calibrators.records import as_json

    document = as_json(value)
    if warnings and isinstance(document, dict):
        own = document.get("warnings", ())
        document["warnings"] = list(dict.fromkeys((*own, *kept_warnings())))
    text = json.dumps(document, indent=2, ensure_ascii=not _prints_unicode())
    # JSON itself escapes only some of the characters that a terminal obeys.
    _write(sys.stdout, "\n".join(map(_escaped, text.split("\n"))) + "\n")


def _escaped(line: str) -> str:
    """A line of JSON without characters that a terminal would obey."""
    if line.isprintable():
        return line
    return "".join(letter if shown(letter) == letter else json.dumps(letter)[1:-1] for letter in line)


def print_table(
    title: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    styles: Iterable[str | None] | None = None,
) -> None:
    """Writes a table to standard output, names and sentences aligned left and figures right.

    A table of many rows has neither lines nor colours, which would take minutes. Where there is no terminal,
    names in the first column are shortened in the middle, as long as they stay different. Figures are whole.

    Args:
        title: The title above the table.
        columns: The headings of the columns, none of them empty.
        rows: The rows, each with one text per column.
        styles: One colour per row, which a terminal shows; None for a row without a colour.
    """
    table = [[shown(text) for text in row] for row in (columns, *rows)]
    widths = _column_widths(table, table_width())
    if not (sys.stdout is not None and sys.stdout.isatty()):
        names = [_shortened(row[0], widths[0]) for row in table]
        if len(set(names)) == len({row[0] for row in table}):  # else they would be taken for one another
            table = [[name, *row[1:]] for name, row in zip(names, table, strict=True)]
    if len(table) - 1 > _MOST_DRAWN:
        _write(sys.stdout, "".join(_plain_table(title, table)))
        return
    from rich import box
    from rich.table import Table

    lines = box.HEAVY_HEAD if _prints_unicode() else box.ASCII
    drawn = Table(title=shown(title), title_justify="left", title_style="bold", box=lines)
    for index, width in enumerate(widths):
        is_text = index == 0 or max((_cells(row[index]) for row in table[1:]), default=0) > _WIDEST_FIGURE
        side: Literal["left", "right"] = "left" if is_text else "right"
        drawn.add_column(table[0][index], justify=side, overflow="fold", width=width)
    for row, style in zip(table[1:], itertools.repeat(None) if styles is None else styles, strict=False):
        drawn.add_row(*row, style=style)
    if sys.stdout is not None and sys.stdout.isatty():
        literal_console().print(drawn)
        return
    text = io.StringIO()
    literal_console(text, width=max(_PIPE_WIDTH, sum(widths) + 3 * len(widths) + 1)).print(drawn)
    _write(sys.stdout, text.getvalue())


def print_facts(title: str, facts: Iterable[tuple[str, object]]) -> None:
    """Writes a table of what was found; what is None is left out."""
    print_table(title, ("what", "found"), [(what, str(found)) for what, found in facts if found is not None])


def _column_widths(table: Sequence[Sequence[str]], most: int) -> list[int]:
    """How wide the columns of a table are, so that it is as wide as it may be, or less.

    Headings are broken at spaces first. Then the first column and columns of sentences share what figures
    leave.

    Args:
        table: The headings, and the rows.
        most: How wide the table may be, in characters.
    """
    headings, *rows = table
    bodies = [max((_cells(row[index]) for row in rows), default=0) for index in range(len(headings))]
    whole = [max(body, _cells(heading)) for body, heading in zip(bodies, headings, strict=True)]
    left = most - 1 - 3 * len(headings)  # a border and two spaces for each column, and a border at the end
    if sum(whole) <= left:
        return whole
    widths = [max(body, _longest_word(heading)) for body, heading in zip(bodies, headings, strict=True)]
    flexible = [index for index, width in enumerate(widths) if index == 0 or width > _WIDEST_FIGURE]
    left -= sum(width for index, width in enumerate(widths) if index not in flexible)
    # The narrower ones first: what they do not need is for the wider ones.
    for place, index in enumerate(sorted(flexible, key=lambda index: widths[index])):
        share = max(left // (len(flexible) - place), _NARROWEST)
        widths[index] = min(widths[index], share)
        left -= widths[index]
    # Still too wide: columns are broken at spaces, the widest first, and that of the names last.
    texts = [(heading, *(row[index] for row in rows)) for index, heading in enumerate(headings)]
    least = [min(max(map(_longest_word, column)), _WIDEST_WORD) for column in texts]
    while left < 0 and (wider := [i for i, width in enumerate(widths) if width > max(least[i], 1)]):
        widths[max(wider, key=lambda index: (index > 0, widths[index]))] -= 1
        left += 1
    return widths


def _longest_word(text: str) -> int:
    return max(map(_cells, text.split()), default=0)


def _shortened(name: str, width: int) -> str:
    """A name that is as wide as it may be, or less: both of its ends."""
    if _cells(name) <= width or " " in name:  # a sentence is broken into lines
        return name
    sign = _LEFT_OUT if _prints_unicode() else _LEFT_OUT_ASCII
    first = last = ""
    for index in range(len(name)):
        longer = (first + name[index // 2], last) if index % 2 == 0 else (first, name[-1 - index // 2] + last)
        if _cells(f"{longer[0]}{sign}{longer[1]}") > width:
            break
        first, last = longer
    return f"{first}{sign}{last}"


def _plain_table(title: str, table: Sequence[Sequence[str]]) -> Iterator[str]:
    """The lines of a table, whose columns are as wide as their widest text."""
    widths = [max(map(_cells, texts)) for texts in zip(*table, strict=True)]
    yield f"{shown(title)}\n"
    for row in table:
        first, *others = (" " * (width - _cells(text)) for text, width in zip(row, widths, strict=True))
        yield "  ".join((row[0] + first, *map("".join, zip(others, row[1:], strict=True)))).rstrip() + "\n"


def _cells(text: str) -> int:
    """How wide a terminal shows a text."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def replace_unprintable() -> None:
    """Has standard output replace characters that its encoding lacks, where it would fail."""
    stream = sys.stdout
    if isinstance(stream, io.TextIOWrapper) and stream.errors in _FAILING:
        stream.reconfigure(errors="replace")


def table_width() -> int:
    """How many characters wide a table on standard output may be."""
    return literal_console().width if sys.stdout is not None and sys.stdout.isatty() else _PIPE_WIDTH


def _prints_unicode() -> bool:
    """Whether standard output has an encoding for all characters."""
    return (getattr(sys.stdout, "encoding", None) or "utf-8").lower().startswith("utf")


def _write(stream: TextIO | None, text: str) -> None:
    """Writes to a stream; nothing where it is closed, or where nobody reads the pipe any more.

    Raises:
        OutputError: The stream cannot be written, as on a full disk.
    """
    if stream is None:
        return
    try:
        stream.write(text)
        stream.flush()
    except OSError as error:
        # What is still in the buffer would fail once more at the end of the process.
        with Path(os.devnull).open("wb") as nowhere:
            os.dup2(nowhere.fileno(), stream.fileno())
        if not isinstance(error, BrokenPipeError):
            raise OutputError(
                f"cannot print the results: {error.strerror or error}; what was to be "
                "written to files is there"
            ) from error


@contextlib.contextmanager
def saying_what_is_kept(
    checkpoint: Path | None, command: str, *, survives_errors: Callable[[], bool] = lambda: False
) -> Iterator[None]:
    """Says after Ctrl-C how a run can be continued, where it can; and after an error that more may mend.

    Args:
        checkpoint: The file in which the run keeps what it has done; None where it keeps nothing.
        command: The command line that continues from it.
        survives_errors: Whether the run has come so far that it can be continued with the data corrected.
    """
    try:
        yield
    except KeyboardInterrupt as error:
        if checkpoint is not None and checkpoint.exists():
            raise KeyboardInterrupt(_kept(checkpoint, command)) from error
        raise
    except (CalibrationDataError, UnsupportedError):
        if survives_errors() and checkpoint is not None and checkpoint.exists():
            say(_kept(checkpoint, command), whole=True)
        raise


def _kept(checkpoint: Path, command: str) -> str:
    return f"'{checkpoint}' keeps what was done; to go on from there: {command}"


def say_interrupted(interrupt: KeyboardInterrupt, written: Sequence[Path]) -> None:
    """Says after Ctrl-C what is left of a run.

    Args:
        interrupt: What Ctrl-C raised, with what :func:`saying_what_is_kept` has to say.
        written: The files that were written, and are there.
    """
    kept = str(interrupt)
    if kept:
        left = kept
    elif written:
        names = enumerated(f"'{path}'" for path in written)
        left = f"{names} {'is' if len(written) == 1 else 'are'} complete"
    else:
        left = NOTHING
    say(f"interrupted: {left}", whole=bool(kept))


def say_method_in_cache(table: CalibrationTable, output: Path) -> None:
    """Says that a calibration cache lacks the table's method, where it does.

    Args:
        table: The table that was written.
        output: The file, of any format.
    """
    if output.suffix.lower() == ".cache" and table.method != table.method_in_cache:
        say(
            f"'{output}' is a calibration cache, which has no name for the method "
            f"'{table.method}': read back, its method is '{table.method_in_cache}'"
        )


#: What a name and its value look like: either may hold "=", but not both.
LAST, FIRST = "(.+)=([^=]+)", "([^=]+)=(.+)"


_Value = TypeVar("_Value")


def named_values(
    option: str,
    texts: Iterable[str],
    form: str,
    advice: str = "give a name, '=' and a value",
    *,
    pattern: str = LAST,
    read: Callable[[str], _Value],
) -> dict[str, _Value]:
    """The values of an option by name.

    Args:
        option: The option.
        texts: What was given for it, in the order of the command line.
        form: How a text is written, such as ``NAME=VALUE``.
        advice: What to give in place of a text of another form.
        pattern: A regular expression with groups for the name and the value.
        read: Reads a value; it raises a ``ValueError`` where the text has another form.

    Raises:
        UnsupportedError: A text has another form, or a name is given twice.
    """
    named: dict[str, _Value] = {}
    for text in texts:
        match = re.fullmatch(pattern, text, re.DOTALL)
        try:
            name, value = (match[1], read(match[2])) if match else ("", None)
        except ValueError:
            name, value = "", None
        if value is None:
            raise UnsupportedError(f"{option}: '{text}' is not {form}; {advice}")
        if name in named:
            raise UnsupportedError(f"{option} gives '{name}' twice; give each name once")
        named[name] = value
    return named
