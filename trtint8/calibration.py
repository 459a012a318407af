"""Calibration from model and data to table, in this process or over Ray."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from typing import Any, Literal

import numpy as np
import onnx_ir as ir

from calibrators.data.batches import open_batches
from calibrators.data.preprocessing import Preprocessing
from calibrators.errors import CalibrationDataError
from calibrators.files import check_writable
from calibrators.host.checkpoint import SECONDS as CHECKPOINT_SECONDS
from calibrators.host.checkpoint import Checkpoint
from calibrators.host.devices import device_kind
from calibrators.host.observer import Observation, Observer
from calibrators.ray.block_shards import is_dataset
from calibrators.ray.distributed import RayObserver
from calibrators.ray.executor import Executor, RayExecutor, ray_executor
from calibrators.ray.shards import open_shards
from calibrators.tables.table import CalibrationTable, Provenance
from trtint8.models.activation_memory import calibration_batch_size
from trtint8.models.model import Model, ModelSource, fits_message, load_model, prepare, runnable, to_light
from trtint8.quantization.placement import place


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
    checkpoint: str | os.PathLike[str] | None = None,
    resume: bool = False,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    executor: Executor = "local",
    device: str = "cpu",
) -> CalibrationTable:
    """Finds the range of every activation by running the FP32 model in ONNX Runtime.

    Needs neither TensorRT nor a GPU. The result depends on the samples only, not on their order or the batch
    size; nor on whether the run was interrupted and continued; nor on how many workers or threads shared it;
    as far as ONNX Runtime computes the same activations. It may not on another number of threads, for some
    operators, and on another GPU or kind of processor.

    Args:
        model: A path, the serialized model or a ``ModelProto``.
        data: What :func:`calibrators.data.batches.open_batches` takes: an array, a dict of arrays, an
            ``.npz``, a folder, an iterable of feed dicts; over Ray also a Ray Dataset.
        method: ``entropy``, ``percentile``, ``mse`` or ``minmax``.
        batch_size: Samples a batch; the model's own where it is fixed, else 32, or as many as keep the
            activations that are observed within 256 MiB.
        limit: Use only this many samples.
        shuffle: Take the samples in random order.
        seed: Of that order.
        preprocessing: How raw images become what the model is fed.
        tensors: ``all`` float activations, as the implicit route wants; or only those that get Q/DQ
            pairs, which is quicker.
        threads: How many threads run the model and count; all that this process may use where None. Over
            Ray, those of each worker; 1 where None.
        progress: Show a progress bar on a terminal.
        checkpoint: A file to keep progress in. It is deleted at the end.
        resume: Continue from that file where there is one. The data is read again from its start, compared
            with what was counted, and run only from there on; so a generator must begin anew too. What was
            begun over Ray can be continued in one process, and the other way round.
        checkpoint_seconds: The least time between two writes of the checkpoint.
        executor: ``local``; ``ray`` for workers on the cluster that Ray finds, or on this machine; or a
            :class:`calibrators.ray.distributed.RayExecutor`, which says where and how many.
        device: Where the model runs and its activations are counted: ``cpu``; ``cuda``, which takes
            onnxruntime-gpu, and CuPy or PyTorch with CUDA; or ``cuda:1`` for the second GPU. Over Ray
            that takes an executor with ``num_gpus``.

    Returns:
        The table, with the histograms that it was computed from.

    Raises:
        ModelError: The model is unusable.
        CalibrationDataError: The data does not fit it, or is not what the checkpoint has seen.
        TableError: The method is unknown, or the checkpoint is of another calibration.
        OutputError: The checkpoint cannot be written.
        UnsupportedError: Ray is not installed, cannot be reached or has no room; or the device is unknown or
            lacks something.
        GpuUnavailableError: There is no such GPU.
        GpuMemoryError: The model or a batch does not fit the GPU.
        WorkerError: Workers of Ray died again and again.
    """
    ray = ray_executor(executor)
    prepared = prepare(load_model(model))
    kept = checkpoint_for(prepared, checkpoint, resume, checkpoint_seconds, device) if checkpoint else None
    options = {
        "batch_size": batch_size,
        "limit": limit,
        "shuffle": shuffle,
        "seed": seed,
        "preprocessing": preprocessing,
    }
    calibration = open_calibration(prepared, data, method, options, tensors, threads, ray, device)
    del prepared  # the session has weights of its own
    table = calibration.run(progress=progress, checkpoint=kept)
    if kept:
        kept.remove()
    return table


def checkpoint_for(
    prepared: Model, path: str | os.PathLike[str], resume: bool, seconds: float, device: str
) -> Checkpoint:
    """Where a calibration of a model keeps its progress, and what it depends on besides the data.

    Raises:
        OutputError: The file cannot be written.
        CalibrationDataError: ``seconds`` is negative.
        UnsupportedError: The device is unknown.
    """
    if not seconds >= 0:
        raise CalibrationDataError(f"checkpoint_seconds is {seconds}; give 0 or more")
    identity = {
        "model": prepared.fingerprint,
        "trtint8": metadata.version("trtint8"),
        "onnxruntime": _runtime_version(),
        "device": device_kind(device),
    }
    return Checkpoint(check_writable(path), identity, resume, seconds)


def calibrate_prepared(
    prepared: Model,
    data: Any,
    method: str,
    options: Mapping[str, Any],
    tensors: Literal["all", "placed"],
    *,
    progress: bool,
) -> CalibrationTable:
    """:func:`calibrate` for a prepared model; ``options`` are those of ``open_batches``."""
    return open_calibration(prepared, data, method, options, tensors).run(progress=progress)


@dataclass(frozen=True)
class Calibration:
    """A model and data, ready to run; it holds nothing of the prepared model that it came from.

    Attributes:
        observe: Runs the model on the data.
        method: How ranges are chosen.
        model: The model's fingerprint.
        device: Where the model runs.
    """

    observe: Callable[..., Observation]
    method: str
    model: str
    device: str

    def run(self, *, progress: bool, checkpoint: Checkpoint | None = None) -> CalibrationTable:
        """Calibrates; the checkpoint stays: the caller removes it when the table is safe."""
        seen = self.observe(progress=progress, checkpoint=checkpoint)
        for warning in seen.warnings():
            warnings.warn(warning, stacklevel=3)
        runtime = "onnxruntime" if device_kind(self.device) == "cpu" else "onnxruntime (CUDA)"
        versions = {name: metadata.version(name) for name in ("trtint8", "numpy")}
        versions[runtime] = _runtime_version()
        provenance = Provenance(self.model, seen.data_fingerprint, seen.samples, versions)
        return CalibrationTable.from_histograms(seen.histograms, self.method, provenance)


def open_calibration(
    prepared: Model,
    data: Any,
    method: str,
    options: Mapping[str, Any],
    tensors: Literal["all", "placed"],
    threads: int | None = None,
    ray: RayExecutor | None = None,
    device: str = "cpu",
) -> Calibration:
    """Opens model and data; the arguments are those of :func:`calibrate_prepared` and :func:`calibrate`."""
    device_kind(device)  # refuses an unknown one before the data is opened
    CalibrationTable.from_histograms({}, method, Provenance())  # refuses an unknown method before the run
    names = place(prepared.graph_model).tensors if tensors == "placed" else float_tensors(prepared)
    options = _with_batch_size(options, prepared, names, data)
    if ray:
        shared = RayObserver(runnable(prepared.graph_model), prepared.inputs, names, threads, ray, device)
        shards = open_shards(data, prepared.inputs, **options)
        return Calibration(partial(shared.observe, shards), method, prepared.fingerprint, device)
    batches = open_batches(data, prepared.inputs, **options)
    if fits_message(prepared.graph_model):
        observer = Observer(to_light(prepared.graph_model), prepared.inputs, names, threads, device)
    else:
        with runnable(prepared.graph_model) as path:
            observer = Observer(path, prepared.inputs, names, threads, device)
    return Calibration(partial(observer.observe, batches), method, prepared.fingerprint, device)


def _runtime_version() -> str:
    import onnxruntime

    # Not that of a package: it is called onnxruntime or onnxruntime-gpu.
    return str(onnxruntime.__version__)


def _with_batch_size(
    options: Mapping[str, Any], prepared: Model, tensors: Sequence[str], data: Any
) -> dict[str, Any]:
    """The options with a batch size, where that is ours to choose."""
    # Others are fed as they come.
    whole = isinstance(data, (str, os.PathLike, np.ndarray, Mapping)) or is_dataset(data)
    fixed = any(spec.static_batch is not None for spec in prepared.inputs)
    if options.get("batch_size") is not None or fixed or not whole:
        return dict(options)
    return {**options, "batch_size": calibration_batch_size(prepared.graph_model, tensors)}


def float_tensors(prepared: Model) -> list[str]:
    """Every float32 activation of the graph, inputs included."""
    graph = prepared.graph_model.graph
    values = [*graph.inputs, *(output for node in graph for output in node.outputs)]
    return [
        value.name
        for value in values
        if value.name and value.dtype == ir.DataType.FLOAT and value.name not in graph.initializers
    ]
