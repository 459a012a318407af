"""Models and engines compared with their float model on one data set, in this process or over Ray."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from functools import partial

from calibrators.data.batches import DataSource, open_data
from calibrators.data.options import DataOptions
from calibrators.errors import ModelError
from calibrators.files import is_file
from calibrators.ray.run_options import RunOptions
from trtint8.engine.file import read_engine_info, sidecar_path
from trtint8.interop.integer_models import integer_operators
from trtint8.models.model import Model, ModelSource, load_model
from trtint8.models.recorded_states import with_recorded_states
from trtint8.models.runnable_part import picks_of_plugins, runnable_part
from trtint8.models.session import open_model
from trtint8.validation.accuracy import Accuracy
from trtint8.validation.comparison import compare_models
from trtint8.validation.measure import REFERENCE, VALIDATED
from trtint8.validation.metrics import Metric
from trtint8.validation.opening import engine_path, open_models
from trtint8.validation.output_shapes import DeclaredOutputs
from trtint8.validation.workers import compare_over_ray


def validate_models(
    model: ModelSource,
    data: DataSource,
    *,
    reference: ModelSource,
    also: Mapping[str, ModelSource],
    metrics: Sequence[Metric] | None,
    data_options: DataOptions,
    run: RunOptions,
    allow_host_code: bool = False,
    plugins: Sequence[str | os.PathLike[str]] = (),
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
        allow_host_code: Whether code that an engine contains may run; see
            :meth:`trtint8.runtime.engine.Engine.load`.
        plugins: Paths of shared libraries with the plugins that engines use.

    Returns:
        The comparison.

    Raises:
        TrtInt8Error: Always one of its subclasses, whose message says in one sentence what to do.

    Warns:
        UserWarning: An engine was made from another float model than the reference.
    """
    if taken := [name for name in also if name in (VALIDATED, REFERENCE)]:
        raise ModelError(
            f"'{taken[0]}' in also is the name of the {'model' if taken[0] == VALIDATED else 'reference'}; "
            "take another"
        )
    whole = load_model(reference)
    left_out = picks_of_plugins(whole)
    original = runnable_part(whole, left_out)
    models = {VALIDATED: model, **also}
    _refuse_exchanged(models, whole)
    _warn_of_other_models(models, original)
    recorded = with_recorded_states(data, original, run.threads)
    batches = open_data(recorded, original.inputs, data_options.on_cpu(original.inputs))
    if run.ray:
        return compare_over_ray(
            models,
            reference,
            original,
            batches,
            run.ray,
            left_out=left_out,
            metrics=metrics,
            threads=run.threads,
            allow_host_code=allow_host_code,
            plugins=plugins,
            progress=run.progress,
        )
    declared = DeclaredOutputs.of(original.graph_model, left_out)
    open_reference = partial(open_model, original, declared.sources, threads=run.threads)
    with open_models(
        models,
        open_reference,
        original.inputs,
        metrics,
        run.threads,
        declared,
        allow_host_code=allow_host_code,
        plugins=plugins,
    ) as opened:
        return compare_models(opened, batches, progress=run.progress)


def _refuse_exchanged(models: Mapping[str, ModelSource], reference: Model) -> None:
    """Refuses a float model that is compared with a quantized one."""
    if not reference.is_quantized:
        return
    for name, model in models.items():
        if engine_path(model) is not None:
            continue
        loaded = load_model(model)
        if not (loaded.is_quantized or integer_operators(loaded.graph_model)):
            raise ModelError(
                f"the reference '{reference.name}' holds Q/DQ pairs and '{loaded.name}', {name}, holds none; "
                "give the float model as reference"
            )


def _warn_of_other_models(models: Mapping[str, ModelSource], reference: Model) -> None:
    """Warns of every engine whose sidecar names another float model than the reference."""
    for plan in filter(None, map(engine_path, models.values())):
        if not (is_file(plan) and is_file(sidecar_path(plan))):
            continue
        info = read_engine_info(plan)
        # Without a table, the model that was built had Q/DQ pairs already or a calibrator of the user's.
        if info.table_fingerprint is not None and info.model_fingerprint != reference.fingerprint:
            warnings.warn(
                f"the engine '{plan}' was not made from the reference '{reference.name}', but from a float "
                f"model with the fingerprint {info.model_fingerprint[:12]} (the reference has "
                f"{reference.fingerprint[:12]}); give the model that the engine was made from",
                UserWarning,
                stacklevel=3,
            )
