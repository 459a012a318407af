"""The public call that says what each layer costs."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from calibrators.data.images.preprocessing import Preprocessing
from calibrators.data.inputs import DataOptions, LabelSource
from calibrators.data.opening import DataSource, open_data
from calibrators.run import Executor, RunOptions
from calibrators.tables.source import TableSource, as_table
from trtint8.models.model import load_float_model, prepare
from trtint8.models.recorded_states import with_recorded_states
from trtint8.models.torch_export import AnyModel, open_module
from trtint8.sensitivity.measure import Plan, measure
from trtint8.sensitivity.results import Sensitivity

#: How many samples are enough to rank layers; more of them only make the intervals narrower.
SENSITIVITY_SAMPLES = 256


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
    on_plan: Callable[[Plan], None] | None = None,
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
        tolerance_db: Stop once the SQNR of every layer that matters is known to within so many decibels; 0
            takes all samples, each of which then shows what the layers cost.
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
    loaded = load_float_model(open_module(model, example_inputs))
    prepared = prepare(loaded)
    ranges = as_table(table)
    run = RunOptions(threads, executor, progress=progress)
    data_options = DataOptions(batch_size, limit, preprocessing=preprocessing, labels=labels)
    data_options = data_options.on_cpu(prepared.inputs, prepared.output_shapes)
    return measure(
        prepared,
        ranges,
        open_data(with_recorded_states(data, loaded, threads), prepared.inputs, data_options),
        keep_float=keep_float,
        tolerance_db=tolerance_db,
        checkpoint=checkpoint,
        threads=run.threads,
        executor=run.executor,
        on_plan=on_plan or (lambda _plan: None),
        progress=run.progress,
    )
