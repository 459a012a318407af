"""`trtint8 report`."""

from __future__ import annotations

import argparse

from calibrators.files import check_writable
from trtint8.cli.arguments import refuse_overwriting_arguments
from trtint8.cli.data_options import add_data_options, add_loading_options, data_options_from
from trtint8.cli.output import print_line
from trtint8.cli.own_data import data_from, refuse_axes_and_states
from trtint8.report.writing import check_page_name, write_report
from trtint8.runtime.loading import LoadingOptions

EXAMPLE = (
    "examples:\n  trtint8 report out/ -o report.html\n"
    "  trtint8 report out/resnet50.engine -o report.html --model resnet50.onnx --data heldout/ \\\n"
    "      --resize 256 --crop 224,224 --mean 0.485,0.456,0.406 --std 0.229,0.224,0.225"
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments."""
    parser.add_argument(
        "paths",
        metavar="PATH",
        nargs="+",
        help="the folder that `trtint8 build` wrote to; an engine, with the files beside it; or files: a "
        "sidecar's engine, a Q/DQ model, a table or TensorRT's cache, and the JSON of sensitivity, validate, "
        "audit, bench and tune",
    )
    parser.add_argument("-o", "--output", required=True, metavar="OUT.html")
    parser.add_argument("--model", metavar="FP32.onnx", help="the float model: for the worst samples")
    parser.add_argument("--data", metavar="DATA", help="held-out data: for the worst samples")
    parser.add_argument("--labels", metavar="FILE", help="labels that do not come with the data")
    parser.add_argument(
        "--classes", dest="class_names", metavar="FILE", help="names of the classes, one per line"
    )
    add_loading_options(parser)
    add_data_options(parser)


def run(options: argparse.Namespace) -> None:
    """Gathers the facts and writes the page."""
    if options.data is None:
        refuse_axes_and_states(options, "without --data")
    output = check_writable(check_page_name(options.output))
    refuse_overwriting_arguments([output], options)
    write_report(
        options.paths,
        output,
        model=options.model,
        data=data_from(options.data, options),
        data_options=data_options_from(options),
        class_names=options.class_names,
        loading=LoadingOptions(options.allow_host_code, options.plugin),
    )
    print_line(f"written to '{output}'")
