"""`trtint8 tune`."""

from __future__ import annotations

import argparse
from pathlib import Path

from calibrators.errors import counted
from calibrators.files import check_writable
from calibrators.host.checkpoint import check_place, remove_checkpoint
from trtint8.api.accuracy import tune
from trtint8.cli.output import (
    print_facts,
    print_json,
    print_line,
    print_table,
    say,
    saying_what_is_kept,
    warn_where_uncertain,
)
from trtint8.cli.verbs import (
    Once,
    Way,
    add_arguments,
    command_to_continue,
    refuse_overwriting_arguments,
    values_of,
)
from trtint8.models.model import check_model_name
from trtint8.tuning.candidates import Trial
from trtint8.tuning.measured import MeasurementsNeededError
from trtint8.tuning.stopwatch import SpeedTrial
from trtint8.tuning.tune import BEFORE, Tuned, Written, files_beside, refuse_losing_files
from trtint8.validation.accuracy import REFERENCE, accuracy_rows, verdicts
from trtint8.validation.budget import Goal

#: The exit status where engines are to be timed on another machine first.
_TO_BE_MEASURED = 3

EXAMPLE = """examples:
  trtint8 tune mobilenet.onnx calibration.npz labelled.npz --max-drop 0.3 -o int8.onnx
  trtint8 tune detector.onnx calibration.npz samples.npz --metric sqnr --min 30 -o int8.onnx"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments."""
    add_arguments(
        parser,
        tune,
        without=("checkpoint",),
        json="the result",
        model=Way(help="the float ONNX model"),
        data=Way(help="samples to tune on, with labels where there are some"),
        metric=Way(
            metavar="NAME",
            help="a metric of 'trtint8 validate', or MODULE:FUNCTION. By default, for class scores top1, or "
            "agreement without labels; for detections map, if the labels are true boxes; and sqnr for other "
            "networks",
            action=Once,
        ),
        measure_with=Way(
            metavar="DIR",
            help="a folder for engines that are timed on another machine, with trtexec of TensorRT 8.5 to "
            "11. Their models and a script are written there. When the script has run on the other machine, "
            "call again: the search goes on with its times. --speed then names the GPU of the other machine, "
            "or is left out",
        ),
        resume=Way(
            help="continue an interrupted search from OUT.onnx.checkpoint, if it is there; the data has to "
            "be the same"
        ),
    )
    parser.add_argument("-o", "--output", required=True, metavar="OUT.onnx", help="the Q/DQ model to write")
    parser.add_argument(
        "--keep-best",
        action="store_true",
        help="write the best model found as OUT.onnx even if it misses the budget. By default it then "
        "becomes OUT.missed.onnx. The status is 1 in both cases",
    )


def run(options: argparse.Namespace) -> int:
    """Tunes, writes the files and prints the result.

    Returns:
        The exit status: 1 where the result misses the budget, and 3 where engines are to be timed on another
        machine first.
    """
    try:
        return int(not _tune(options).keeps_goal)
    except MeasurementsNeededError as needed:
        say(str(needed))
        return _TO_BE_MEASURED


def _tune(options: argparse.Namespace) -> Tuned:
    output, checkpoint = _paths(options)
    if checkpoint.exists() and not options.resume:
        say(f"'{checkpoint}' is left from an interrupted run: beginning anew, without --resume")
    progress = _Progress()
    with saying_what_is_kept(
        checkpoint, command_to_continue(options), survives_errors=lambda: progress.has_trials
    ):
        tuned = tune(
            **values_of(tune, options),
            checkpoint=checkpoint,
            on_goal=progress.say_goal,
            on_trial=progress.say_trial,
            on_speed_trial=progress.say_speed_trial,
        )
    if not tuned.complete:
        say(
            f"the time was over before everything was tried; the search continues from '{checkpoint}' with: "
            f"{command_to_continue(options)}",
            whole=True,
        )
    if not tuned.fits:
        say(
            f"nothing was found within the budget ({tuned.goal}); on the samples tuned on this has "
            f"{tuned.goal.describe(tuned.score)}"
        )
    if missed := not (tuned.keeps_goal or options.keep_best):
        output = _missed(output)
    warn_where_uncertain(tuned.accuracy.judgement)
    written = tuned.save(output, model=options.model)
    if missed:
        say(f"with --keep-best it is written as '{options.output}'")
    if tuned.complete:
        remove_checkpoint(checkpoint)
    if options.json:
        print_json({**tuned.to_json(), "files": written})
    else:
        _print(tuned, written)
    return tuned


