"""`trtint8 run`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from calibrators.data.feeds import Array
from calibrators.data.inputs import shape_text
from trtint8.api.running import run_engine
from trtint8.cli.output import print_json, print_table
from trtint8.cli.verbs import Way, add_arguments, refuse_overwriting_arguments, values_of

EXAMPLE = "example:\n  trtint8 run resnet50.engine images.npz -o outputs.npz --batch-size 8"


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments."""
    output = Way(metavar="OUT.npz", required=True)
    add_arguments(parser, run_engine, json="a summary", output=output)


def run(options: argparse.Namespace) -> None:
    """Runs the engine on all data and writes its outputs."""
    output = Path(options.output)
    refuse_overwriting_arguments([output], options)
    outputs = run_engine(**values_of(run_engine, options))
    if options.json:
        summary = {name: _summary(array) for name, array in outputs.items()}
        print_json({"written": str(output), "outputs": summary})
        return
    rows = [(name, *_described(array)) for name, array in outputs.items()]
    print_table(f"Written to {output}", ("output", "type", "shape", "least", "largest"), rows)


def _summary(array: Array) -> dict[str, Any]:
    extent = {"min": array.min().item(), "max": array.max().item()} if array.size else {}
    return {"shape": array.shape, "dtype": str(array.dtype), **extent}


def _described(array: Array) -> tuple[str, str, str, str]:
    extent = (f"{array.min():.6g}", f"{array.max():.6g}") if array.size else ("", "")
    return str(array.dtype), shape_text(array.shape), *extent
