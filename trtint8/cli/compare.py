"""`trtint8 compare`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from calibrators.checks import NOTE, doubts_among, notes_among
from calibrators.files import check_writable
from trtint8.cli.output import print_json, print_line, print_table, table_width
from trtint8.cli.verbs import Way, add_arguments, values_of
from trtint8.report.comparison import ComparedRow, compare_runs
from trtint8.report.writing import check_page_name, write_comparison

EXAMPLE = (
    "examples:\n  trtint8 compare entropy/net.engine mse/net.engine\n"
    "  trtint8 compare before/ after/ -o comparison.html"
)

#: The longest names of figures and the longest values that surely stand on one line, in characters: with
#: these, three runs stand in one table on a terminal of 80 columns, and eight in a pipe.
_LONGEST_NAME, _LONGEST_VALUE = 24, 11


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments."""
    add_arguments(parser, compare_runs, json="the comparison", sources=Way(metavar="RUN"))
    parser.add_argument("-o", "--output", metavar="OUT.html", help="also write one HTML page")


def run(options: argparse.Namespace) -> None:
    """Compares, writes the page where it is asked for, and prints the figures."""
    output = None if options.output is None else check_writable(check_page_name(options.output))
    comparison = compare_runs(**values_of(compare_runs, options))
    if output is not None:
        write_comparison(comparison, output)
    if options.json:
        print_json(comparison)
        return
    for warning in doubts_among(comparison.warnings):
        print_line(f"doubtful: {warning}")
    for verdict in comparison.verdicts:
        print_line(verdict)
    print_rows("Side by side", comparison.runs, comparison.rows)
    if comparison.layers:
        print_rows("Layers in another precision", comparison.runs, comparison.layers)
    for note in notes_among(comparison.warnings):
        print_line(f"{NOTE}{note}")
    print_line(f"Different: {', '.join(comparison.differences) or 'nothing'}")
    if output is not None:
        print_line(f"written to '{output}'")


def runs_per_table(runs: Sequence[str], rows: Sequence[ComparedRow], width: int) -> int:
    """How many runs stand in one table, so that all tables are as wide as the terminal or narrower.

    Args:
        runs: The names of the runs.
        rows: The figures of the runs.
        width: How many characters wide a table may be.

    Returns:
        The number of runs, at least 1. Long texts are folded.
    """
    texts = [("figure", *runs, "verdict"), *(_texts(row, slice(None)) for row in rows)]
    names, *values, last = (max(map(len, column)) for column in zip(*texts, strict=True))
    # Each column has a border and a space on both sides of its texts; the last column ends with a border.
    free = width - 1 - (min(names, _LONGEST_NAME) + 3) - (last + 3)
    return max(1, min(len(runs), free // (min(max(values), _LONGEST_VALUE) + 3)))


def print_rows(title: str, runs: Sequence[str], rows: Sequence[ComparedRow]) -> None:
    """Prints one table, or several with some of the runs each where one would be too wide."""
    count = runs_per_table(runs, rows, table_width())
    for first in range(0, len(runs), count):
        shown = slice(first, first + count)
        last = min(first + count, len(runs))
        numbers = f"runs {first + 1} to {last}" if last > first + 1 else f"run {last}"
        heading = title if count == len(runs) else f"{title}, {numbers} of {len(runs)}"
        print_table(heading, ("figure", *runs[shown], "verdict"), [_texts(row, shown) for row in rows])


def _texts(row: ComparedRow, shown: slice) -> tuple[str, ...]:
    """The texts of one row for some of the runs; the last one says whether any two of all runs differ."""
    values = ("-" if value is None else value for value in row.values[shown])
    return (row.title, *values, row.mark)
