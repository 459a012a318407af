"""`trtint8 tune`."""

from __future__ import annotations

import argparse

from calibrators.files import check_writable
from trtint8 import api
from trtint8.cli.arguments import data_keywords, keywords
from trtint8.cli.data_options import add_data_options, add_method_option
from trtint8.cli.output import print_json, print_line, print_table, say
from trtint8.tuning.search import Trial
from trtint8.tuning.tune import BEFORE, Tuned, Written, save_tuned
from trtint8.validation.accuracy import REFERENCE
from trtint8.validation.wording import accuracy_rows, verdicts

EXAMPLE = "example:\n  trtint8 tune mobilenet.onnx calibration.npz labelled.npz --max-drop 0.3 -o int8.onnx"


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments."""
    parser.add_argument("model", metavar="MODEL", help="the float ONNX model")
    parser.add_argument(
        "calibration", metavar="CALIBRATION", help="calibration samples, or a table with histograms"
    )
    parser.add_argument("data", metavar="DATA", help="samples to tune on, with labels where there are some")
    parser.add_argument("-o", "--output", required=True, metavar="OUT.onnx")
    parser.add_argument(
        "--max-drop",
        type=float,
        required=True,
        metavar="POINTS",
        help="how much the metric may lose, like 0.3",
    )
    parser.add_argument(
        "--metric", metavar="NAME", help="topK or agreement; default top1, without labels agreement"
    )
    parser.add_argument("--labels", metavar="FILE", help="labels that do not come with DATA")
    parser.add_argument(
        "--judge",
        metavar="DATA",
        help="other samples to judge the result by; default every other batch of DATA",
    )
    add_method_option(parser)
    parser.add_argument("--round-weights", action="store_true", help="also try adaptive rounding; slow")
    parser.add_argument("--float16", action="store_true", help="convert layers that stay in float to FP16")
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="seed of everything that is random; default 0"
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    add_data_options(parser)


def run(options: argparse.Namespace) -> None:
    """Tunes, writes the files and prints the result."""
    output = check_writable(options.output)
    tuned = api.tune(
        options.model,
        options.calibration,
        options.data,
        **keywords(
            options, "max_drop", "metric", "labels", "judge", "method", "round_weights", "float16", "seed"
        ),
        **data_keywords(options),
        on_trial=_say_trial,
    )
    if tuned.score.drop > options.max_drop:
        say(f"nothing was found within the budget; this loses {tuned.score.drop:.2f} on the samples tuned on")
    written = save_tuned(tuned, options.model, output, float16=options.float16)
    if options.json:
        print_json(
            {
                "accuracy": tuned.accuracy,
                "trials": tuned.trials,
                "keep_float": tuned.candidate.keep_float,
                "remedies": tuned.candidate.remedies,
                "float_cost": tuned.float_cost,
                "files": written,
            }
        )
    else:
        _print(tuned, written)


def _say_trial(trial: Trial) -> None:
    mark = "+" if trial.taken else " "
    cost = f", {100 * trial.float_cost:.1f} % of the arithmetic in float" if trial.keep_float else ""
    say(
        f"{mark} {trial.what}: drop {trial.score.drop:.2f}, {trial.score.sqnr_db:.2f} dB "
        f"({trial.seconds:.1f} s{cost})"
    )


def _print(tuned: Tuned, written: Written) -> None:
    accuracy = tuned.accuracy
    columns = ("", REFERENCE, "tuned", *accuracy.also)
    print_table(f"{accuracy.samples} samples that nothing was decided on", columns, accuracy_rows(accuracy))
    for verdict in verdicts(accuracy, "tuned"):
        print_line(verdict.replace(f"{BEFORE} is", "before tuning it was"))
    rows = [
        ("model", str(written.model)),
        ("table", str(written.table)),
        ("changed weights", ", ".join(tuned.candidate.remedies) or "none"),
        ("layers in float", ", ".join(tuned.candidate.keep_float) or "none"),
        ("arithmetic in float", f"{100 * tuned.float_cost:.1f} %"),
        ("log", str(written.log)),
    ]
    print_table("Tuned", ("", ""), rows)
    print_line(f"To make it anew: {written.command}")
