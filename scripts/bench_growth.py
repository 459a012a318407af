"""How time and memory grow with samples, files, tensors, nodes and calls.

python scripts/bench_growth.py                              # in about half an hour
python scripts/bench_growth.py --only calibrate tables --up-to 5000

Each row is a process of its own. Its processor time is that of the call alone; the memory is what the process
has at its peak beyond what it had before the call. The last column is the exponent of the time between a row
and the one above it: 1 where twice the input takes twice the time, 2 where it takes four times as long. In
rows of calls the figure that grows is what the process keeps. The exit status is 1 where the time of
a row grows faster than its input, or a process keeps more with every call.
"""

from __future__ import annotations

import argparse
import gc
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from process_memory import peak_mib, resident_mib

import trtint8
from trtint8.data import DEMO_MODEL, load_digits_split

#: A call that is measured.
Call = Callable[[], object]

#: The exponent from which time grows faster than the input, with room for noise.
_FASTER = 1.25

#: What a process may keep, beyond what it has after a third of all calls, in MiB.
_KEPT_MIB = 16.0


def images(count: int) -> np.ndarray:
    """Digits with noise, as many as are asked for, float32, (count, 1, 8, 8)."""
    digits, random = load_digits_split().calibration_images, np.random.default_rng(0)
    rows = np.resize(digits, (count, *digits.shape[1:]))
    return rows + 0.05 * random.standard_normal(rows.shape, np.float32)


def calibrate(count: int, folder: Path) -> Call:
    """Calibrates with samples of one file, by the rule that fits."""
    np.save(folder / "d.npy", images(count))
    return lambda: trtint8.calibrate(DEMO_MODEL, folder / "d.npy", progress=False)


def calibrate_files(count: int, folder: Path) -> Call:
    """Calibrates with samples of one file each."""
    (folder / "d").mkdir()
    for number, row in enumerate(images(count)):
        np.save(folder / "d" / f"{number:06}.npy", row)
    return lambda: trtint8.calibrate(DEMO_MODEL, folder / "d", method="mse", progress=False)


def _quantized(folder: Path) -> Path:
    table = trtint8.calibrate(DEMO_MODEL, images(50), method="mse", progress=False)
    table.save(folder / "t.json")
    trtint8.write_quantized(DEMO_MODEL, table, folder / "q.onnx")
    return folder / "q.onnx"


def validate(count: int, folder: Path) -> Call:
    """Validates INT8 beside FP32, with true classes."""
    quantized, rows = _quantized(folder), images(count)
    labels = np.arange(count) % 10
    return lambda: trtint8.validate(quantized, rows, labels=labels, reference=DEMO_MODEL, progress=False)


def sensitivity(count: int, folder: Path) -> Call:
    """Measures what each layer costs."""
    _quantized(folder)
    rows = images(count)
    return lambda: trtint8.measure_sensitivity(DEMO_MODEL, folder / "t.json", rows, progress=False)


def tables(count: int, folder: Path) -> Call:
    """Saves, loads, converts and compares a table of that many tensors."""
    table = trtint8.CalibrationTable({f"block.{number}/output": 1.0 + number for number in range(count)})
    other = table.override({"block.0/output": 2.0})

    def run() -> None:
        for ending in ("json", "cache"):
            table.save(folder / f"t.{ending}")
            trtint8.CalibrationTable.load(folder / f"t.{ending}")
        table.diff(other)
        table.merged(other)
        table.without("block.1*")

    return run


def network(count: int, folder: Path) -> Path:
    """A model of that many nodes: convolutions, activations, sums and their shapes."""
    from onnx import TensorProto, helper, numpy_helper

    random, nodes, weights, last = np.random.default_rng(0), [], [], "x"
    for number in range(count // 4):
        values = random.standard_normal((4, 4, 1, 1)).astype(np.float32) / 2
        weights.append(numpy_helper.from_array(values, f"w{number}"))
        conv, active, total = f"conv{number}", f"relu{number}", f"sum{number}"
        nodes.append(helper.make_node("Conv", [last, f"w{number}"], [conv], name=conv))
        nodes.append(helper.make_node("Relu", [conv], [active], name=active))
        nodes.append(helper.make_node("Add", [active, last], [total], name=total))
        nodes.append(
            helper.make_node("Clip", [total, "low", "high"], [f"clip{number}"], name=f"clip{number}")
        )
        last = f"clip{number}"
    weights += [numpy_helper.from_array(np.float32(end), name) for name, end in (("low", -4), ("high", 4))]
    shape = ["n", 4, 8, 8]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(last, TensorProto.FLOAT, shape)],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (folder / "m.onnx").write_bytes(model.SerializeToString())
    return folder / "m.onnx"


def _samples() -> np.ndarray:
    return np.random.default_rng(1).standard_normal((4, 4, 8, 8), np.float32)