def _missed(output: Path) -> Path:
    """The path of a model that misses the budget, so that none of this kind has the name asked for."""
    return output.with_name(f"{output.stem}.missed{output.suffix}")


def _paths(options: argparse.Namespace) -> tuple[Path, Path]:
    """The output and the checkpoint.

    Raises:
        OutputError: They, or the files beside them, cannot be written or would replace others.
    """
    output = check_writable(check_model_name(options.output))
    checkpoint = output.with_name(f"{output.name}.checkpoint")
    check_place(checkpoint)
    for model in (output,) if options.keep_best else (output, _missed(output)):
        beside = files_beside(model)
        refuse_overwriting_arguments([model, *beside], options)
        for path in beside:
            check_writable(path, named=False)  # their names are longer
        refuse_losing_files(model)
    return output, checkpoint


class _Progress:
    """Says on standard error what is searched for and what was tried.

    Attributes:
        has_trials: Whether something was tried, and so is in the checkpoint.
    """

    def __init__(self) -> None:
        self._goal: Goal | None = None
        self.has_trials = False

    def say_goal(self, goal: Goal) -> None:
        """Says what the result has to keep, and why it is measured so."""
        self._goal = goal
        for what in filter(None, (goal.chosen, goal.layout)):
            say(what)
        say(f"searching for {goal}")

    def say_trial(self, trial: Trial) -> None:
        """Says what was tried, with a plus sign where the search continues from it."""
        assert self._goal is not None
        self.has_trials = True
        mark = "+" if trial.taken else " "
        cost = f", {100 * trial.float_cost:.1f} % of the arithmetic in float" if trial.keep_float else ""
        level = "" if self._goal.name == "sqnr" else f", sqnr {trial.score.sqnr_db:.2f} dB"
        score = f"{self._goal.describe(trial.score)}{level}"
        say(f"{mark} {trial.what}: {score} ({trial.seconds:.1f} s{cost})")

    def say_speed_trial(self, trial: SpeedTrial) -> None:
        """Says how long an engine takes, with a plus sign as for other trials."""
        self.has_trials = True
        time = f"estimated {1e3 * trial.seconds:.4f} ms"
        if trial.least is not None and trial.most is not None:
            time = f"{1e3 * trial.seconds:.4f} ms ({1e3 * trial.least:.4f} to {1e3 * trial.most:.4f})"
            time += f", GPU at {trial.note}" if trial.note else ""
        say(f"{'+' if trial.taken else ' '} {trial.what}: {time}")


def _print(tuned: Tuned, written: Written) -> None:
    accuracy = tuned.accuracy
    columns = ("metric", REFERENCE, "tuned", *accuracy.also)
    print_table(
        f"Judged with {counted(accuracy.samples, 'sample')} that the search did not use",
        columns,
        accuracy_rows(accuracy),
    )
    for verdict in verdicts(accuracy, "tuned"):
        print_line(verdict.replace(f"{BEFORE} is", "before tuning it was"))
    if accuracy.in_integers is not None:
        print_line(f"{accuracy.judged}: {accuracy.in_integers.summary}")
    facts: list[tuple[str, object]] = [
        ("model", written.model),
        ("table", written.table),
        ("changed weights", ", ".join(tuned.candidate.remedies) or "none"),
        ("in float for the budget", tuned.candidate.in_float),
        ("in float for accuracy", tuned.candidate.table.float_layers or None),
        ("arithmetic in float", f"{100 * tuned.float_cost:.1f} %"),
        ("log", written.log),
    ]
    if speed := tuned.speed:
        times = (speed.seconds, speed.fp16_seconds, speed.int8_seconds)
        this, half, full = (f"{1e3 * seconds:.4f} ms" for seconds in times)
        found = "estimated" if speed.source == "estimated" else "measured"
        facts.append((f"{found} on {speed.gpu}", f"{this}; all in FP16 {half}; all in INT8 {full}"))
    print_facts("Tuned", facts)
    print_line(f"To make it anew: {written.command}")
