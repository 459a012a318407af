"""`trtint8 report`."""

from __future__ import annotations

import argparse
from pathlib import Path

from trtint8.cli.output import print_line
from trtint8.cli.verbs import Way, add_arguments, refuse_overwriting_arguments, values_of
from trtint8.report.writing import write_report

EXAMPLE = (
    "examples:\n  trtint8 report out/ -o report.html\n"
    "  trtint8 report out/resnet50.engine -o report.html --model resnet50.onnx --data heldout/ \\\n"
    "      --resize 256 --crop 224,224 --mean 0.485,0.456,0.406 --std 0.229,0.224,0.225"
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments."""
    add_arguments(
        parser,
        write_report,
        sources=Way(metavar="PATH"),
        output=Way(metavar="OUT.html"),
        model=Way(metavar="FP32.onnx"),
    )


def run(options: argparse.Namespace) -> None:
    """Gathers the facts and writes the page."""
    refuse_overwriting_arguments([Path(options.output)], options)
    output = write_report(**values_of(write_report, options))
    print_line(f"written to '{output}'")
