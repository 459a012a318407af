"""Calibration: from a model and data to a table. Its public calls are here too."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, TypeAlias, get_args

import numpy as np
import onnx_ir as ir

from calibrators.checks import FilePath, check_choice, is_number, keeping_warnings, warn_user
from calibrators.data.batches import Batches
from calibrators.data.feeds import batch_rows, listed
from calibrators.data.images.preprocessing import Preprocessing
from calibrators.data.inputs import CalibratedInputs, DataOptions, InputSpec, has_fixed_batch
from calibrators.data.opening import DataSource, open_data
from calibrators.data.sequences import StateSequences
from calibrators.data.sources.random_samples import warn_of_random
from calibrators.errors import Argument, CalibrationDataError, ModelError, TableError
from calibrators.files import check_writable, refuse_overwriting
from calibrators.histograms.histogram import BINS, bins_within
from calibrators.histograms.thresholds import Method
from calibrators.host.checkpoint import CALIBRATION, Checkpoint, Counted, check_place, check_resume
from calibrators.host.checkpoint import SECONDS as CHECKPOINT_SECONDS
from calibrators.host.cuda_session import device_kind
from calibrators.host.observer import Observation
from calibrators.progress import job
from calibrators.run import AnyObserver, Executor, RunOptions
from calibrators.tables.cache_origin import refuse_foreign_sidecar
from calibrators.tables.choice import SPEND, check_spend
from calibrators.tables.files import check_table_name
from calibrators.tables.formats.json import MOST_BYTES_OF_COUNTS, fitting_histograms
from calibrators.tables.ranges import noise_warning, warn_of_losses
from calibrators.tables.table import CalibrationTable, Provenance
from trtint8.models.garbage_collection import pause_garbage_collection
from trtint8.models.graph import graph_values, module_of
from trtint8.models.model import Model, ModelSource, load_float_model, load_model, prepare
from trtint8.models.outputs.picked import cut_model, left_out_nodes, runnable_part
from trtint8.models.samples.joining import joined_samples, two_samples
from trtint8.models.samples.separate import Joined, Joining, joined_by_graph
from trtint8.models.serialization import light_or_file, runnable
from trtint8.models.session import TAKES_ONE
from trtint8.models.shapes import FittingBatchSize
from trtint8.models.states import with_recorded_states
from trtint8.models.torch_export import AnyModel, open_module
from trtint8.quantization.placement import placed_tensors
from trtint8.range_choice.auto import AutoRanges
from trtint8.range_choice.compared import MOST_SAMPLES, ComparedModel
from trtint8.range_choice.spend import choose_float_layers
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
        spend: The share of the estimated time that layers in float may take, in [0, 1].

    Raises:
        TableError: There is no such method.
        CalibrationDataError: ``spend`` is no share.
        UnsupportedError: ``tensors`` is neither ``all`` nor ``placed``.
    """

    method: Method = "auto"
    tensors: Observed = "all"
    spend: float = SPEND

    def __post_init__(self) -> None:
        check_choice("method", self.method, get_args(Method), TableError)
        check_choice("tensors", self.tensors, get_args(Observed))
        check_spend(self.spend)


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

    path: FilePath | None = None
    resume: bool = False
    seconds: float = CHECKPOINT_SECONDS

    def __post_init__(self) -> None:
        if not (is_number(self.seconds) and self.seconds >= 0):
            raise CalibrationDataError(
                f"{Argument('checkpoint_seconds')} is {self.seconds!r}; give 0 or more"
            )
        check_resume(self.resume, self.path)


def model_inputs(model: AnyModel, *, example_inputs: object = None) -> tuple[InputSpec, ...]:
    """Returns the inputs of a model.

    Args:
        model: A path, the serialized model, a ``ModelProto`` or a ``torch.nn.Module``. A module is exported
            in evaluation mode, with a dynamic batch. Inputs are named after the parameters of its forward,
            and outputs after the keys that it returns, or ``output``. The exported model and a copy of the
            weights stay in memory as long as they are needed.
        example_inputs: For a ``torch.nn.Module``, what its forward takes: a tensor, a tuple of tensors, or a
            dict of them by name.

    Returns:
        Name, dtype and shape of every input.

    Raises:
        ModelError: The model is unusable, or the module cannot be exported.

    Examples:
        >>> [images] = trtint8.model_inputs("model.onnx")
        >>> images.name, images.shape
        ('images', ('batch', 1, 8, 8))
    """
    return load_model(open_module(model, example_inputs)).inputs


