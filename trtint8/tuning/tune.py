"""Tuning as a whole: ranges and samples, the search, the validation of its result, and the files.

The result shows itself in a notebook and as a data frame.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx_ir as ir

from calibrators import records
from calibrators.checks import PATH_TYPES, FilePath, warn_user
from calibrators.data.batches import Batches, warning_of_inputs
from calibrators.data.feeds import FeedDict
from calibrators.data.inputs import DataOptions, InputSpec, has_fixed_batch
from calibrators.data.opening import DataSource, open_data
from calibrators.display.cards import html_table
from calibrators.display.picture import Picture, data_frame, plot_points
from calibrators.errors import Argument, CalibrationDataError, UnsupportedError, counted
from calibrators.files import refuse_losing, refuse_overwriting, write_atomically, written_together
from calibrators.histograms.thresholds import Method
from calibrators.progress import JUDGING, job
from calibrators.records import Count, NonNegative
from calibrators.run import RunOptions
from calibrators.tables.ranges import table_among
from calibrators.tables.table import CalibrationTable
from calibrators.tensorrt import flavor as flavors
from trtint8.arithmetic.simulation import IntegerRuns, simulate
from trtint8.builder.refusals import quantization_target
from trtint8.calibration import CalibrationOptions, calibrate_model
from trtint8.models.model import Model, check_model_name
from trtint8.models.outputs.picked import runnable_part, with_plugins
from trtint8.models.samples.joining import takes_one_sample
from trtint8.models.serialization import save_model
from trtint8.models.session import TAKES_ONE
from trtint8.quantization.config import Arithmetic
from trtint8.quantization.placement import place
from trtint8.quantization.quantize import tensor_names, with_float16
from trtint8.quantization.targets import DEFAULT, Target
from trtint8.tuning.candidates import Candidate, Scorer, Trial, float_cost
from trtint8.tuning.journal import Journal, JournalFile, TimeLimit
from trtint8.tuning.samples import (
    begin_judging,
    check_judging,
    divide,
    first_form,
    smaller_batch_size,
    split,
)
from trtint8.tuning.search import Recalibrate, Search
from trtint8.tuning.speed import SpeedGoal, SpeedPlanner
from trtint8.tuning.stopwatch import SpeedPlan
from trtint8.validation.accuracy import Accuracy, Judgement, Verdict, accuracy_html, accuracy_summary
from trtint8.validation.budget import Budget, Goal, Score
from trtint8.validation.class_scores import check_class_folders
from trtint8.validation.metrics import Metric

#: The name in results of the network that tuning started with.
BEFORE = "before"


@dataclass(frozen=True, repr=False)
class Tuned(records.Result):
    """The result of tuning.

    Attributes:
        candidate: The float model, its table and the layers that stay in float.
        score: The candidate's score on the samples that it was tuned on.
        graph_model: The model with Q/DQ pairs.
        accuracy: The tuned network compared with FP32 on the held-out samples. ``also`` has the network
            before tuning, under the name ``before``. ``judgement`` says whether these samples meet the goal.
        trials: What the search tried, in order.
        chosen: The index of the result in ``trials``.
        float_cost: The share of the network's arithmetic that stays in float, in [0, 1].
        goal: The goal of the search.
        complete: Whether everything was tried; False if the time limit ended the search.
        speed: The estimated times, and what was tried for them; None without a search for speed.
        float16: Whether everything outside INT8 is in FP16.
        warnings: What the calibration and the search warned of.
    """

    candidate: Candidate
    score: Score
    graph_model: ir.Model
    accuracy: Accuracy
    trials: tuple[Trial, ...]
    chosen: int
    float_cost: float
    goal: Goal
    complete: bool = True
    speed: SpeedPlan | None = None
    float16: bool = False
    warnings: tuple[str, ...] = ()

    def __repr__(self) -> str:
        kept = len(self.candidate.keep_float)
        fits = "within" if self.fits else "not within"
        judged = accuracy_summary(self.accuracy)
        missed = self.accuracy.judgement and not self.accuracy.judgement.fits
        elsewhere = " on the samples tuned on, not on those held out" if self.fits and missed else ""
        elsewhere = ", but not for certain" if self.verdict == "uncertain" and not missed else elsewhere
        layers = counted(kept, "layer")
        return f"<Tuned: {judged}, {layers} in float, {fits} the budget ({self.goal}){elsewhere}>"

    def save(self, output: FilePath, *, model: FilePath) -> Written:
        """Writes the Q/DQ model, and beside it the table, the float model where it changed, and the log.

        Args:
            output: Path of the Q/DQ model; the names of the other files begin with its stem.
            model: Path of the float model that was tuned.

        Returns:
            The files, and the command that makes the Q/DQ model again.

        Raises:
            OutputError: A file cannot be written, is the original model, or stands beside the output without
                being of an earlier tuning, or the output's name does not end in .onnx; then none is written.

        Warns:
            UserWarning: The samples do not show that the model keeps the budget.
        """
        output = check_model_name(output)
        table, log, float_file = files_beside(output)
        float_model = float_file if self.changed_weights else None
        source = float_model or Path(model)
        words = ["trtint8", "quantize", os.fspath(source), os.fspath(table), "-o", os.fspath(output)]
        for name in self.candidate.keep_float:
            words += ["--keep-float", name]
        target = self.candidate.target
        if target != DEFAULT:
            words += ["--target", target.name]
        if self.float16 and target.costs_with_float16:
            words += ["--keep-int8", "*"]
        command = shlex.join(words + (["--float16", "--float32-io"] if self.float16 else []))
        refuse_overwriting([path for path in (output, table, float_model, log) if path], [model])
        refuse_losing_files(output)
        log_of_search = TuningLog(
            command,
            self.candidate.keep_float,
            self.candidate.remedies,
            self.float_cost,
            self.trials,
            str(self.goal),
            self.speed,
            self.goal.name,
            self.goal.unit,
            self.chosen,
            self.warnings,
            self.candidate.modules,
            self.accuracy.judgement,
        )
        if not self.keeps_goal:
            warn_user(f"'{output}' is not shown to keep the budget ({self.goal})", kept=False)
        with written_together(output) as staged:
            if float_model:
                save_model(self.candidate.model.graph_model, staged(float_model))
            self.candidate.table.save(staged(table))
            save_model(self.graph_model, staged(output))
            write_atomically(staged(log), records.render(log_of_search))
        return Written(output, table, float_model, log, command)

    def _repr_html_(self) -> str:
        remedies = ", ".join(self.candidate.remedies) or "none"
        notes = (
            f"changed weights: {remedies}",
            f"layers in float: {self.candidate.in_float} ({100 * self.float_cost:.1f} % of the arithmetic)",
        )
        title = f"Judged with {counted(self.accuracy.samples, 'sample')} that the search did not use"
        return accuracy_html(title, self.accuracy, "tuned", notes) + trials_html(self.trials, self.goal)

    def to_json(self) -> dict[str, Any]:
        """Returns what ``trtint8 tune --json`` prints, without the files that it writes."""
        return {
            "goal": str(self.goal),
            "metric": self.goal.name,
            "unit": self.goal.unit,
            "fits": self.fits,
            "verdict": self.verdict,
            "complete": self.complete,
            "accuracy": self.accuracy.to_json(),
            "trials": records.as_json(self.trials),
            "chosen": self.chosen,
            "keep_float": list(self.candidate.keep_float),
            "modules": self.candidate.modules,
            "remedies": list(self.candidate.remedies),
            "float_cost": self.float_cost,
            "speed": records.as_json(self.speed),
            "warnings": list(self.warnings),
        }

    def plot(self) -> Picture:
        """Draws the metric of every candidate over the share of the arithmetic that it leaves in float.

        A point is filled if the search continued from its candidate. A ring marks the result, with its name
        and its 95 % interval on the samples tuned on, and a dashed line marks the budget.

        Returns:
            A picture that a notebook shows, and whose ``save`` writes an SVG or PNG file.

        Raises:
            UnsupportedError: Matplotlib is not installed.
        """
        goal, scored = self.goal, [(trial, trial.score.value) for trial in self.trials]
        points = [(trial.float_cost, value, trial.taken) for trial, value in scored if value is not None]
        title = f"{goal.name} over the share of the arithmetic in float"
        value = f"{goal.name}, {goal.unit}" if goal.unit else goal.name
        filled = f"{value} (filled: the search went on from it)"
        labels = "arithmetic in float, %", filled
        chosen = self.trials[self.chosen]
        return plot_points(
            points,
            goal.unit,
            title,
            labels,
            ringed=None if chosen.score.value is None else (chosen.float_cost, chosen.score.value),
            name=chosen.what,
            interval=chosen.score.interval,
            limit=goal.limit_of_value(chosen.score),
        )

    def to_pandas(self) -> Any:
        """Returns what the search tried, as a data frame.

        Returns:
            A ``pandas.DataFrame`` with one row per candidate and the columns ``what``, ``taken``, ``value``,
            ``drop``, ``value_percent``, ``drop_percent``, ``sqnr_db``, ``keep_float`` (a number of layers),
            ``float_cost`` and ``seconds``; see :class:`trtint8.tuning.candidates.Trial`.

        Raises:
            UnsupportedError: pandas is not installed.
        """
        of_score = ("value", "drop", "value_percent", "drop_percent", "sqnr_db")
        names = ("what", "taken", *of_score, "keep_float", "float_cost", "seconds")
        return data_frame(
            {
                name: [getattr(trial.score if name in of_score else trial, name) for trial in self.trials]
                for name in names
            }
        )

    @property
    def fits(self) -> bool:
        """True if the result meets the goal on the samples that it was tuned on."""
        return self.goal.fits(self.score)

    @property
    def verdict(self) -> Verdict | None:
        """What the samples that judge say of the goal; ``missed`` where those tuned on miss it.

        See :class:`trtint8.validation.accuracy.Judgement`.
        """
        judgement = self.accuracy.judgement
        return judgement.verdict if self.fits and judgement else "missed"

    @property
    def keeps_goal(self) -> bool:
        """True if the result meets the goal on those samples and on the samples that judge it."""
        judgement = self.accuracy.judgement
        return self.fits and (judgement is None or judgement.fits)

    @property
    def changed_weights(self) -> bool:
        """True if the float model differs from the original."""
        return bool(self.candidate.remedies)


@dataclass(frozen=True)
class TuneOptions:
    """What is searched for, and how.

    Attributes:
        through_clips: Whether channels that pass bounds are equalized too.
        round_weights: Whether adaptive rounding is among the remedies.
        float16: Whether everything outside INT8 becomes FP16. Layers that are estimated to be slower in INT8
            stay in float from the start.
        limit: How long the search may take. The samples that are held out are validated with afterwards.
        journal: Where the search keeps its trials, so that it can be continued; nowhere where None.
        on_goal: Called with the goal of the search, before the calibration.
        on_trial: Called with every trial, also with those of an interrupted search that is continued.
        speed: What the engine is to be fast on: layers that are slower in INT8 stay in float from the start.
            None leaves speed out.
        target: What the model is quantized for; with ``speed``, the TensorRT that builds.
        arithmetic: The backend in whose integers the result is judged; None judges it by its Q/DQ pairs.
    """

    through_clips: bool
    round_weights: bool
    float16: bool
    limit: TimeLimit
    journal: JournalFile | None
    on_goal: Callable[[Goal], None]
    on_trial: Callable[[Trial], None]
    speed: SpeedGoal | None
    target: Target
    arithmetic: Arithmetic | None


def _tune_prepared(
    prepared: Model,
    table: CalibrationTable,
    found_with: Batches,
    decided_by: Batches,
    held_out: Batches,
    goal: Goal,
    wanted: TuneOptions,
    recalibrate: Recalibrate | None,
    seed: int,
) -> Tuned:
    """Searches on some samples and validates the result on others.

    Args:
        prepared: From :func:`trtint8.models.model.prepare`; not changed.
        table: The model's calibration table; methods are chosen only if it has histograms.
        found_with: Samples that the search finds remedies with.
        decided_by: Samples that it makes its decisions with.
        held_out: Samples that the search never uses.
        goal: What the result has to keep.
        wanted: What is searched for, and how.
        recalibrate: Calibrates a model with equalized weights; None leaves equalization out.
        seed: Seed of all random choices.

    Returns:
        The best candidate found, as a model with Q/DQ pairs, and its accuracy on the held-out samples.

    Raises:
        CalibrationDataError: The metric does not apply to the model or the data.
        TableError: The table does not fit the model, or the journal is of another search.
        OutputError: The journal cannot be written.
        BuildError: TensorRT refuses the model, or the profile does not fit it.
        UnsupportedError: No layer is estimated to be faster in INT8 than in FP16.
    """
    speed, target, arithmetic, float16 = wanted.speed, wanted.target, wanted.arithmetic, wanted.float16
    if speed:
        target = quantization_target(flavors.load(speed.options.target), speed.options.build)
    before = start = Candidate(prepared, table, target=target)
    names = tensor_names(prepared.graph_model)
    table.check_model(prepared.fingerprint, start.placement.tensors, names)
    if arithmetic is not None:  # what it cannot run is said before the search
        simulate(prepared, table, arithmetic)
    opened = Journal()
    if wanted.journal:
        identity = {
            "model": prepared.fingerprint,
            "table": table.fingerprint,
            "layers_in_float": ", ".join(table.layers_in_float),
            "goal": str(goal),
            "equalization": recalibrate is not None,
            "equalization_through_clips": wanted.through_clips,
            "adaptive_rounding": wanted.round_weights,
            "seed": seed,
            "use_of_FP16": float16,
            "decided_by_other_samples": found_with is not decided_by,
            "target": target.name,
            "speed": speed.name if speed else None,
        }
        opened = wanted.journal.open(identity)
    planner = SpeedPlanner(prepared, table, speed, opened) if speed else None
    with job(keep=False):  # messages say what came of every engine
        plan = planner.plan(wanted.limit.half()) if planner else None
    in_float = plan.keep_float if plan else _slower_in_int8(start) if float16 else ()
    if in_float:
        start = replace(start, keep_float=in_float)
    opened.start_from(in_float)
    search = Search(
        Scorer(prepared, decided_by, goal.metric),
        goal.fits,
        samples=found_with,
        check_start=goal.check_reachable,
        recalibrate=recalibrate,
        through_clips=wanted.through_clips,
        round_weights=wanted.round_weights,
        seed=seed,
        on_trial=wanted.on_trial,
        journal=opened,
        limit=wanted.limit,
    )
    found = search.run(start)
    best = found.candidate
    graph_model = best.quantized()
    if float16:
        peaks = best.table.peaks
        graph_model, _ = with_float16(graph_model, target, float32_io=True, peaks=peaks, name=prepared.name)
    scorer = Scorer(prepared, held_out, goal.metric)
    metrics: Sequence[Metric] | None = [goal.metric, "sqnr"] if goal.chosen is None else None
    runs: tuple[ir.Model | IntegerRuns, ...] = graph_model, before.quantized()
    if arithmetic is not None:
        runs = tuple(scorer.in_integers(one, arithmetic) for one in (best, before))
    accuracy = scorer.compare(*(runs[0], metrics, {BEFORE: runs[1]}, goal, found.score), description=JUDGING)
    if planner and plan:
        with job(keep=False):
            plan = planner.completed(plan, best.keep_float)
    complete = found.complete and (plan is None or plan.complete)
    if not best.placement.quantized_nodes:
        warn_user(
            f"no layer is left in INT8 for the budget ({goal}); give a wider one, or build the model in FP16"
        )
    cost = float_cost(
        best.model.graph_model,
        (*best.keep_float, *best.table.layers_in_float),
        best.table.provenance.input_sizes,
    )
    trials, chosen = opened.trials, found.number
    return Tuned(
        best, found.score, graph_model, accuracy, trials, chosen, cost, goal, complete, plan, float16
    )


def _slower_in_int8(candidate: Candidate) -> tuple[str, ...]:
    """Names of the layers that are estimated to be slower in INT8 than in FP16.

    Raises:
        UnsupportedError: All layers are.
    """
    placement = place(candidate.model.graph_model, target=candidate.target, float16=True)
    if placement.all_slower:
        raise UnsupportedError(
            "no layer is estimated to be faster in INT8 than in FP16; build the model in FP16, or tune it "
            f"with {Argument('float16', 'False')}"
        )
    return placement.slower


@dataclass(frozen=True)
class TuningLog:
    """What the search tried, and what came of it: the file ``*.tuning.json``.

    Attributes:
        command: Makes the Q/DQ model anew from the other files.
        keep_float: Names of nodes that stay in float.
        remedies: What was done to the weights, in words and in order.
        float_cost: The share of the network's arithmetic that stays in float.
        trials: What the search tried, in order.
        goal: What the result had to keep, in words; empty where an earlier version has not written it.
        speed: The estimated times, and what was tried for them; None without a search for speed.
        metric: The metric's name; empty where an earlier version has not written it.
        unit: The unit of the metric: ``%``, ``dB``, or empty for its own.
        chosen: The index of the result in ``trials``; None where an earlier version has not written it.
        warnings: What the calibration and the search warned of; empty in files of version 0.2 and older.
        modules: Names of the nodes that stay in float to the modules of PyTorch that they come from, if
            known.
        judgement: What the samples to judge by say of the goal; None where an earlier version has written it.
    """

    command: str
    keep_float: tuple[str, ...]
    remedies: tuple[str, ...]
    float_cost: NonNegative
    trials: tuple[Trial, ...]
    goal: str = ""
    speed: SpeedPlan | None = None
    metric: str = ""
    unit: str = ""
    chosen: Count | None = None
    warnings: tuple[str, ...] = ()
    modules: Mapping[str, str] = field(default_factory=dict)
    judgement: Judgement | None = None


@dataclass(frozen=True)
class Written:
    """The files of a tuned model.

    Attributes:
        model: The model with Q/DQ pairs.
        table: The calibration table.
        float_model: The float model with changed weights; None where its weights are the original's.
        log: What the search tried, as JSON.
        command: The command line that makes ``model`` again from the other files.
    """

    model: Path
    table: Path
    float_model: Path | None
    log: Path
    command: str


def files_beside(output: Path) -> tuple[Path, Path, Path]:
    """The table, the log and the float model beside a tuned model."""
    table, log, float_model = (
        output.with_name(f"{output.stem}.{end}") for end in ("table.json", "tuning.json", "float.onnx")
    )
    return table, log, float_model


def refuse_losing_files(output: Path) -> None:
    """Refuses to write beside a tuned model over files that no earlier tuning has made.

    Args:
        output: Path of the Q/DQ model.

    Raises:
        OutputError: There is such a file.
    """
    table, log, float_model = files_beside(output)
    refuse_losing(output, [table, log], [float_model])


def tune_from_sources(
    prepared: Model,
    calibration: DataSource | CalibrationTable,
    data: DataSource,
    held_out: DataSource | None,
    budget: Budget,
    *,
    options: CalibrationOptions,
    data_options: DataOptions,
    wanted: TuneOptions,
    progress: bool,
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
        wanted: What is searched for, and how.
        progress: Whether progress bars are shown on a terminal or in a notebook.

    Returns:
        The best candidate found, with its accuracy on the held-out samples.

    Raises:
        TrtInt8Error: Always one of its subclasses, whose message says in one sentence what to do.
    """
    _check_others(calibration, data, held_out)
    known = table_among(calibration)
    if known and wanted.through_clips:
        raise CalibrationDataError(
            f"{Argument('equalize_clips')} changes weights and ranges, and a table has the ranges of the "
            f"weights as they are; give calibration samples, or leave {Argument('equalize_clips')} out"
        )
    whole, prepared = prepared, runnable_part(prepared)
    data_options = data_options.on_cpu(prepared.inputs, prepared.output_shapes)
    tuned_on, validated_on = _opened(data, held_out, prepared.inputs, data_options)
    if data_options.batch_size != 1 and takes_one_sample(prepared, tuned_on):
        warn_user(TAKES_ONE, note=True)
        data_options = replace(data_options, batch_size=1)
        tuned_on, validated_on = _opened(data, held_out, prepared.inputs, data_options)
    calibration_data = replace(data_options, labels=None, limit=None, groups=None)

    def calibrated(
        method: str, changed: Model, samples: Sequence[FeedDict] | None = None, spend: float = 0.0
    ) -> CalibrationTable:
        assert not isinstance(calibration, CalibrationTable)
        run, by_method = (
            RunOptions(progress=progress),
            replace(options, method=cast("Method", method), spend=spend),
        )
        if samples is not None:  # which are read already
            return calibrate_model(changed, lambda: iter(samples), by_method, DataOptions(), run)
        return calibrate_model(changed, calibration, by_method, calibration_data, run)

    form = first_form(prepared, tuned_on)
    goal = budget.goal(form)  # before the calibration, which may take long
    check_class_folders(tuned_on.class_names, form, [goal.name])
    wanted.on_goal(goal)
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
    with job(enabled=progress):
        table = known or calibrated(options.method, prepared, spend=options.spend)
        with warning_of_inputs(table.provenance.inputs, "the network", tuned_on, validated_on) as watched:
            found_with, decided_by = divide(watched[0])
            for some, of in ((decided_by, form), (watched[1], judged)):
                if some.num_samples is not None:
                    goal.check_certain(some.num_samples, of)
            tuned = _tune_prepared(
                prepared,
                table,
                found_with,
                decided_by,
                watched[1],
                goal,
                wanted,
                None if known else calibrated,
                data_options.seed,
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
    if not (isinstance(one, PATH_TYPES) and isinstance(other, PATH_TYPES)):
        return False
    return Path(one).resolve() == Path(other).resolve()


def _opened(
    data: DataSource, held_out: DataSource | None, inputs: Sequence[InputSpec], data_options: DataOptions
) -> tuple[Batches, Batches]:
    """The samples to tune on, and those to validate with: what is held out, or else half of the data."""
    # Data is shuffled where possible, so that all parts are alike.
    shuffled = replace(data_options, shuffle=isinstance(data, (str, os.PathLike, Mapping, np.ndarray)))
    groups = data_options.groups
    if groups is not None and has_fixed_batch(inputs):
        raise CalibrationDataError(
            f"the model takes batches of one size alone, which samples split by {Argument('groups')} do not "
            "fill; give a model with another batch, or one with a batch of 1"
        )
    if held_out is not None and isinstance(groups, (*PATH_TYPES, np.ndarray, Sequence)):
        raise CalibrationDataError(
            f"{Argument('groups')} has a label for each sample of the data, and none for those of "
            f"{Argument('judge')}; say how many samples in a row belong together, or leave "
            f"{Argument('judge')} out"
        )
    batches = open_data(data, inputs, shuffled)
    # In several batches, the samples that decide show how certain their figures are.
    if size := smaller_batch_size(batches, data_options, parts=32 if held_out is None else 16):
        batches = open_data(data, inputs, replace(shuffled, default_batch_size=size))
    if held_out is not None:
        return batches, open_data(held_out, inputs, replace(data_options, labels=None))
    return split(batches)


def _with_plugins(tuned: Tuned, whole: Model) -> Tuned:
    """What was found for the part of a model before its plugins, with these."""
    candidate = replace(tuned.candidate, model=whole)
    if tuned.changed_weights:
        changed = with_plugins(tuned.candidate.model.graph_model, whole.graph_model)
        candidate = candidate.with_weights(changed)
    graph_model = with_plugins(tuned.graph_model, whole.graph_model)
    return replace(tuned, candidate=candidate, graph_model=graph_model)


def trials_html(trials: Sequence[Trial], goal: Goal) -> str:
    """A table with one row per candidate that was tried.

    Args:
        trials: The candidates, in the order in which they were tried.
        goal: The goal of the search.
    """
    rows = [
        (
            trial.what,
            "yes" if trial.taken else "",
            goal.describe(trial.score),
            f"{trial.score.sqnr_db:.2f} dB",
            f"{100 * trial.float_cost:.1f} %",
            f"{trial.seconds:.1f} s",
        )
        for trial in trials
    ]
    return html_table(f"tried for {goal}", ("tried", "taken", goal.name, "SQNR", "in float", "time"), rows)
