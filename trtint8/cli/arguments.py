"""Arguments that several verbs have, and what was given as keywords of a call."""

from __future__ import annotations

import argparse
from typing import Any

from trtint8.cli.data_options import preprocessing_from


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