def calibrate(
    model: AnyModel,
    data: DataSource,
    *,
    output: FilePath | None = None,
    method: Method = "auto",
    cut_at: Sequence[str] = (),
    batch_size: int | None = None,
    limit: int | None = None,
    shuffle: bool = False,
    seed: int = 0,
    preprocessing: Preprocessing | None = None,
    skip_bad: bool = False,
    tensors: Observed = "all",
    spend: float = SPEND,
    threads: int | None = None,
    progress: bool = True,
    checkpoint: FilePath | None = None,
    resume: bool = False,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    executor: Executor = "local",
    device: str = "cpu",
    example_inputs: object = None,
) -> CalibrationTable:
    """Finds the range of every activation by running the FP32 model in ONNX Runtime.

    Needs neither TensorRT nor a GPU. The result depends only on the samples. Their order, the batch size,
    interruptions, and the number of workers or threads have no effect, as far as ONNX Runtime computes the
    same activations. It may round some operators differently with another number of threads, on another GPU,
    or on another kind of processor.

    Args:
        model: A path, the serialized model or a ``ModelProto``, or a ``torch.nn.Module``.
        data: What :func:`calibrators.data.opening.open_batches` takes: an array, a dict of arrays, an
            ``.npz``, a folder, an iterable of feed dicts; over Ray also a Ray Dataset.
        output: The file to write: a ``.json``, or a ``.cache`` for TensorRT. Other endings name other
            formats.
        method: ``auto`` tries several rules that turn histograms into ranges. It runs the quantized network
            on a few of the samples, and takes the rule with the least error at its outputs. ``entropy``,
            ``percentile``, ``mse`` and ``minmax`` look at each tensor separately.
        cut_at: Names of tensors. Only the model up to these tensors is calibrated. Quantize and build it with
            the same ``cut_at``.
        batch_size: Samples per batch. By default the model's own batch size if it is fixed, else 32, or
            fewer, so that the observed activations fit into 192 MiB.
        limit: Use only this many samples.
        shuffle: Take the samples in random order.
        seed: Seed of the random order.
        preprocessing: How raw images become inputs.
        skip_bad: Leave out the files of a folder that cannot be read, such as damaged images, with their
            labels, and warn of them by name. By default the first such file is an error.
        tensors: ``all`` float activations, which the implicit route needs; or ``placed``, only the tensors
            that get Q/DQ pairs, which is quicker.
        spend: The share of the network's estimated time, in [0, 1], that layers may take which stay in float
            because they make much of the noise. They are chosen with some of the samples, and taken where
            others show a gain for certain, which takes 12 samples or more. 0 leaves none in float.
        threads: Threads that run the model and count. By default as many as this process may use. Over Ray it
            is the number per worker, by default 1.
        progress: Show a progress bar on a terminal.
        checkpoint: A file that stores the progress of the run. It is deleted when ``output`` is written.
        resume: Continue from that file if it exists. The data is read again from its start and compared with
            the samples that were counted. The model runs only on the samples after these. So a generator must
            begin anew, too. A run that began over Ray can be continued in one process, and the other way
            round.
        checkpoint_seconds: The least time between two writes of the checkpoint, in seconds.
        executor: ``local``; ``ray`` for workers on the cluster that Ray finds, or on this machine; or a
            :class:`RayExecutor`, which says where and how many.
        device: Where the model runs and its activations are counted: ``cpu``; ``cuda``, which needs
            onnxruntime-gpu, and CuPy or PyTorch with CUDA; or ``cuda:1`` for the second GPU. Over Ray that
            needs an executor with ``num_gpus``.
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
        WorkerError: Workers of Ray died repeatedly.

    Examples:
        >>> table = trtint8.calibrate("model.onnx", "calibration.npz", output="table.json")
        >>> len(table.amax), table.provenance.samples
        (23, 128)
    """
    path = None if output is None else check_writable(check_table_name(output))
    if path is not None:
        if path.suffix.lower() == ".cache":
            refuse_foreign_sidecar(path)
        refuse_overwriting([path], [model, data])

    with keeping_warnings() as said:

        def finish(table: CalibrationTable, quantized: Collection[str]) -> None:
            if warning := noise_warning(table.choice, table.float_layers):
                warn_user(warning)
            warn_of_losses(table, quantized)
            if path is not None:
                replace(table, warnings=tuple(said)).save(path)

        table = calibrate_model(
            open_module(model, example_inputs),
            data,
            CalibrationOptions(method, tensors, spend),
            DataOptions(batch_size, limit, shuffle, seed, preprocessing, skip_bad=skip_bad),
            RunOptions(threads, executor, device, progress),
            CheckpointOptions(checkpoint, resume, checkpoint_seconds),
            cut_at=cut_at,
            on_table=finish,
        )
        return replace(table, warnings=tuple(said))


