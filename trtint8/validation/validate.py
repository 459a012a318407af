"""Models and engines compared with their float model on one data set, in this process or by workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from calibrators.data.batches import Batches, Shard
from calibrators.data.inputs import DataOptions
from calibrators.data.opening import DataSource
from calibrators.errors import Argument, ModelError, UnsupportedError
from calibrators.run import RunOptions
from trtint8.arithmetic.simulation import Integers
from trtint8.interop.integer_models import integer_operators
from trtint8.models.model import Model, ModelSource, load_model
from trtint8.models.session import open_model
from trtint8.runtime.loading import LoadingOptions
from trtint8.validation.accuracy import Accuracy
from trtint8.validation.budget import Budget
from trtint8.validation.comparison import compare_models
from trtint8.validation.detection.seen_layouts import LOOKED_AT
from trtint8.validation.half_precision import warning_of_overflow
from trtint8.validation.identity import identified
from trtint8.validation.measure import REFERENCE, VALIDATED
from trtint8.validation.metrics import Metric, reads_layouts
from trtint8.validation.mistaken_comparisons import warn_of_models, warning_of_calibration_samples
from trtint8.validation.opening import engine_path, open_models
from trtint8.validation.output_shapes import DeclaredOutputs
from trtint8.validation.reference import Reference
from trtint8.validation.running_reference import RunningReference
from trtint8.validation.workers import compare_by_workers

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
        integers: How ``model``, a float model, is computed in integers; None where it is run as it is.

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
        raise ModelError(
            f"'{taken[0]}' in also is the name of the {'model' if taken[0] == VALIDATED else 'reference'}; "
            "take another"
        )
    whole = load_model(reference)
    compared = Reference.of(whole)
    original, declared = compared.model, compared.declared
    models = {VALIDATED: model, **also}
    if integers is not None:
        _refuse_integers(model, run)
    if not run.is_local:
        loaded = _loaded(models, whole)
        head, batches = _looked_at(compared.open_data(data, data_options, run.threads), metrics, declared)
        origins = warn_of_models(loaded, original)
        accuracy = compare_by_workers(
            models,
            loaded,
            reference,
            original,
            batches,
            run,
            head,
            declared=declared,
            loading=loading,
            metrics=metrics,
            budget=budget,
        )
        return identified(accuracy, origins, original)
    opened_data = compared.open_data(data, data_options, run.threads)
    source, rows = opened_data.source, opened_data.usual_rows
    opening = partial(open_model, original, declared.sources, threads=run.threads, rows=rows)
    with RunningReference(opening) as running:
        head, opened_data = _looked_at(opened_data, metrics, declared)
        first, batches = opened_data.read_ahead(_READ_AHEAD)
        running.run_ahead([batch.feed for batch in first])
        loaded = _loaded(models, whole)
        origins = warn_of_models(loaded, original, integers.table if integers else None)
        with (
            open_models(
                loaded,
                running,
                original.inputs,
                metrics,
                declared,
                loading,
                threads=run.threads,
                rows=rows,
                integers=integers,
            ) as opened,
            warning_of_calibration_samples(origins, batches) as read,
            warning_of_overflow(opened.half, original, read, run.threads) as samples,
        ):
            # A single one is looked at where it is measured.
            if head and len(head.batches) > 1 and reads_layouts(metrics, first[0].labels, declared.picked):
                opened.look(Batches.of_shard(head, source).labelled())
            accuracy = compare_models(opened, samples, budget, progress=run.progress)
            accuracy = replace(accuracy, in_integers=opened.in_integers)
        return identified(accuracy, origins, original)


def _looked_at(
    batches: Batches, metrics: Sequence[Metric] | None, declared: DeclaredOutputs
) -> tuple[Shard | None, Batches]:
    """The first batches, where they may have to be looked at before any is measured; and all of them."""
    unknown = metrics is None and batches.labels is None  # which labels are read with the samples, if any
    if unknown or reads_layouts(metrics, batches.labels, declared.picked):
        return batches.begun(LOOKED_AT)
    return None, batches


def _loaded(models: Mapping[str, ModelSource], reference: Model) -> dict[str, Model | Path]:
    """Models that are loaded, and paths of engines."""
    loaded = {name: engine_path(one) or load_model(one) for name, one in models.items()}
    _refuse_exchanged(loaded, reference)
    return loaded


def _refuse_integers(model: ModelSource, run: RunOptions) -> None:
    """Refuses what cannot be computed in an arithmetic."""
    if not run.is_local:
        raise UnsupportedError(f"an arithmetic is followed in this process; leave {Argument('executor')} out")
    if plan := engine_path(model):
        raise ModelError(f"'{plan}' is an engine, which has its own arithmetic; give the float model")
    loaded = load_model(model)
    if loaded.is_quantized or integer_operators(loaded.graph_model):
        raise ModelError(
            f"'{loaded.name}' is quantized already, and an arithmetic quantizes by a table; give the float "
            f"model, or leave {Argument('arithmetic')} out: Q/DQ pairs are run as TensorRT's explicit route "
            "runs them"
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
