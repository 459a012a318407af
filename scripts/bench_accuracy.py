"""What INT8 costs networks of several tasks in accuracy, by every method.

python scripts/bench_accuracy.py DATA                           # all networks whose files are in the folder
python scripts/bench_accuracy.py DATA --networks vit espnet --methods mse auto tuned
python scripts/bench_accuracy.py DATA --peers FOLDER --markdown # other tools too, installed there

Every result is a model with Q/DQ pairs, judged by `trtint8.validate` as fake quantization in ONNX Runtime on
held-out samples, which no method sees: each cell has the figure of the network's task, and the SQNR of the
output where it is lowest, in dB. `rounded` is `trtint8.quantize` with rounding, and `tuned` is `trtint8.tune`
with its defaults. Both have the calibration samples, and their cells have the share of the arithmetic in
float and the seconds as well, in processor time, which other programs disturb less. F1 compares the
detections with those of FP32 (score above 0.3, overlap above 0.5), `pixels` is the share of positions that
have FP32's class, and PSNR compares with the true image.

DATA has the folders `cifar10`, `tasks` and `real`; see scripts/accuracy_bench/cases.py. The digits come with
the package.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import onnx
from accuracy_bench.cases import CASES, Case, open_cases, sample_count
from accuracy_bench.methods import OWN, Workbench
from accuracy_bench.peers import PEER_METHODS, PeerBench, PeerError
from calibration_bench.tools import install

import trtint8
from trtint8.validation.accuracy import Measure
from trtint8.validation.significance import Share, as_number


@dataclass(frozen=True)
class Cell:
    """The accuracy of one network by one method.

    Attributes:
        figure: The figure of the task; None where the figure of FP32 is that of equal outputs.
        sqnr_db: SQNR in dB of the output where it is lowest; None for FP32.
        note: The share of the arithmetic in float, and the processor seconds that the method took; empty
            where it only chooses ranges.
    """

    figure: float | None
    sqnr_db: float | None
    note: str = ""

    def __str__(self) -> str:
        parts = [] if self.figure is None else [f"{self.figure:.2f}"]
        parts += [] if self.sqnr_db is None else [f"{self.sqnr_db:.1f}"]
        return (" / ".join(parts) or "-") + (f" ({self.note})" if self.note else "")


def judge(case: Case, model: onnx.ModelProto) -> tuple[Cell, Cell]:
    """The accuracy of a model in INT8, and that of FP32."""
    accuracy = trtint8.validate(
        model,
        case.held_out,
        reference=case.model,
        metrics=[case.metric, "sqnr"],
        preprocessing=case.preprocessing,
        progress=False,
    )
    (measure,) = accuracy.measures
    sqnr_db = min(output.sqnr_db for output in accuracy.outputs)
    return Cell(_number(measure, measure.value), sqnr_db), Cell(_number(measure, measure.reference), None)


def _number(measure: Measure, value: Share | float | None) -> float | None:
    plain = as_number(value)
    return None if plain is None else plain * (100 if measure.unit == "%" else 1)


def bench(case: Case, methods: Sequence[str], limit: int, environments: Path | None) -> dict[str, Cell | str]:
    """Measures one network by every method, and prints each result when it is there.

    Args:
        case: The network and its data.
        methods: Keys of :data:`OWN` and of :data:`PEER_METHODS`.
        limit: The most calibration samples.
        environments: The folder of other tools' environments; None where there are none.

    Returns:
        Name of each method to its result, or to the reason why there is none; ``FP32`` comes first.
    """
    calibrated, held_out = (sample_count(data) for data in (case.calibration, case.held_out))
    print(f"\n{case.name}: {min(calibrated, limit)} calibration samples, {held_out} held out; {case.figure}")
    cells: dict[str, Cell | str] = {"FP32": ""}
    with tempfile.TemporaryDirectory() as folder:
        workbench = Workbench(case, limit)
        print(f"  calibrated in {workbench.seconds:.1f} s", flush=True)
        for method in methods:
            begun, note = processor_seconds(), ""
            try:
                if method in OWN:
                    model, note = OWN[method](workbench)
                else:
                    model, note = PeerBench(workbench, Path(folder), environments).quantize(method)
                seconds = processor_seconds() - begun
                judged, cells["FP32"] = judge(case, model)
                shown = f"{note}, {seconds:.0f} s" if note and method in OWN else ""
                cells[method] = replace(judged, note=shown)
            except PeerError as error:
                seconds, cells[method] = processor_seconds() - begun, f"fails: {error}"
            print(f"  {method:24}{cells[method]!s:>16}{seconds:8.1f} s  {note}", flush=True)
    return cells


def processor_seconds() -> float:
    """The processor time of this process and of those that it waited for."""
    return sum(os.times()[:4])


def show(columns: Mapping[str, Mapping[str, Cell | str]], *, markdown: bool) -> None:
    """Prints one table: one row per method, and one column per network.

    Args:
        columns: Heading of each network to its results.
        markdown: Whether the table is printed in Markdown.
    """
    rows = list(next(iter(columns.values())))
    table = [["", *columns], *([row, *(str(cells[row]) for cells in columns.values())] for row in rows)]
    if markdown:
        table.insert(1, ["---"] * len(table[0]))
    widths = [0 if markdown else max(map(len, column)) for column in zip(*table, strict=True)]
    print()
    for row in table:
        line = (" | " if markdown else "  ").join(
            text.ljust(width) for text, width in zip(row, widths, strict=True)
        )
        print(f"| {line} |" if markdown else line)


def main() -> None:
    """Prints the results as they come, and one table at the end."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("data", type=Path, metavar="DATA", help="folder of the networks and their data")
    parser.add_argument("--networks", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--methods", nargs="+", choices=[*OWN, *PEER_METHODS], help="default all")
    parser.add_argument("--limit", type=int, default=500, help="most samples to calibrate and tune with")
    parser.add_argument("--peers", type=Path, help="a folder for environments with other tools; adds them")
    parser.add_argument("--markdown", action="store_true", help="print the table in Markdown")
    options = parser.parse_args()
    tools = ["ort", *install(options.peers)] if options.peers else []
    known = [*OWN, *(name for name, kind in PEER_METHODS.items() if kind.split()[0] in tools)]
    methods = options.methods or known
    if missing := [name for name in methods if name not in known]:
        parser.error(f"'{missing[0]}' needs --peers, and that the tool can be installed")
    columns = {
        f"{case.name}, {case.figure}": bench(case, methods, options.limit, options.peers)
        for case in open_cases(options.data, options.networks)
    }
    if columns:
        show(columns, markdown=options.markdown)


if __name__ == "__main__":
    main()
