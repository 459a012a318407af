"""How a comparison shows itself in a terminal, in a notebook and as a data frame."""

from __future__ import annotations

from typing import Any

from calibrators.display.frames import data_frame
from calibrators.display.html import html_table
from trtint8.validation.measure import REFERENCE, VALIDATED, Measure
from trtint8.validation.significance import as_number
from trtint8.validation.wording import Compared, accuracy_rows, verdicts


def accuracy_summary(accuracy: Compared) -> str:
    """The first metric and the SQNR of the first output, on one line."""
    rows = accuracy_rows(accuracy)
    shown = [*rows[:1], *(row for row in rows[1:] if row[0].startswith("SQNR"))][:2]
    return ", ".join(f"{title} {_short(value)}{_beside(reference)}" for title, reference, value, *_ in shown)


def accuracy_html(title: str, accuracy: Compared, notes: tuple[str, ...] = (), name: str = VALIDATED) -> str:
    """A table with one row per metric, and what the differences mean.

    Args:
        title: The title above the table.
        accuracy: The comparison.
        notes: Sentences below the table, before those on the differences.
        name: What the model that is compared is called.
    """
    columns = ("", REFERENCE, name, *accuracy.also)
    return html_table(title, columns, accuracy_rows(accuracy), (*notes, *verdicts(accuracy, name)))


def accuracy_frame(accuracy: Compared) -> Any:
    """A ``pandas.DataFrame`` with one row per metric and one column per model.

    Args:
        accuracy: The comparison.

    Raises:
        UnsupportedError: pandas is not installed.
    """
    sides = {VALIDATED: accuracy, **accuracy.also}
    outputs = [output.name for output in accuracy.outputs]
    of_tokens = [output.name for output in accuracy.outputs if output.token_cosine is not None]
    columns: dict[str, list[object]] = {
        "metric": [
            *(measure.name for measure in accuracy.measures),
            *(f"sqnr:{name}" for name in outputs),
            *(f"cosine:{name}" for name in outputs),
            *(f"max_error:{name}" for name in outputs),
            *(f"token_cosine:{name}" for name in of_tokens),
        ],
    }
    columns[REFERENCE] = [as_number(measure.reference) for measure in accuracy.measures]
    columns[REFERENCE] += [None] * (len(columns["metric"]) - len(columns[REFERENCE]))
    for name, side in sides.items():
        columns[name] = [
            *(_value(measure) for measure in side.measures),
            *(output.sqnr_db for output in side.outputs),
            *(output.cosine for output in side.outputs),
            *(output.max_error for output in side.outputs),
            *(output.token_cosine for output in side.outputs if output.name in of_tokens),
        ]
    return data_frame(columns)


def _value(measure: Measure) -> float | None:
    return as_number(measure.value)


def _short(value: str) -> str:
    """A value without its interval."""
    return value.split(" (")[0]


def _beside(reference: str) -> str:
    return f" ({REFERENCE} {_short(reference)})" if reference else ""
