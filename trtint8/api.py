"""The calls that most users need, each a few steps of the other modules put together."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import onnx
import onnx_ir as ir

from calibrators import host
from calibrators.batches import open_batches
from calibrators.errors import CalibrationDataError, EngineError, ModelError, UnsupportedError
from calibrators.files import check_writable
from calibrators.preprocessing import Preprocessing
from calibrators.table import CalibrationTable, Provenance
from trtint8 import flavor as flavors
from trtint8.accuracy import Accuracy, compare, onnx_runner
from trtint8.builder import build_engine
from trtint8.engine import EngineInfo, TensorSpec, read_engine_info, save_engine
from trtint8.model import Model, ModelSource, load_model, prepare, runnable, save_model, to_proto
from trtint8.profiles import Profile
from trtint8.quantization.placement import Placement, place
from trtint8.quantization.qdq import insert_qdq

Target = Literal["auto", "rtx", "tensorrt"]
Route = Literal["auto", "explicit", "implicit"]


def calibrate(
    model: ModelSource,
    data: Any,
    *,
    method: str = "entropy",
    batch_size: int | None = None,
    limit: int | None = None,
    shuffle: bool = False,
    seed: int = 0,
    preprocessing: Preprocessing | None = None,
    tensors: Literal["all", "placed"] = "all",
    threads: int | None = None,
    progress: bool = True,
) -> CalibrationTable:
    """Finds the range of every activation by running the FP32 model on the CPU.

    Needs neither TensorRT nor a GPU. The result depends on the samples only, not on their order or the
    batch size.

    Args:
        model: A path, the serialized model or a ``ModelProto``.
        data: What :func:`calibrators.batches.open_batches` takes: an array, a dict of arrays, an ``.npz``,
            a folder, an iterable of feed dicts.
        method: ``entropy``, ``percentile``, ``mse`` or ``minmax``.
        batch_size: Samples a batch; the model's own where it is fixed, else 32.
        limit: Use only this many samples.
        shuffle: Take the samples in random order.
        seed: Of that order.
        preprocessing: How raw images become what the model is fed.
        tensors: ``all`` float activations, as the implicit route wants; or only those that get Q/DQ
            pairs, which is quicker.
        threads: Threads within an operator; ONNX Runtime's choice where None.
        progress: Show a progress bar on a terminal.

    Returns:
        The table, with the histograms that it was computed from.

    Raises:
        ModelError: The model is unusable.
        CalibrationDataError: The data does not fit it.
        TableError: The method is unknown.
    """
    return _calibrate(
        prepare(load_model(model)),
        data,
        method,
        {
            "batch_size": batch_size,
            "limit": limit,
            "shuffle": shuffle,
            "seed": seed,
            "preprocessing": preprocessing,
        },
        tensors,
        threads=threads,
        progress=progress,
    )


def _calibrate(
    prepared: Model,
    data: Any,
    method: str,
    options: Mapping[str, Any],
    tensors: Literal["all", "placed"],
    *,
    threads: int | None = None,
    progress: bool,
) -> CalibrationTable:
    CalibrationTable.from_histograms({}, method, Provenance())  # refuses an unknown method before the run
    names = place(prepared.graph_model).tensors if tensors == "placed" else _float_tensors(prepared)
    batches = open_batches(data, prepared.inputs, **options)
    with runnable(prepared.graph_model) as serialized:
        seen = host.observe(serialized, prepared.inputs, names, batches, threads=threads, progress=progress)
    for warning in seen.warnings:
        warnings.warn(warning, stacklevel=3)
    versions = {name: metadata.version(name) for name in ("trtint8", "onnxruntime", "numpy")}
    provenance = Provenance(prepared.fingerprint, seen.data_fingerprint, seen.samples, versions)
    return CalibrationTable.from_histograms(seen.histograms, method, provenance)


def quantize(
    model: ModelSource, table: CalibrationTable | str | os.PathLike[str], *, keep_float: Sequence[str] = ()
) -> onnx.ModelProto:
    """Puts Q/DQ pairs into a float model, where TensorRT fuses them.

    Args:
        model: A path, the serialized model or a ``ModelProto``.
        table: The ranges, or the file that holds them.
        keep_float: Names of nodes, or patterns with ``*`` and ``?``, that stay in float.

    Returns:
        The model with Q/DQ pairs; inputs, outputs and tensor names stay.

    Raises:
        ModelError: The model is unusable or quantized already, or a pattern matches nothing.
        TableError: The table is of another model, stale, or lacks a range.
    """
    return to_proto(quantize_graph(prepare(_float_model(model)), _table(table), keep_float)[0])


def quantize_graph(
    prepared: Model, table: CalibrationTable, keep_float: Sequence[str] = ()
) -> tuple[ir.Model, Placement]:
    """:func:`quantize` for a prepared model of any size, with the reasons.

    Args:
        prepared: From :func:`trtint8.model.prepare`; not changed.
        table: The ranges.
        keep_float: Names or patterns.

    Returns:
        The model with Q/DQ pairs, and where they went.
    """
    graph_model = prepared.graph_model.clone()
    placement = place(graph_model, keep_float)
    table.check_model(prepared.fingerprint, placement.tensors)
    insert_qdq(graph_model, placement, table.amax)
    return graph_model, placement


@dataclass(frozen=True)
class BuildResult:
    """What :func:`build_int8_engine` made.

    Attributes:
        engine: The engine file; its sidecar is ``<engine>.json``.
        qdq_model: The Q/DQ model that it was built from.
        table_file: The calibration table; None where the model was quantized already.
        info: What the sidecar says.
        table: The table.
        warnings: TensorRT's.
        seconds: How long TensorRT took.
    """

    engine: Path
    qdq_model: Path
    table_file: Path | None
    info: EngineInfo
    table: CalibrationTable | None
    warnings: tuple[str, ...]
    seconds: float


def build_int8_engine(
    model: ModelSource,
    calibration: Any,
    output: str | os.PathLike[str],
    *,
    method: str = "entropy",
    route: Route = "auto",
    target: Target = "auto",
    dynamic_ranges: Mapping[str, float] | None = None,
    profiles: Sequence[Profile] = (),
    compute_capabilities: Sequence[str] = (),
    fp16: bool | None = None,
    keep_float: Sequence[str] = (),
    batch_size: int | None = None,
    limit: int | None = None,
    preprocessing: Preprocessing | None = None,
    progress: bool = True,
) -> BuildResult:
    """Makes an INT8 engine from a float ONNX model and sample inputs.

    Writes the engine and its sidecar ``<output>.json``, and beside them the Q/DQ model
    (``<stem>.qdq.onnx``) and the calibration table (``<stem>.table.json``).

    Args:
        model: A path, the serialized model or a ``ModelProto``. One with Q/DQ pairs is built as it is.
        calibration: Sample inputs (see :func:`calibrate`), a :class:`CalibrationTable`, the path of a table
            or of a TensorRT calibration cache; None where ``dynamic_ranges`` cover what is needed.
        output: The engine file.
        method: How ranges are chosen from sample inputs.
        route: ``explicit`` (Q/DQ in the graph) is the only one here; ``auto`` takes it.
        target: Which TensorRT builds; ``auto`` takes the full one where it and a GPU are, else RTX.
        dynamic_ranges: Tensor name to amax; overrides what was calibrated.
        profiles: Shapes of dynamic inputs.
        compute_capabilities: GPUs to build for, like "8.6"; TensorRT for RTX only.
        fp16: Whether layers outside INT8 may run in FP16, where TensorRT still decides that.
        keep_float: Names of nodes, or patterns, that stay in float.
        batch_size: Samples a calibration batch.
        limit: Use only this many samples.
        preprocessing: How raw images become what the model is fed.
        progress: Show progress on a terminal.

    Returns:
        What was written, and what it is.

    Raises:
        TrtInt8Error: One of its family, with one sentence that says what to do.
    """
    if route == "implicit":
        raise UnsupportedError(
            "the implicit route (calibrators and dynamic ranges of TensorRT 8.5 to 10.x) is not available "
            "in this version; use the explicit one"
        )
    output = check_writable(output)
    flavor = flavors.load(target)
    loaded = load_model(model)
    if loaded.is_quantized:
        graph_model, placement, table = loaded.graph_model, None, None
    else:
        prepared = prepare(loaded)
        place(prepared.graph_model, keep_float)  # a pattern without a match fails before minutes of work
        table = _ranges(
            prepared,
            calibration,
            dynamic_ranges,
            method,
            {"batch_size": batch_size, "limit": limit, "preprocessing": preprocessing},
            progress,
        )
        graph_model, placement = quantize_graph(prepared, table, keep_float)

    with runnable(graph_model) as serialized:
        built = build_engine(
            serialized,
            loaded.inputs,
            flavor=flavor,
            profiles=profiles,
            compute_capabilities=compute_capabilities,
            fp16=fp16,
            int8=True,
            progress=progress,
        )
    qdq_file = output.with_name(f"{output.stem}.qdq.onnx")
    info = EngineInfo(
        flavor=built.flavor,
        tensorrt_version=built.version,
        compute_capabilities=built.compute_capabilities,
        inputs=_specs(graph_model.graph.inputs),
        outputs=_specs(graph_model.graph.outputs),
        profiles=built.profiles,
        layers=built.report,
        quantized_nodes=placement.quantized_nodes if placement else (),
        weights_bytes=built.weights_bytes,
        model_fingerprint=loaded.fingerprint,
        table_fingerprint=table.fingerprint if table else None,
        method=table.method if table else None,
        qdq_model=qdq_file.name,
    )
    table_file = output.with_name(f"{output.stem}.table.json") if table else None
    with _removed_after_failure([qdq_file, *([table_file] if table_file else [])]):
        save_model(graph_model, qdq_file)
        if table and table_file:
            table.save(table_file)
        info = save_engine(output, built.plan, info)
    return BuildResult(output, qdq_file, table_file, info, table, built.warnings, built.seconds)


def validate(
    model: ModelSource,
    data: Any,
    *,
    reference: ModelSource,
    labels: Any = None,
    batch_size: int | None = None,
    limit: int | None = None,
    preprocessing: Preprocessing | None = None,
    progress: bool = True,
) -> Accuracy:
    """Compares an INT8 model or engine with the FP32 model on data that it was not calibrated on.

    A Q/DQ model runs in ONNX Runtime as true fake quantization. An engine is judged through the Q/DQ model
    that it was built from, which is kept beside it.

    Args:
        model: A Q/DQ model, or the path of an engine file.
        data: What :func:`calibrate` takes; its labels, where it has some, are class indices.
        reference: The FP32 model.
        labels: Labels that do not come with the data: an array, or the path of an ``.npy`` or ``.npz``.
        batch_size: Samples a batch.
        limit: Use only this many samples.
        preprocessing: How raw images become what the model is fed.
        progress: Show a progress bar on a terminal.

    Returns:
        The comparison.

    Raises:
        TrtInt8Error: One of its family, with one sentence that says what to do.
    """
    judged, description = _judged(model)
    original = load_model(reference)
    batches = open_batches(
        data, original.inputs, batch_size=batch_size, limit=limit, preprocessing=preprocessing, labels=labels
    )
    with runnable(judged.graph_model) as judged_file, runnable(original.graph_model) as reference_file:
        run_judged, names = onnx_runner(judged_file, optimize=False)
        run_reference, reference_names = onnx_runner(reference_file, optimize=True)
        if names != reference_names:
            raise ModelError(
                f"the outputs are {', '.join(names)}, the reference's {', '.join(reference_names)}; "
                "compare with the model that it was made from"
            )
        return compare(
            run_judged,
            run_reference,
            names,
            original.inputs,
            batches,
            description=description,
            progress=progress,
        )


@contextlib.contextmanager
def _removed_after_failure(files: Sequence[Path]) -> Iterator[None]:
    """Takes back the files that appeared in a block that failed; those that were there before stay."""
    new = [file for file in files if not file.exists()]
    try:
        yield
    except BaseException:
        for file in new:
            file.unlink(missing_ok=True)
        raise


def _judged(model: ModelSource) -> tuple[Model, str]:
    if not isinstance(model, (str, os.PathLike)) or Path(model).suffix.lower() == ".onnx":
        return load_model(model), "the Q/DQ model as fake quantization in ONNX Runtime"
    info = read_engine_info(model)
    if info.qdq_model is None:
        raise EngineError(f"'{model}' names no Q/DQ model to judge it by; validate that model itself")
    beside = Path(model).with_name(info.qdq_model)
    return load_model(beside), f"the engine's Q/DQ model '{beside.name}' as fake quantization in ONNX Runtime"


def _ranges(
    prepared: Model,
    calibration: Any,
    dynamic_ranges: Mapping[str, float] | None,
    method: str,
    options: Mapping[str, Any],
    progress: bool,
) -> CalibrationTable:
    if isinstance(calibration, CalibrationTable):
        table = calibration
    elif is_table_file(calibration):
        table = CalibrationTable.load(calibration)
    elif calibration is not None:
        table = _calibrate(prepared, calibration, method, options, "placed", progress=progress)
    elif dynamic_ranges:
        table = CalibrationTable({})
    else:
        raise CalibrationDataError(
            "nothing to take ranges from: give sample inputs, a table or dynamic_ranges"
        )
    return table.override(dynamic_ranges) if dynamic_ranges else table


def is_table_file(source: object) -> bool:
    """Whether a calibration argument is the path of a table or a TensorRT calibration cache."""
    return isinstance(source, (str, os.PathLike)) and Path(source).suffix.lower() in (".json", ".cache")


def _table(table: CalibrationTable | str | os.PathLike[str]) -> CalibrationTable:
    return table if isinstance(table, CalibrationTable) else CalibrationTable.load(table)


def _float_model(source: ModelSource) -> Model:
    model = load_model(source)
    if model.is_quantized:
        raise ModelError(
            f"'{model.name}' holds Q/DQ pairs already; build it as it is, or give the float model"
        )
    return model


def _float_tensors(prepared: Model) -> list[str]:
    """Every float32 activation of the graph, inputs included."""
    graph = prepared.graph_model.graph
    values = [*graph.inputs, *(output for node in graph for output in node.outputs)]
    return [
        value.name
        for value in values
        if value.name and value.dtype == ir.DataType.FLOAT and value.name not in graph.initializers
    ]


def _specs(values: Sequence[ir.Value]) -> tuple[TensorSpec, ...]:
    return tuple(
        TensorSpec(
            value.name or "",
            value.dtype.numpy().name if value.dtype is not None else "float32",
            tuple(dim if isinstance(dim, int) else dim.value for dim in value.shape or ()),
        )
        for value in values
    )
