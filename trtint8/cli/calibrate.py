"""`trtint8 calibrate`."""

from __future__ import annotations

import argparse

from calibrators.files import check_writable
from calibrators.table import check_table_name
from trtint8 import api
from trtint8.cli.data_options import add_data_options, add_method_option, preprocessing_from
from trtint8.cli.output import print_json, print_table

EXAMPLE = "example:\n  trtint8 calibrate resnet50.onnx calibration.npz -o resnet50.table.json --method mse"


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments."""
    parser.add_argument("model", metavar="MODEL", help="a float ONNX model")
    parser.add_argument("data", metavar="DATA", help="an .npz, a folder of images or arrays, or random:COUNT")
    parser.add_argument(
        "-o", "--output", required=True, metavar="TABLE", help=".json, or .cache for TensorRT's"
    )
    add_method_option(parser)
    parser.add_argument(
        "--tensors", choices=("all", "placed"), default="all", help="placed: only those that Q/DQ needs"
    )
    parser.add_argument("--threads", type=int, metavar="N", help="threads within an operator")
    parser.add_argument("--json", action="store_true", help="print a summary as JSON")
    add_data_options(parser)


def run(options: argparse.Namespace) -> None:
    """Calibrates and writes the table."""
    output = check_writable(check_table_name(options.output))
    table = api.calibrate(
        options.model,
        options.data,
        method=options.method,
        batch_size=options.batch_size,
        limit=options.limit,
        preprocessing=preprocessing_from(options),
        tensors=options.tensors,
        threads=options.threads,
    )
    table.save(output)
    summary = {
        "table": str(output),
        "method": table.method,
        "tensors": len(table.amax),
        "samples": table.provenance.samples,
    }
    if options.json:
        print_json(summary)
    else:
        print_table("Calibrated", ("", ""), [(key, str(value)) for key, value in summary.items()])
