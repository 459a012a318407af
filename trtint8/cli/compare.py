"""`trtint8 compare`."""

from __future__ import annotations

import argparse

from trtint8.cli.output import print_json, print_line, print_table
from trtint8.report.comparison import ComparedRow, compare_runs
from trtint8.report.writing import write_comparison

EXAMPLE = (
    "examples:\n  trtint8 compare entropy/net.engine mse/net.engine\n"
    "  trtint8 compare before/ after/ -o comparison.html"
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments."""
    parser.add_argument(
        "runs",
        metavar="RUN",
        nargs="+",
        help="two or more of: a folder that `trtint8 build` wrote to, an engine with the files beside it, or "
        "a file that `trtint8 report` takes",
    )
    parser.add_argument("-o", "--output", metavar="OUT.html", help="also write one HTML page")
    parser.add_argument("--json", action="store_true", help="print the comparison as JSON")


def run(options: argparse.Namespace) -> None:
    """Compares, writes the page where it is asked for, and prints the figures."""
    comparison = compare_runs(options.runs)
    if options.output is not None:
        write_comparison(comparison, options.output)
    if options.json:
        print_json(comparison)
        return
    columns = ("", *comparison.runs, "")
    print_table("Side by side", columns, map(_texts, comparison.rows))
    if comparison.layers:
        print_table("Layers in another precision", columns, map(_texts, comparison.layers))
    print_line(f"Different: {', '.join(comparison.differences) or 'nothing'}")


def _texts(row: ComparedRow) -> tuple[str, ...]:
    values = ("-" if value is None else value for value in row.values)
    return (row.name, *values, "differs" if row.differs else "")
