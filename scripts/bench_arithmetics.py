"""What the arithmetic of each backend costs networks in accuracy, and how long it takes to find out.

python scripts/bench_arithmetics.py DATA                     # as on docs/explanation/arithmetics.md
python scripts/bench_arithmetics.py DATA --networks resnet20 --limit 500

Every network is calibrated once with `--method`. Its table is then judged by `trtint8.validate`: with Q/DQ
pairs, as fake quantization in ONNX Runtime, and in every arithmetic. Each line has the figure of the
network's task, the SQNR of the output where it is lowest, the seconds of the call, and the largest sum of a
layer. DATA is that of scripts/bench_accuracy.py.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from accuracy_bench.cases import CASES, Case, open_cases

import trtint8
from trtint8.quantization.config import ARITHMETICS
from trtint8.validation.significance import as_number


def bench(case: Case, method: str, limit: int | None) -> None:
    """Prints what a network has in FP32, with Q/DQ pairs and in every arithmetic."""
    table = trtint8.calibrate(
        case.model, case.calibration, method=method, preprocessing=case.preprocessing, progress=False
    )
    pairs = trtint8.quantize(case.model, table)
    print(f"{case.name}, {case.figure}, {method}")
    for name in ("Q/DQ", *ARITHMETICS):
        in_integers = name in ARITHMETICS
        start = time.perf_counter()
        found = trtint8.validate(
            case.model if in_integers else pairs,
            case.held_out,
            reference=case.model,
            table=table if in_integers else None,
            arithmetic=name if in_integers else None,
            metrics=[case.metric, "sqnr"],
            preprocessing=case.preprocessing,
            limit=limit,
            progress=False,
        )
        seconds = time.perf_counter() - start
        (measure,) = found.measures
        unit = 100 if measure.unit == "%" else 1
        value, reference = (as_number(one) for one in (measure.value, measure.reference))
        if name == "Q/DQ" and reference is not None:
            print(f"  FP32      {unit * reference:6.2f}")
        sqnr = min(output.sqnr_db for output in found.outputs)
        words = f"  {name:9s} {unit * (value or 0):6.2f} {sqnr:5.1f} dB {seconds:6.1f} s"
        if found.in_integers is not None:
            words += f", largest sum {max(found.in_integers.largest_sums.values())}"
        print(words, flush=True)


def main() -> None:
    """Reads the command line and measures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path, help="has the folders cifar10 and tasks")
    parser.add_argument(
        "--networks", nargs="+", choices=list(CASES), default=["resnet20", "resnet56", "vit", "yolofastest"]
    )
    parser.add_argument("--method", default="mse", help="the calibration method")
    parser.add_argument("--limit", type=int, help="held-out samples; all by default")
    options = parser.parse_args()
    for case in open_cases(options.data, options.networks):
        bench(case, options.method, options.limit)


if __name__ == "__main__":
    main()
