"""What calibration costs, compared with running the model and with other calibrators.

python scripts/bench_calibration.py                          # a ResNet-50 with random weights
python scripts/bench_calibration.py --threads 1 2 4 --images 64 --repeat 3
TRTINT8_CIFAR10=FOLDER python scripts/bench_calibration.py   # and a trained resnet56, with its top-1 in INT8
python scripts/bench_calibration.py --peers FOLDER           # Model Optimizer and PPQ too, installed there
python scripts/bench_calibration.py --thresholds             # the search for thresholds alone

Every figure comes from a separate process: the seconds after the libraries are imported, without the time
for making inputs, and the peak of its memory. Measurements alternate, and medians are printed. Ratios are to
`exposed`: ONNX Runtime running the model, batch by batch, with the tensors that placement needs as
outputs, which are discarded. `cpu` is the ratio of processor time, which other programs disturb less, and
`ranges` is how far the ranges are from ours by the same method, in the median.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from calibration_bench.cases import MEAN, STD, Case, cases
from calibration_bench.tools import PEERS, install, run_modelopt, run_onnx, run_ort, run_ours, run_ppq
from process_memory import peak_mib

_FIELDS = ("seconds", "cpu", "peak")
_OURS = ("auto", "entropy", "minmax")

#: Methods that other tools have too.
_SHARED = ("entropy", "minmax")
_ORT = ("ort entropy", "ort minmax")


def child(options: argparse.Namespace) -> None:
    """Makes one measurement, and prints its seconds and its peak memory."""
    case = Case(options.case, options.input, options.batch, options.folder)
    kind, _, method = options.child.partition(" ")
    images, threads, table = options.images[0], options.threads[0], options.table
    if kind in ("plain", "exposed"):
        work = run_onnx(case.model if kind == "plain" else case.exposed, case, images, threads)
    elif kind in _OURS:
        work = run_ours(case, images, threads, kind, table)
    else:
        peers = {"ort": run_ort, "modelopt": run_modelopt, "ppq": run_ppq}
        work = peers[kind](case, images, threads, method, table)
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    times = {"seconds": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
    print(json.dumps({**times, "peak": peak_mib()}))


# The parent --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """One line of the result: medians of seconds, of processor seconds and of the peak in MiB."""

    kind: str
    seconds: float
    cpu: float
    peak: float
    table: Path


def run_child(
    kind: str,
    case: Case,
    images: int,
    threads: int,
    table: Path,
    peers: Path | None,
    timeout: float | None = None,
) -> subprocess.CompletedProcess[str]:
    """Makes one measurement in a process of its own, which writes the table where it calibrates.

    Raises:
        subprocess.TimeoutExpired: It takes more than ``timeout`` seconds.
    """
    python = sys.executable
    if peers and (name := kind.split()[0]) in PEERS:
        python = os.fspath(peers / name / "bin" / "python")
    command = [python, __file__, "--child", kind, "--case", case.name, "--input", case.input]
    command += ["--batch", str(case.batch), "--folder", os.fspath(case.folder)]
    command += ["--images", str(images), "--threads", str(threads), "--table", os.fspath(table)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=timeout)


def measure(
    case: Case, kinds: Sequence[str], images: int, threads: int, repeat: int, peers: Path | None
) -> list[Row]:
    """Runs every kind ``repeat`` times, alternately, so that a busy moment affects all of them."""
    found: dict[str, list[dict[str, float]]] = {kind: [] for kind in kinds}
    tables = {kind: case.folder / f"{case.name}.{kind.replace(' ', '-')}.json" for kind in kinds}
    for _ in range(repeat):
        for kind in kinds:
            done = run_child(kind, case, images, threads, tables[kind], peers)
            if done.returncode:
                reason = (done.stderr.strip().splitlines() or [f"signal {-done.returncode}"])[-1]
                print(f"  {kind}: failed ({reason[:150]})")
                continue
            found[kind].append(json.loads(done.stdout.splitlines()[-1]))
    return [
        Row(kind, *(statistics.median(each[key] for each in times) for key in _FIELDS), tables[kind])
        for kind, times in found.items()
        if times
    ]


def show(case: Case, rows: Sequence[Row], images: int, threads: int, top1: dict[str, float]) -> None:
    """Prints the table of one setting."""
    base = {row.kind: row for row in rows}
    exposed, plain = base["exposed"], base["plain"]
    ours = {method: _ranges(base[method].table) for method in _OURS if method in base}
    print(f"\n{case.name}, {images} images in batches of {case.batch}, {threads} threads")
    print(f"{'':18}{'s':>8}{'exposed':>9}{'plain':>8}{'cpu':>8}{'MiB':>8}{'':8}{'ranges':>9}{'top-1':>8}")
    for row in rows:
        ranges = _ranges(row.table) if row.table.exists() else {}
        reference = ours.get(row.kind.split()[-1], {})
        shared = [abs(ranges[name] / reference[name] - 1) for name in ranges if reference.get(name)]
        apart = f"{100 * statistics.median(shared):.1f} %" if shared else ""
        accuracy = f"{top1[row.kind]:.2f}" if row.kind in top1 else ""
        print(
            f"{row.kind:18}{row.seconds:8.2f}{row.seconds / exposed.seconds:8.2f}x"
            f"{row.seconds / plain.seconds:7.2f}x{row.cpu / exposed.cpu:7.2f}x"
            f"{row.peak:8.0f}{row.peak - exposed.peak:+8.0f}{apart:>9}{accuracy:>8}"
        )


def _ranges(table: Path) -> dict[str, float]:
    ranges: dict[str, float] = json.loads(table.read_text())["amax"]
    return ranges


def accuracy(case: Case, rows: Sequence[Row], heldout: Path) -> dict[str, float]:
    """Top-1 in per cent of the model quantized with each table, and of the float model as `plain`."""
    import trtint8
    from calibrators.data.images.preprocessing import Preprocessing
    from calibrators.tables.table import CalibrationTable

    preprocessing = Preprocessing(mean=MEAN, std=STD)
    needed = trtint8.calibrate(
        case.model, case.feeds(case.batch), tensors="placed", method="minmax", progress=False
    )
    top1 = {}
    for row in rows:
        if row.kind in ("plain", "exposed"):
            continue
        ranges = _ranges(row.table)
        if missing := [name for name in needed.amax if name not in ranges]:
            print(f"  {row.kind}: no range for {len(missing)} of {len(needed.amax)} tensors, so minmax's")
        table = CalibrationTable({name: ranges.get(name, amax) for name, amax in needed.amax.items()})
        report = trtint8.validate(
            trtint8.quantize(case.model, table),
            heldout,
            reference=case.model,
            preprocessing=preprocessing,
            progress=False,
        )
        if report.top1 and report.reference_top1:
            top1[row.kind], top1["plain"] = 100 * report.top1.value, 100 * report.reference_top1.value
    return top1


def bench_thresholds() -> None:
    """Seconds of all methods on 120 histograms like those of a ResNet."""
    from calibrators.histograms.histogram import Histogram
    from calibrators.histograms.thresholds import METHODS
    from calibrators.tables.table import CalibrationTable, Provenance

    for bins in (2_048, 8_192):
        random, histograms = np.random.default_rng(0), {}
        for index in range(120):
            histogram = Histogram(np.zeros(bins, np.int64))
            values = random.laplace(scale=1 + index / 50, size=200_000)
            histogram.observe((np.maximum(values, 0) if index % 2 else values).astype(np.float32))
            histograms[str(index)] = histogram
        times = {}
        for method in METHODS:
            began = time.perf_counter()
            CalibrationTable.from_histograms(histograms, method, Provenance())
            times[method] = time.perf_counter() - began
        shown = ", ".join(f"{method} {seconds:.3f} s" for method, seconds in times.items())
        print(f"120 tensors, {bins:,} bins, all methods: {sum(times.values()):.3f} s ({shown})")


def main() -> None:
    """Prints a table for every setting."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--images", type=int, nargs="+", default=[64, 512])
    parser.add_argument("--threads", type=int, nargs="+", default=[2])
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument(
        "--cases", nargs="+", default=["resnet50", "resnet56"], choices=["resnet50", "resnet56"]
    )
    parser.add_argument("--without-ort", action="store_true", help="leave ONNX Runtime's calibrators out")
    parser.add_argument("--peers", type=Path, help="a folder for environments with Model Optimizer and PPQ")
    parser.add_argument("--thresholds", action="store_true", help="only the search for thresholds")
    for name, kind in {"child": str, "case": str, "input": str, "batch": int}.items():
        parser.add_argument(f"--{name}", type=kind, help=argparse.SUPPRESS)
    for name in ("folder", "table"):
        parser.add_argument(f"--{name}", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options)
        return
    bench_thresholds()
    if options.thresholds:
        return
    peers = install(options.peers) if options.peers else []
    kinds = ["plain", "exposed", *_OURS, *(() if options.without_ort else _ORT)]
    kinds += [f"{peer} {method}" for peer in peers for method in _SHARED]
    with tempfile.TemporaryDirectory() as name:
        for case, heldout in cases(Path(name), options.cases):
            for images in options.images:
                for threads in options.threads:
                    rows = measure(case, kinds, images, threads, options.repeat, options.peers)
                    top1 = accuracy(case, rows, heldout) if heldout else {}
                    show(case, rows, images, threads, top1)


if __name__ == "__main__":
    main()
