"""`trtint8 validate`."""

from __future__ import annotations

import argparse

from calibrators.errors import counted
from trtint8.cli.output import print_json, print_line, print_table, say, warn_where_uncertain
from trtint8.cli.verbs import Way, add_arguments, values_of
from trtint8.validation.accuracy import REFERENCE, Accuracy, accuracy_rows, verdicts
from trtint8.validation.metrics import NAMES, USUAL_NAMES
from trtint8.validation.tensors import TENSOR_COLUMNS, tensor_notes, tensor_rows
from trtint8.validation.validate import validate

EXAMPLE = """examples:
  trtint8 validate resnet50.engine heldout.npz --reference resnet50.onnx --json
  trtint8 validate int8.onnx heldout.npz --reference fp32.onnx --also FP16=fp16.onnx --metric top1
  trtint8 validate int8.onnx heldout.npz --reference fp32.onnx --max-drop 0.5
  trtint8 validate fp32.onnx heldout.npz --table fp32.table.json --arithmetic ncnn
  trtint8 validate int8.onnx heldout.npz --reference fp32.onnx --tensors '*relu*'"""

#: The help of --metric, where Python takes functions and objects as well.
METRICS = (
    f"{NAMES}; or MODULE:FUNCTION, a metric of yours. psnr:NAME measures another output than the first, and "
    "map:grid names the layout of detections. By default the outputs decide: for class scores top1 and top5 "
    "if there are labels, and agreement; for detections map and map50 if the labels are true boxes; for "
    f"every network {USUAL_NAMES}"
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments."""
    add_arguments(
        parser,
        validate,
        json="the comparison",
        model=Way(
            metavar="MODEL_OR_ENGINE",
            help="a Q/DQ model or an engine; with --arithmetic a float model or a Q/DQ one",
        ),
        data=Way(
            help="held-out data. Its labels are class indices, or arrays like an output: the key 'labels' of "
            "an .npz, or sub-folders"
        ),
        reference=Way(
            metavar="FP32.onnx", help="the FP32 model; with --arithmetic the model itself by default"
        ),
        table=Way(help="the calibration table of a float model, for --arithmetic"),
        tensors=Way(metavar="PATTERN"),
        also=Way(help="another model or engine to judge on the same samples"),
        metrics=Way(help=METRICS),
        max_drop=Way(help="how much the metric may lose, in points or in its own unit, like 0.3"),
        minimum=Way(
            help="the least value of the metric, in per cent or in its own unit, like 30 for 30 dB of sqnr. "
            "With --max-drop or --min the status is 1 if the samples miss it; a warning says if others may. "
            "The first --metric counts, or the one that 'trtint8 tune' takes by default",
        ),
    )


def run(options: argparse.Namespace) -> int:
    """Compares and prints.

    Returns:
        The exit status: 1 where the samples miss what ``--max-drop`` and ``--min`` ask for.
    """
    accuracy = validate(**values_of(validate, options))
    warn_where_uncertain(accuracy.judgement)
    _print(accuracy, as_json=options.json)
    judgement = accuracy.judgement
    if options.json and judgement is not None and judgement.verdict == "missed":
        say(judgement.notes[0])  # for the log of a job that keeps the JSON in a file
    return int(judgement is not None and not judgement.fits)


def _print(accuracy: Accuracy, *, as_json: bool) -> None:
    if as_json:
        print_json(accuracy)
        return
    sides = {accuracy.name: accuracy, **accuracy.also}
    described = "; ".join(f"{name} is {side.judged}" for name, side in sides.items())
    print_table(
        f"{counted(accuracy.samples, 'sample')}; {described}",
        ("metric", REFERENCE, *sides),
        accuracy_rows(accuracy),
    )
    if accuracy.chosen:
        print_line(accuracy.chosen)
    for verdict in verdicts(accuracy, accuracy.name):
        print_line(verdict)
    if accuracy.in_integers is not None:
        print_line(accuracy.in_integers.summary)
    for name, side in sides.items():
        if side.tensors is not None:
            print_table(
                f"Tensors inside, {name} beside {REFERENCE}", TENSOR_COLUMNS, tensor_rows(side.tensors)
            )
            for line in tensor_notes(side.tensors, name):
                print_line(line)
