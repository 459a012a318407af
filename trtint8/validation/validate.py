"""Models and engines compared with their float model on one data set, in this process or by workers.

Validation by workers: they run all models on batches, and this process puts their results together.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import onnx_ir as ir

from calibrators.checks import PATH_TYPES, warn_user
from calibrators.data.batches import Batches, Shard, Source, observed, warning_of_inputs
from calibrators.data.images.preprocessing import Preprocessing
from calibrators.data.inputs import CalibratedInputs, DataOptions
from calibrators.data.opening import DataSource
from calibrators.data.samples import DataFingerprint
from calibrators.errors import Argument, ModelError, TableError, TrtInt8Error, enumerated
from calibrators.files import is_file
from calibrators.host.session import open_session, runs_at_once
from calibrators.host.work import BatchFunction, check_sees
from calibrators.operators import operator_of
from calibrators.progress import VALIDATING
from calibrators.run import RunOptions
from calibrators.tables.table import CalibrationTable
from trtint8.arithmetic.simulation import Integers
from trtint8.engine.file import read_engine_info, read_engine_table, read_sidecar, sidecar_path
from trtint8.interop.integer_models import integer_operators
from trtint8.models.model import (
    FLOAT_MODEL,
    Model,
    ModelSource,
    calibration_of,
    inputs_of,
    load_model,
    warnings_of,
)
from trtint8.models.serialization import fits_message, to_proto
from trtint8.models.session import ModelSession, open_model
from trtint8.runtime.bindings import LoadingOptions
from trtint8.validation.accuracy import NOT_IN_INT8, REFERENCE, VALIDATED, Accuracy
from trtint8.validation.budget import Budget
from trtint8.validation.comparison import BatchResult, OpenModels, compare_models, merge_results
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


def validate_models(
    model: ModelSource,
    data: DataSource,
    *,
    reference: ModelSource,
    also: Mapping[str, ModelSource],
    metrics: Sequence[Metric] | None,
    data_options: DataOptions,
    run: RunOptions,
    loading: LoadingOptions,
    budget: Budget | None,
    integers: Integers | None = None,
    tensors: Sequence[str] = (),
) -> Accuracy:
    """Compares an INT8 model or engine, and others, with the float model on the same samples.

    Args:
        model: A Q/DQ model, or the path of an engine file.
        data: Held-out samples.
        reference: The float model.
        also: Other models or engines, by their names in the result.
        metrics: What to measure; the usual metrics that apply where None.
        data_options: How the data is read.
        run: Where and how models are run.
        loading: How engines are loaded.
        budget: What the samples are to keep; None for nothing.
        integers: How ``model`` is computed in integers; None where it is run as it is.
        tensors: Names of tensors inside, or patterns, that are compared as well.

    Returns:
        The comparison.

    Raises:
        TrtInt8Error: Always one of its subclasses, whose message says in one sentence what to do.

    Warns:
        UserWarning: A model was made from another float model than the reference, or calibrated with the
            samples that it is judged by, or holds in FP16 what overflows on a GPU and not in ONNX Runtime
            (both except by workers, where samples are read elsewhere), or the one called INT8 is a float
            model.
    """
    if taken := [name for name in also if name in (VALIDATED, REFERENCE)]:
        whose = "reference" if taken[0] == REFERENCE else "model"
        raise ModelError(f"'{taken[0]}' in {Argument('also')} is the name of the {whose}; take another")
    whole = load_model(reference)
    compared = Reference.of(whole, tensors, shows=True)
    original, declared = compared.model, compared.declared
    models = {VALIDATED: model, **also}
    data_options = as_calibrated(data_options, [_fed_to(one) for one in models.values()], integers)
    setting = Setting(original.inputs, declared, loading, metrics, run.threads, integers=integers)
    if not run.is_local:
        loaded = _loaded(models, reference, whole, integers)
        batches = compared.open_data(data, data_options, run.threads)
        origins = warn_of_models(loaded, original, integers)
        accuracy = _compare_by_workers(models, loaded, reference, original, batches, run, setting, budget)
        return identified(accuracy, origins, original)
    opened_data = compared.open_data(data, data_options, run.threads)
    setting = replace(setting, rows=opened_data.usual_rows)
    opening = partial(open_model, original, declared.further, threads=run.threads, rows=setting.rows)
    with RunningReference(opening) as running:
        head, batches = _looked_at(opened_data, setting)
        first, batches = batches.read_ahead(_READ_AHEAD)
        running.run_ahead([batch.feed for batch in first])
        loaded = _loaded(models, reference, whole, integers)
        origins = warn_of_models(loaded, original, integers)
        known = next((one for one in origins if one.inputs and one.inputs.peaks), origins[0])
        with (
            open_models(loaded, running, setting) as opened,
            warning_of_inputs(known.inputs, known.what, batches) as (watched,),
            warning_of_calibration_samples(origins, watched) as read,
            warning_of_overflow(opened.half, original, read, run.threads) as samples,
        ):
            # A single one is looked at where it is measured.
            if head and len(head.batches) > 1 and reads_layouts(metrics, first[0].labels, declared.picked):
                opened.look(Batches.of_shard(head, opened_data.source).labelled())
            accuracy = compare_models(opened, samples, budget, progress=run.progress)
        return identified(accuracy, origins, original)


def _fed_to(source: ModelSource) -> tuple[str, CalibratedInputs | None]:
    """What a model is called in messages, and what it was fed while it was calibrated, where it says so."""
    plan = engine_path(source)
    if plan is None:
        name = source if isinstance(source, PATH_TYPES) else "the INT8 model"
        return f"the model '{name}'" if name is source else str(name), inputs_of(source)
    known = is_file(sidecar_path(plan))
    return f"the engine '{plan}'", read_sidecar(plan).calibrated_inputs if known else None


def _looked_at(batches: Batches, setting: Setting) -> tuple[Shard | None, Batches]:
    """The first batches, where they may have to be looked at before any is measured; and all of them."""
    # Which labels are read with the samples, if any, is not known.
    unknown = setting.metrics is None and batches.labels is None
    if unknown or reads_layouts(setting.metrics, batches.labels, setting.declared.picked):
        return batches.begun(LOOKED_AT)
    return None, batches


def _loaded(
    models: Mapping[str, ModelSource], source: ModelSource, reference: Model, integers: Integers | None
) -> dict[str, Model | Path]:
    """Models that are loaded, and paths of engines; what is the reference too is loaded once."""
    loaded = {
        name: engine_path(one) or (reference if one is source else load_model(one))
        for name, one in models.items()
    }
    if integers is not None:
        _check_integers(loaded[VALIDATED], integers)
    in_arithmetic = () if integers is None else (VALIDATED,)
    _refuse_exchanged({name: one for name, one in loaded.items() if name not in in_arithmetic}, reference)
    return loaded


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


def _compare_by_workers(
    models: Mapping[str, ModelSource],
    loaded: Mapping[str, Model | Path],
    reference: ModelSource,
    original: Model,
    batches: Batches,
    run: RunOptions,
    setting: Setting,
    budget: Budget | None,
) -> Accuracy:
    """Compares as :func:`trtint8.validation.comparison.compare_models` does, by workers in other processes.

    Args:
        models: Models and paths of engines, by their names in results.
        loaded: The same, with the models loaded.
        reference: The FP32 model.
        original: The FP32 model, loaded, without what ONNX Runtime cannot run.
        batches: The data.
        run: Where and how models are run.
        setting: What is the same for all models.
        budget: What the samples are to keep; None for nothing.

    Returns:
        The comparison.

    Raises:
        TrtInt8Error: One process would raise it too, or the workers failed.
        UnsupportedError: A metric over the data set cannot merge.
    """
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
    sent = {name: _sent(models[name], model) for name, model in loaded.items()}
    work = _ValidationWork(sent, _sent(reference, original), setting, head, batches.source)
    with run.results(work, batches, description=VALIDATING) as results:
        return merge_results(results, metrics, batches.class_names, budget)


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
        engine: What identifies an engine: the fingerprint of its Q/DQ model, or the SHA-256 of its plan where
            it has none; None for a model, and where there is no engine.
        inputs: What it was fed while it was calibrated; None where that is not known.
        warnings: What its calibration and its build warned of.
        in_int8: Whether a layer of it is in INT8, as far as is known.
    """

    what: str
    it: str
    float_model: str | None = None
    calibration: tuple[str, int] | None = None
    engine: str | None = None
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
    if integers is not None and (table := integers.table) is not None:
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
        judged_fingerprint=origins[0].engine,
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
