"""Every public call and type of trtint8: what ``import trtint8`` shows.

Each call turns its keywords into options and passes them to the module that does the work.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import onnx

from calibrators.data.axes import BatchAxes
from calibrators.data.batches import Batches, DataSource, open_data
from calibrators.data.inputs import InputSpec
from calibrators.data.options import DataOptions, LabelSource
from calibrators.data.preprocessing import Preprocessing
from calibrators.errors import (
    BuildError,
    CalibrationDataError,
    EngineError,
    GpuMemoryError,
    GpuUnavailableError,
    ModelError,
    OutputError,
    TableError,
    TrtInt8Error,
    UnsupportedError,
    WorkerError,
)
from calibrators.histograms.thresholds import Method
from calibrators.host.checkpoint import SECONDS as CHECKPOINT_SECONDS
from calibrators.ray.executor import Executor, RayExecutor
from calibrators.ray.run_options import RunOptions
from calibrators.tables.ranges import DynamicRanges, read_ranges
from calibrators.tables.source import TableSource, as_table
from calibrators.tables.table import CalibrationTable
from calibrators.tensorrt.flavor import Target
from trtint8.auditing.audit import audit_model
from trtint8.auditing.estimator import EstimatorOptions
from trtint8.auditing.gpus import Gpu, find_gpu
from trtint8.auditing.results import Audit, AuditedEngine, AuditedKernel, AuditedPart
from trtint8.builder.options import BuildOptions
from trtint8.builder.proof import count_int8_layers
from trtint8.builder.routes import Route
from trtint8.calibration import CalibrationOptions, CheckpointOptions, Observed, calibrate_model
from trtint8.deployment import writing as deployment
from trtint8.deployment.writing import Destination
from trtint8.engine.file import EngineInfo, read_engine_info
from trtint8.engine.profiles import Profile, ShapeRange
from trtint8.equalization.recalibration import equalize_and_calibrate
from trtint8.int8_engine import BuildResult, CalibrationSource, Int8Options, RangeSources, build_from_sources
from trtint8.interop import lint as linting
from trtint8.interop.lint import Mended
from trtint8.interop.lint_rules import Finding
from trtint8.interop.migrate import Migrated
from trtint8.interop.migrate import migrate as migrate_prepared
from trtint8.models.model import ModelSource, load_float_model, load_model, prepare, to_proto
from trtint8.models.torch_export import AnyModel, open_module, open_modules
from trtint8.quantization.quantize import quantize_graph, with_float16
from trtint8.quantization.targets import TargetName, target_named
from trtint8.report import writing
from trtint8.report.comparison import ComparedRow, RunComparison, compare_runs
from trtint8.report.writing import write_comparison
from trtint8.runtime.bench import BenchReport
from trtint8.runtime.benchmark import Benchmarks, BenchOptions, benchmark
from trtint8.runtime.engine import Engine
from trtint8.runtime.refit import refit
from trtint8.sensitivity.measure import Plan, measure
from trtint8.sensitivity.results import Sensitivity
from trtint8.tuning.budget import Budget, Goal
from trtint8.tuning.journal import JournalFile
from trtint8.tuning.setup import tune_from_sources
from trtint8.tuning.speed import SpeedTrial
from trtint8.tuning.speed_plan import SpeedGoal
from trtint8.tuning.time_limit import TimeLimit
from trtint8.tuning.trial import Trial
from trtint8.tuning.tune import Tuned
from trtint8.validation.accuracy import Accuracy
from trtint8.validation.metrics import DetectionAgreement, MeanAveragePrecision, Metric
from trtint8.validation.validate import validate_models

#: Every public name. ``import trtint8`` loads this module when one of them is first used.
__all__ = [
    "Accuracy",
    "Audit",
    "AuditedEngine",
    "AuditedKernel",
    "AuditedPart",
    "BatchAxes",
    "Batches",
    "BenchReport",
    "Benchmarks",
    "BuildError",
    "BuildOptions",
    "BuildResult",
    "CalibrationDataError",
    "CalibrationTable",
    "ComparedRow",
    "DetectionAgreement",
    "Engine",
    "EngineError",
    "EngineInfo",
    "Finding",
    "Gpu",
    "GpuMemoryError",
    "GpuUnavailableError",
    "InputSpec",
    "MeanAveragePrecision",
    "Mended",
    "Migrated",
    "ModelError",
    "OutputError",
    "Preprocessing",
    "RayExecutor",
    "RunComparison",
    "Sensitivity",
    "ShapeRange",
    "TableError",
    "TrtInt8Error",
    "Tuned",
    "UnsupportedError",
    "WorkerError",
    "audit",
    "bench",
    "build_int8_engine",
    "calibrate",
    "compare_runs",
    "count_int8_layers",
    "deploy",
    "lint",
    "measure_sensitivity",
    "mend",
    "migrate",
    "model_inputs",
    "quantize",
    "read_engine_info",
    "refit",
    "tune",
    "validate",
    "write_comparison",
    "write_report",
]

#: How many samples are enough to rank layers; more of them only make the intervals narrower.
SENSITIVITY_SAMPLES = 256


def model_inputs(model: AnyModel, *, example_inputs: object = None) -> tuple[InputSpec, ...]:
    """The inputs of a model, as calibrators and data sources take them.

    Args:
        model: A path, the serialized model or a ``ModelProto``; or a ``torch.nn.Module``, which is exported
            with a dynamic batch, in evaluation mode, under the names of the parameters of its forward and of
            the keys that it returns (``output`` where it returns none). The exported model is kept in memory
            with a copy of the weights as long as it is needed.
        example_inputs: For a ``torch.nn.Module``, what its forward takes: a tensor, a tuple of tensors, or a
            dict of them by name.

    Returns:
        Name, dtype and shape of every input.

    Raises:
        ModelError: The model is unusable, or the module cannot be exported.
    """
    return load_model(open_module(model, example_inputs)).inputs


def calibrate(
    model: AnyModel,
    data: DataSource,
    *,
    method: Method = "auto",
    batch_size: int | None = None,
    limit: int | None = None,
    shuffle: bool = False,
    seed: int = 0,
    preprocessing: Preprocessing | None = None,
    tensors: Observed = "all",
    threads: int | None = None,
    progress: bool = True,
    checkpoint: str | os.PathLike[str] | None = None,
    resume: bool = False,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    executor: Executor = "local",
    device: str = "cpu",
    example_inputs: object = None,
) -> CalibrationTable:
    """Finds the range of every activation by running the FP32 model in ONNX Runtime.

    Needs neither TensorRT nor a GPU. The result depends on the samples only: not on their order, the batch
    size, an interruption after which the run was continued, or the number of workers or threads, as far as
    ONNX Runtime computes the same activations. With another number of threads it may round some operators
    differently, and so may another GPU or another kind of processor.

    Args:
        model: A path, the serialized model or a ``ModelProto``, or a ``torch.nn.Module``.
        data: What :func:`calibrators.data.batches.open_batches` takes: an array, a dict of arrays, an
            ``.npz``, a folder, an iterable of feed dicts; over Ray also a Ray Dataset.
        method: ``auto`` tries several ways to turn histograms into ranges, runs the quantized network on a
            few of the samples, and takes the way that costs its outputs least. ``entropy``, ``percentile``,
            ``mse`` and ``minmax`` look at each tensor alone.
        batch_size: Samples per batch; the model's own where it is fixed, else 32, or as many as keep the
            activations that are observed within 256 MiB.
        limit: Use only this many samples.
        shuffle: Take the samples in random order.
        seed: Seed of the random order.
        preprocessing: How raw images become what the model is fed.
        tensors: ``all`` float activations, as the implicit route wants; or only those that get Q/DQ
            pairs, which is quicker.
        threads: How many threads run the model and count; all that this process may use where None. Over
            Ray, the number per worker; 1 where None.
        progress: Show a progress bar on a terminal.
        checkpoint: A file that keeps the progress of the run. It is deleted at the end.
        resume: Continue from that file where there is one. The data is read again from its start, compared
            with what was counted, and run only from there on; so a generator must begin anew too. A run that
            was begun over Ray can be continued in one process, and the other way round.
        checkpoint_seconds: The least time between two writes of the checkpoint, in seconds.
        executor: ``local``; ``ray`` for workers on the cluster that Ray finds, or on this machine; or a
            :class:`calibrators.ray.executor.RayExecutor`, which says where and how many.
        device: Where the model runs and its activations are counted: ``cpu``; ``cuda``, which takes
            onnxruntime-gpu, and CuPy or PyTorch with CUDA; or ``cuda:1`` for the second GPU. Over Ray
            that takes an executor with ``num_gpus``.
        example_inputs: What the forward of a ``torch.nn.Module`` takes; see :func:`model_inputs`.

    Returns:
        The table, with the histograms that it was computed from.

    Raises:
        ModelError: The model is unusable.
        CalibrationDataError: The data does not fit the model, or is not the data of the checkpoint.
        TableError: The method is unknown, or the checkpoint is of another calibration.
        OutputError: The checkpoint cannot be written.
        UnsupportedError: Ray is not installed, cannot be reached or has no free processors; or the device is
            unknown or lacks a package.
        GpuUnavailableError: There is no such GPU.
        GpuMemoryError: The model or a batch does not fit the GPU.
        WorkerError: Workers of Ray died again and again.
    """
    return calibrate_model(
        open_module(model, example_inputs),
        data,
        CalibrationOptions(method, tensors),
        DataOptions(batch_size, limit, shuffle, seed, preprocessing),
        RunOptions(threads, executor, device, progress),
        CheckpointOptions(checkpoint, resume, checkpoint_seconds),
    )


def quantize(
    model: AnyModel,
    table: TableSource,
    *,
    keep_float: Sequence[str] = (),
    target: TargetName = "tensorrt",
    compute_capability: str | None = None,
    float16: bool = False,
    float32_io: bool = False,
    equalize: DataSource | None = None,
    batch_size: int | None = None,
    limit: int | None = None,
    preprocessing: Preprocessing | None = None,
    progress: bool = True,
    example_inputs: object = None,
) -> onnx.ModelProto:
    """Puts Q/DQ pairs into a float model, where TensorRT fuses them.

    Args:
        model: A path, the serialized model or a ``ModelProto``, or a ``torch.nn.Module``.
        table: The ranges, or the file that holds them.
        keep_float: Names of nodes, or patterns with ``*`` and ``?``, that stay in float.
        target: What the model is built for: ``rtx``, ``tensorrt-8.6``, ``tensorrt-10``, ``tensorrt-11`` or
            ``dla``. What it does not run in INT8 stays in float. ``tensorrt`` quantizes what at least one of
            them runs in INT8.
        compute_capability: The GPU's, like "8.6"; None where it is not known.
        float16: Whether what is outside INT8 becomes FP16, except nodes that would lose accuracy.
        float32_io: With ``float16``, whether the model's inputs and outputs stay float32.
        equalize: Calibration samples, which are read twice. Channels of the float model get similar ranges
            without a change of its function, and it is calibrated anew with the table's method (see
            :func:`trtint8.equalization.equalize.equalize`). None leaves the model as it is.
        batch_size: Samples per batch of ``equalize``.
        limit: Use only this many samples of ``equalize``.
        preprocessing: How raw images of ``equalize`` become what the model is fed.
        progress: Show a progress bar on a terminal while calibrating.
        example_inputs: What the forward of a ``torch.nn.Module`` takes; see :func:`model_inputs`.

    Returns:
        The model with Q/DQ pairs; inputs, outputs and tensor names stay.

    Raises:
        ModelError: The model is unusable or quantized already, a pattern matches nothing, or there is nothing
            to equalize.
        TableError: The table is of another model, stale, or lacks a range; or nothing can be calibrated with
            its method.
        CalibrationDataError: The samples of ``equalize`` do not fit the model.
        UnsupportedError: There is no such target, or it has no INT8 on that GPU.
    """
    chosen = target_named(target, compute_capability)
    prepared = prepare(load_float_model(open_module(model, example_inputs)))
    ranges = as_table(table)
    if equalize is not None:
        data_options = DataOptions(batch_size, limit, preprocessing=preprocessing)
        remade = equalize_and_calibrate(prepared, ranges, equalize, data_options, progress=progress)
        prepared, ranges = remade.model, remade.table
    graph_model, _ = quantize_graph(prepared, ranges, keep_float, target=chosen)
    if float16:
        graph_model, _ = with_float16(
            graph_model, chosen, float32_io=float32_io, peaks=ranges.peaks, name=prepared.name
        )
    return to_proto(graph_model)


def build_int8_engine(
    model: AnyModel,
    calibration: CalibrationSource | None,
    output: str | os.PathLike[str],
    *,
    method: Method = "auto",
    route: Route = "auto",
    target: Target = "auto",
    dynamic_ranges: DynamicRanges | None = None,
    profiles: Sequence[Profile] = (),
    compute_capabilities: Sequence[str] = (),
    fp16: bool | None = None,
    keep_float: Sequence[str] = (),
    options: BuildOptions | None = None,
    batch_size: int | None = None,
    limit: int | None = None,
    preprocessing: Preprocessing | None = None,
    progress: bool = True,
    example_inputs: object = None,
) -> BuildResult:
    """Makes an INT8 engine from a float ONNX model and sample inputs.

    Writes the engine and its sidecar ``<output>.json``, and beside them the calibration table
    (``<stem>.table.json``), on the explicit route the Q/DQ model (``<stem>.qdq.onnx``), and of a
    ``torch.nn.Module`` the float model (``<stem>.float.onnx``). On the implicit
    route TensorRT's own calibration cache (``<stem>.cache``) is kept and used again while it is not stale.

    Args:
        model: A path, the serialized model or a ``ModelProto``, or a ``torch.nn.Module``. A model with Q/DQ
            pairs is built as it is.
        calibration: Sample inputs (see :func:`trtint8.calibrate`), a :class:`CalibrationTable`, the path of
            a table or of a TensorRT calibration cache, a calibrator of :mod:`calibrators.tensorrt`; None
            where ``dynamic_ranges`` cover what is needed.
        output: The engine file.
        method: How ranges are chosen from sample inputs.
        route: ``explicit`` puts Q/DQ pairs into the graph; ``implicit`` uses the calibrators and dynamic
            ranges of TensorRT 8.5 to 10.x; ``auto`` is implicit where a calibrator is given or TensorRT is
            older than 10.1.
        target: Which TensorRT builds; ``auto`` takes the full TensorRT where it and a GPU are present, else
            TensorRT for RTX.
        dynamic_ranges: Tensor name to amax or (min, max), or a file (see
            :func:`calibrators.tables.ranges.read_ranges`); overrides what was calibrated.
        profiles: Shapes of dynamic inputs.
        compute_capabilities: GPUs to build for, like "8.6"; TensorRT for RTX only.
        fp16: Whether layers outside INT8 may run in FP16; overrides ``options``. TensorRT decides where;
            TensorRT 11 and RTX take types from the graph, which is converted, except nodes that would lose
            accuracy, and inputs and outputs.
        keep_float: Names of nodes, or patterns, that stay in float.
        options: Everything else about the build.
        batch_size: Samples per calibration batch.
        limit: Use only this many samples.
        preprocessing: How raw images become what the model is fed.
        progress: Show progress on a terminal.
        example_inputs: What the forward of a ``torch.nn.Module`` takes; see :func:`model_inputs`.

    Returns:
        What was written, and what it is.

    Raises:
        TrtInt8Error: Always one of its subclasses, whose message says in one sentence what to do.
    """
    options = options or BuildOptions()
    manual = read_ranges(dynamic_ranges) if dynamic_ranges is not None else {}
    data_options = DataOptions(batch_size, limit, preprocessing=preprocessing)
    return build_from_sources(
        open_module(model, example_inputs),
        RangeSources(calibration, manual, method, data_options, progress),
        output,
        Int8Options(route, target, profiles, compute_capabilities, keep_float),
        options if fp16 is None else replace(options, fp16=fp16),
    )


def audit(
    model: ModelSource,
    table: TableSource,
    gpu: str | Gpu,
    *,
    profile: Profile | None = None,
    target: Target = "auto",
    keep_float: Sequence[str] = (),
    options: BuildOptions | None = None,
    progress: bool = True,
) -> Audit:
    """Says what INT8 would gain on a GPU, without one: builds FP32, FP16 and INT8 engines and compares them.

    TensorRT for RTX builds on any machine. The result is an estimate from the compiled graphs, and no timing:
    every kernel takes as long as moving its bytes through the GPU's memory, or computing its products on the
    tensor cores.

    Args:
        model: A path, the serialized model or a ``ModelProto``; a float model.
        table: Its calibration table, or the file that holds it.
        gpu: Name of a GPU such as "RTX 4090" (see :data:`trtint8.auditing.gpus.GPUS`), or the figures of one.
        profile: Shapes of dynamic inputs, of which the optimal ones are taken; a batch of 8 where None.
        target: Which TensorRT builds; ``auto`` takes the full TensorRT where it and a GPU are present, else
            TensorRT for RTX.
        keep_float: Names of nodes, or patterns, that stay in float.
        options: Everything else about the builds; ``fp16`` has no effect.
        progress: Show a progress bar on a terminal for every build.

    Returns:
        The engines side by side, with their kernels, bytes, multiply-adds, estimated times, and a verdict.

    Raises:
        ModelError: The model is unusable or quantized already, or a pattern matches nothing.
        TableError: The table is of another model, or lacks a range.
        BuildError: TensorRT refuses the model, or the profile does not fit.
        UnsupportedError: The GPU is not in the table, or this TensorRT does not list the layers of an engine.
        GpuUnavailableError: This TensorRT needs a GPU to build.
    """
    wanted = EstimatorOptions(target, profile, options or BuildOptions(), progress)
    figures = find_gpu(gpu) if isinstance(gpu, str) else gpu
    return audit_model(load_float_model(model), as_table(table), figures, wanted, keep_float)


def validate(
    model: AnyModel,
    data: DataSource,
    *,
    reference: AnyModel,
    also: Mapping[str, AnyModel] | None = None,
    labels: LabelSource | None = None,
    metrics: Sequence[Metric] | None = None,
    batch_size: int | None = None,
    limit: int | None = None,
    preprocessing: Preprocessing | None = None,
    executor: Executor = "local",
    threads: int | None = None,
    allow_host_code: bool = False,
    progress: bool = True,
    example_inputs: object = None,
) -> Accuracy:
    """Compares an INT8 model or engine with the FP32 model on data that it was not calibrated on.

    An engine runs on the GPU where there is one. Elsewhere it is judged through the Q/DQ model that it was
    built from, which is kept beside it, and which runs in ONNX Runtime as true fake quantization.

    The result is the same, bit for bit, for any number of workers; the number of threads, and the batch size,
    may change the last bits of what ONNX Runtime computes.

    Memory grows with the data by one byte per sample, metric and model (16 bytes where the metric is a
    function), and by what a metric over the data set keeps itself.

    Args:
        model: A Q/DQ model, or the path of an engine file; called INT8 in the result.
        data: What :func:`calibrate` takes. Its labels, where it has some, are class indices, or arrays that
            an output is compared with, such as images or maps of classes.
        reference: The FP32 model, which may be a ``torch.nn.Module``.
        also: Other models or engines to judge on the same samples, by name, such as ``{"FP16": path}``.
        labels: Labels that do not come with the data: an array, or the path of an ``.npy`` or ``.npz``.
        metrics: What to measure. Names: for class scores ``top1``, ``top5`` or any ``topK``, and
            ``agreement``; for images ``psnr``; for classes of positions ``pixels`` and ``miou``; for
            detectors ``detections``, or :class:`DetectionAgreement` with a decoder; of every output
            ``sqnr``, ``cosine``, ``max_error``, which come together, and ``token_cosine``. The first output
            is measured, or the one whose name follows a colon, as in ``psnr:hr``. ``psnr``, ``pixels`` and
            ``miou`` compare with labels that have the output's shape where there are some, else with FP32.
            Functions of ``(feeds, outputs)`` or ``(feeds, outputs, reference_outputs)`` of a batch, which
            return a number or one per sample. Metrics over the data set such as
            :class:`MeanAveragePrecision`. Where None, the shapes of the outputs decide: for one row of class
            scores per sample ``top1`` and ``top5`` where there are labels, and ``agreement``; for every
            network ``sqnr``, ``cosine`` and ``max_error``. ``chosen`` of the result says so.
        batch_size: Samples per batch.
        limit: Use only this many samples.
        preprocessing: How raw images become what the model is fed.
        executor: Where models run: see :func:`calibrate`. Over Ray, metrics are computed by the workers;
            a metric over the data set must merge (:class:`trtint8.validation.metrics.MergeableMetric`).
        threads: Threads per operator of a model in ONNX Runtime; ONNX Runtime's choice where None. Over Ray,
            the number per worker; 1 where None.
        allow_host_code: Whether code that an engine contains may run; see :meth:`Engine.load`.
        progress: Show a progress bar on a terminal.
        example_inputs: What the forward of a ``torch.nn.Module`` takes; see :func:`model_inputs`.

    Returns:
        The comparison, with a test of each difference that says whether it is more than chance.

    Raises:
        TrtInt8Error: Always one of its subclasses, whose message says in one sentence what to do.
    """
    also = also or {}
    judged, float_model, *others = open_modules((model, reference, *also.values()), example_inputs)
    return validate_models(
        judged,
        data,
        reference=float_model,
        also=dict(zip(also, others, strict=True)),
        metrics=metrics,
        data_options=DataOptions(batch_size, limit, preprocessing=preprocessing, labels=labels),
        run=RunOptions(threads, executor, progress=progress),
        allow_host_code=allow_host_code,
    )


def measure_sensitivity(
    model: AnyModel,
    table: TableSource,
    data: DataSource,
    *,
    labels: LabelSource | None = None,
    keep_float: Sequence[str] = (),
    tolerance_db: float = 1.0,
    batch_size: int | None = None,
    limit: int | None = SENSITIVITY_SAMPLES,
    preprocessing: Preprocessing | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    threads: int | None = None,
    executor: Executor = "local",
    on_plan: Callable[[Plan], None] = lambda _plan: None,
    progress: bool = True,
    example_inputs: object = None,
) -> Sensitivity:
    """Finds which layers cost accuracy, and why, on the CPU.

    Args:
        model: A float model: a path, the serialized model or a ``ModelProto``, or a ``torch.nn.Module``.
        table: The ranges, or the file that holds them.
        data: What :func:`calibrate` takes; its labels, where it has some, are class indices.
        labels: Labels that do not come with the data: an array, or the path of an ``.npy`` or ``.npz``.
        keep_float: Names of nodes, or patterns, that stay in float throughout.
        tolerance_db: Stop once the SQNR of every layer that matters is known to within so many decibels.
        batch_size: Samples per batch.
        limit: Use only this many samples; all where None.
        preprocessing: How raw images become what the model is fed.
        checkpoint: A file that keeps what was measured so far; one that exists is continued.
        threads: Threads per operator; ONNX Runtime's choice where None. Over Ray, the number per worker; 1
            where None.
        executor: Where the network runs: see :func:`calibrate`. The result is the same, bit for bit, for any
            number of workers.
        on_plan: Called with the expected cost before the measurement starts; over Ray, the time is that of
            one worker.
        progress: Show a progress bar on a terminal.
        example_inputs: What the forward of a ``torch.nn.Module`` takes; see :func:`model_inputs`.

    Returns:
        What each layer costs (see :func:`trtint8.sensitivity.measure.measure`).

    Raises:
        TrtInt8Error: Always one of its subclasses, whose message says in one sentence what to do.
    """
    prepared = prepare(load_float_model(open_module(model, example_inputs)))
    ranges = as_table(table)
    run = RunOptions(threads, executor, progress=progress)
    data_options = DataOptions(batch_size, limit, preprocessing=preprocessing, labels=labels)
    return measure(
        prepared,
        ranges,
        open_data(data, prepared.inputs, data_options),
        keep_float=keep_float,
        tolerance_db=tolerance_db,
        checkpoint=checkpoint,
        threads=run.threads,
        executor=run.ray,
        on_plan=on_plan,
        progress=run.progress,
    )


def tune(
    model: AnyModel,
    calibration: DataSource | CalibrationTable,
    data: DataSource,
    *,
    max_drop: float | None = None,
    minimum: float | None = None,
    metric: Metric | None = None,
    labels: LabelSource | None = None,
    judge: DataSource | None = None,
    method: Method = "auto",
    round_weights: bool = True,
    float16: bool = False,
    seed: int = 0,
    batch_size: int | None = None,
    limit: int | None = None,
    preprocessing: Preprocessing | None = None,
    minutes: float | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    resume: bool = False,
    on_goal: Callable[[Goal], None] = lambda _goal: None,
    on_trial: Callable[[Trial], None] = lambda _trial: None,
    progress: bool = True,
    speed: str | Gpu | None = None,
    profile: Profile | None = None,
    target: Target = "auto",
    on_speed_trial: Callable[[SpeedTrial], None] = lambda _trial: None,
    example_inputs: object = None,
) -> Tuned:
    """Finds the cheapest mix of remedies that keeps accuracy within a budget, on the CPU.

    Remedies that make the engine no slower are tried always: ranges chosen by what they cost the network's
    outputs, then equalized weights, adaptive rounding and corrected biases. Each is taken where it leaves
    less noise. Only where that is not enough do layers stay in float. The result is judged on samples that
    the search did not use.

    Args:
        model: A float model: a path, the serialized model or a ``ModelProto``, or a ``torch.nn.Module``.
        calibration: Calibration samples, or a table, or the file that holds one. Ranges are only chosen with
            histograms, and weights are only equalized with samples.
        data: Samples to tune on, as :func:`calibrate` takes them; they are read several times.
        max_drop: How much the metric may lose, in its own unit: points for a share, decibels for ``psnr``
            against labels. For ``max_error``, the largest error.
        minimum: The least value of the metric, in its own unit: per cent for a share, decibels for ``sqnr``
            and ``psnr``. Where neither limit is given, a share may lose one point, and ``psnr`` against
            labels half a decibel; ``sqnr``, and ``psnr`` against FP32, have to be 20 dB.
        metric: What :func:`validate` takes as one of its metrics; of a function larger values are better.
            Where None, the shapes of the outputs decide: for one row of class scores per sample top-1 where
            there are class indices as labels, else agreement; for every other network ``sqnr``. Of ``sqnr``,
            ``cosine``, ``max_error`` and ``token_cosine`` the output counts where it is worst.
        labels: Labels that do not come with the data.
        judge: Other samples to judge the result by, with labels of their own; every other batch of the
            shuffled ``data`` where None.
        method: How ranges are chosen at first, where ``calibration`` is samples.
        round_weights: Whether adaptive rounding is tried, which takes more time than the other remedies for
            weights.
        float16: Whether what stays in float becomes FP16.
        seed: Seed of everything that is random.
        batch_size: Samples per batch.
        limit: Use only this many samples of ``data``, and as many of ``judge``.
        preprocessing: How raw images become what the model is fed.
        minutes: How long the search may take. Then it ends with the best so far, which is judged as usual.
        checkpoint: A file that keeps what was tried, so that an interrupted search can be continued. It stays
            after the end, so that nothing is lost before the result is written.
        resume: Continue from the checkpoint where there is one, with the same arguments and samples; else it
            is overwritten.
        on_goal: Called with what the result has to keep, before the calibration.
        on_trial: Called with everything that the search tries, also with what an interrupted search that is
            continued has tried.
        progress: Show a progress bar on a terminal while calibrating.
        speed: Name of a GPU, or its figures, as :func:`audit` takes them. Layers that are not estimated to be
            faster in INT8 there stay in FP16 from the start, whatever they cost in accuracy; implies
            ``float16``. At most half of ``minutes`` is spent on it. None leaves speed out.
        profile: With ``speed``, the shapes of dynamic inputs, of which the optimal ones are taken.
        target: With ``speed``, which TensorRT builds the engines that are estimated.
        on_speed_trial: Called with everything that the search for speed tries.
        example_inputs: What the forward of a ``torch.nn.Module`` takes; see :func:`model_inputs`.

    Returns:
        What was found; :func:`trtint8.tuning.tune.save_tuned` writes it.

    Raises:
        TrtInt8Error: Always one of its subclasses, whose message says in one sentence what to do.
    """
    goal = None
    if speed is not None:
        estimates = EstimatorOptions(target, profile, progress=False)
        goal = SpeedGoal(find_gpu(speed) if isinstance(speed, str) else speed, estimates, on_speed_trial)
    return tune_from_sources(
        prepare(load_float_model(open_module(model, example_inputs))),
        calibration,
        data,
        judge,
        Budget(max_drop, metric, minimum),
        options=CalibrationOptions(method, "placed"),
        data_options=DataOptions(batch_size, limit, seed=seed, preprocessing=preprocessing, labels=labels),
        round_weights=round_weights,
        float16=float16 or goal is not None,
        limit=TimeLimit(minutes),
        journal=JournalFile(checkpoint, resume) if checkpoint is not None else None,
        on_goal=on_goal,
        on_trial=on_trial,
        progress=progress,
        speed=goal,
    )


def bench(
    engines: Sequence[str | os.PathLike[str]],
    *,
    data: DataSource | None = None,
    baseline: AnyModel | None = None,
    seconds: float = 3.0,
    transfers: bool = True,
    cuda_graph: bool = False,
    device: int = 0,
    allow_host_code: bool = False,
    batch_size: int | None = None,
    limit: int | None = None,
    preprocessing: Preprocessing | None = None,
    example_inputs: object = None,
) -> Benchmarks:
    """Measures latency and throughput of engines, one after another on one GPU.

    Args:
        engines: Engine files.
        data: What to feed: one batch of it is fed again and again. Random values where None.
        baseline: A float model: engines of it in FP32 and in FP16 are built and measured as well.
        seconds: How long each engine is measured, in seconds.
        transfers: Whether copies to and from the GPU are part of an inference.
        cuda_graph: Whether an inference is launched as a CUDA graph.
        device: Index of the GPU.
        allow_host_code: Whether code that an engine contains may run; see :meth:`Engine.load`.
        batch_size: Samples per batch; where it is None and values are random, the batch size that the first
            profile is optimized for.
        limit: Use only this many samples of ``data``.
        preprocessing: How raw images become what the engine is fed.
        example_inputs: What the forward of ``baseline`` takes where it is a ``torch.nn.Module``; see
            :func:`model_inputs`.

    Returns:
        One report per engine: times of each phase in milliseconds, inferences and samples per second.

    Raises:
        GpuUnavailableError: There is no usable GPU.
        EngineError: An engine file is unusable.
        CalibrationDataError: The data or the options do not fit an engine.
    """
    return benchmark(
        engines,
        data=data,
        baseline=None if baseline is None else open_module(baseline, example_inputs),
        data_options=DataOptions(batch_size, limit, preprocessing=preprocessing),
        options=BenchOptions(seconds, transfers, cuda_graph, device, allow_host_code),
    )


def lint(model: ModelSource) -> list[Finding]:
    """Checks a model that any tool has quantized against TensorRT's rules.

    Args:
        model: A path, the serialized model or a ``ModelProto``, with Q/DQ pairs, operators on integers
            (QLinearConv and the like), or integer operators with scales computed at run time.

    Returns:
        The findings, in the graph's order; empty where there is nothing to mend.

    Raises:
        ModelError: The model is unusable.
    """
    return linting.lint(load_model(model))


def mend(model: ModelSource) -> Mended:
    """Places the Q/DQ pairs of a model that any tool has quantized anew, as TensorRT wants them.

    Args:
        model: What :func:`lint` takes.

    Returns:
        The new model, with the ranges and the quantized weights of the old one; its ``save`` writes it.

    Raises:
        ModelError: The model is unusable, a finding cannot be mended, or a tensor that needs a range had no
            pair.
    """
    return linting.mend(load_model(model))


def migrate(
    model: AnyModel,
    cache: TableSource,
    *,
    fill: bool = False,
    keep_float: Sequence[str] = (),
    example_inputs: object = None,
) -> Migrated:
    """Turns the calibration cache of an implicit engine into a Q/DQ model.

    Args:
        model: The float model that was calibrated.
        cache: TensorRT's calibration cache, or any other table.
        fill: Whether tensors that the cache lacks get the ranges that follow from others.
        keep_float: Names of nodes, or patterns, that stay in float.
        example_inputs: What the forward of a ``torch.nn.Module`` takes; see :func:`model_inputs`.

    Returns:
        The model with Q/DQ pairs, and which ranges were missing or unused; its ``save`` writes it, and
        :func:`count_int8_layers` proves by a build on the CPU that it runs in INT8.

    Raises:
        ModelError: The model is unusable, or a pattern matches no node.
        TableError: The cache is unusable or lacks ranges.
    """
    prepared = prepare(load_model(open_module(model, example_inputs)))
    return migrate_prepared(prepared, as_table(cache), fill=fill, keep_float=keep_float)


def deploy(
    engine: str | os.PathLike[str],
    to: Destination,
    output: str | os.PathLike[str],
    *,
    preprocessing: Preprocessing | None = None,
) -> list[Path]:
    """Writes a folder with what runs an engine elsewhere, and a README that says how.

    Args:
        engine: The engine file, with its sidecar and the files that the build left beside it.
        to: ``triton`` for a model repository, ``deepstream`` for a configuration of nvinfer, ``ort-trt`` for
            ONNX Runtime's TensorRT execution provider, ``cpp`` for a C++ and a Python program, ``docker`` for
            a container.
        output: The folder, which must not exist or be empty. After a crash it is complete or not there.
        preprocessing: How raw images become what the engine is fed. It goes along in a form that what runs
            the engine can use.

    Returns:
        The files that were written.

    Raises:
        EngineError: The engine, or a file beside it, is unusable.
        UnsupportedError: What runs the engine lacks something that it needs, such as an element type.
        CalibrationDataError: No input of the engine takes what the preprocessing makes.
        TableError: The table beside the engine is unusable.
        OutputError: The folder is not empty, or cannot be written.
    """
    return deployment.deploy(engine, to, output, preprocessing)


def write_report(
    sources: Sequence[str | os.PathLike[str]],
    output: str | os.PathLike[str],
    *,
    model: str | os.PathLike[str] | None = None,
    data: DataSource | None = None,
    labels: LabelSource | None = None,
    class_names: str | os.PathLike[str] | Sequence[str] | None = None,
    allow_host_code: bool = False,
    batch_size: int | None = None,
    limit: int | None = None,
    preprocessing: Preprocessing | None = None,
) -> Path:
    """Writes one self-contained HTML page on one INT8 model: accuracy, layers, tensors and samples.

    Args:
        sources: The folder that ``trtint8 build`` wrote to; or an engine, with which the files beside it are
            read; or files: a Q/DQ model, a calibration table, and the JSON of sensitivity, accuracy,
            audit, bench and tuning.
        output: The HTML file.
        model: The float model.
        data: Held-out data, in which the samples with the largest differences are found; needs ``model``.
        labels: Labels that do not come with the data.
        class_names: Names of the classes in the order of their indices, or a text file with one per line.
        allow_host_code: Whether code that an engine contains may run; see :meth:`Engine.load`.
        batch_size: Samples per batch.
        limit: Use only this many samples.
        preprocessing: How raw images become what the models are fed.

    Returns:
        ``output``.

    Raises:
        TrtInt8Error: Always one of its subclasses, whose message says in one sentence what to do.
    """
    return writing.write_report(
        sources,
        output,
        model=model,
        data=data,
        data_options=DataOptions(batch_size, limit, preprocessing=preprocessing, labels=labels),
        class_names=class_names,
        allow_host_code=allow_host_code,
    )
