"""Networks of many architectures through every verb: exported, calibrated, quantized, validated and built.

pip install torch torchvision timm transformers onnxscript
python scripts/zoo.py                                   # all networks, by both of PyTorch's exporters
python scripts/zoo.py resnet18 lstm --exporters dynamo
python scripts/zoo.py --json rows.json --markdown

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
from pathlib import Path
from typing import Any

_SCRIPTS = Path(__file__).parent
_SECONDS = 600

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
        f"{row['time']:.2f}" if "time" in row else "",
        f"{row['sqnr_db']:.1f}",
        f"{row['seconds']:.1f}",
        str(row["mib"]),
    ]


def show(rows: list[Row], *, markdown: bool) -> None:
    """Prints all rows as one table."""
    table = [_HEADINGS, *map(cells, rows)]
    if markdown:
        table.insert(1, ["---"] * len(_HEADINGS))
    widths = [0 if markdown else max(map(len, column)) for column in zip(*table, strict=True)]
    for line in table:
        joined = (" | " if markdown else "  ").join(
            cell.ljust(width) for cell, width in zip(line, widths, strict=True)
        )
        print(f"| {joined} |" if markdown else joined.rstrip())


def main() -> None:
    """Runs the networks one after another."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("names", nargs="*", help="networks; all where none is named")
    parser.add_argument("--exporters", nargs="+", choices=("dynamo", "script"), default=["dynamo", "script"])
    parser.add_argument("--json", type=Path, help="write the rows there")
    parser.add_argument("--markdown", action="store_true")
    options = parser.parse_args()
    sys.path.insert(0, os.fspath(_SCRIPTS))
    from zoo_bench.architectures import ARCHITECTURES

    if unknown := set(options.names) - set(ARCHITECTURES):
        parser.error(
            f"there is no network {', '.join(sorted(unknown))}; there are {', '.join(ARCHITECTURES)}"
        )
    rows = []
    for name in options.names or ARCHITECTURES:
        for exporter in options.exporters:
            rows.append(run(name, exporter))
            print("  ".join(filter(None, cells(rows[-1]))), file=sys.stderr, flush=True)
            if options.json:
                options.json.write_text(json.dumps(rows, indent=1))
    show(rows, markdown=options.markdown)


if __name__ == "__main__":
    main()
