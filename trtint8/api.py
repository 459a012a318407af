"""The calls that most users need, each a few steps of the other modules put together."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from calibrators.data.batches import open_batches
from calibrators.data.inputs import InputSpec
from calibrators.data.preprocessing import Preprocessing
from calibrators.errors import ModelError
from calibrators.host.threads import check_threads
from calibrators.ray.executor import Executor, ray_executor
from calibrators.ray.shards import open_shards
from calibrators.tables.source import as_table, is_table_file
from calibrators.tables.table import CalibrationTable
from trtint8.calibration import calibrate_prepared
from trtint8.models.model import Model, ModelSource, load_float_model, load_model, prepare, runnable, to_proto
from trtint8.quantization.float16.convert import to_float16
from trtint8.quantization.quantize import quantize_graph
from trtint8.sensitivity.measure import Plan, measure
from trtint8.sensitivity.results import Sensitivity
from trtint8.sensitivity.workers import measure_over_ray
from trtint8.tuning.search import Trial
from trtint8.tuning.splitting import split
from trtint8.tuning.tune import Budget, Tuned, tune_prepared
from trtint8.validation.accuracy import REFERENCE, VALIDATED, Accuracy
from trtint8.validation.comparison import compare_models
from trtint8.validation.metrics import Metric
from trtint8.validation.opening import open_models
from trtint8.validation.workers import compare_over_ray

#: So many samples tell layers apart; with more, only the intervals get narrower.
SENSITIVITY_SAMPLES = 256


def model_inputs(model: ModelSource) -> tuple[InputSpec, ...]:
    """What a model must be fed, as calibrators and data sources want to know it.

    Args:
        model: A path, the serialized model or a ``ModelProto``.

    Returns:
        Name, dtype and shape of every input.

    Raises:
        ModelError: The model is unusable.
    """
    return load_model(model).inputs


def quantize(
    model: ModelSource,
    table: CalibrationTable | str | os.PathLike[str],
    *,
    keep_float: Sequence[str] = (),
    float16: bool = False,
    float32_io: bool = False,
) -> onnx.ModelProto:
    """Puts Q/DQ pairs into a float model, where TensorRT fuses them.

    Args:
        model: A path, the serialized model or a ``ModelProto``.
        table: The ranges, or the file that holds them.
        keep_float: Names of nodes, or patterns with ``*`` and ``?``, that stay in float.
        float16: Whether what is outside INT8 becomes FP16, but for nodes that would suffer.
        float32_io: With ``float16``, whether the model's inputs and outputs stay float32.

    Returns:
        The model with Q/DQ pairs; inputs, outputs and tensor names stay.

    Raises:
        ModelError: The model is unusable or quantized already, or a pattern matches nothing.
        TableError: The table is of another model, stale, or lacks a range.
    """
    prepared, table = prepare(load_float_model(model)), as_table(table)
    graph_model, _ = quantize_graph(prepared, table, keep_float)
    if float16:
        graph_model, _ = to_float16(graph_model, float32_io=float32_io, peaks=table.peaks, name=prepared.name)
    return to_proto(graph_model)


def validate(
    model: ModelSource,
    data: Any,
    *,
    reference: ModelSource,
    also: Mapping[str, ModelSource] | None = None,
    labels: Any = None,
    metrics: Sequence[Metric] | None = None,
    batch_size: int | None = None,
    limit: int | None = None,
    preprocessing: Preprocessing | None = None,
    executor: Executor = "local",
    threads: int | None = None,
    progress: bool = True,
) -> Accuracy:
    """Compares an INT8 model or engine with the FP32 model on data that it was not calibrated on.

    An engine runs on the GPU where there is one. Elsewhere it is judged through the Q/DQ model that it was
    built from, which is kept beside it, and which runs in ONNX Runtime as true fake quantization.

    The result is the same, bit for bit, for any number of workers; the number of threads, and the batch size,
    may change what ONNX Runtime itself makes of a model's last bits.

    Memory grows with the data by one byte a sample, metric and model (a number for a function), and by
    what a metric over the data set keeps itself.

    Args:
        model: A Q/DQ model, or the path of an engine file; called INT8 in the result.
        data: What :func:`calibrate` takes; its labels, where it has some, are class indices.
        reference: The FP32 model.
        also: Other models or engines to judge on the same samples, by name, such as ``{"FP16": path}``.
        labels: Labels that do not come with the data: an array, or the path of an ``.npy`` or ``.npz``.
        metrics: Names (``top1``, ``top5`` or any ``topK``, ``agreement``; of every output ``sqnr``,
            ``cosine``, ``max_error``, which come together, and ``token_cosine``), functions of a batch's
            feeds and outputs that return a number or one per sample, and metrics over the data set such as
            :class:`trtint8.validation.metrics.MeanAveragePrecision`. What applies of all names but
            ``token_cosine`` where None.
        batch_size: Samples a batch.
        limit: Use only this many samples.
        preprocessing: How raw images become what the model is fed.
        executor: Where models run: see :func:`calibrate`. Over Ray, metrics are computed by the workers;
            a metric over the data set must merge (:class:`trtint8.validation.metrics.MergeableMetric`).
        threads: Threads within an operator of a model in ONNX Runtime; its choice where None. Over Ray,
            those of each worker; 1 where None.
        progress: Show a progress bar on a terminal.

    Returns:
        The comparison, each difference with whether it is more than chance.

    Raises:
        TrtInt8Error: One of its family, with one sentence that says what to do.
    """
    also = also or {}
    if taken := [name for name in also if name in (VALIDATED, REFERENCE)]:
        raise ModelError(
            f"'{taken[0]}' in also is the name of the {'model' if taken[0] == VALIDATED else 'reference'}; "
            "take another"
        )
    check_threads(threads)
    ray = ray_executor(executor)
    original = load_model(reference)
    models = {VALIDATED: model, **also}
    options: dict[str, Any] = {
        "batch_size": batch_size,
        "limit": limit,
        "preprocessing": preprocessing,
        "labels": labels,
    }
    if ray:
        shards = open_shards(data, original.inputs, **options)
        return compare_over_ray(
            models, reference, original, shards, ray, metrics=metrics, threads=threads, progress=progress
        )
    batches = open_batches(data, original.inputs, **options)
    with (
        runnable(original.graph_model) as file,
        open_models(models, file, original.inputs, metrics, threads) as panel,
    ):
        return compare_models(panel, batches, progress=progress)


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
