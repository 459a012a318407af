"""What the readers and writers of other tools' formats share: text, JSON, numbers and ranges, checked.

A format that holds nothing but ranges, one per tensor, is a :class:`RangesFormat`. An engine that is given
for a table is refused by its first bytes.
"""

from __future__ import annotations

import json
import math
import os
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from calibrators import records
from calibrators.checks import FilePath, warn_user
from calibrators.errors import TableError, enumerated


@dataclass(frozen=True)
class RangeEntry:
    """The range of one tensor, as a file states it.

    Attributes:
        tensor: The tensor's name.
        amax: The tensor's range; not checked yet.
        line: The line it stands on, counted from 1; None where the file has no lines.
    """

    tensor: str
    amax: float
    line: int | None = None


@dataclass(frozen=True)
class RangesFormat:
    """The format of files that map tensor names to ranges, and hold nothing else.

    Attributes:
        name: What the format is called on the command line.
        suffix: The ending of its files.
        read: Yields the entries of a file, from the file's content and a name of the file for messages;
            raises TableError where the content is malformed.
        render: Returns the content of a file, from tensor name to amax.
        recognizes: True for the JSON documents of this format; None where its ending alone tells.
    """

    name: str
    suffix: str
    read: Callable[[bytes, str], Iterable[RangeEntry]]
    render: Callable[[Mapping[str, float]], bytes]
    recognizes: Callable[[Any], bool] | None = None

    def parse(self, data: bytes, source: str) -> dict[str, float]:
        """Reads a file of this format.

        Args:
            data: The file's content.
            source: What to call the file in messages.

        Returns:
            Tensor name to amax, in the file's order.

        Raises:
            TableError: The content is malformed, a tensor stands twice, or a range is not a finite number of
                0 or more.
        """
        return collect_ranges(self.read(data, source), source)


def collect_ranges(entries: Iterable[RangeEntry], source: str) -> dict[str, float]:
    """Checks entries and collects them.

    Args:
        entries: The entries of a file.
        source: What to call the file in messages.

    Returns:
        Tensor name to amax, in the order of the entries.

    Raises:
        TableError: There is no range, there are too many, a tensor stands twice, or a range is not a finite
            number of 0 or more.
    """
    ranges: dict[str, float] = {}
    for entry in entries:
        add_range(ranges, entry.tensor, entry.amax, source, entry.line)
        refuse_too_many(len(ranges), source)
    if not ranges:
        raise TableError(f"'{source}' holds no ranges; calibrate again")
    return ranges


_Value = TypeVar("_Value")

#: The most tensors of a table that is written, and read, and so the most lines of its file.
MOST_TENSORS = 1 << 20

#: Where ``str.splitlines`` divides lines.
_LINE_ENDS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"

#: Unicode's categories of control characters, line and paragraph separators, and halves of a character.
_NOT_ON_A_LINE = ("Cc", "Zl", "Zp", "Cs")


def decoded(data: bytes, source: str) -> str:
    """The content of a file as text.

    Raises:
        TableError: It is neither UTF-8 nor, behind a byte-order mark, UTF-16; or it is too large.
    """
    if not records.is_readable(data):
        raise TableError(f"'{source}' holds more values than any table; check the file")
    try:
        return records.decode_text(data)
    except UnicodeDecodeError as error:
        kind = "UTF-16" if error.encoding.startswith("utf-16") else "UTF-8"
        raise TableError(f"'{source}' is not text: byte {error.start} is no {kind}") from error


def split_lines(text: str, source: str) -> list[str]:
    """The lines of a text.

    Raises:
        TableError: There are more than a table has tensors.
    """
    if sum(map(text.count, _LINE_ENDS)) > 2 * MOST_TENSORS:  # a line may end in two characters
        raise TableError(
            f"'{source}' has more than {MOST_TENSORS:,} lines, which no table has; check the file"
        )
    return text.splitlines()


def filled_lines(data: bytes, source: str) -> Iterator[tuple[int, str]]:
    """The lines of a file that hold more than white space, with their numbers, counted from 1.

    Raises:
        TableError: The content is neither UTF-8 nor, behind a byte-order mark, UTF-16; or has too many lines.
    """
    for line, text in enumerate(split_lines(decoded(data, source), source), start=1):
        if text.strip():
            yield line, text


def refuse_too_many(tensors: int, source: str) -> None:
    """Refuses a table that is larger than those that are written, and read.

    Args:
        tensors: How many tensors it has.
        source: What to call its file in messages.

    Raises:
        TableError: They are more than :data:`MOST_TENSORS`.
    """
    if tensors > MOST_TENSORS:
        raise TableError(
            f"the table '{source}' has {tensors:,} tensors or more, and {MOST_TENSORS:,} are the most; leave "
            "tensors out"
        )


