"""What the command line says of data: the text of DATA, the axes of its batches, and states."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from calibrators.data.feeds import BatchAxes
from calibrators.data.opening import kind_of
from calibrators.data.sequences import StateSequences
from calibrators.data.sources.streams import Stream
from calibrators.error_text import in_one_line
from calibrators.errors import CalibrationDataError, TrtInt8Error
from calibrators.files import exists
from calibrators.tables.file_names import is_table_name
from trtint8.cli.named_values import named_values
from trtint8.cli.own_code import named_object


def data_from(text: str | None, options: argparse.Namespace) -> Any:
    """What an argument for data says: MODULE:FUNCTION is imported and called; other text stays as it is.

    Args:
        text: The argument; None where it was not given. An existing file of that name is taken as a file.
        options: The parsed command line, of which ``--batch-axis`` and ``--state`` count.

    Returns:
        What the function returns, or the object of that name where it is not callable; or ``text``; with the
        batch axes and the states where there are any.

    Raises:
        CalibrationDataError: The module cannot be imported, has no such name, or the function fails; or a
            batch axis or a state is malformed, or a batch axis is given for what is no .npz.
    """
    if text is not None and not is_table_name(text):
        if options.state:
            return StateSequences(_named_data(text), _states(options.state), _axes(options.batch_axis))
        if options.batch_axis:
            return _with_axes(text, options.batch_axis)
    return _named_data(text)


def _named_data(text: str | None) -> Any:
    """What MODULE:FUNCTION returns; other text as it is."""
    if text is None or exists(text):
        return text
    value = named_object(text, "data", "a file", "a function of it that returns a data loader")
    if value is None:
        return text
    if not _is_function(value):
        return _guarded(value, lambda: value, text)
    return _guarded(_called(value, text), lambda: _called(value, text), text)


def _with_axes(text: str, given: Sequence[str]) -> BatchAxes:
    axes = _axes(given)
    if Path(text).suffix.lower() != ".npz":
        raise CalibrationDataError(f"--batch-axis is for a .npz, and the data is '{text}'; leave it out")
    return BatchAxes(text, axes)


def _axes(given: Sequence[str]) -> dict[str, int]:
    return named_values("--batch-axis", map(_axis, given), CalibrationDataError)


def _axis(text: str) -> tuple[str, int]:
    name, _, axis = text.rpartition("=")
    if not name or not re.fullmatch(r"[0-9]{1,2}", axis):
        raise CalibrationDataError(f"--batch-axis: '{text}' is not NAME=K; write for example 'state=1'")
    return name, int(axis)


def _states(given: Sequence[str]) -> dict[str, str]:
    return named_values("--state", map(_state, given), CalibrationDataError)


def _state(text: str) -> tuple[str, str]:
    name, _, output = text.partition("=")
    if not (name and output):
        raise CalibrationDataError(
            f"--state: '{text}' is not INPUT=OUTPUT; write for example 'state=next_state'"
        )
    return name, output


def _is_function(value: Any) -> bool:
    """Whether something is to be called: an iterable that can be called as well is data itself."""
    return callable(value) and not (hasattr(value, "__iter__") or hasattr(value, "__getitem__"))


def _called(function: Callable[[], Any], text: str) -> Any:
    try:
        return function()
    except TrtInt8Error:
        raise
    except Exception as error:
        raise CalibrationDataError(
            f"the data '{text}': the function failed: {in_one_line(error)}; it is called without arguments "
            "and has to return a data loader"
        ) from error


def _guarded(value: Any, again: Callable[[], Any], text: str) -> Any:
    """The data; where it is an iterable, one whose failures are reported in one sentence.

    Args:
        value: The data.
        again: Returns the data for another pass.
        text: How messages call it.
    """
    if value is None:
        raise CalibrationDataError(f"the data '{text}': the function returned None; return a data loader")
    if (
        not hasattr(value, "__iter__")
        or isinstance(value, (str, Path, Mapping))
        or hasattr(value, "__array__")
    ):
        return value
    if kind_of(value) is not Stream:
        return value
    first = [value]  # what was returned already begins the first pass

    def start() -> Iterator[Any]:
        source = first.pop() if first else (again() if isinstance(value, Iterator) else value)
        return _items_of(source, text)

    return start


def _items_of(source: Any, text: str) -> Iterator[Any]:
    index = 0
    try:
        for item in source:
            yield item
            index += 1
    except TrtInt8Error:
        raise
    except Exception as error:
        raise CalibrationDataError(
            f"the data '{text}' failed at item {index}: {in_one_line(error)}; correct the function"
        ) from error
