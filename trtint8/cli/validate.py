"""`trtint8 validate`."""

from __future__ import annotations

import argparse

from trtint8 import api
from trtint8.cli.data_options import add_data_options, preprocessing_from
from trtint8.cli.output import accuracy_rows, print_json, print_table

EXAMPLE = "example:\n  trtint8 validate resnet50.engine heldout.npz --reference resnet50.onnx --json"


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments."""
    parser.add_argument("model", metavar="MODEL_OR_ENGINE", help="a Q/DQ model or an engine")
    parser.add_argument(
        "data", metavar="DATA", help="held-out data; labels from its key 'labels' or sub-folders"
    )
    parser.add_argument("--reference", required=True, metavar="FP32.onnx")
    parser.add_argument(
        "--labels", metavar="FILE", help="labels that do not come with the data (.npy or .npz)"
    )
    parser.add_argument("--json", action="store_true", help="print the comparison as JSON")
    add_data_options(parser)


def run(options: argparse.Namespace) -> None:
    """Compares and prints."""
    accuracy = api.validate(
        options.model,
        options.data,
        reference=options.reference,
        labels=options.labels,
        batch_size=options.batch_size,
        limit=options.limit,
        preprocessing=preprocessing_from(options),
    )
    if options.json:
        print_json(accuracy)
    else:
        title = f"{accuracy.samples} samples; INT8 is {accuracy.judged}"
        print_table(title, ("", "FP32", "INT8"), accuracy_rows(accuracy))