def read_json(data: bytes, source: str, kind: str, read: Callable[[Any], _Value]) -> _Value:
    """Reads a JSON file whose structure another tool has defined.

    Args:
        data: The file's content.
        source: What to call the file in messages.
        kind: What the file should be, for messages, for example ``a table of PPQ``.
        read: Takes what is wanted from the document; raises ValueError, KeyError, TypeError, AttributeError
            or OverflowError where the document has another structure.

    Returns:
        What ``read`` returns.

    Raises:
        TableError: The content is not JSON, has too many tensors, a name stands twice, or the document has
            another structure.
    """
    try:
        document = records.parse(data)
        refuse_large_parts(document, source)
        refuse_repeated_names(data, source)
        return read(document)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        reason = f"{type(error).__name__}: {str(error)[:200]}"
        raise TableError(f"'{source}' is not {kind} ({reason}); export it again") from error


def refuse_repeated_names(data: bytes, source: str) -> None:
    """Refuses JSON in which an object has a name twice: a parser takes the last one without a word.

    Args:
        data: The file's content, which :func:`calibrators.records.parse` reads.
        source: What to call the file in messages.

    Raises:
        TableError: There is such a name.
        RecordError: The content is nested too deeply.
    """

    def check(pairs: list[tuple[str, Any]]) -> None:
        names = [name for name, _ in pairs]
        if len(set(names)) < len(names):
            ((twice, _),) = Counter(names).most_common(1)
            raise TableError(f"'{source}': {twice!r:.80} stands twice; remove one of them")

    try:
        json.loads(data, object_pairs_hook=check)
    except RecursionError as error:  # the check needs more of the stack than parsing alone
        raise records.RecordError("it is nested too deeply") from error


def refuse_large_parts(document: object, source: str) -> None:
    """Refuses a JSON table with too many tensors, before they are looked at one by one.

    Args:
        document: The table: an object, in which tensors are the names of another object.
        source: What to call the file in messages.

    Raises:
        TableError: There are too many.
    """
    parts = document.values() if isinstance(document, dict) else ()
    refuse_too_many(max((len(part) for part in parts if isinstance(part, dict)), default=0), source)


def check_line_names(names: Iterable[str], kind: str, carries: Callable[[str], bool] = bool) -> None:
    """Refuses names that a format of lines would not give back: they could even add lines of their own.

    Args:
        names: Names of tensors or layers, which are to be written.
        kind: What is written, for messages, for example ``a calibration cache``.
        carries: Whether the format gives a name back that stands on one line; every name but an empty one by
            default.

    Raises:
        TableError: A name has a line break or another control character, or the format cannot carry it.
    """
    for name in names:
        if any(unicodedata.category(letter) in _NOT_ON_A_LINE for letter in name) or not carries(name):
            raise TableError(
                f"{kind} cannot hold the name {name[:80]!r}; write trtint8's own format (.json), or rename "
                "the tensor in the model"
            )


def number(text: str, source: str, line: int) -> float:
    """The number that a part of a line holds.

    Raises:
        TableError: The text is not a number.
    """
    try:
        return float(text)
    except ValueError:
        shown, header = text.strip()[:40], ""
        if re.fullmatch("[0-9a-fA-F]{8}", shown):
            header = "; TensorRT's calibration caches begin with a line such as TRT-8601-EntropyCalibration2"
        raise TableError(f"'{source}' line {line}: '{shown}' is not a number{header}") from None


def largest_magnitude(ends: Iterable[float]) -> float:
    """The largest magnitude among at least one number; NaN where any of them is NaN."""
    return float(np.max(np.abs(list(ends))))


def add_range(ranges: dict[str, float], name: str, amax: float, source: str, line: int | None = None) -> None:
    """Adds one tensor's range.

    Raises:
        TableError: The tensor stands twice, or the range is not a finite number of 0 or more.
    """
    place = f"'{source}'" + (f" line {line}" if line is not None else "")
    if name in ranges:
        raise TableError(f"{place}: tensor '{name}' stands twice; remove one of them")
    if not 0 <= amax < math.inf:
        raise TableError(f"{place}: the range of '{name}' is {amax}; it must be a number of 0 or more")
    ranges[name] = amax


def warn_widened(ends: Mapping[str, tuple[float, float]]) -> None:
    """Warns of the ranges that got wider because INT8 is symmetric.

    Args:
        ends: Tensor name to (min, max) as it was given.

    Warns:
        UserWarning: A (min, max) is not symmetric.
    """
    widened = [f"'{name}' ({low:g}, {high:g})" for name, (low, high) in ends.items() if abs(low + high) > 0]
    if widened:
        warn_user(
            "INT8 is symmetric, so ranges got wider, to the larger of |min| and |max|: "
            + enumerated(widened),
            note=True,
        )


#: Every plan begins with a letter, these and a header of numbers, in which there are zeros.
_MAGIC = b"trt"
_HEADER = slice(4, 64)


def refuse_engine(data: bytes, path: FilePath) -> None:
    """Refuses an engine where a table is wanted.

    Args:
        data: The file's content.
        path: The file.

    Raises:
        TableError: It is an engine of TensorRT.
    """
    if data[1:4] == _MAGIC and b"\0" in data[_HEADER]:
        beside = Path(path).with_name(f"{Path(path).stem}.table.json").name
        raise TableError(
            f"'{os.fspath(path)}' is an engine and holds no table; give the table that it was built with, "
            f"which 'trtint8 build' writes beside it as '{beside}'"
        )
