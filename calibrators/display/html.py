"""Small HTML tables for notebooks, which bring no styles of their own."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

#: How many rows a table shows; what is left out is counted below it.
MOST_ROWS = 40


@dataclass(frozen=True)
class Markup:
    """Text that is HTML already, such as an SVG element.

    Attributes:
        html: The HTML.
    """

    html: str


#: What a cell holds: text, which is escaped, or HTML.
Cell = str | Markup


def html_table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[Cell]], notes: Iterable[str] = ()
) -> str:
    """A table whose first column is aligned left and whose other columns are aligned right.

    Args:
        title: The title above the table.
        columns: The headings of the columns; no row of headings where all are empty.
        rows: The rows, one cell per column; the first :data:`MOST_ROWS` of them are shown.
        notes: Sentences below the table.

    Returns:
        One HTML element.
    """
    listed = list(rows)
    left_out = len(listed) - MOST_ROWS
    below = [f"… and {left_out} more"] if left_out > 0 else []
    heading = f"<thead><tr>{_cells('th', columns)}</tr></thead>" if any(columns) else ""
    body = "".join(f"<tr>{_cells('td', row)}</tr>" for row in listed[:MOST_ROWS])
    paragraphs = "".join(f"<div>{html.escape(note)}</div>" for note in (*below, *notes))
    return (
        f"<div><div><b>{html.escape(title)}</b></div>"
        f"<table>{heading}<tbody>{body}</tbody></table>{paragraphs}</div>"
    )


def bar(share: float) -> Markup:
    """A horizontal bar in the colour of the text.

    Args:
        share: Its length as a share of the longest, in [0, 1].
    """
    width = round(100 * share, 1)
    return Markup(
        '<svg viewBox="0 0 100 10" width="100" height="10" aria-hidden="true">'
        f'<rect width="{width:g}" height="10" fill="currentColor" opacity="0.5"/></svg>'
    )


def _cells(tag: str, cells: Sequence[Cell]) -> str:
    sides = ["left", *["right"] * (len(cells) - 1)]
    return "".join(
        f'<{tag} style="text-align:{side};padding:0 0.5em">{_content(cell)}</{tag}>'
        for side, cell in zip(sides, cells, strict=True)
    )


def _content(cell: Cell) -> str:
    return cell.html if isinstance(cell, Markup) else html.escape(cell)
