"""The public calls that look at a float model with sample inputs: its inputs, and its ranges."""

from __future__ import annotations

import os
from collections.abc import Sequence

from calibrators.checks import warn_user
from calibrators.data.images.preprocessing import Preprocessing
from calibrators.data.inputs import DataOptions, InputSpec
from calibrators.data.opening import DataSource
from calibrators.files import check_writable, refuse_overwriting
from calibrators.histograms.thresholds import Method
from calibrators.host.checkpoint import SECONDS as CHECKPOINT_SECONDS
from calibrators.run import Executor, RunOptions
from calibrators.tables.cache_origin import refuse_foreign_sidecar
from calibrators.tables.files import check_table_name
from calibrators.tables.ranges import noise_warning
from calibrators.tables.table import CalibrationTable
from trtint8.calibration import CalibrationOptions, CheckpointOptions, Observed, calibrate_model
from trtint8.models.model import load_model
from trtint8.models.torch_export import AnyModel, open_module


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
    output: str | os.PathLike[str] | None = None,
    method: Method = "auto",
    cut_at: Sequence[str] = (),
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
        data: What :func:`calibrators.data.opening.open_batches` takes: an array, a dict of arrays, an
            ``.npz``, a folder, an iterable of feed dicts; over Ray also a Ray Dataset.
        output: The file to write: a ``.json``, or a ``.cache`` for TensorRT; other endings name other
            formats.
        method: ``auto`` tries several ways to turn histograms into ranges, runs the quantized network on a
            few of the samples, and takes the way that costs its outputs least. ``entropy``, ``percentile``,
            ``mse`` and ``minmax`` look at each tensor alone.
        cut_at: Names of tensors: only what comes before them is calibrated. Quantize and build it with the
            same ``cut_at``.
        batch_size: Samples per batch; the model's own where it is fixed, else 32, or as many as keep the
            activations that are observed within 192 MiB.
        limit: Use only this many samples.
        shuffle: Take the samples in random order.
        seed: Seed of the random order.
        preprocessing: How raw images become what the model is fed.
        tensors: ``all`` float activations, as the implicit route wants; or only those that get Q/DQ
            pairs, which is quicker.
        threads: How many threads run the model and count; all that this process may use where None. Over
            Ray, the number per worker; 1 where None.
        progress: Show a progress bar on a terminal.
        checkpoint: A file that keeps the progress of the run. It is deleted when ``output`` is written.
        resume: Continue from that file where there is one. The data is read again from its start, compared
            with what was counted, and run only from there on; so a generator must begin anew too. A run that
            was begun over Ray can be continued in one process, and the other way round.
        checkpoint_seconds: The least time between two writes of the checkpoint, in seconds.
        executor: ``local``; ``ray`` for workers on the cluster that Ray finds, or on this machine; or a
            :class:`RayExecutor`, which says where and how many.
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
        OutputError: The table or the checkpoint cannot be written.
        UnsupportedError: Ray is not installed, cannot be reached or has no free processors; or the device is
            unknown or lacks a package.
        GpuUnavailableError: There is no such GPU.
        GpuMemoryError: The model or a batch does not fit the GPU.
        WorkerError: Workers of Ray died again and again.
    """
    path = None if output is None else check_writable(check_table_name(output))
    if path is not None:
        if path.suffix.lower() == ".cache":
            refuse_foreign_sidecar(path)
        refuse_overwriting([path], [model, data])

    def finish(table: CalibrationTable) -> None:
        if path is not None:
            table.save(path)
        if warning := noise_warning(table.choice):
            warn_user(warning)

    return calibrate_model(
        open_module(model, example_inputs),
        data,
        CalibrationOptions(method, tensors),
        DataOptions(batch_size, limit, shuffle, seed, preprocessing),
        RunOptions(threads, executor, device, progress),
        CheckpointOptions(checkpoint, resume, checkpoint_seconds),
        cut_at=cut_at,
        on_table=finish,
    )
