"""Networks of many architectures through every verb: exported, calibrated, quantized, validated and built.

pip install torch torchvision timm transformers onnxscript
python scripts/zoo.py                                   # all networks, by both of PyTorch's exporters
python scripts/zoo.py resnet18 lstm --exporters dynamo
python scripts/zoo.py --json rows.json --page docs/models.md
python scripts/zoo.py resnet18 --rows rows.json --page docs/models.md   # one network anew
python scripts/zoo.py --rows dynamo.json script.json --page docs/models.md   # later rows replace earlier ones

Weights are random, from one seed, so the table says what holds for an architecture and nothing of accuracy on
a task. Each network runs in a process of its own. Engines are built by TensorRT for RTX on the CPU and not
run: fused attentions are those of the engine in INT8 with FP16 for the rest, of those in FP16, and bytes and
times are estimates for one GPU (docs/audit.md), as a share of FP16's.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_SCRIPTS = Path(__file__).parent
_SECONDS = 600
_EXPORTERS = ("dynamo", "script")

#: The line of a page behind which the table stands.
_MARK = "<!-- python scripts/zoo.py --page writes all that follows -->"

Row = dict[str, Any]

_HEADINGS = (
    "network",
    "exporter",
    "INT8",
    "why not",
    "fused attentions",
    "bytes / FP16",
    "time / FP16",
    "SQNR in dB",
    "seconds",
    "MiB",
)

#: Of the page, where both exporters share a line.
_PAGE_HEADINGS = ("network", "INT8", "why not", "time", "SQNR")


def run(name: str, exporter: str) -> Row:
    """One row, or what failed."""
    script = _SCRIPTS / "zoo_bench" / "run_one.py"
    path = os.pathsep.join(filter(None, [os.fspath(_SCRIPTS), os.environ.get("PYTHONPATH")]))
    with tempfile.TemporaryDirectory() as folder:
        try:
            done = subprocess.run(
                [sys.executable, script, name, exporter, folder],
                env={**os.environ, "PYTHONPATH": path},
                capture_output=True,
                text=True,
                timeout=_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return {"name": name, "exporter": exporter, "failed": f"took more than {_SECONDS} s"}
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        return {"name": name, "exporter": exporter, "failed": f"status {done.returncode}: {last[:200]}"}
    row: Row = json.loads(lines[-1])
    return row


def cells(row: Row) -> list[str]:
    """A row as text."""
    if "failed" in row:
        return [row["name"], row["exporter"], row["failed"], *[""] * (len(_HEADINGS) - 3)]
    why = "; ".join(f"{count} {reason}" for reason, count in row["why"].items())
    return [
        row["name"],
        row["exporter"],
        f"{row['int8']} of {row['weighted']}",
        why,
        "{} of {}".format(*row["attention"]),
        f"{row['bytes']:.2f}" if "bytes" in row else "",
        " to ".join(dict.fromkeys(f"{end:.2f}" for end in row.get("time", []))),
        f"{row['sqnr_db']:.1f}",
        f"{row['seconds']:.0f}",
        str(row["mib"]),
    ]


def merged(*parts: Sequence[Row]) -> list[Row]:
    """One row per network and exporter, the last one of each, in the order in which networks come first."""
    rows = {(row["name"], row["exporter"]): row for part in parts for row in part}
    names = dict.fromkeys(name for name, _ in rows)
    return [rows[name, exporter] for name in names for exporter in _EXPORTERS if (name, exporter) in rows]


def markdown(rows: Sequence[Row]) -> str:
    """What the letters stand for, and a Markdown table with one line per network that has layers in INT8.

    A cell has one value where all exporters agree, and theirs in order where they differ.
    """
    reasons = sorted({reason for row in rows for reason in row.get("why", {})})
    letters = {reason: chr(ord("a") + number) for number, reason in enumerate(_texts(reasons))}
    lines = [list(_PAGE_HEADINGS), ["---"] * len(_PAGE_HEADINGS)]
    in_int8 = {row["name"] for row in rows if row.get("int8", 1)}
    none = ", ".join(dict.fromkeys(row["name"] for row in rows if row["name"] not in in_int8))
    for name in dict.fromkeys(row["name"] for row in rows if row["name"] in in_int8):
        of_exporters = [_page_cells(row, letters) for row in rows if row["name"] == name]
        columns = zip(*of_exporters, strict=True)
        lines.append([name, *map(_joined, columns)])
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    legend = "\n".join(f"- **{letter}**: {reason}" for reason, letter in letters.items())
    sentence = none and f"No layer is in INT8, and the time is that of FP16: {none}."
    return "\n\n".join(filter(None, (legend, sentence, table)))


def _joined(values: Sequence[str]) -> str:
    """The values of the exporters in one cell."""
    different = list(dict.fromkeys(values))
    return " / ".join(value or "none" for value in different) if len(different) > 1 else different[0]


def _texts(reasons: Sequence[str]) -> list[str]:
    """Reasons without the operators, each once."""
    return list(dict.fromkeys(reason.partition(": ")[2] for reason in reasons))


def _page_cells(row: Row, letters: Mapping[str, str]) -> list[str]:
    if "failed" in row:
        return [row["failed"], *[""] * (len(_PAGE_HEADINGS) - 2)]
    _, _, int8, _, _, _, time, sqnr, *_ = cells(row)
    reasons = sorted(row["why"], key=row["why"].__getitem__, reverse=True)
    why = ", ".join(dict.fromkeys(letters[reason.partition(": ")[2]] for reason in reasons))
    return [_whole(int8), why, _whole(time), _whole(sqnr)]


def _whole(text: str) -> str:
    """A text that is not divided between lines."""
    return text.replace(" ", "\u00a0")


def aligned(rows: Sequence[Row]) -> str:
    """All rows as a table for a terminal."""
    table = [_HEADINGS, *map(cells, rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = ("  ".join(map(str.ljust, line, widths)).rstrip() for line in table)
    return "\n".join(lines)


def page_with(page: str, rows: Sequence[Row]) -> str:
    """A page of the documentation with the rows in place of what stands behind its mark.

    Raises:
        ValueError: The page has no mark.
    """
    head, mark, _ = page.partition(_MARK)
    if not mark:
        raise ValueError(f"the page has no line {_MARK}")
    count = {exporter: sum(row["exporter"] == exporter for row in rows) for exporter in _EXPORTERS}
    exporters = " and ".join(f"{number} by `{exporter}`" for exporter, number in count.items() if number)
    networks = len({row["name"] for row in rows})
    done = [row for row in rows if "failed" not in row]
    longest, largest = (max((row[key] for row in done), default=0) for key in ("seconds", "mib"))
    took = f"None took more than {longest:.0f} seconds, nor more than {largest} MiB of memory."
    return f"{head}{mark}\n\n{networks} networks: {exporters}. {took}\n\n{markdown(rows)}\n"


def main() -> None:
    """Runs the networks one after another."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("names", nargs="*", help="networks; all where none is named, or with --rows none")
    parser.add_argument("--exporters", nargs="+", choices=_EXPORTERS, default=_EXPORTERS)
    parser.add_argument("--rows", type=Path, nargs="+", default=[], help="rows of runs before, as JSON")
    parser.add_argument("--json", type=Path, help="write the rows there")
    parser.add_argument("--page", type=Path, help="put the rows into this page, such as docs/models.md")
    parser.add_argument("--markdown", action="store_true", help="print a Markdown table")
    options = parser.parse_args()
    rows = merged(*(json.loads(path.read_text()) for path in options.rows))
    for name in _networks(parser, options):
        for exporter in options.exporters:
            row = run(name, exporter)
            rows = merged(rows, [row])
            print("  ".join(filter(None, cells(row))), file=sys.stderr, flush=True)
            if options.json:
                options.json.write_text(json.dumps(rows, indent=1))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))
    if options.page:
        options.page.write_text(page_with(options.page.read_text(), rows))
    print(markdown(rows) if options.markdown else aligned(rows))


def _networks(parser: argparse.ArgumentParser, options: argparse.Namespace) -> Sequence[str]:
    """The networks to run."""
    if options.rows and not options.names:
        return ()
    sys.path.insert(0, os.fspath(_SCRIPTS))
    from zoo_bench.architectures import ARCHITECTURES

    if unknown := set(options.names) - set(ARCHITECTURES):
        parser.error(
            f"there is no network {', '.join(sorted(unknown))}; there are {', '.join(ARCHITECTURES)}"
        )
    return options.names or tuple(ARCHITECTURES)


if __name__ == "__main__":
    main()
