"""How calibration and validation over Ray scale with workers, and what the driver spends on each shard.

python scripts/bench_scaling.py                                   # a ResNet-50 with random weights
python scripts/bench_scaling.py --workers 1 2 4 --images 256 --repeat 3

Workers are processes on this machine, each with one thread; `local` is one process without Ray. Measurements
alternate, and medians are printed. `start` is a run in which each worker has one batch: processes start,
import and open the model. `images/s` and `speed-up` are of the rest of the run.
"""

from __future__ import annotations

import argparse
import copy
import os
import pickle
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from gpu_checks.resnet50 import random_images, resnet50

import trtint8
from calibrators.data.opening import open_batches
from calibrators.host.observer import Observer
from calibrators.ray.cluster import RayExecutor
from trtint8.calibration import float_tensors
from trtint8.models.model import load_model, prepare

_BATCH = 2
_REFERENCES = 1000

#: Calibrates or validates with an executor on images, and returns the result as text.
Job = Callable[[Any, np.ndarray], str]


def seconds(work: Callable[[], Any]) -> float:
    """How long a call takes, in seconds."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def calibration(model: Path) -> Job:
    """A job that calibrates the model."""

    def run(executor: Any, rows: np.ndarray) -> str:
        table = trtint8.calibrate(
            model, rows, batch_size=_BATCH, tensors="placed", threads=1, progress=False, executor=executor
        )
        return repr((table.amax, table.provenance.data))

    return run


def validation(model: Path) -> Job:
    """A job that validates the model in INT8."""
    rows = random_images(_BATCH)
    table = trtint8.calibrate(model, rows, method="minmax", tensors="placed", progress=False)
    quantized = trtint8.quantize(model, table)

    def run(executor: Any, rows: np.ndarray) -> str:
        found = trtint8.validate(
            quantized,
            rows,
            reference=model,
            batch_size=_BATCH,
            threads=1,
            progress=False,
            executor=executor,
        )
        return repr(found)

    return run


def scaling(job: Job, images: np.ndarray, workers: list[int], repeat: int) -> None:
    """Prints a line for one process and for each number of workers."""

    def run(count: int, rows: np.ndarray, shard_batches: int) -> str:
        return job(RayExecutor(workers=count, shard_batches=shard_batches) if count else "local", rows)

    # One process without Ray is number 0.
    times: dict[int, list[tuple[float, float]]] = {count: [] for count in (0, *workers)}
    results = set()
    for _ in range(repeat):
        for count, taken in times.items():
            first_batches = images[: _BATCH * max(count, 1)]
            start = seconds(lambda: run(count, first_batches, 1))  # noqa: B023
            whole = seconds(lambda: results.add(run(count, images, 4)))  # noqa: B023
            taken.append((start, whole))
    same = "all results equal" if len(results) == 1 else f"{len(results)} different results"
    print(f"{len(images)} images, batches of {_BATCH}, medians of {repeat}; {same}")
    print(f"{'workers':>8} {'seconds':>8} {'start':>6} {'images/s':>9} {'speed-up':>9}  (least, most)")
    # A whole run has each worker's first batch, too.
    rates = {
        count: [(len(images) - _BATCH * max(count, 1)) / (whole - start) for start, whole in taken]
        for count, taken in times.items()
    }
    for count, taken in times.items():
        start, whole = (statistics.median(column) for column in zip(*taken, strict=True))
        speedups = [rate / one for rate, one in zip(rates[count], rates[workers[0]], strict=True)]
        print(
            f"{count or 'local':>8} {whole:8.1f} {start:6.1f} {statistics.median(rates[count]):9.2f} "
            f"{statistics.median(speedups):9.2f}  ({min(speedups):.2f}, {max(speedups):.2f})"
        )


def driver(model: Path, images: np.ndarray) -> None:
    """Prints what one shard costs the driver."""
    import ray

    prepared = prepare(load_model(model))
    names = float_tensors(prepared)
    observer = Observer(model, prepared.inputs, names, threads=1)
    one, other = (
        observer.observe(open_batches(rows, prepared.inputs, batch_size=_BATCH), progress=False)
        for rows in (images[:_BATCH], images[_BATCH : 2 * _BATCH])
    )
    size = len(pickle.dumps(one))
    merge = min(seconds(lambda: one.merge(other)) for _ in range(20))
    copied = min(seconds(lambda: copy.deepcopy(one)) for _ in range(20))
    references = [ray.put(one) for _ in range(20)]
    get = min(seconds(lambda: ray.get(reference)) for reference in references)  # noqa: B023
    busy = ray.remote(num_cpus=1)(lambda: time.sleep(3600))
    pending = [busy.remote() for _ in range(_REFERENCES)]
    wait = min(seconds(lambda: ray.wait([*pending, ray.put(0)])) for _ in range(20))
    for reference in pending:
        ray.cancel(reference, force=True)
    print(f"an observation of all {len(names)} tensors: {size / 1e6:.2f} MB, {size / len(names):,.0f} B each")
    print(
        f"the driver, for each shard: get {1e3 * get:.2f} ms (this machine), copy {1e3 * copied:.2f} ms, "
        f"merge {1e3 * merge:.2f} ms, "
        f"wait for one of {len(pending):,} {1e3 * wait:.2f} ms"
    )


def main() -> None:
    """Makes a model and images, and measures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--images", type=int, default=256)
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    import ray

    ray.init("local", include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    print(f"{os.cpu_count()} processors, load {os.getloadavg()[0]:.1f} before")
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "resnet50.onnx"
        model.write_bytes(resnet50())
        images = random_images(options.images)
        driver(model, images)
        print("\ncalibration")
        scaling(calibration(model), images, options.workers, options.repeat)
        print("\nvalidation, INT8 beside FP32")
        scaling(validation(model), images[: options.images // 2], options.workers, options.repeat)


if __name__ == "__main__":
    main()
