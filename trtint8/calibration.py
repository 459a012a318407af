"""Calibration from model and data to table, in this process or over Ray."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, TypeAlias, get_args

import numpy as np
import onnx_ir as ir

from calibrators.checks import check_choice, is_number
from calibrators.data.batches import Batches, DataSource, open_data
from calibrators.data.feeds import batch_rows, listed
from calibrators.data.inputs import has_fixed_batch
from calibrators.data.options import DataOptions
from calibrators.data.sources.random_samples import warn_of_random
from calibrators.errors import Argument, CalibrationDataError, ModelError, TableError
from calibrators.histograms.histogram import BINS
from calibrators.histograms.thresholds import Method
from calibrators.host.checkpoint import SECONDS as CHECKPOINT_SECONDS
from calibrators.host.checkpoint import Checkpoint, check_place, check_resume
from calibrators.host.counted import Counted, CountedFormat
from calibrators.host.devices import device_kind
from calibrators.host.observer import MostRows, Observation, Observer
from calibrators.ray.distributed import RayObserver
from calibrators.ray.run_options import RunOptions
from calibrators.tables.formats.json import fitting_histograms, stored_bins
from calibrators.tables.loss_warning import loss_warning
from calibrators.tables.table import CalibrationTable, Provenance
from calibrators.user_warnings import warn_user
from trtint8.models.garbage_collection import pause_garbage_collection
from trtint8.models.inner_graphs import graph_values
from trtint8.models.model import Model, ModelSource, load_float_model, prepare
from trtint8.models.outputs.cutting import cut_model
from trtint8.models.outputs.runnable_part import runnable_part
from trtint8.models.recorded_states import with_recorded_states
from trtint8.models.samples.activation_memory import FittingBatchSize
from trtint8.models.samples.joining import Joining, try_joining, two_samples
from trtint8.models.samples.separate import computes_samples_separately
from trtint8.models.serialization import light_or_file, runnable
from trtint8.models.session import TAKES_ONE
from trtint8.quantization.placement import placed_tensors
from trtint8.range_choice.auto import AutoRanges
from trtint8.range_choice.choose import MOST_SAMPLES
from trtint8.range_choice.trial_network import Reference
from trtint8.version import __version__

#: Which tensors are observed: all float activations, as the implicit route needs them, or only those that get
#: Q/DQ pairs.
Observed: TypeAlias = Literal["all", "placed"]


def tensors_needed(float16: bool) -> Observed:
    """The tensors that a quantized model needs the ranges of.

    Args:
        float16: Whether what is outside INT8 becomes FP16. That is judged by how large every tensor becomes.
    """
    return "all" if float16 else "placed"


@dataclass(frozen=True)
class CalibrationOptions:
    """What is observed, and how ranges are chosen from it.

    Attributes:
        method: ``auto``, ``entropy``, ``percentile``, ``mse`` or ``minmax``.
        tensors: Which tensors are observed.

    Raises:
        TableError: There is no such method.
        UnsupportedError: ``tensors`` is neither ``all`` nor ``placed``.
    """

    method: Method = "auto"
    tensors: Observed = "all"

    def __post_init__(self) -> None:
        if not isinstance(self.method, str) or self.method not in get_args(Method):
            raise TableError(
                f"unknown calibration method '{self.method}'; use one of {', '.join(get_args(Method))}"
            )
        check_choice("tensors", self.tensors, get_args(Observed))


@dataclass(frozen=True)
class CheckpointOptions:
    """Where progress is kept.

    Attributes:
        path: The checkpoint file; None where no progress is kept.
        resume: Whether to continue from that file where there is one.
        seconds: The least time between two writes, in seconds.

    Raises:
        CalibrationDataError: ``seconds`` is negative, or ``resume`` is given without ``path``.
    """

    path: str | os.PathLike[str] | None = None
    resume: bool = False
    seconds: float = CHECKPOINT_SECONDS

    def __post_init__(self) -> None:
        if not (is_number(self.seconds) and self.seconds >= 0):
            raise CalibrationDataError(
                f"{Argument('checkpoint_seconds')} is {self.seconds!r}; give 0 or more"
            )
        check_resume(self.resume, self.path)


def calibrate_model(
    model: ModelSource,
    data: DataSource,
    options: CalibrationOptions,
    data_options: DataOptions,
    run: RunOptions,
    checkpoint: CheckpointOptions,
    *,
    cut_at: Sequence[str] = (),
    on_table: Callable[[CalibrationTable], object] = lambda _table: None,
) -> CalibrationTable:
    """Finds the range of every activation by running the float model, and keeps a checkpoint meanwhile.

    Args:
        model: A path, the serialized model or a ``ModelProto``; a float model.
        data: The calibration samples.
        options: What is observed, and how ranges are chosen.
        data_options: How the data is read.
        run: Where and how the model is run.
        checkpoint: Where progress is kept; the file is removed at the end.
        cut_at: Names of tensors up to which the model is calibrated, if any.
        on_table: Called with the table before the checkpoint is removed.

    Returns:
        The table, with the histograms that it was computed from.

    Raises:
        TrtInt8Error: Always one of its subclasses, whose message says in one sentence what to do.
    """
    # Prepared here, where nothing else refers to it: it goes below, unless the method `auto` still needs it.
    loaded = load_float_model(model)
    if cut_at:
        loaded = cut_model(prepare(loaded), cut_at).head
    data = with_recorded_states(data, loaded, run.threads)
    prepared = prepare(loaded)
    del loaded
    kept = open_checkpoint(prepared, checkpoint, run.device)
    calibration = open_calibration(prepared, data, options, data_options, run)
    del prepared  # the session has weights of its own
    table = calibration.run(progress=run.progress, checkpoint=kept)
    on_table(table)
    if kept:
        kept.remove()
    return table


def open_checkpoint(prepared: Model, options: CheckpointOptions, device: str) -> Checkpoint[Counted] | None:
    """Opens the checkpoint of a calibration, which records what the result depends on besides the data.

    Raises:
        OutputError: The file cannot be written.
        UnsupportedError: The device is unknown.
    """
    if options.path is None:
        return None
    identity = {
        "model": prepared.fingerprint,
        "trtint8": __version__,
        "onnxruntime": _runtime_version(),
        "device": device_kind(device),
    }
    path = check_place(options.path)
    return Checkpoint(path, identity, CountedFormat(), options.resume, options.seconds)


def calibrate_prepared(
    prepared: Model,
    data: DataSource,
    options: CalibrationOptions,
    data_options: DataOptions,
    run: RunOptions,
) -> CalibrationTable:
    """:func:`calibrate_model` for a model that is prepared already, without a checkpoint.

    Args:
        prepared: From :func:`trtint8.models.model.prepare`.
        data: The calibration samples.
        options: What is observed, and how ranges are chosen.
        data_options: How the data is read.
        run: Where and how the model is run.
    """
    return open_calibration(prepared, data, options, data_options, run).run(progress=run.progress)


@dataclass(frozen=True)
class Calibration:
    """A model and data, ready to run.

    Attributes:
        observe: Runs the model on the data.
        name_of: Gives what a sample of the data is called in messages, by its number.
        method: How ranges are chosen, like ``entropy``.
        model: The model's fingerprint.
        device: The device that the model runs on, like ``cpu`` or ``cuda:1``.
        auto: Chooses ranges by what they cost the network; None where the method is another. Only this holds
            the prepared model.
        alone: Whether samples are not to be joined when ranges are chosen.
        reference: Gives what runs the float model on a feed. All observed tensors are among the outputs of
            its session, so that the last bits of what it computes are the same here and over Ray. Gives None
            where the model is run part by part.
        close: Closes the model that was observed.
        masks: Names of the inputs that hide scores.
    """

    observe: Callable[..., Observation]
    name_of: Callable[[int], str]
    method: str
    model: str
    device: str
    auto: AutoRanges | None = None
    alone: bool = False
    reference: Callable[[], Reference | None] = lambda: None
    close: Callable[[], None] = lambda: None
    masks: frozenset[str] = frozenset()

    def run(self, *, progress: bool, checkpoint: Checkpoint[Counted] | None = None) -> CalibrationTable:
        """Calibrates; the caller removes the checkpoint when the table is written."""
        with self.auto or contextlib.nullcontext():
            return self._run(progress, checkpoint)

    def _run(self, progress: bool, checkpoint: Checkpoint[Counted] | None) -> CalibrationTable:
        keep = MOST_SAMPLES if self.auto else 0
        keep_outputs = self.auto is not None and self.auto.takes_outputs
        seen = self.observe(progress=progress, checkpoint=checkpoint, keep=keep, keep_outputs=keep_outputs)
        if self.auto and self.auto.is_large:
            self.close()
        for mask in self.masks:
            if mask in seen.histograms and seen.histograms[mask].infs:
                del seen.histograms[mask]  # what is within a range would hide nothing
        for warning in seen.warnings(self.name_of):
            warn_user(warning)
        runtime = "onnxruntime" if device_kind(self.device) == "cpu" else "onnxruntime (CUDA)"
        versions = {"trtint8": __version__, "numpy": np.__version__, runtime: _runtime_version()}
        provenance = Provenance(self.model, seen.data_fingerprint, seen.samples, versions, seen.input_sizes)
        if self.auto is None:
            table = CalibrationTable.from_histograms(seen.histograms, self.method, provenance)
        else:
            ranges, choice = self.auto.choose(
                seen.histograms,
                seen.kept.samples,
                seen.samples,
                alone=self.alone,
                outputs=seen.kept.outputs if keep_outputs else (),
                reference=self.reference,
                progress=progress,
            )
            table = CalibrationTable(ranges, "auto", provenance, histograms=seen.histograms, choice=choice)
        # As a file holds it, so that the table is the same before and after it was written.
        table = replace(table, histograms=fitting_histograms(table.histograms))
        # No range loses less than that of least squared error, so there is nothing to search for.
        if table.rule != "mse" and (lost := loss_warning(table.excessive_losses, table.method)):
            warn_user(lost)
        return table


@pause_garbage_collection()
def open_calibration(
    prepared: Model,
    data: DataSource,
    options: CalibrationOptions,
    data_options: DataOptions,
    run: RunOptions,
) -> Calibration:
    """Opens model and data: see :func:`calibrate_prepared`."""
    prepared = runnable_part(prepared)
    with contextlib.ExitStack() as opened:
        auto = None
        if options.method == "auto":
            auto = opened.enter_context(AutoRanges(prepared, run.threads, run.device))
        calibration = _open_calibration(prepared, data, options, data_options, run, auto)
        # Here, because one processor is idle until the model is open. Over Ray the workers are asked first
        # whether they can run the model.
        if auto and not run.ray and device_kind(run.device) == "cpu":
            auto.open_ahead()
        opened.pop_all()  # closed when the calibration has run
    warn_of_random(data)
    return calibration


def _open_calibration(
    prepared: Model,
    data: DataSource,
    options: CalibrationOptions,
    data_options: DataOptions,
    run: RunOptions,
    auto: AutoRanges | None,
) -> Calibration:
    placed = options.tensors == "placed"
    names = placed_tensors(prepared.graph_model) if placed else float_tensors(prepared)
    _warn_of_fewer_bins(len(names))
    fitting = FittingBatchSize(prepared.graph_model, names)
    # A GPU has memory for the batches that it is given, and is faster with large ones.
    on_cpu = device_kind(run.device) == "cpu"
    separate = computes_samples_separately(prepared.graph_model)
    in_pieces = on_cpu and separate
    data_options = replace(data_options, default_batch_size=fitting.rule)
    batches = open_data(data, prepared.inputs, data_options)
    alone = False
    if not separate:
        alone, batches = _tried(prepared, batches, data_options.batch_size is None)
    most_rows = 1 if alone else fitting.rule if in_pieces else None
    observer = partial(_open_observer, prepared, names, run, most_rows)
    calibration = partial(
        Calibration,
        method=options.method,
        model=prepared.fingerprint,
        device=run.device,
        auto=auto,
        alone=alone,
        masks=frozenset(spec.name for spec in prepared.inputs if spec.hides_scores),
    )
    if run.ray:
        shared = RayObserver(
            runnable(prepared.graph_model),
            prepared.inputs,
            names,
            run.threads,
            run.ray,
            run.device,
            1 if alone else fitting.for_all if in_pieces else None,
        )
        return calibration(
            partial(shared.observe, batches), batches.name_of, reference=lambda: observer().reference
        )
    rows, batches = _rows_at_once(batches, fitting.rule) if in_pieces else (1, batches)
    opened = observer(rows)
    return calibration(
        partial(opened.observe, batches),
        batches.name_of,
        reference=lambda: opened.reference,
        close=opened.close,
    )


def _tried(prepared: Model, batches: Batches, may_divide: bool) -> tuple[bool, Batches]:
    """Tries whether samples may be run together, where the graph does not show it, and says where not.

    Args:
        prepared: The model.
        batches: The data.
        may_divide: Whether the user has not said how many samples are run together.

    Returns:
        Whether samples are not to be joined; and the data for one pass, in which each batch is one sample
        where its samples change each other and have to stay together.
    """
    if has_fixed_batch(prepared.inputs) or not all(spec.shape for spec in prepared.inputs):
        return False, batches
    head, batches = batches.begun(2)
    feeds = [batches.reader.read(batch)[0] for batch in head.batches] if head else []
    samples = two_samples(feeds)
    found = try_joining(prepared.graph_model, *samples) if samples else None
    if found is None or found.joining not in (Joining.CHANGED, Joining.REFUSED):
        return False, batches
    are_single = all(batch_rows(feed) == 1 for feed in feeds)
    if found.joining is Joining.REFUSED:
        if not are_single:
            warn_user(TAKES_ONE)
        return True, batches
    if are_single and batches.batch_size is None:  # as the user has put them together
        return True, batches
    divided = batches.batch_size == 1 or (may_divide and batches.batch_size is not None)
    done = (
        "each was run by itself: if axis 0 is not the batch but, for example, time, these ranges are wrong, "
        f"so say with {Argument('BatchAxes')} which axis holds the samples"
        if divided
        else "each batch of the data counts as one sample: if axis 0 is the batch, give "
        f"{Argument('batch_size', '1')}"
    )
    output = prepared.graph_model.graph.outputs[found.changed or 0].name
    warn_user(
        f"output '{output}' of one sample changes with the samples beside it along axis 0 of "
        f"{listed(prepared.inputs)}, so {done}"
    )
    return True, batches if divided else batches.whole()


def _warn_of_fewer_bins(tensors: int) -> None:
    """Says, before the work begins, that there are too many tensors for a table with whole histograms."""
    bins = stored_bins(tensors)
    if bins < BINS:
        warn_user(
            f"{tensors:,} tensors are observed, so the table keeps histograms of {bins} bins instead of "
            f"{BINS}: its ranges are exact, and those of another method that is applied later are coarser"
        )


def _rows_at_once(batches: Batches, fitting: int | FittingBatchSize) -> tuple[int, Batches]:
    """How many samples will be run together, as far as the first batch tells; and the data for one pass."""
    if isinstance(fitting, int) and batches.batch_size:
        return min(fitting, batches.usual_rows), batches
    first, batches = batches.read_ahead(1)
    if not first:
        return 1, batches
    feed = first[0].feed
    return min(fitting if isinstance(fitting, int) else fitting(feed), batch_rows(feed) or 1), batches


def _open_observer(
    prepared: Model, names: Sequence[str], run: RunOptions, most_rows: MostRows, usual_rows: int = 1
) -> Observer:
    """Opens the model in this process."""
    with light_or_file(prepared.graph_model) as source:
        return Observer(source, prepared.inputs, names, run.threads, run.device, most_rows, usual_rows)


def _runtime_version() -> str:
    import onnxruntime

    # Not the version of a package, which is called onnxruntime or onnxruntime-gpu.
    return str(onnxruntime.__version__)


def float_tensors(prepared: Model) -> list[str]:
    """Every float32 activation of the graph, inputs included; sequences of tensors are left out.

    ONNX infers no types behind some operators that are not its own. What gets a pair there is float32.
    """
    graph_model = prepared.graph_model
    values = [
        value for value in graph_values(graph_model.graph) if value.name not in graph_model.graph.initializers
    ]
    placed: Sequence[str] = ()
    if any(value.type is None for value in values):
        with contextlib.suppress(ModelError):  # there is nothing to quantize
            placed = placed_tensors(graph_model)
    return [
        value.name
        for value in values
        if value.name
        and (value.type == ir.TensorType(ir.DataType.FLOAT) or (value.type is None and value.name in placed))
    ]