def calibrate_model(
    model: ModelSource | Model,
    data: DataSource,
    options: CalibrationOptions,
    data_options: DataOptions,
    run: RunOptions,
    checkpoint: CheckpointOptions = CheckpointOptions(),
    *,
    cut_at: Sequence[str] = (),
    on_table: Callable[[CalibrationTable, Collection[str]], object] = lambda _table, _quantized: None,
) -> CalibrationTable:
    """Finds the range of every activation by running the float model, and keeps a checkpoint meanwhile.

    The table keeps what was warned of meanwhile.

    Args:
        model: A path, the serialized model or a ``ModelProto``; a float model. Or one that is prepared
            already, from :func:`trtint8.models.model.prepare`.
        data: The calibration samples.
        options: What is observed, and how ranges are chosen.
        data_options: How the data is read.
        run: Where and how the model is run.
        checkpoint: Where progress is kept; the file is removed at the end.
        cut_at: Names of tensors up to which the model is calibrated, if any.
        on_table: Called with the table, and the names of the tensors that get Q/DQ pairs, before the
            checkpoint is removed.

    Returns:
        The table, with the histograms that it was computed from.

    Raises:
        TrtInt8Error: Always one of its subclasses, whose message says in one sentence what to do.
    """
    if isinstance(model, Model):
        prepared = model
    else:
        # Prepared here, where nothing else refers to it: it goes below, unless `auto` still needs it.
        loaded = load_float_model(model)
        if cut_at:
            loaded = cut_model(prepare(loaded), cut_at).head
        if isinstance(data, StateSequences):
            data = with_recorded_states(data, loaded, run.threads)
        prepared = prepare(loaded)
        del loaded
    kept = _open_checkpoint(prepared, checkpoint, run.device)
    opening = _opened(prepared, options, run)
    del prepared  # the session has weights of its own
    with keeping_warnings() as said, opening as calibrated:
        batches = open_data(
            data, calibrated.inputs, replace(data_options, default_batch_size=None, split="train")
        )
        if batches.source.is_random:
            warn_of_random(data)
        alone = False
        if calibrated.tried:
            alone, batches = calibrated.tried(batches, data_options.batch_size is None)
        fed: Preprocessing | Literal["none"] | None = data_options.preprocessing or "none"
        if isinstance(data, Batches) or batches.source.is_random:
            fed = None  # whoever opened them knows
        with job(enabled=run.progress):
            seen = calibrated.observer.observe(
                batches,
                progress=run.progress,
                checkpoint=kept,
                keep=calibrated.samples_kept,
                keep_outputs=calibrated.keeps_outputs,
                alone=alone,
                meanwhile=calibrated.open_ahead,
            )
            table = calibrated.table(seen, batches.name_of, fed, alone=alone, progress=run.progress)
        table = replace(table, warnings=tuple(said))
    on_table(table, calibrated.quantized)
    if kept:
        kept.remove()
    return table


def _open_checkpoint(prepared: Model, options: CheckpointOptions, device: str) -> Checkpoint[Counted] | None:
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
    return Checkpoint(path, identity, CALIBRATION, options.resume, options.seconds)


