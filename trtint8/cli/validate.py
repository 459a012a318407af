"""`trtint8 validate`."""

from __future__ import annotations

import argparse

from calibrators.display.counts import counted
from calibrators.errors import ModelError
from trtint8.api import validation
from trtint8.cli.arguments import add_budget_options, data_keywords, keywords
from trtint8.cli.data_options import (
    add_data_options,
    add_loading_options,
    add_worker_options,
    executor_from,
)
from trtint8.cli.named_values import named_values
from trtint8.cli.output import print_json, print_line, print_table
from trtint8.cli.own_data import data_from
from trtint8.cli.own_metrics import metric_from
from trtint8.quantization.arithmetics import ARITHMETICS
from trtint8.validation.accuracy import Accuracy
from trtint8.validation.measure import REFERENCE, VALIDATED
from trtint8.validation.wording import accuracy_rows, verdicts

EXAMPLE = """examples:
  trtint8 validate resnet50.engine heldout.npz --reference resnet50.onnx --json
  trtint8 validate int8.onnx heldout.npz --reference fp32.onnx --also FP16=fp16.onnx --metric top1
  trtint8 validate int8.onnx heldout.npz --reference fp32.onnx --max-drop 0.5
  trtint8 validate fp32.onnx heldout.npz --table fp32.table.json --arithmetic ncnn"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments."""
    parser.add_argument(
        "model", metavar="MODEL_OR_ENGINE", help="a Q/DQ model or an engine; with --arithmetic a float model"
    )
    parser.add_argument(
        "data",
        metavar="DATA",
        help="held-out data; labels, class indices or arrays like an output, from its key 'labels' or "
        "sub-folders",
    )
    parser.add_argument(
        "--reference",
        metavar="FP32.onnx",
        help="the FP32 model; with --arithmetic the model itself by default",
    )
    parser.add_argument("--table", metavar="TABLE", help="the calibration table for --arithmetic")
    parser.add_argument(
        "--arithmetic",
        choices=list(ARITHMETICS),
        help="run the float model in the integers of a backend: TensorRT's explicit or implicit INT8, the "
        "DLA, ncnn or QNNPACK",
    )
    parser.add_argument(
        "--also",
        action="append",
        default=[],
        metavar="NAME=MODEL",
        help="another model or engine to judge on the same samples; may be repeated",
    )
    parser.add_argument(
        "--metric",
        action="append",
        metavar="NAME",
        help="top1, top5 or any topK, agreement, psnr, pixels, miou, detections, map, map50, sqnr, cosine, "
        "max_error, token_cosine; of another output than the first as in psnr:NAME; of detections in a "
        "layout that you know as in map:grid; or MODULE:FUNCTION, a metric of yours; may be repeated; by "
        "default what the outputs' shapes say: for class scores top1 and top5 with labels, and agreement; "
        "for detections map and map50 with true boxes as labels; for every network sqnr, cosine and "
        "max_error",
    )
    parser.add_argument(
        "--labels",
        metavar="FILE",
        help="labels that do not come with the data (.npy or .npz; boxes of images: COCO's .json)",
    )
    add_budget_options(
        parser,
        "with --max-drop or --min the status is 1 where the samples miss it, by the first --metric, or by "
        "the one that 'trtint8 tune' takes by default",
    )
    add_worker_options(parser)
    add_loading_options(parser)
    parser.add_argument("--json", action="store_true", help="print the comparison as JSON")
    add_data_options(parser)


def run(options: argparse.Namespace) -> int:
    """Compares and prints.

    Returns:
        The exit status: 1 where the samples miss what ``--max-drop`` and ``--min`` ask for.
    """
    accuracy = validation.validate(
        options.model,
        data_from(options.data, options),
        reference=options.reference,
        table=options.table,
        arithmetic=options.arithmetic,
        also=_named(options.also),
        labels=options.labels,
        metrics=[metric_from(text) for text in options.metric] if options.metric else None,
        **keywords(options, "max_drop", "minimum"),
        **data_keywords(options),
        executor=executor_from(options),
        threads=options.threads,
        allow_host_code=options.allow_host_code,
        plugins=options.plugin,
    )
    _print(accuracy, as_json=options.json)
    return int(accuracy.judgement is not None and not accuracy.judgement.fits)


def _print(accuracy: Accuracy, *, as_json: bool) -> None:
    if as_json:
        print_json(accuracy)
        return
    sides = {VALIDATED: accuracy, **accuracy.also}
    described = "; ".join(f"{name} is {side.judged}" for name, side in sides.items())
    print_table(
        f"{counted(accuracy.samples, 'sample')}; {described}",
        ("", REFERENCE, *sides),
        accuracy_rows(accuracy),
    )
    if accuracy.chosen:
        print_line(accuracy.chosen)
    for verdict in verdicts(accuracy, VALIDATED):
        print_line(verdict)
    if accuracy.in_integers is not None:
        print_line(accuracy.in_integers.summary)


def _named(pairs: list[str]) -> dict[str, str]:
    return named_values("--also", map(_pair, pairs), ModelError)


def _pair(text: str) -> tuple[str, str]:
    name, _, model = text.partition("=")
    if not (name and model):
        raise ModelError(f"--also '{text}' is no NAME=MODEL; write for example FP16=model_fp16.onnx")
    return name, model
