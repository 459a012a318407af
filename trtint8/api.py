"""The calls that most users need, each a few steps of the other modules put together."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import onnx
import onnx_ir as ir

from calibrators.batches import open_batches
from calibrators.errors import ModelError
from calibrators.inputs import InputSpec
from calibrators.preprocessing import Preprocessing
from calibrators.shards import open_shards
from calibrators.table import CalibrationTable, is_table_name
from calibrators.threads import check_threads
from trtint8.accuracy import JUDGED, REFERENCE, Accuracy
from trtint8.collection import paused_collection
from trtint8.comparison import compare_on
from trtint8.distributed import Executor, ray_executor
from trtint8.judges import open_panel
from trtint8.metrics import Metric
from trtint8.model import Model, ModelSource, load_model, prepare, runnable, to_proto
from trtint8.quantization.float16 import to_float16
from trtint8.quantization.placement import Placement, place
from trtint8.quantization.qdq import WeightScales, insert_qdq
from trtint8.validation_workers import compare_over_ray


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


@paused_collection()
def quantize_graph(
    prepared: Model,
    table: CalibrationTable,
    keep_float: Sequence[str] = (),
    weight_scales: WeightScales | None = None,
) -> tuple[ir.Model, Placement]:
    """:func:`quantize` for a prepared model of any size, with the reasons.

    Args:
        prepared: From :func:`trtint8.model.prepare`; not changed.
        table: The ranges.
        keep_float: Names or patterns.
        weight_scales: Of weights that were quantized before.

    Returns:
        The model with Q/DQ pairs, and where they went.
    """
    graph_model = prepared.graph_model.clone()
    placement = place(graph_model, keep_float)
    table.check_model(prepared.fingerprint, placement.tensors)
    insert_qdq(graph_model, placement, table.amax, weight_scales)
    return graph_model, placement


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
            feeds and outputs that return a number or one a sample, and metrics over the data set such as
            :class:`trtint8.metrics.MeanAveragePrecision`. What applies of all names but ``token_cosine``
            where None.
        batch_size: Samples a batch.
        limit: Use only this many samples.
        preprocessing: How raw images become what the model is fed.
        executor: Where models run: see :func:`calibrate`. Over Ray, metrics are computed by the workers;
            a metric over the data set must merge (:class:`trtint8.metrics.MergeableMetric`).
        threads: Threads within an operator of a model in ONNX Runtime; its choice where None. Over Ray,
            those of each worker; 1 where None.
        progress: Show a progress bar on a terminal.

    Returns:
        The comparison, each difference with whether it is more than chance.

    Raises:
        TrtInt8Error: One of its family, with one sentence that says what to do.
    """
    also = also or {}
    if taken := [name for name in also if name in (JUDGED, REFERENCE)]:
        raise ModelError(
            f"'{taken[0]}' in also is the name of the {'model' if taken[0] == JUDGED else 'reference'}; "
            "take another"
        )
    check_threads(threads)
    ray = ray_executor(executor)
    original = load_model(reference)
    models = {JUDGED: model, **also}
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
        open_panel(models, file, original.inputs, metrics, threads) as panel,
    ):
        return compare_on(panel, batches, progress=progress)


def is_table_file(source: object) -> bool:
    """Whether a calibration argument is the path of a table or a TensorRT calibration cache."""
    return isinstance(source, (str, os.PathLike)) and is_table_name(source)


def as_table(table: CalibrationTable | str | os.PathLike[str]) -> CalibrationTable:
    """A table, read where it is given as a file.

    Raises:
        TableError: The file is no table.
    """
    return table if isinstance(table, CalibrationTable) else CalibrationTable.load(table)


def load_float_model(source: ModelSource) -> Model:
    """A model that is not quantized yet.

    Raises:
        ModelError: It is unusable, or holds Q/DQ pairs.
    """
    model = load_model(source)
    if model.is_quantized:
        raise ModelError(
            f"'{model.name}' holds Q/DQ pairs already; build it as it is, or give the float model"
        )
    return model
