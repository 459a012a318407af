"""`trtint8 report`."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from calibrators.data.batches import open_batches
from calibrators.errors import CalibrationDataError, ModelError, UnsupportedError
from calibrators.files import check_writable, write_atomically
from trtint8.cli.data_options import add_data_options, preprocessing_from
from trtint8.models.model import load_model, runnable
from trtint8.report.files import Found, find
from trtint8.validation.accuracy import VALIDATED, onnx_runner
from trtint8.validation.opening import open_validated

if TYPE_CHECKING:
    from trtint8.report.facts import Report
    from trtint8.report.worst import Worst

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
        "sidecar's engine, a Q/DQ model, a table, and the JSON of sensitivity, validate and bench",
    )
    parser.add_argument("-o", "--output", required=True, metavar="OUT.html")
    parser.add_argument("--model", metavar="FP32.onnx", help="the float model: for the worst samples")
    parser.add_argument("--data", metavar="DATA", help="held-out data: for the worst samples")
    parser.add_argument("--labels", metavar="FILE", help="labels that do not come with the data")
    parser.add_argument("--classes", metavar="FILE", help="names of the classes, one a line")
    add_data_options(parser)


def run(options: argparse.Namespace) -> None:
    """Gathers, and writes the page."""
    gather, render = _renderer()
    output = check_writable(options.output)
    found = find(options.paths)
    worst = _worst(options, found) if options.data else None
    if options.data is None and options.classes:
        raise CalibrationDataError("--classes has no effect without --data")
    report = gather(found, model=Path(options.model) if options.model else None, worst=worst)
    write_atomically(output, render(report).encode())


def _worst(options: argparse.Namespace, found: Found) -> Worst:
    """Runs both models on the data."""
    from trtint8.report.worst import find_worst

    judged = found.paths.get("qdq") or found.paths.get("engine")
    if options.model is None:
        raise ModelError("--data shows the worst samples, which needs the float model too; give --model")
    if judged is None:
        raise ModelError(
            "--data shows the worst samples, which needs the Q/DQ model or the engine; give one of them"
        )
    original = load_model(options.model)
    preprocessing = preprocessing_from(options)
    batches = open_batches(
        options.data,
        original.inputs,
        batch_size=options.batch_size,
        limit=options.limit,
        preprocessing=preprocessing,
        labels=options.labels,
    )
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(runnable(original.graph_model))
        reference, names = onnx_runner(file, optimize=True)
        side = stack.enter_context(open_validated(VALIDATED, judged, original.inputs, names))
        return find_worst(
            side,
            reference,
            names,
            original.inputs,
            batches,
            preprocessing=preprocessing,
            class_names=_class_names(options.classes),
        )


def _class_names(path: str | None) -> tuple[str, ...]:
    if path is None:
        return ()
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise CalibrationDataError(f"cannot read the class names '{path}': {error}") from error
    return tuple(line.strip() for line in lines if line.strip())


def _renderer() -> tuple[Callable[..., Report], Callable[[Report], str]]:
    """What needs the extra; refused before any work where that is missing."""
    try:
        from trtint8.report.facts import gather
        from trtint8.report.page import render
    except ImportError as error:
        raise UnsupportedError(
            f"a report needs '{error.name}', which is not installed: pip install \"trtint8[report]\""
        ) from error
    return gather, render
