"""Models and engines compared with their float model on one data set, in this process or by workers.

Validation by workers: they run all models on batches, and this process puts their results together.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import onnx_ir as ir

from calibrators.checks import PATH_TYPES, FilePath, check_mapping, keeping_warnings, warn_user
from calibrators.data.batches import Batches, Shard, Source, observed, warning_of_inputs
from calibrators.data.images.preprocessing import Preprocessing
from calibrators.data.inputs import CalibratedInputs, DataOptions, GroupSource, LabelSource
from calibrators.data.opening import DataSource
from calibrators.data.samples import DataFingerprint
from calibrators.errors import (
    Argument,
    CalibrationDataError,
    ModelError,
    TableError,
    TrtInt8Error,
    enumerated,
)
from calibrators.files import is_file
from calibrators.host.session import open_session, runs_at_once
from calibrators.host.work import BatchFunction, check_sees
from calibrators.operators import operator_of
from calibrators.progress import VALIDATING
from calibrators.run import Executor, RunOptions
from calibrators.tables.ranges import TableSource, as_table
from calibrators.tables.table import CalibrationTable
from trtint8.arithmetic.simulation import Integers
from trtint8.engine.file import (
    check_engine_file,
    read_engine_info,
    read_engine_table,
    read_sidecar,
    sidecar_path,
)
from trtint8.interop.integer_models import integer_operators
from trtint8.models.model import (
    FLOAT_MODEL,
    Model,
    ModelSource,
    calibration_of,
    check_model_file,
    inputs_of,
    load_model,
    warnings_of,
)
from trtint8.models.serialization import fits_message, to_proto
from trtint8.models.session import ModelSession, open_model
from trtint8.models.torch_export import AnyModel, open_modules
from trtint8.quantization.config import ArithmeticName, arithmetic_named
from trtint8.runtime.bindings import LoadingOptions
from trtint8.validation.accuracy import NOT_IN_INT8, REFERENCE, VALIDATED, Accuracy
from trtint8.validation.budget import Budget
from trtint8.validation.comparison import BatchResult, GoalOf, OpenModels, compare_models, merge_results
from trtint8.validation.detection.layouts import LOOKED_AT
from trtint8.validation.metrics import Metric, check_metrics, reads_layouts
from trtint8.validation.opening import (
    Reference,
    RunningReference,
    Setting,
    engine_path,
    open_models,
    warning_of_overflow,
)
from trtint8.validation.user_metrics import check_mergeable

#: Bytes of samples that are read while models are opened; the first batch in any case.
_READ_AHEAD = 16 << 20


def validate(
    model: AnyModel,
    data: DataSource,
    *,
    reference: AnyModel | None = None,
    table: TableSource | None = None,
    arithmetic: ArithmeticName | None = None,
    also: Mapping[str, AnyModel] | None = None,
    labels: LabelSource | None = None,
    groups: GroupSource | None = None,
    metrics: Metric | Sequence[Metric] | None = None,
    max_drop: float | None = None,
    minimum: float | None = None,
    batch_size: int | None = None,
    limit: int | None = None,
    preprocessing: Preprocessing | None = None,
    skip_bad: bool = False,
    executor: Executor = "local",
    threads: int | None = None,
    allow_host_code: bool = False,
    plugins: Sequence[FilePath] = (),
    tensors: Sequence[str] = (),
    progress: bool = True,
    example_inputs: object = None,
) -> Accuracy:
    """Compares an INT8 model or engine with the FP32 model on data that it was not calibrated on.

    With ``table`` and ``arithmetic``, the INT8 model is a float model as a backend computes it in integers;
    the page "What each backend computes" says what that is.

    An engine runs on the GPU. Without a GPU, ONNX Runtime runs the Q/DQ model beside the engine, from which
    it was built, as fake quantization.

    The result is the same, bit for bit, for any number of workers; the number of threads, and the batch size,
    may change the last bits of what ONNX Runtime computes.

    Memory grows with the data by one byte per sample, metric and model (16 bytes for a function as metric, 64
    for each output). A metric over the data set may need more.

    Args:
        model: A Q/DQ model, or the path of an engine file; called INT8 in the result.
        data: What :func:`calibrate` takes. Its labels, if it has some, are class indices, or arrays that an
            output is compared with, such as images or maps of classes.
        reference: The FP32 model, which may be a ``torch.nn.Module``. It is required, except with
            ``arithmetic``: there it is ``model`` by default.
        table: With ``arithmetic``, the calibration table of ``model``, or its path. A Q/DQ model has the
            ranges of its pairs, and takes no table.
        arithmetic: Computes ``model``, a float model or a model with Q/DQ pairs, with the integers of a
            backend. ``explicit`` and ``implicit`` are those of TensorRT; ``dla``, ``ncnn`` and ``qnnpack``
            are other backends. ``in_integers`` of the result has the largest sum of every layer. By default
            ``model`` runs as it is.
        also: Other models or engines to judge on the same samples, by name, such as ``{"FP16": path}``.
        labels: Labels that do not come with the data: an array, or the path of an ``.npy`` or ``.npz``; for
            a folder of images also that of COCO's instances, a ``.json``.
        groups: Which samples belong together, such as windows of one recording or text: they say less than
            others, so intervals are wider. A number says how many samples in a row do. An array, or the path
            of an ``.npy`` or ``.npz``, has one label per sample, such as the name of its recording.
        metrics: What to measure, one metric or several. A metric has a name, or is a function or an object.
            Names for class scores are ``top1``, ``top5`` or any ``topK``, ``agreement``, and
            ``agreement_all`` (all outputs at once); for images ``psnr``; for classes of positions ``pixels``
            and ``miou``; for detectors ``detections``, and with true boxes ``map`` and ``map50``; for every
            output ``sqnr``, ``cosine`` and ``max_error``, which are measured together, and ``token_cosine``.
            The layout of a detector's outputs may follow a colon, as in ``map:grid``;
            :class:`DetectionAgreement` takes a decoder. A metric of one output measures the first output that
            is not cached, or the output whose name follows a colon, as in ``psnr:hr``. ``psnr``, ``pixels``
            and ``miou`` compare with labels if these have the output's shape, else with FP32. A function
            takes ``(feeds, outputs)`` or ``(feeds, outputs, reference_outputs)`` of a batch, and returns a
            number or one per sample. An object is a metric over the data set, such as
            :class:`MeanAveragePrecision`. Functions, objects and decoders get copies of all arrays. Where
            None, the outputs decide: class scores get ``agreement``, and with labels ``top1`` and ``top5``;
            detections with true boxes as labels get ``map`` and ``map50``; every network gets ``sqnr``,
            ``cosine`` and ``max_error``, and embeddings (rows of length 1) only these. ``chosen`` of the
            result names the choice.
        max_drop: How much the first of ``metrics`` may lose, as in :func:`tune`. Where ``metrics`` is None,
            it is for the metric that :func:`tune` takes by default. ``judgement`` of the result says what was
            found.
        minimum: The least value of that metric, as in :func:`tune`. Without both there is no limit.
        batch_size: Samples per batch.
        limit: Use only this many samples.
        preprocessing: How raw images become inputs.
        skip_bad: Leave out the files of a folder that cannot be read, such as damaged images, with their
            labels, and warn of them by name. By default the first such file is an error.
        executor: Where models run: see :func:`calibrate`. Over Ray, metrics are computed by the workers;
            a metric over the data set must merge (:class:`trtint8.validation.metrics.MergeableMetric`).
        threads: Threads for each model in ONNX Runtime, which chooses by default. If a model computes every
            sample by itself, they run parts of a batch. Over Ray it is the number per worker, by default 1.
        allow_host_code: Whether code that an engine contains may run; see :meth:`Engine.load`.
        plugins: Paths of shared libraries with the plugins that engines use.
        tensors: Names of tensors inside the reference, or patterns with ``*`` and ``?``, to compare as well.
            ``tensors`` of the result has the SQNR of each tensor and its largest difference in steps of its
            scale. It names the first tensor that differs by more than a step, and says why a model lacks
            others. These tensors are not fused, which may change the last bits of outputs. Where
            ``batch_size`` is None, batches are so small that their tensors fit into memory.
        progress: Show a progress bar on a terminal.
        example_inputs: What the forward of a ``torch.nn.Module`` takes; see :func:`model_inputs`.

    Returns:
        The comparison, with a test of each difference that says whether it is more than chance.

    Raises:
        TrtInt8Error: Always one of its subclasses, whose message says in one sentence what to do.

    Examples:
        >>> accuracy = trtint8.validate("int8.onnx", "heldout.npz", reference="model.onnx")
        >>> print(f"INT8 {accuracy.top1}, FP32 {accuracy.reference_top1}")
        INT8 99.50 % (98.5-99.8), FP32 99.50 % (98.5-99.8)
    """
    also = {} if also is None else also
    check_mapping("also", also, "from the name of a model to the model")
    if taken := [name for name in also if name in (VALIDATED, REFERENCE)]:
        whose = "reference" if taken[0] == REFERENCE else "model"
        raise ModelError(f"'{taken[0]}' in {Argument('also')} is the name of the {whose}; take another")
    asked, goal_of = None if metrics is None else _listed(metrics), None
    if max_drop is not None or minimum is not None:
        if asked is not None and not asked:
            raise CalibrationDataError(
                f"{Argument('metrics')} names none, and {Argument('max_drop')} and {Argument('minimum')} are "
                "limits of the first; name one"
            )
        goal_of = Budget(max_drop, asked[0] if asked else None, minimum).goal
    integers = _integers(table, arithmetic)
    if reference is None and integers is None:
        raise ModelError(
            f"there is no float model to compare with; add {Argument('reference')}, or "
            f"{Argument('table')} and {Argument('arithmetic')}"
        )
    given = model if reference is None else reference
    judged, source, *others = open_modules((model, given, *also.values()), example_inputs)
    models = {VALIDATED: judged, **dict(zip(also, others, strict=True))}
    options = DataOptions(
        batch_size, limit, preprocessing=preprocessing, labels=labels, skip_bad=skip_bad, groups=groups
    )
    run, loading = RunOptions(threads, executor, progress=progress), LoadingOptions(allow_host_code, plugins)
    with keeping_warnings() as said:
        whole = load_model(source)
        compared = Reference.of(whole, tensors, shows=True)
        original, declared = compared.model, compared.declared
        if run.is_local:  # workers look on their machines
            for one in models.values():
                _check_file(one)
        options = as_calibrated(options, [_fed_to(one) for one in models.values()], integers)
        setting = Setting(original.inputs, declared, loading, asked, run.threads, integers=integers)
        batches = compared.open_data(data, options, run.threads)
        compare = _compare_here if run.is_local else _compare_by_workers
        accuracy, origins = compare(_Models(models, source, whole, original), batches, run, setting, goal_of)
    found = identified(accuracy, origins, original)
    return replace(found, warnings=tuple(dict.fromkeys((*found.warnings, *said))))


def _integers(table: TableSource | None, arithmetic: str | None) -> Integers | None:
    """How a model is computed in integers."""
    if arithmetic is None:
        if table is not None:
            raise TableError(
                f"{Argument('table')} is read with an arithmetic alone; add {Argument('arithmetic')}, or "
                f"leave {Argument('table')} out"
            )
        return None
    return Integers(arithmetic_named(arithmetic), None if table is None else as_table(table))


def _listed(metrics: Metric | Sequence[Metric]) -> list[Metric]:
    """Metrics where several may be given: a name, a function or an object by itself is one."""
    if isinstance(metrics, str) or not isinstance(metrics, Iterable):
        return [metrics]
    return list(metrics)


def _fed_to(source: ModelSource) -> tuple[str, CalibratedInputs | None]:
    """What a model is called in messages, and what it was fed while it was calibrated, where it says so."""
    plan = engine_path(source)
    if plan is None:
        name = source if isinstance(source, PATH_TYPES) else "the INT8 model"
        return f"the model '{name}'" if name is source else str(name), inputs_of(source)
    known = is_file(sidecar_path(plan))
    return f"the engine '{plan}'", read_sidecar(plan).calibrated_inputs if known else None


def _check_file(source: ModelSource) -> None:
    """Refuses the path of a model or an engine that is not there, before samples are looked at."""
    if plan := engine_path(source):
        check_engine_file(plan)
    elif isinstance(source, PATH_TYPES):
        check_model_file(source)


def _looked_at(batches: Batches, setting: Setting) -> tuple[Shard | None, Batches]:
    """The first batches, where they may have to be looked at before any is measured; and all of them."""
    # Which labels are read with the samples, if any, is not known.
    unknown = setting.metrics is None and batches.labels is None
    if unknown or reads_layouts(setting.metrics, batches.labels, setting.declared.picked):
        return batches.begun(LOOKED_AT)
    return None, batches


@dataclass(frozen=True)
class _Models:
    """What is compared.

    Attributes:
        given: Models, and paths of engines, by their names in results.
        source: The float model as it was given.
        whole: The float model.
        original: The float model without what ONNX Runtime cannot run.
    """

    given: Mapping[str, ModelSource]
    source: ModelSource
    whole: Model
    original: Model

    def load(self, integers: Integers | None) -> tuple[dict[str, Model | Path], list[Origin]]:
        """Models that are loaded, and paths of engines, with where they come from.

        What is the float model too is loaded once.
        """
        loaded = {
            name: engine_path(one) or (self.whole if one is self.source else load_model(one))
            for name, one in self.given.items()
        }
        if integers is not None:
            _check_integers(loaded[VALIDATED], integers)
        in_arithmetic = () if integers is None else (VALIDATED,)
        others = {name: one for name, one in loaded.items() if name not in in_arithmetic}
        _refuse_exchanged(others, self.whole)
        return loaded, warn_of_models(loaded, self.original, integers)


def _check_integers(model: Model | Path, integers: Integers) -> None:
    """Refuses a model that no arithmetic computes, or whose ranges are missing or given twice."""
    name = integers.arithmetic.name
    if isinstance(model, Path):
        raise ModelError(
            f"'{model}' is an engine, which has its own arithmetic; for '{name}' give the float model"
        )
    if operators := integer_operators(model.graph_model):
        raise ModelError(
            f"'{model.name}' computes on integers already, by {enumerated(operators)}, and '{name}' does so "
            "in another way; give the float model, or one with Q/DQ pairs"
        )
    if model.is_quantized and integers.table is not None:
        raise TableError(
            f"'{model.name}' has the ranges of its Q/DQ pairs, and a table was given as well; leave "
            f"{Argument('table')} out, or give the float model"
        )
    if not model.is_quantized and integers.table is None:
        raise TableError(
            f"the arithmetic '{name}' takes the ranges of '{model.name}' from a calibration table; add "
            f"{Argument('table')}"
        )


def _refuse_exchanged(models: Mapping[str, Model | Path], reference: Model) -> None:
    """Refuses a float model that is compared with a quantized one."""
    if not reference.is_quantized:
        return
    for name, model in models.items():
        if isinstance(model, Path):
            continue
        if not (model.is_quantized or integer_operators(model.graph_model)):
            raise ModelError(
                f"the reference '{reference.name}' holds Q/DQ pairs and '{model.name}', {name}, holds none; "
                "give the float model as reference"
            )


def _compare_here(
    models: _Models, batches: Batches, run: RunOptions, setting: Setting, goal_of: GoalOf | None
) -> tuple[Accuracy, list[Origin]]:
    """Compares in this process, and says where the models come from."""
    setting, original = replace(setting, rows=batches.usual_rows), models.original
    further, picked = setting.declared.further, setting.declared.picked
    opening = partial(open_model, original, further, threads=run.threads, rows=setting.rows)
    with RunningReference(opening) as running:
        head, read = _looked_at(batches, setting)
        first, read = read.read_ahead(_READ_AHEAD)
        running.run_ahead([batch.feed for batch in first])
        loaded, origins = models.load(setting.integers)
        known = next((one for one in origins if one.inputs and one.inputs.peaks), origins[0])
        with (
            open_models(loaded, running, setting) as opened,
            warning_of_inputs(known.inputs, known.what, read) as (watched,),
            warning_of_calibration_samples(origins, watched) as seen,
            warning_of_overflow(opened.half, original, seen, run.threads) as samples,
        ):
            # A single one is looked at where it is measured.
            if head and len(head.batches) > 1 and reads_layouts(setting.metrics, first[0].labels, picked):
                opened.look(Batches.of_shard(head, batches.source).labelled())
            return compare_models(opened, samples, goal_of, progress=run.progress), origins


def _compare_by_workers(
    models: _Models, batches: Batches, run: RunOptions, setting: Setting, goal_of: GoalOf | None
) -> tuple[Accuracy, list[Origin]]:
    """Compares as :func:`_compare_here` does, by workers in other processes.

    Raises:
        TrtInt8Error: One process would raise it too, or the workers failed.
        UnsupportedError: A metric over the data set cannot merge.
    """
    loaded, origins = models.load(setting.integers)
    metrics, loading, integers = setting.metrics, setting.loading, setting.integers
    check_metrics(metrics or ())
    check_mergeable(metrics or ())
    head, batches = _looked_at(batches, setting)
    setting = replace(
        setting,
        loading=replace(loading, plugins=tuple(Path(library).absolute() for library in loading.plugins)),
        threads=run.worker_threads,
        rows=batches.usual_rows,
        integers=None if integers is None else integers.ranges_alone(),
    )
    sent = {name: _sent(models.given[name], model) for name, model in loaded.items()}
    reference = _sent(models.source, models.original)
    work = _ValidationWork(sent, reference, setting, head, batches.source)
    with run.results(work, batches, description=VALIDATING) as results:
        return merge_results(results, metrics, batches, goal_of), origins


#: Why a worker was sent paths.
_NOT_SENT = (
    "engines, plugin libraries and models beyond 2 GiB are not sent; put it where all machines see it under "
    "this name"
)


@dataclass(frozen=True)
class _ValidationWork:
    """Runs all models on single batches; they stay open to the end of the worker's process.

    Attributes:
        models: Serialized models, or paths of models and engines, by name.
        reference: The serialized FP32 model, or its path.
        setting: What is the same for all models.
        head: The first batches of the data, which every worker looks at; None where there are none.
        source: The source of the data.
    """

    models: Mapping[str, bytes | Path]
    reference: bytes | Path
    setting: Setting
    head: Shard | None
    source: Source

    def open(self) -> BatchFunction[BatchResult]:
        """Opens the models."""
        for file in (self.reference, *self.models.values(), *map(Path, self.setting.loading.plugins)):
            check_sees(file, _NOT_SENT)
        stack = contextlib.ExitStack()
        reference = stack.enter_context(RunningReference(self._open_reference))
        models = stack.enter_context(open_models(self.models, reference, self.setting))
        if self.head:
            models.look(Batches.of_shard(self.head, self.source).labelled())
        return partial(_run, models, stack)

    def _open_reference(self) -> ModelSession:
        # A serialized model needs no reading here, where ONNX Runtime takes it. A file is read by us: ONNX
        # Runtime would read of its external data what the model says, and not what was checked.
        further, threads, rows = self.setting.declared.further, self.setting.threads, self.setting.rows
        if isinstance(self.reference, bytes) and not further and runs_at_once(threads or 1, rows) == 1:
            with contextlib.suppress(ModelError):
                return ModelSession(open_session(self.reference, optimize=True, threads=threads))
        return open_model(load_model(self.reference), further, threads=threads, rows=rows)


def _run(models: OpenModels, _stack: contextlib.ExitStack, *batch: Any) -> BatchResult:
    """Runs all models on a batch; they stay open as long as the stack lives, which would close them."""
    return models.run(*batch)


def _sent(source: ModelSource, loaded: Model | Path) -> bytes | Path:
    """What a worker opens: a serialized model; or the path of an engine, or of a model beyond 2 GiB."""
    if isinstance(loaded, Path):
        return loaded.absolute()
    if isinstance(source, PATH_TYPES) and not fits_message(loaded.graph_model):
        return Path(source).absolute()
    serialized: bytes = to_proto(loaded.graph_model).SerializeToString()
    return serialized


#: Types of models that are in half precision, which are worth comparing although they are not quantized.
_HALF = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


@dataclass(frozen=True)
class Origin:
    """Where a model comes from.

    Attributes:
        what: The model in words.
        it: How a message that has named it calls it.
        float_model: The fingerprint of the float model that it was made from; None where that is not known.
        calibration: The fingerprint of the samples that it was calibrated with, and their number; None where
            that is not known.
        identity: What identifies it: the fingerprint of the model, or of an engine's Q/DQ model, or the
            SHA-256 of the plan where an engine has none. None where nothing was computed for it.
        inputs: What it was fed while it was calibrated; None where that is not known.
        warnings: What its calibration and its build warned of.
        in_int8: Whether a layer of it is in INT8, as far as is known.
    """

    what: str
    it: str
    float_model: str | None = None
    calibration: tuple[str, int] | None = None
    identity: str | None = None
    inputs: CalibratedInputs | None = None
    warnings: tuple[str, ...] = ()
    in_int8: bool = True

    @property
    def called(self) -> str:
        """What tables call the model."""
        return VALIDATED if self.in_int8 else NOT_IN_INT8


def as_calibrated(
    options: DataOptions,
    fed: Sequence[tuple[str, CalibratedInputs | None]],
    integers: Integers | None = None,
) -> DataOptions:
    """Options for data that have the preprocessing of a calibration, where none is given.

    Args:
        options: How the data is read.
        fed: What each model is called, and what it was fed while it was calibrated; None where that is not
            known. The first one with preprocessing decides.
        integers: How the first model is computed in integers; None where it is run as it is.

    Warns:
        UserWarning: Other preprocessing is given, or another model was calibrated with other one; once for
            all models of the same preprocessing.
    """
    known = [(what, inputs) for what, inputs in fed if inputs is not None]
    if integers is not None and integers.table is not None and integers.table.provenance.inputs:
        known.insert(0, ("the table", integers.table.provenance.inputs))
    seen: list[Preprocessing] = []
    for what, inputs in known:
        if inputs.images is None or any(map(inputs.images.is_same, seen)):
            continue
        seen.append(inputs.images)
        if options.applied is None:
            options = options.calibrated(inputs, what)
        else:
            inputs.chosen(options.applied, what)
    return options


def warn_of_models(
    models: Mapping[str, Model | Path], reference: Model, integers: Integers | None = None
) -> list[Origin]:
    """Warns of models that are not what a comparison takes them for, as far as they say where they come from.

    Args:
        models: Models, and paths of engines, by their names in results.
        reference: The float model.
        integers: How the first model is computed in integers; None where it is run as it is.

    Returns:
        Where each of the models comes from.

    Warns:
        UserWarning: The reference holds Q/DQ pairs; the model called INT8 computes in float32; or a model was
            made from another float model than the reference.
    """
    if reference.is_quantized:
        warn_user(
            f"the reference '{reference.name}' holds Q/DQ pairs, so that what the results call {REFERENCE} "
            "is quantized; give the float model"
        )
    validated = models[VALIDATED]
    if integers is None and isinstance(validated, Model) and _is_float32(validated):
        warn_user(
            f"'{validated.name}' holds neither Q/DQ pairs nor integer operators: what is compared is a float "
            "model; give the quantized one"
        )
    origins = [_of_model(one) if isinstance(one, Model) else _of_engine(one) for one in models.values()]
    if integers is not None:
        origins[0] = replace(origins[0], in_int8=True)
    table = integers.table if integers is not None else None
    if isinstance(validated, Model) and table is None:
        origins[0] = replace(origins[0], identity=validated.fingerprint)
    if table is not None:
        origins[0] = replace(
            origins[0],
            calibration=_calibration(table),
            inputs=table.provenance.inputs,
            warnings=table.warnings,
        )
    for origin in origins:
        _warn_of_another_model(origin, reference)
    return origins


@contextlib.contextmanager
def warning_of_calibration_samples(origins: Sequence[Origin], batches: Batches) -> Iterator[Batches]:
    """Warns, when the samples were read, of models that were calibrated with them.

    Args:
        origins: Where the models come from.
        batches: The samples.

    Yields:
        The same samples, for one pass in this process.

    Warns:
        UserWarning: A model was calibrated with these samples.
    """
    alike = [one for one in origins if one.calibration and batches.num_samples in (None, one.calibration[1])]
    if not alike:
        yield batches
        return
    seen = DataFingerprint()
    yield observed(batches, seen)
    for origin in alike:
        if origin.calibration == (seen.hexdigest(), seen.samples):
            warn_user(
                f"{origin.what} was calibrated with the samples that it is judged by, so that its accuracy "
                "may look better than it is; give held-out samples"
            )


def _of_model(model: Model) -> Origin:
    graph_model = model.graph_model
    made_from = graph_model.metadata_props.get(FLOAT_MODEL)
    return Origin(
        f"the model '{model.name}'",
        "it",
        made_from,
        calibration_of(graph_model),
        inputs=inputs_of(model),
        warnings=warnings_of(model),
        in_int8=_is_quantized(model),
    )


def _of_engine(plan: Path) -> Origin:
    what = f"the engine '{plan}'"
    if not (is_file(plan) and is_file(sidecar_path(plan))):
        return Origin(what, "the engine")
    info, table = read_engine_info(plan), None
    # Without a table, the model that was built had Q/DQ pairs already or a calibrator of the user's.
    was_float = info.table_fingerprint is not None
    if was_float:
        with contextlib.suppress(TrtInt8Error):  # a table that is not needed for the comparison
            table = read_engine_table(plan, info)
    return Origin(
        what,
        "the engine",
        info.model_fingerprint if was_float else None,
        _calibration(table),
        info.qdq_fingerprint or info.plan_sha256,
        info.calibrated_inputs,
        info.warnings,
        info.in_int8,
    )


def _calibration(table: CalibrationTable | None) -> tuple[str, int] | None:
    """The samples that a table was made with, as far as it says so."""
    if table is None:
        return None
    data, samples = table.provenance.data, table.provenance.samples
    return None if data is None or samples is None else (data, samples)


def _is_float32(model: Model) -> bool:
    graph = model.graph_model.graph
    values = (*graph.inputs, *graph.outputs, *graph.initializers.values())
    is_half = any(value.dtype in _HALF for value in values)
    return not (is_half or _is_quantized(model))


def _is_quantized(model: Model) -> bool:
    pairs = any(operator_of(node).half_of_pair for node in model.graph_model.graph)
    return pairs or bool(integer_operators(model.graph_model))


def _warn_of_another_model(origin: Origin, reference: Model) -> None:
    # A float reference may be what another one was equalized to.
    known = None if reference.is_quantized else reference.graph_model.metadata_props.get(FLOAT_MODEL)
    if origin.float_model is None or origin.float_model in (known, reference.fingerprint):
        return
    warn_user(
        f"{origin.what} was not made from the reference '{reference.name}', but from a float model with the "
        f"fingerprint {origin.float_model[:12]} (the reference has {reference.fingerprint[:12]}); give the "
        f"model that {origin.it} was made from"
    )


def identified(accuracy: Accuracy, origins: Sequence[Origin], reference: Model) -> Accuracy:
    """A comparison that says which files it is of, so that a report can tell results of an earlier build.

    Args:
        accuracy: The comparison.
        origins: Where the models come from, the judged one first.
        reference: The float model.
    """
    return replace(
        accuracy,
        judged_fingerprint=origins[0].identity,
        name=origins[0].called if origins[0].called not in accuracy.also else VALIDATED,
        warnings=tuple(dict.fromkeys(warning for origin in origins for warning in origin.warnings)),
        reference_fingerprint=_fingerprint_of(reference, origins),
    )


def _fingerprint_of(reference: Model, origins: Sequence[Origin]) -> str | None:
    """The fingerprint of what a float model is, or was made from.

    It takes tens of milliseconds for large models, so it is given only where it was computed already: to be
    compared with that of the model that another one says it was made from.
    """
    if reference.is_quantized or all(origin.float_model is None for origin in origins):
        return None
    return reference.graph_model.metadata_props.get(FLOAT_MODEL, reference.fingerprint)
