"""What the command line reads from text: data, metrics, and code of the user's named as MODULE:NAME."""

from __future__ import annotations

import argparse
import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from calibrators.data.feeds import BatchAxes
from calibrators.data.opening import kind_of
from calibrators.data.sequences import StateSequences
from calibrators.data.sources.streams import Stream
from calibrators.errors import CalibrationDataError, TrtInt8Error, failures_named, in_one_line
from calibrators.files import exists
from calibrators.imports import find_own_module
from calibrators.tables.files import is_table_name
from trtint8.cli.output import FIRST, named_values
from trtint8.validation.metrics import Metric, is_metric_name

_OWN = re.compile(r"(?!random:)([^\W\d]\w*(?:\.[^\W\d]\w*)*):([^\W\d]\w*)")


def named_object(text: str, kind: str, otherwise: str, wanted: str) -> Any:
    """The object that MODULE:NAME names, where a text has that form.

    The module is one that is installed, or a file of the current folder. Nothing else is ever imported from
    that folder, except by the module itself: see :mod:`calibrators.imports`.

    Args:
        text: The text.
        kind: What it stands for, for messages, such as ``data``.
        otherwise: What else it might be, for messages, such as ``a file``.
        wanted: What the module should have, for messages.

    Returns:
        The object; None where the text has another form.

    Raises:
        CalibrationDataError: The module cannot be imported, is both installed and a file of the current
            folder, or has no such name.
    """
    found = _OWN.fullmatch(text)
    if found is None:
        return None
    value = getattr(_imported(found[1], f"the {kind} '{text}'", otherwise), found[2], None)
    if value is None:
        raise CalibrationDataError(
            f"the {kind} '{text}': the module '{found[1]}' has no '{found[2]}'; name {wanted}"
        )
    return value


def _imported(name: str, what: str, otherwise: str) -> Any:
    importlib.invalidate_caches()
    folder, top = str(Path.cwd()), name.partition(".")[0]
    if _is_twice(top, folder):
        raise CalibrationDataError(
            f"{what}: there is a module '{top}' in the current folder, and another one is installed; rename "
            "that in the current folder"
        )
    find_own_module(top, folder)
    try:
        return importlib.import_module(name)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name and f"{name}.".startswith(f"{error.name}."):
            raise CalibrationDataError(
                f"{what} is neither {otherwise} nor a function: there is no module '{error.name}' in the "
                "current folder or among what is installed; check the spelling"
            ) from error
        why = str(error) if isinstance(error, TrtInt8Error) else f"{in_one_line(error)}; correct it"
        raise CalibrationDataError(f"{what}: the module '{name}' cannot be imported: {why}") from error


def _is_twice(name: str, folder: str) -> bool:
    """Whether a folder has a module, not imported yet, of a name that an installed one has."""
    here = PathFinder.find_spec(name, [folder])
    if name in sys.modules or here is None or here.origin is None:  # a folder without __init__.py gives way
        return False
    there = find_spec(name)
    return there is not None and there.origin != here.origin


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
    example, axis = "write for example 'state=1'", "(.+)=([0-9]{1,2})"
    return named_values("--batch-axis", given, "NAME=K", example, pattern=axis, read=int)


def _states(given: Sequence[str]) -> dict[str, str]:
    example = "write for example 'state=next_state'"
    return named_values("--state", given, "INPUT=OUTPUT", example, pattern=FIRST, read=str)


def _is_function(value: Any) -> bool:
    """Whether something is to be called: an iterable that can be called as well is data itself."""
    return callable(value) and not (hasattr(value, "__iter__") or hasattr(value, "__getitem__"))


def _called(function: Callable[[], Any], text: str) -> Any:
    with failures_named(
        f"the data '{text}': the function failed",
        "it is called without arguments and has to return a data loader",
    ):
        return function()


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


def metric_from(text: str) -> Metric:
    """The metric that an argument of ``--metric`` names.

    Args:
        text: The name of a metric, which may be followed by a colon and an output's name; or MODULE:NAME of
            a function, or of a metric over the data set. A class is called without arguments.

    Raises:
        CalibrationDataError: The module cannot be imported, has no such name, or the class cannot be called.
    """
    if is_metric_name(text):
        return text
    found = named_object(text, "metric", "a metric of trtint8", "a function or a metric of it")
    if found is None:
        return text  # refused with the names that there are, where metrics are checked
    if inspect.isclass(found):
        with failures_named(
            f"the metric '{text}': the class cannot be called without arguments",
            "name an object of the module instead",
        ):
            found = found()
    metric: Metric = found
    return metric
