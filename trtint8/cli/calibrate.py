"""`trtint8 calibrate`."""

from __future__ import annotations

import argparse

from calibrators.checkpoint import SECONDS as CHECKPOINT_SECONDS
from calibrators.distributed import RayExecutor
from calibrators.errors import UnsupportedError
from calibrators.files import check_writable
from calibrators.table import check_table_name
from trtint8 import calibration as steps
from trtint8.cli.data_options import add_data_options, add_method_option, preprocessing_from
from trtint8.cli.output import print_json, print_table, say
from trtint8.model import load_model, prepare

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
    parser.add_argument("--threads", type=int, metavar="N", help="threads; default all that it may use")
    parser.add_argument(
        "--resume",
        action="store_true",
        help="continue an interrupted run from TABLE.checkpoint, where there is one; with the same data",
    )
    parser.add_argument(
        "--checkpoint-seconds",
        type=float,
        default=CHECKPOINT_SECONDS,
        metavar="S",
        help="time between two writes of TABLE.checkpoint; default %(default)g",
    )
    parser.add_argument(
        "--ray",
        nargs="?",
        const="",
        metavar="ADDRESS",
        help="share the work out over Ray: the cluster there, else the one that Ray finds, else this "
        "machine; --threads is then each worker's, and there is no checkpoint",
    )
    parser.add_argument("--json", action="store_true", help="print a summary as JSON")
    add_data_options(parser)


def run(options: argparse.Namespace) -> None:
    """Calibrates and writes the table."""
    output = check_writable(check_table_name(options.output))
    ray = None if options.ray is None else RayExecutor(options.ray or None)
    if ray and options.resume:
        raise UnsupportedError("a calibration over Ray keeps no checkpoint to resume; leave --resume out")
    prepared = prepare(load_model(options.model))
    path = output.with_name(f"{output.name}.checkpoint")
    kept = (prepared, path, options.resume, options.checkpoint_seconds)
    checkpoint = None if ray else steps.checkpoint_for(*kept)
    if checkpoint and path.exists() and not options.resume:
        say(f"'{path}' is left from an interrupted run: beginning anew, without --resume")
    data = {
        "batch_size": options.batch_size,
        "limit": options.limit,
        "preprocessing": preprocessing_from(options),
    }
    calibration = steps.open_calibration(
        prepared, options.data, options.method, data, options.tensors, options.threads, ray
    )
    del prepared  # the session has weights of its own
    table = calibration.run(progress=True, checkpoint=checkpoint)
    table.save(output)
    if checkpoint:
        checkpoint.remove()
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
