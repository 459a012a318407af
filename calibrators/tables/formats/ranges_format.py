"""What the formats that hold nothing but ranges have in common: one range per tensor, each tensor once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from calibrators.errors import TableError
from calibrators.tables.formats.values import add_range, refuse_too_many


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
    """

    name: str
    suffix: str
    read: Callable[[bytes, str], Iterable[RangeEntry]]
    render: Callable[[Mapping[str, float]], bytes]

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