def _table(model: Path) -> Any:
    return trtint8.calibrate(model, _samples(), method="minmax", progress=False)


def nodes_calibrated(count: int, folder: Path) -> Call:
    """Calibrates a network of that many nodes with four samples."""
    model = network(count, folder)
    return lambda: trtint8.calibrate(model, _samples(), method="mse", progress=False)


def nodes_quantized(count: int, folder: Path) -> Call:
    """Quantizes a network of that many nodes."""
    model = network(count, folder)
    table = _table(model)
    return lambda: trtint8.write_quantized(model, table, folder / "q.onnx")


def nodes_looked_at(count: int, folder: Path) -> Call:
    """Lints a network of that many nodes."""
    model = network(count, folder)
    trtint8.write_quantized(model, _table(model), folder / "q.onnx")
    return lambda: trtint8.lint(folder / "q.onnx")


def nodes_measured(count: int, folder: Path) -> Call:
    """Measures what each layer of a network of that many nodes costs."""
    model = network(count, folder)
    table = _table(model)
    return lambda: trtint8.measure_sensitivity(model, table, _samples(), progress=False)


def calls(count: int, folder: Path) -> Call:
    """Calibrates, quantizes, lints and validates again and again in one process."""
    rows, path = images(16), folder / "t.json"

    def run() -> None:
        for _ in range(count):
            trtint8.calibrate(DEMO_MODEL, rows, method="mse", progress=False).save(path)
            trtint8.write_quantized(DEMO_MODEL, path, folder / "q.onnx")
            trtint8.lint(folder / "q.onnx")
            trtint8.validate(folder / "q.onnx", rows, reference=DEMO_MODEL, progress=False)

    return run


#: What is measured: a name to what makes the call, and the sizes.
CASES: dict[str, tuple[Callable[[int, Path], Call], tuple[int, ...]]] = {
    "calibrate, samples": (calibrate, (100, 1_000, 5_000, 20_000)),
    "calibrate, files": (calibrate_files, (100, 1_000, 5_000, 20_000)),
    "validate, samples": (validate, (100, 1_000, 5_000, 20_000)),
    "sensitivity, samples": (sensitivity, (100, 1_000, 5_000, 20_000)),
    "tables, tensors": (tables, (100, 1_000, 10_000)),
    "calibrate, nodes": (nodes_calibrated, (200, 2_000, 20_000)),
    "quantize, nodes": (nodes_quantized, (200, 2_000, 20_000)),
    "lint, nodes": (nodes_looked_at, (200, 2_000, 20_000)),
    "sensitivity, nodes": (nodes_measured, (200, 2_000, 8_000)),
    "four verbs, calls": (calls, (100, 300)),
}


def open_files() -> int:
    """How many descriptors this process has."""
    return len(list(Path("/proc/self/fd").iterdir()))


def measure(name: str, count: int) -> None:
    """Measures a call in this process; prints its processor time, memory, and open files left."""
    with tempfile.TemporaryDirectory() as folder:
        call = CASES[name][0](count, Path(folder))
        gc.collect()
        before, files = resident_mib(), open_files()
        Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from here
        begun = time.process_time()
        call()
        taken = time.process_time() - begun
        gc.collect()
        left = open_files() - files
        print(taken, max(peak_mib() - before, 0.0), max(resident_mib() - before, 0.0), left)


def main() -> int:
    """Prints one row per case and size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[""], metavar="NAME", help="cases that begin so")
    parser.add_argument("--up-to", type=int, default=20_000, metavar="SIZE")
    parser.add_argument("--one", nargs=2, metavar=("NAME", "SIZE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        measure(options.one[0], int(options.one[1]))
        return 0
    faster = False
    print("| | size | processor time, s | per unit, ms | peak, MiB | kept, MiB | exponent |")
    print("|---|---|---|---|---|---|---|")
    for name in (name for name in CASES if name.startswith(tuple(options.only))):
        last: tuple[int, float, float] | None = None
        for size in (size for size in CASES[name][1] if size <= options.up_to):
            done = subprocess.run(
                [sys.executable, "-W", "ignore", __file__, "--one", name, str(size)],
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            )
            taken, peak, kept, files = map(float, done.stdout.split()[-4:])
            exponent = "" if last is None else f"{math.log(taken / last[1]) / math.log(size / last[0]):.2f}"
            faster |= files > 0 or (exponent != "" and float(exponent) > _FASTER)
            faster |= "calls" in name and last is not None and kept - last[2] > _KEPT_MIB
            print(
                f"| {name} | {size:,} | {taken:.2f} | {1e3 * taken / size:.2f} | {peak:.0f} | {kept:.0f} "
                f"| {exponent} |",
                flush=True,
            )
            last = size, taken, kept
    return int(faster)


if __name__ == "__main__":
    sys.exit(main())
