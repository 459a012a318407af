"""The calls that most users need, each a few steps of the other modules put together."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from calibrators import host
from calibrators.batches import FeedDict, open_batches
from calibrators.errors import GpuUnavailableError, ModelError
from calibrators.inputs import InputSpec
from calibrators.preprocessing import Preprocessing
from calibrators.table import CalibrationTable, Provenance, is_table_name
from trtint8.accuracy import Accuracy, Runner, compare, onnx_runner
from trtint8.cuda import gpu_names, gpu_problem
from trtint8.engine import read_engine_info
from trtint8.model import Model, ModelSource, load_model, prepare, runnable, to_proto
from trtint8.quantization.float16 import to_float16
from trtint8.quantization.placement import Placement, place
from trtint8.quantization.qdq import WeightScales, insert_qdq
from trtint8.runtime import Engine


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
    return calibrate_prepared(
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


def calibrate_prepared(
    prepared: Model,
    data: Any,
    method: str,
    options: Mapping[str, Any],
    tensors: Literal["all", "placed"],
    *,
    threads: int | None = None,
    progress: bool,
) -> CalibrationTable:
    """:func:`calibrate` for a prepared model; ``options`` are those of ``open_batches``."""
    CalibrationTable.from_histograms({}, method, Provenance())  # refuses an unknown method before the run
    names = place(prepared.graph_model).tensors if tensors == "placed" else float_tensors(prepared)
    batches = open_batches(data, prepared.inputs, **options)
    with runnable(prepared.graph_model) as serialized:
        seen = host.observe(serialized, prepared.inputs, names, batches, threads=threads, progress=progress)
    for warning in seen.warnings:
        warnings.warn(warning, stacklevel=3)
    versions = {name: metadata.version(name) for name in ("trtint8", "onnxruntime", "numpy")}
    provenance = Provenance(prepared.fingerprint, seen.data_fingerprint, seen.samples, versions)
    return CalibrationTable.from_histograms(seen.histograms, method, provenance)


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
    prepared, table = prepare(_float_model(model)), _table(table)
    graph_model, _ = quantize_graph(prepared, table, keep_float)
    if float16:
        graph_model, _ = to_float16(graph_model, float32_io=float32_io, peaks=table.peaks, name=prepared.name)
    return to_proto(graph_model)


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
    labels: Any = None,
    batch_size: int | None = None,
    limit: int | None = None,
    preprocessing: Preprocessing | None = None,
    progress: bool = True,
) -> Accuracy:
    """Compares an INT8 model or engine with the FP32 model on data that it was not calibrated on.

    An engine runs on the GPU where there is one. Elsewhere it is judged through the Q/DQ model that it was
    built from, which is kept beside it, and which runs in ONNX Runtime as true fake quantization.

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
    original = load_model(reference)
    batches = open_batches(
        data, original.inputs, batch_size=batch_size, limit=limit, preprocessing=preprocessing, labels=labels
    )
    with _judge(model) as judge, runnable(original.graph_model) as reference_file:
        run_reference, reference_names = onnx_runner(reference_file, optimize=True)
        if judge.outputs != reference_names:
            raise ModelError(
                f"the outputs are {', '.join(judge.outputs)}, the reference's {', '.join(reference_names)}; "
                "compare with the model that it was made from"
            )
        return compare(
            judge.run,
            run_reference,
            reference_names,
            original.inputs,
            batches,
            description=judge.description,
            progress=progress,
        )


@dataclass(frozen=True)
class _Judge:
    """What runs the INT8 side, and what it is in words."""

    run: Runner
    outputs: list[str]
    description: str


@contextlib.contextmanager
def _judge(model: ModelSource) -> Iterator[_Judge]:
    if not isinstance(model, (str, os.PathLike)) or Path(model).suffix.lower() == ".onnx":
        what = "the Q/DQ model as fake quantization in ONNX Runtime"
    elif gpu_problem() is None:
        with Engine.load(model) as engine:
            names = [spec.name for spec in engine.outputs]
            yield _Judge(partial(_run_engine, engine, names), names, f"the engine on {gpu_names()[0]}")
        return
    else:
        info = read_engine_info(model)
        if info.qdq_model is None:
            raise GpuUnavailableError(
                f"'{os.fspath(model)}' has no Q/DQ model beside it to judge it by without a GPU, and "
                f"{gpu_problem()}; validate it on a machine with a GPU"
            )
        model = Path(model).with_name(info.qdq_model)
        what = f"the engine's Q/DQ model '{model.name}' as fake quantization in ONNX Runtime"
    with runnable(load_model(model).graph_model) as file:
        run, names = onnx_runner(file, optimize=False)
        yield _Judge(run, names, what)


def _run_engine(engine: Engine, names: Sequence[str], feed: FeedDict) -> list[NDArray[Any]]:
    outputs = engine.infer(feed)
    return [outputs[name] for name in names]


def is_table_file(source: object) -> bool:
    """Whether a calibration argument is the path of a table or a TensorRT calibration cache."""
    return isinstance(source, (str, os.PathLike)) and is_table_name(source)


def _table(table: CalibrationTable | str | os.PathLike[str]) -> CalibrationTable:
    return table if isinstance(table, CalibrationTable) else CalibrationTable.load(table)


def _float_model(source: ModelSource) -> Model:
    model = load_model(source)
    if model.is_quantized:
        raise ModelError(
            f"'{model.name}' holds Q/DQ pairs already; build it as it is, or give the float model"
        )
    return model


def float_tensors(prepared: Model) -> list[str]:
    """Every float32 activation of the graph, inputs included."""
    graph = prepared.graph_model.graph
    values = [*graph.inputs, *(output for node in graph for output in node.outputs)]
    return [
        value.name
        for value in values
        if value.name and value.dtype == ir.DataType.FLOAT and value.name not in graph.initializers
    ]
