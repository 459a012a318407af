"""Prepares tuning: ranges from samples or from a table, samples to tune on, and held-out samples."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from calibrators.data.batches import Batches
from calibrators.data.feeds import FeedDict
from calibrators.data.inputs import DataOptions, InputSpec
from calibrators.data.opening import DataSource, open_data
from calibrators.errors import Argument, CalibrationDataError
from calibrators.run import RunOptions
from calibrators.tables.source import table_among
from calibrators.tables.table import CalibrationTable
from calibrators.user_warnings import warn_user
from trtint8.calibration import CalibrationOptions, calibrate_model
from trtint8.models.model import Model, rebuilt
from trtint8.models.outputs.runnable_part import runnable_part, with_plugins
from trtint8.models.samples.joining import takes_one_sample
from trtint8.models.session import TAKES_ONE
from trtint8.quantization.targets import TARGETS, Target
from trtint8.tuning.first_form import first_form
from trtint8.tuning.journal import JournalFile
from trtint8.tuning.judge_samples import begin_judging, check_judging
from trtint8.tuning.speed_plan import SpeedGoal
from trtint8.tuning.splitting import smaller_batch_size, split
from trtint8.tuning.time_limit import TimeLimit
from trtint8.tuning.trial import Trial
from trtint8.tuning.tune import Tuned, tune_prepared
from trtint8.validation.budget import Budget, Goal
from trtint8.validation.class_scores import check_class_folders


def tune_from_sources(
    prepared: Model,
    calibration: DataSource | CalibrationTable,
    data: DataSource,
    held_out: DataSource | None,
    budget: Budget,
    *,
    options: CalibrationOptions,
    data_options: DataOptions,
    round_weights: bool,
    float16: bool,
    limit: TimeLimit,
    journal: JournalFile | None,
    on_goal: Callable[[Goal], None],
    on_trial: Callable[[Trial], None],
    progress: bool,
    speed: SpeedGoal | None = None,
    target: Target = TARGETS["tensorrt"],
) -> Tuned:
    """Opens samples and ranges, and tunes.

    Args:
        prepared: The float model, from :func:`trtint8.models.model.prepare`.
        calibration: Calibration samples, a table, or the file that holds one.
        data: Samples to tune on.
        held_out: Samples to validate the result with; every other batch of ``data`` where None.
        budget: How much accuracy may be lost.
        options: How ranges are chosen where ``calibration`` holds samples.
        data_options: How samples are read; ``labels`` belong to ``data``, ``limit`` to ``data`` and
            ``held_out``.
        round_weights: Whether adaptive rounding is tried.
        float16: Whether what stays in float becomes FP16.
        limit: How long the search may take.
        journal: Where the search keeps its trials, so that it can be continued; nowhere where None.
        on_goal: Called with what the result has to keep, before the calibration.
        on_trial: Called with every trial of the search.
        progress: Whether a progress bar is shown while calibrating.
        speed: What the engine is to be fast on; None leaves speed out.
        target: What the model is quantized for; with ``speed``, the TensorRT that builds.

    Returns:
        The best candidate found, with its accuracy on the held-out samples.

    Raises:
        TrtInt8Error: Always one of its subclasses, whose message says in one sentence what to do.
    """
    _check_others(calibration, data, held_out)
    whole, prepared = prepared, runnable_part(prepared)
    data_options = data_options.on_cpu(prepared.inputs, prepared.output_shapes)
    tuned_on, validated_on = _opened(data, held_out, prepared.inputs, data_options)
    if data_options.batch_size != 1 and takes_one_sample(prepared, tuned_on):
        warn_user(TAKES_ONE)
        data_options = replace(data_options, batch_size=1)
        tuned_on, validated_on = _opened(data, held_out, prepared.inputs, data_options)
    calibration_data = replace(data_options, labels=None, limit=None)

    def calibrated(changed: Model, samples: Sequence[FeedDict] | None = None) -> CalibrationTable:
        assert not isinstance(calibration, CalibrationTable)
        if samples is not None:  # which are read already
            quiet = RunOptions(progress=False)
            return calibrate_model(changed, lambda: iter(samples), options, DataOptions(), quiet)
        run = RunOptions(progress=progress)
        return calibrate_model(changed, calibration, options, calibration_data, run)

    form = first_form(prepared, tuned_on)
    goal = budget.goal(form)  # before the calibration, which may take long
    check_class_folders(tuned_on.class_names, form, [goal.name])
    on_goal(goal)
    judged, begun = form, validated_on
    if held_out is not None:
        judged, begun = begin_judging(prepared, goal, form, validated_on)
    if isinstance(held_out, Iterator):  # which can be read only once, after the search
        validated_on = begun
    elif not check_judging(prepared, goal, judged, validated_on):  # half of data of unknown length
        raise CalibrationDataError(
            "the data is one batch, which cannot be split into samples to tune on and samples to judge by; "
            f"give more samples, a smaller {Argument('batch_size')}, or other samples to judge by"
        )
    known = table_among(calibration)
    tuned = tune_prepared(
        prepared,
        known or calibrated(prepared),
        tuned_on,
        validated_on,
        goal,
        recalibrate=None if known else calibrated,
        round_weights=round_weights,
        float16=float16,
        seed=data_options.seed,
        limit=limit,
        journal=journal,
        on_trial=on_trial,
        speed=speed,
        target=target,
    )
    return tuned if whole is prepared else _with_plugins(tuned, whole)


def _check_others(
    calibration: DataSource | CalibrationTable, data: DataSource, held_out: DataSource | None
) -> None:
    """Compares the names of the files: the samples to judge by are to be other ones.

    Raises:
        CalibrationDataError: They are those to tune on.

    Warns:
        UserWarning: They are those to calibrate with.
    """
    if held_out is not None and _are_one_file(held_out, data):
        raise CalibrationDataError(
            f"the samples to judge by are those to tune on, '{held_out}'; leave {Argument('judge')} out, so "
            "that every other batch judges, or give other samples"
        )
    if _are_one_file(calibration, data if held_out is None else held_out):
        warn_user(
            f"the samples to judge by are also calibrated with ('{calibration}'), so that the accuracy may "
            "look better than it is; give held-out samples"
        )


def _are_one_file(one: object, other: object) -> bool:
    if not (isinstance(one, str | os.PathLike) and isinstance(other, str | os.PathLike)):
        return False
    return Path(one).resolve() == Path(other).resolve()


def _opened(
    data: DataSource, held_out: DataSource | None, inputs: Sequence[InputSpec], data_options: DataOptions
) -> tuple[Batches, Batches]:
    """The samples to tune on, and those to validate with: what is held out, or else half of the data."""
    # Data is shuffled where possible, so that both halves are alike.
    shuffled = replace(data_options, shuffle=isinstance(data, (str, os.PathLike, Mapping, np.ndarray)))
    batches = open_data(data, inputs, shuffled)
    if held_out is not None:
        return batches, open_data(held_out, inputs, replace(data_options, labels=None))
    if size := smaller_batch_size(batches, data_options):
        batches = open_data(data, inputs, replace(shuffled, default_batch_size=size))
    return split(batches)


def _with_plugins(tuned: Tuned, whole: Model) -> Tuned:
    """What was found for the part of a model before its plugins, with these."""
    candidate = replace(tuned.candidate, model=whole)
    if tuned.changed_weights:
        changed = with_plugins(tuned.candidate.model.graph_model, whole.graph_model)
        model, table = rebuilt(changed, whole.name), tuned.candidate.table
        provenance = replace(table.provenance, model=model.fingerprint)
        candidate = replace(candidate, model=model, table=replace(table, provenance=provenance))
    graph_model = with_plugins(tuned.graph_model, whole.graph_model)
    return replace(tuned, candidate=candidate, graph_model=graph_model)
