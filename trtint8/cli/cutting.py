"""The option ``--cut-at``: only what comes before some tensors is calibrated, quantized and built."""

from __future__ import annotations

import argparse
from pathlib import Path

from calibrators.files import check_writable
from trtint8.cli.arguments import refuse_overwriting_arguments
from trtint8.models.model import load_float_model, prepare
from trtint8.models.outputs.cutting import CutModel, cut_model

#: How the names of the files end that hold the float model up to the cut, and the rest of it.
FLOAT, TAIL = "float.onnx", "tail.onnx"


def add_cut_option(parser: argparse.ArgumentParser, written: str) -> None:
    """Adds ``--cut-at``.

    Args:
        parser: The verb's parser.
        written: What is written in addition, in words.
    """
    parser.add_argument(
        "--cut-at",
        action="append",
        default=[],
        metavar="TENSOR",
        help=f"take the model up to this tensor only, which becomes an output{written}; repeatable",
    )


def cut_from(model: str, options: argparse.Namespace) -> CutModel | None:
    """The model in two parts, the first of them prepared; None where it is not to be cut.

    Args:
        model: The path of the model.
        options: The parsed command line, of which ``--cut-at`` counts.

    Raises:
        ModelError: The model is unusable or quantized, or cannot be cut there.
    """
    if not options.cut_at:
        return None
    cut = cut_model(prepare(load_float_model(model)), options.cut_at)
    return CutModel(prepare(cut.head), cut.tail)


def files_of_cut(output: Path, options: argparse.Namespace) -> dict[str, Path]:
    """The files that are written beside the output of a cut model: the float head and the tail.

    Args:
        output: The file that is written.
        options: The parsed command line, which says what is read.

    Raises:
        OutputError: A file cannot be written, or is one of those that are read.
    """
    files = {
        end: check_writable(output.with_name(f"{output.stem}.{end}"), named=False) for end in (FLOAT, TAIL)
    }
    refuse_overwriting_arguments(files.values(), options)
    return files
