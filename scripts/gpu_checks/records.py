"""What a stage finds: records, appended to a file one by one so that a crash loses none of them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

Figure = str | int | float | bool | None


@dataclass(frozen=True)
class Finding:
    """What one check showed.

    Attributes:
        figures: Name, with its unit, to value.
        passed: Whether it is as promised; None where nothing was promised.
        note: Remarks, in a sentence.
    """

    figures: Mapping[str, Figure]
    passed: bool | None = None
    note: str = ""


@dataclass(frozen=True)
class Record:
    """One row of a table of the report.

    Attributes:
        table: The table's title.
        case: The row's title.
        figures: Name, with its unit, to value.
        passed: Whether it is as promised; None where nothing was promised.
        note: Remarks, in a sentence.
        seconds: How long it took.
        ran: False where time or a part was lacking; ``note`` says which.
    """

    table: str
    case: str
    figures: Mapping[str, Figure] = field(default_factory=dict)
    passed: bool | None = None
    note: str = ""
    seconds: float = 0.0
    ran: bool = True


def append(path: Path, record: Record) -> None:
    """Adds a record to a file, which has one line per record."""
    data = {**asdict(record), "figures": {name: finite(value) for name, value in record.figures.items()}}
    with path.open("a") as stream:
        stream.write(json.dumps(data, allow_nan=False) + "\n")


def read(path: Path) -> list[Record]:
    """The records of a file; a last line that a crash cut off is left out."""
    if not path.is_file():
        return []
    lines = path.read_text().split("\n")
    return [Record(**json.loads(line)) for line in lines[:-1]]


def finite(value: Any) -> Any:
    """A value that JSON can hold: NumPy's numbers become Python's, infinities and NaN their names."""
    value = value.item() if hasattr(value, "item") else value
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
