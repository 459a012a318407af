"""The calls that find out what INT8 costs a model, layer by layer, and that win it back."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from calibrators.batches import open_batches
from calibrators.preprocessing import Preprocessing
from calibrators.shards import open_shards
from calibrators.table import CalibrationTable
from calibrators.threads import check_threads
from trtint8.api import as_table, is_table_file, load_float_model
from trtint8.calibration import calibrate_prepared
from trtint8.distributed import Executor, ray_executor
from trtint8.metrics import Metric
from trtint8.model import Model, ModelSource, prepare
from trtint8.sensitivity.measure import Plan, measure
from trtint8.sensitivity.results import Sensitivity
from trtint8.sensitivity.workers import measure_over_ray
from trtint8.tuning.search import Trial
from trtint8.tuning.splitting import split
from trtint8.tuning.tune import Budget, Tuned, tune_prepared

#: So many samples tell layers apart; with more, only the intervals get narrower.
SENSITIVITY_SAMPLES = 256


def measure_sensitivity(
    model: ModelSource,
    table: CalibrationTable | str | os.PathLike[str],
    data: Any,
    *,
    labels: Any = None,
    keep_float: Sequence[str] = (),
    tolerance_db: float = 1.0,
    batch_size: int | None = None,
    limit: int | None = SENSITIVITY_SAMPLES,
    preprocessing: Preprocessing | None = None,
    checkpoint: Path | None = None,
    threads: int | None = None,
    executor: Executor = "local",
    on_plan: Callable[[Plan], None] = lambda _plan: None,
    progress: bool = True,
) -> Sensitivity:
    """Finds which layers cost accuracy, and why, on the CPU.

    Args:
        model: A path, the serialized model or a ``ModelProto``; a float model.
        table: The ranges, or the file that holds them.
        data: What :func:`calibrate` takes; its labels, where it has some, are class indices.
        labels: Labels that do not come with the data: an array, or the path of an ``.npy`` or ``.npz``.
        keep_float: Names of nodes, or patterns, that stay in float throughout.
        tolerance_db: Stop once every layer that matters is known to so many decibels.
        batch_size: Samples a batch.
        limit: Use only this many samples; all where None.
        preprocessing: How raw images become what the model is fed.
        checkpoint: A file that keeps what was measured while it grows; one that is there is gone on from.
        threads: Threads within an operator; ONNX Runtime's choice where None. Over Ray, those of each
            worker; 1 where None.
        executor: Where the network runs: see :func:`calibrate`. The result is the same, bit for bit, for any
            number of workers.
        on_plan: Told what it will cost, before it starts; over Ray, in the time of one worker.
        progress: Show a progress bar on a terminal.

    Returns:
        What each layer costs (see :func:`trtint8.sensitivity.measure.measure`).

    Raises:
        TrtInt8Error: One of its family, with one sentence that says what to do.
    """
    check_threads(threads)
    ray = ray_executor(executor)
    prepared, table = prepare(load_float_model(model)), as_table(table)
    options: dict[str, Any] = {
        "batch_size": batch_size,
        "limit": limit,
        "preprocessing": preprocessing,
        "labels": labels,
    }
    how: dict[str, Any] = {
        "keep_float": keep_float,
        "tolerance_db": tolerance_db,
        "checkpoint": checkpoint,
        "threads": threads,
        "on_plan": on_plan,
        "progress": progress,
    }
    if ray:
        return measure_over_ray(prepared, table, open_shards(data, prepared.inputs, **options), ray, **how)
    return measure(prepared, table, open_batches(data, prepared.inputs, **options), **how)


def tune(
    model: ModelSource,
    calibration: Any,
    data: Any,
    *,
    max_drop: float,
    metric: Metric | None = None,
    labels: Any = None,
    judge: Any = None,
    method: str = "entropy",
    round_weights: bool = False,
    float16: bool = False,
    seed: int = 0,
    batch_size: int | None = None,
    limit: int | None = None,
    preprocessing: Preprocessing | None = None,
    on_trial: Callable[[Trial], None] = lambda _trial: None,
    progress: bool = True,
) -> Tuned:
    """Finds the cheapest mix of remedies that keeps accuracy within a budget, on the CPU.

    Free remedies come first: a calibration method for each tensor, then equalized weights, corrected biases
    and, if asked for, adaptive rounding. Only what is still too much is bought back with layers in float.
    The result is judged on samples that the search never saw.

    Args:
        model: A path, the serialized model or a ``ModelProto``; a float model.
        calibration: Calibration samples, or a table, or the file that holds one. Methods are only chosen
            with histograms, and weights are only equalized with samples.
        data: Samples to tune on; what :func:`calibrate` takes, again and again.
        max_drop: How much the metric may lose: points for a share, else in its own unit.
        metric: ``topK``, ``agreement``, or a function of a batch's feeds and outputs, the larger the better;
            top-1 where None and there are labels, else agreement.
        labels: Labels that do not come with the data.
        judge: Other samples to judge the result by, with labels of their own; every other batch of ``data``
            where None, after it was shuffled.
        method: How ranges are chosen to begin with, where samples are calibrated with.
        round_weights: Also try adaptive rounding.
        float16: What stays in float becomes FP16.
        seed: Of what is drawn.
        batch_size: Samples a batch.
        limit: Use only this many samples of ``data``, and as many of ``judge``.
        preprocessing: How raw images become what the model is fed.
        on_trial: Told of everything that the search tries.
        progress: Show a progress bar on a terminal while calibrating.

    Returns:
        What was found; :func:`trtint8.tuning.tune.save_tuned` writes it.

    Raises:
        TrtInt8Error: One of its family, with one sentence that says what to do.
    """
    prepared = prepare(load_float_model(model))
    options: dict[str, Any] = {"batch_size": batch_size, "limit": limit, "preprocessing": preprocessing}
    # What can be shuffled is, so that both halves are alike.
    shuffled = isinstance(data, (str, os.PathLike, Mapping, np.ndarray))
    batches = open_batches(data, prepared.inputs, labels=labels, shuffle=shuffled, seed=seed, **options)
    if judge is None:
        tuned_on, judged_on = split(batches)
    else:
        tuned_on, judged_on = batches, open_batches(judge, prepared.inputs, **options)
    known = isinstance(calibration, CalibrationTable) or is_table_file(calibration)

    def calibrated(changed: Model) -> CalibrationTable:
        return calibrate_prepared(
            changed,
            calibration,
            method,
            {"batch_size": batch_size, "preprocessing": preprocessing},
            "placed",
            progress=progress,
        )

    return tune_prepared(
        prepared,
        as_table(calibration) if known else calibrated(prepared),
        tuned_on,
        judged_on,
        Budget(max_drop, metric),
        recalibrate=None if known else calibrated,
        round_weights=round_weights,
        float16=float16,
        seed=seed,
        on_trial=on_trial,
    )
