"""`trtint8 calibrate`."""

from __future__ import annotations

import argparse

from calibrators.files import check_writable
from calibrators.host.checkpoint import check_place
from calibrators.tables.files import check_table_name
from trtint8.calibration import calibrate
from trtint8.cli.output import (
    named_nodes,
    print_facts,
    print_json,
    say,
    say_method_in_cache,
    saying_what_is_kept,
)
from trtint8.cli.verbs import Way, add_arguments, command_to_continue, refuse_overwriting_arguments, values_of

EXAMPLE = "example:\n  trtint8 calibrate resnet50.onnx calibration.npz -o resnet50.table.json --method mse"


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments."""
    add_arguments(
        parser,
        calibrate,
        without=("checkpoint",),
        json="a summary",
        output=Way(metavar="TABLE", required=True),
        resume=Way(
            help="continue an interrupted run from TABLE.checkpoint, where there is one; with the same data"
        ),
    )


def run(options: argparse.Namespace) -> None:
    """Calibrates and writes the table."""
    output = check_writable(check_table_name(options.output))
    refuse_overwriting_arguments([output], options)
    path = check_place(output.with_name(f"{output.name}.checkpoint"))
    if path.exists() and not options.resume:
        say(f"'{path}' is left from an interrupted run: beginning anew, without --resume")
    with saying_what_is_kept(path, command_to_continue(options)):
        table = calibrate(**values_of(calibrate, options), checkpoint=path)
    say_method_in_cache(table, output)
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
        print_json({**summary, "float_layers": table.float_layers, "left_out": left_out})
    else:
        nodes = named_nodes(left_out) if left_out else None
        layers = ("layers in float", table.float_layers)
        print_facts("Calibrated", [*summary.items(), layers, ("left out", nodes)])
