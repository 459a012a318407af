"""Arguments that several verbs have, and what was given as keywords of a call."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from calibrators.checks import several
from calibrators.files import refuse_overwriting
from trtint8.cli.data_options import preprocessing_from

#: The arguments of all verbs that name what is read.
_READ = (
    "cache",
    "calibration",
    "class_names",
    "data",
    "dynamic_ranges",
    "engine",
    "equalize",
    "judge",
    "labels",
    "model",
    "network",
    "paths",
    "preprocess",
    "runs",
    "table",
    "timing_cache",
)


def refuse_overwriting_arguments(outputs: Iterable[Path], options: argparse.Namespace) -> None:
    """Refuses to write a file that the command line names as one to read.

    Args:
        outputs: The files that will be written.
        options: The parsed command line.

    Raises:
        OutputError: An output is one of the files that are read.
    """
    given = (getattr(options, name, None) for name in _READ)
    refuse_overwriting(outputs, [path for value in given if value is not None for path in several(value)])


def add_budget_options(parser: argparse.ArgumentParser, otherwise: str) -> None:
    """Adds the limits of a metric.

    Args:
        parser: The parser of a verb.
        otherwise: What holds without them, as the end of a sentence.
    """
    parser.add_argument(
        "--max-drop",
        type=float,
        metavar="POINTS",
        help="how much the metric may lose, in points or in its own unit, like 0.3",
    )
    parser.add_argument(
        "--min",
        dest="minimum",
        type=float,
        metavar="VALUE",
        help="the least value of the metric, in per cent or in its own unit, like 30 for 30 dB of sqnr; "
        f"{otherwise}",
    )


def add_keep_float_option(parser: argparse.ArgumentParser) -> None:
    """Adds the option for nodes that stay in float."""
    parser.add_argument(
        "--keep-float",
        action="append",
        default=[],
        metavar="PATTERN",
        help="nodes that stay in float; repeatable",
    )


def add_keep_int8_option(parser: argparse.ArgumentParser) -> None:
    """Adds the option for nodes that are in INT8 although FP16 would be faster."""
    parser.add_argument(
        "--keep-int8",
        action="append",
        default=[],
        metavar="PATTERN",
        help="with FP16 around INT8: nodes in INT8 although that is estimated to be slower; repeatable",
    )


def keywords(options: argparse.Namespace, *names: str) -> dict[str, Any]:
    """The values of arguments whose names are also those of a call's keywords.

    Args:
        options: The parsed command line.
        names: The names of the arguments.
    """
    return {name: getattr(options, name) for name in names}


def data_keywords(options: argparse.Namespace) -> dict[str, Any]:
    """The keywords that every call with a data set takes.

    Raises:
        CalibrationDataError: The preprocessing is malformed.
    """
    return {**keywords(options, "batch_size", "limit"), "preprocessing": preprocessing_from(options)}