@dataclass(frozen=True)
class _Calibrated:
    """A model that is ready to be calibrated.

    Attributes:
        observer: Runs the model on data.
        inputs: What it is fed.
        method: How ranges are chosen, like ``entropy``.
        model: The model's fingerprint.
        cut_from: The fingerprint of the model that it was cut from, if it was.
        modules: Names of tensors to the modules of PyTorch that compute them, where they are known.
        device: The device that the model runs on, like ``cpu`` or ``cuda:1``.
        compared: What the model in INT8 is compared with; None where it is not. Only this, and ``tried``,
            hold the prepared model.
        auto: Chooses ranges by what they cost the network; None where the method is another.
        spend: The share of the time that layers in float may take.
        tried: Tries whether samples may be run together: see :func:`_tried`; None where the graph shows it.
        left_out: Names of the nodes that the model was cut before, to their operators.
        quantized: Names of the tensors that get Q/DQ pairs.
    """

    observer: AnyObserver
    inputs: Sequence[InputSpec]
    method: str
    model: str
    cut_from: str | None
    modules: Mapping[str, str]
    device: str
    compared: ComparedModel | None
    auto: AutoRanges | None
    spend: float
    tried: Callable[[Batches, bool], tuple[bool, Batches]] | None
    left_out: Mapping[str, str]
    quantized: Collection[str]

    @property
    def samples_kept(self) -> int:
        """How many samples are kept to choose ranges and layers with."""
        return MOST_SAMPLES if self.compared else 0

    @property
    def keeps_outputs(self) -> bool:
        """Whether the model's outputs for these samples are kept as well."""
        return self.compared is not None and self.compared.takes_outputs

    def open_ahead(self) -> None:
        """Opens what ranges are chosen with while batches are run; not on a GPU, whose memory they take."""
        if self.auto and device_kind(self.device) == "cpu":
            self.auto.open_ahead()

    def table(
        self,
        seen: Observation,
        name_of: Callable[[int], str],
        fed: Preprocessing | Literal["none"] | None,
        *,
        alone: bool,
        progress: bool,
    ) -> CalibrationTable:
        """Chooses the ranges.

        Args:
            seen: What a pass over the data showed.
            name_of: Gives what a sample is called in messages, by its number.
            fed: What raw images went through; ``none`` where samples were fed as they are; None where that is
                not known.
            alone: Whether samples are not to be joined.
            progress: Whether a progress bar is shown on a terminal.
        """
        if self.compared and self.compared.is_large:
            self.observer.close()
        for spec in self.inputs:
            # What is within a range would hide nothing.
            if spec.hides_scores and spec.name in seen.histograms and seen.histograms[spec.name].infs:
                del seen.histograms[spec.name]
        for warning in seen.warnings(name_of):
            warn_user(warning)
        runtime = "onnxruntime" if device_kind(self.device) == "cpu" else "onnxruntime (CUDA)"
        versions = {"trtint8": __version__, "numpy": np.__version__, runtime: _runtime_version()}
        peaks = {
            spec.name: seen.histograms[spec.name].amax for spec in self.inputs if spec.name in seen.histograms
        }
        provenance = Provenance(
            self.model,
            seen.data_fingerprint,
            seen.samples,
            versions,
            seen.input_sizes,
            self.left_out,
            CalibratedInputs(fed, peaks),
            self.cut_from,
            {name: self.modules[name] for name in seen.histograms if name in self.modules},
        )
        outputs = seen.kept.outputs if self.keeps_outputs else ()
        samples = self.compared.samples(seen.kept.samples, outputs) if self.compared else ()
        if self.auto is None:
            table = CalibrationTable.from_histograms(seen.histograms, self.method, provenance)
        else:
            ranges, choice = self.auto.choose(
                seen.histograms,
                samples,
                seen.samples,
                alone=alone,
                outputs=outputs,
                # All observed tensors are among the outputs of this session, so that the last bits of what it
                # computes are the same here and by workers.
                reference=lambda: self.observer.reference,
                progress=progress,
            )
            table = CalibrationTable(ranges, "auto", provenance, histograms=seen.histograms, choice=choice)
        if self.compared and self.spend:
            layers = choose_float_layers(
                self.compared,
                table.amax,
                samples,
                self.spend,
                outputs=outputs,
                alone=alone,
                progress=progress,
            )
            table = replace(table, float_layers=layers)
        # As a file holds it, so that the table is the same before and after it was written.
        return replace(table, histograms=fitting_histograms(table.histograms))


