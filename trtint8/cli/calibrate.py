"""`trtint8 calibrate`."""

from __future__ import annotations

import argparse

from calibrators.files import check_writable
from calibrators.host.checkpoint import SECONDS as CHECKPOINT_SECONDS
from calibrators.host.checkpoint import check_place
from calibrators.ray.run_options import RunOptions
from calibrators.tables.cache_origin import refuse_foreign_sidecar
from calibrators.tables.file_names import check_table_name
from calibrators.tables.loss_warning import noise_warning
from calibrators.tables.table import CalibrationTable
from trtint8.calibration import CalibrationOptions, CheckpointOptions, calibrate_model
from trtint8.cli.arguments import refuse_overwriting_arguments
from trtint8.cli.cache_method import say_method_in_cache
from trtint8.cli.cutting import add_cut_option
from trtint8.cli.data_options import (
    DATA_HELP,
    add_data_options,
    add_method_option,
    add_worker_options,
    data_options_from,
    executor_from,
)
from trtint8.cli.kept_progress import saying_what_is_kept
from trtint8.cli.output import named_nodes, print_json, print_table, say
from trtint8.cli.own_data import data_from

EXAMPLE = "example:\n  trtint8 calibrate resnet50.onnx calibration.npz -o resnet50.table.json --method mse"


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments."""
    parser.add_argument("model", metavar="MODEL", help="a float ONNX model")
    parser.add_argument("data", metavar="DATA", help=DATA_HELP)
    parser.add_argument(
        "-o",
        "--output",
        required=True,
        metavar="TABLE",
        help="a .json, or a .cache for TensorRT; other endings name other formats",
    )
    add_method_option(parser)
    add_cut_option(parser, "; quantize and build it with the same --cut-at")
    parser.add_argument(
        "--tensors",
        choices=("all", "placed"),
        default="all",
        help="placed: only those that get Q/DQ pairs; default all",
    )
    add_worker_options(parser, "all that this process may use")
    parser.add_argument(
        "--device",
        default="cpu",
        help="where the model runs: cpu, cuda, or cuda:1 for the second GPU; default %(default)s",
    )
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
        help="seconds between two writes of TABLE.checkpoint; default %(default)g",
    )
    parser.add_argument("--json", action="store_true", help="print a summary as JSON")
    add_data_options(parser)


def run(options: argparse.Namespace) -> None:
    """Calibrates and writes the table."""
    output = check_writable(check_table_name(options.output))
    if output.suffix.lower() == ".cache":
        refuse_foreign_sidecar(output)
    refuse_overwriting_arguments([output], options)
    run_options = RunOptions(options.threads, executor_from(options), options.device)
    path = check_place(output.with_name(f"{output.name}.checkpoint"))
    if path.exists() and not options.resume:
        say(f"'{path}' is left from an interrupted run: beginning anew, without --resume")

    def save(table: CalibrationTable) -> None:
        table.save(output)
        say_method_in_cache(table, output)

    with saying_what_is_kept(path, "--resume"):
        table = calibrate_model(
            options.model,
            data_from(options.data, options),
            CalibrationOptions(options.method, options.tensors),
            data_options_from(options),
            run_options,
            CheckpointOptions(path, options.resume, options.checkpoint_seconds),
            cut_at=options.cut_at,
            on_table=save,
        )
    summary = {
        "table": str(output),
        "method": table.method,
        "tensors": len(table.amax),
        "samples": table.provenance.samples,
    }
    if table.choice:
        summary["chosen"] = table.choice.reason
    left_out = table.provenance.left_out
    if options.json:
        print_json({**summary, "left_out": left_out})
    else:
        rows = [(key, str(value)) for key, value in summary.items()]
        if left_out:
            rows.append(("left out", named_nodes(left_out)))
        print_table("Calibrated", ("", ""), rows)
    if warning := noise_warning(table.choice):
        say(f"warning: {warning}")