@contextlib.contextmanager
def _opened(prepared: Model, options: CalibrationOptions, run: RunOptions) -> Iterator[_Calibrated]:
    """Makes a model ready to be calibrated, for as long as the block runs."""
    with contextlib.ExitStack() as opened:
        with pause_garbage_collection():
            left_out = left_out_nodes(prepared)
            prepared = runnable_part(prepared)
            compared, auto = None, None
            if options.method == "auto" or options.spend:
                compared = ComparedModel(prepared, run.threads, run.device)
            if compared and options.method == "auto":
                auto = opened.enter_context(AutoRanges(compared))
            graph_model = prepared.graph_model
            placed = options.tensors == "placed"
            quantized: Collection[str] = ()
            with contextlib.nullcontext() if placed else contextlib.suppress(ModelError):
                quantized = placed_tensors(graph_model)
            names = list(quantized) if placed else float_tensors(prepared)
            _warn_of_fewer_bins(len(names))
            by_tensor = {
                value.name or "": module_of(node) for node in graph_model.graph for value in node.outputs
            }
            modules = {name: by_tensor[name] for name in names if by_tensor.get(name)}
            known = joined_by_graph(graph_model)
            # A GPU has memory for the batches that it is given, and is faster with large ones.
            divides = known.separate and device_kind(run.device) == "cpu"
            fitting = FittingBatchSize(graph_model, names).rule
            observer = run.observer(
                light_or_file(graph_model), runnable(graph_model), prepared.inputs, names, fitting, divides
            )
            opened.callback(observer.close)
        calibrated = _Calibrated(
            observer,
            prepared.inputs,
            options.method,
            prepared.fingerprint,
            prepared.cut_from,
            modules,
            run.device,
            compared,
            auto,
            options.spend,
            None if known.separate else partial(_tried, prepared, known, fitting),
            left_out,
            quantized,
        )
        del prepared, graph_model, fitting
        yield calibrated


def _tried(
    prepared: Model, known: Joined, fitting: int | FittingBatchSize, batches: Batches, may_divide: bool
) -> tuple[bool, Batches]:
    """Tries whether samples may be run together, where the graph does not show it, and says where not.

    Args:
        prepared: The model.
        known: What the graph shows.
        fitting: How many samples fit, or what tells it: see :class:`calibrators.host.observer.Observer`.
        batches: The data.
        may_divide: Whether the user has not said how many samples are run together.

    Returns:
        Whether samples are not to be joined; and the data for one pass, in which each batch is one sample
        where its samples change each other and have to stay together.
    """
    if has_fixed_batch(prepared.inputs) or not all(spec.shape for spec in prepared.inputs):
        return False, batches
    batches = batches.fitting(fitting)
    head, batches = batches.begun(2)
    feeds = [batches.source.read(batch)[0] for batch in head.batches] if head else []
    pair = two_samples(feeds)
    found = joined_samples(prepared.graph_model, lambda: [pair] if pair else [], known)
    if found.joining not in (Joining.CHANGED, Joining.REFUSED):
        return False, batches
    are_single = all(batch_rows(feed) == 1 for feed in feeds)
    if found.joining is Joining.REFUSED:
        if not are_single:
            warn_user(TAKES_ONE, note=True)
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
    warn_user(f"{found.reason} along axis 0 of {listed(prepared.inputs)}, so {done}")
    return True, batches if divided else batches.whole()


def _warn_of_fewer_bins(tensors: int) -> None:
    """Says, before the work begins, that there are too many tensors for a table with whole histograms."""
    bins = bins_within(MOST_BYTES_OF_COUNTS, tensors)
    if bins < BINS:
        warn_user(
            f"{tensors:,} tensors are observed, so the table keeps histograms of {bins} bins instead of "
            f"{BINS}: its ranges are exact, and those of another method that is applied later are coarser",
            note=True,
        )


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
