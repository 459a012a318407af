"""Checks of options that users give, and what is lenient about them.

Warnings that name a line of the user's, however deep in the two packages they are found.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from numbers import Integral, Real
from pathlib import Path
from types import FrameType
from typing import Any, ParamSpec, TypeAlias, TypeVar

from calibrators.errors import (
    CalibrationDataError,
    OutputError,
    Part,
    TrtInt8Error,
    UnsupportedError,
    as_argument,
    call_of_the_user,
    in_python,
    parts_of,
)

#: A path as users give it.
FilePath: TypeAlias = str | os.PathLike[str]

#: The classes of such a path.
PATH_TYPES = (str, os.PathLike)

_Name = TypeVar("_Name", bound="FilePath")


def check_choice(
    option: str, value: object, choices: Sequence[str], error: type[TrtInt8Error] = UnsupportedError
) -> None:
    """Refuses a value that is none of an option's choices.

    Args:
        option: The option's name.
        value: What the user gave.
        choices: The values that it may have.
        error: What is raised.

    Raises:
        TrtInt8Error: The value is none of them.
    """
    if not (isinstance(value, str) and value in choices):
        raise error(f"{as_argument(option)} is {value!r}; use one of {', '.join(choices)}")


def positive_integer(option: str, value: object) -> int:
    """Reads a number of which there is one at least; NumPy's integers are numbers, too.

    Args:
        option: The option's name.
        value: What the user gave.

    Raises:
        CalibrationDataError: It is no integer, or less than 1.
    """
    number = as_integer(value)
    if number is None or number < 1:
        raise CalibrationDataError(
            f"{as_argument(option)} is {value!r}; give a positive integer or leave it out"
        )
    return number


def refuse_empty_path(what: str, path: object, error: type[TrtInt8Error]) -> None:
    """Refuses a text that is no path: an empty one, which would be the current folder, and one with a NUL.

    Args:
        what: What the path leads to.
        path: What the user gave, which need not be a path.
        error: What is raised.

    Raises:
        TrtInt8Error: It is such a text, or a path with a NUL.
    """
    if isinstance(path, str) and not path:
        raise error(f"the path of {what} is empty; give the path")
    if isinstance(path, PATH_TYPES) and "\0" in str(path):
        raise error(f"the path of {what}, {str(path)!r:.200}, has a NUL character; give the path")


def check_path(what: str, path: object, error: type[TrtInt8Error]) -> None:
    """Refuses what is no path where one is expected: see :func:`refuse_empty_path` for texts.

    Args:
        what: What the path leads to.
        path: What the user gave.
        error: What is raised.

    Raises:
        TrtInt8Error: It is neither a text nor a path, or a text that is none.
    """
    if not isinstance(path, PATH_TYPES):
        raise error(f"{what} is given as {type(path).__name__}; give the path")
    refuse_empty_path(what, path, error)


def check_mapping(
    option: str, value: object, content: str, error: type[TrtInt8Error] = UnsupportedError
) -> None:
    """Refuses what is no dict, or the like, where one is expected.

    Args:
        option: The option's name.
        value: What the user gave.
        content: What the dict says, such as "from tensor name to range".
        error: What is raised.

    Raises:
        TrtInt8Error: It is none.
    """
    if not isinstance(value, Mapping):
        raise error(f"{as_argument(option)} is {value!r:.80}; give a dict {content}")


@contextmanager
def located(place: str, error_type: type[TrtInt8Error] = CalibrationDataError) -> Iterator[None]:
    """Puts the place of what is wrong before what is said of it.

    Args:
        place: Such as ``item 3 of the data``.
        error_type: The errors that have no place yet, which are raised anew.

    Raises:
        TrtInt8Error: The block raised one.
    """
    try:
        yield
    except error_type as error:
        raise error_type(f"{place}: {error.template}") from error


def as_integer(value: object) -> int | None:
    """An integer of Python or of NumPy; None for anything else, a truth value too."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        return None
    return int(value)


def is_number(value: object) -> bool:
    """Whether a value is a number, of Python or of NumPy; a truth value is none."""
    return isinstance(value, Real) and not isinstance(value, bool)


def several(names: _Name | Iterable[_Name]) -> list[_Name]:
    """Names where several may be given: a single one by itself is one, not its letters.

    Raises:
        UnsupportedError: What was given is no name, and holds none.
    """
    if isinstance(names, PATH_TYPES):
        return [names]
    given: object = names
    try:
        if not isinstance(given, bytes):
            return list(names)
    except TypeError:  # also arrays without axes are iterable, until somebody tries
        pass
    raise UnsupportedError(
        f"{names!r:.80} is given where names are expected; give a string, or a list of them"
    )


def refuse_ending_alone(path: FilePath, endings: Sequence[str], error: type[TrtInt8Error]) -> None:
    """Refuses a file's name that is no more than its ending.

    Args:
        path: The file.
        endings: The endings, in small letters and with the dot.
        error: What is raised.

    Raises:
        TrtInt8Error: It is one of the endings.
    """
    if Path(path).name.lower() in endings:
        raise error(f"the name '{path}' is an ending alone; put a name before it")


def check_ending(path: FilePath, what: str, endings: tuple[str, ...]) -> Path:
    """Refuses a name that may be that of a file of another kind, before any work is done for it.

    Args:
        path: The file that a later step will write or replace.
        what: What it will hold, in words.
        endings: How its name may end, in small letters and with the dot; the first one is advised.

    Returns:
        ``path`` as a :class:`~pathlib.Path`.

    Raises:
        OutputError: The name is empty, ends otherwise, or is an ending alone, or what is given is no path.
    """
    check_path("a file to write", path, OutputError)
    path = Path(path)
    refuse_ending_alone(path, endings, OutputError)
    if path.suffix.lower() not in endings:
        raise OutputError(
            f"the name '{path}' does not end in {' or '.join(endings)}, as that of {what} does; end it in "
            f"{endings[0]}"
        )
    return path


_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class _Line:
    """A line of a program, as the module ``warnings`` takes it."""

    file: str
    number: int
    module: str
    registry: dict[Any, Any]

    @classmethod
    def of(cls, frame: FrameType) -> _Line:
        module = frame.f_globals
        registry = module.setdefault("__warningregistry__", {})
        return cls(frame.f_code.co_filename, frame.f_lineno, str(module.get("__name__")), registry)


_STARTED_BY: ContextVar[_Line | None] = ContextVar("the user's line that led to this thread", default=None)


class _ArgumentWarning(UserWarning):
    """A warning that names arguments of a public call.

    Attributes:
        parts: The message, as :class:`calibrators.errors.TrtInt8Error` has it.
    """

    def __init__(self, *parts: Part) -> None:
        super().__init__(in_python(parts))
        self.parts = parts


# What Python shows before the message. Users know that name, and the other warnings have it as well.
_ArgumentWarning.__name__ = UserWarning.__name__


#: Where what is warned of is kept, besides being shown: one list for each result that is being made.
_KEPT: ContextVar[tuple[list[str], ...]] = ContextVar("lists of warnings", default=())

#: What a warning that makes no figure doubtful begins with, where it is kept.
NOTE = "note: "

#: Makes the text of a warning that is kept.
_SPELLING: ContextVar[Callable[[object], str]] = ContextVar("how warnings are spelled", default=str)


@contextmanager
def keeping_warnings(
    earlier: Iterable[str] = (), spelling: Callable[[object], str] | None = None
) -> Iterator[list[str]]:
    """Keeps what :func:`warn_user` says, for the result that is made in the block.

    Args:
        earlier: Warnings of what the result is made from.
        spelling: Makes the texts of warnings that are kept in the block; by default as Python shows them.

    Yields:
        The warnings so far, each once.
    """
    said = list(dict.fromkeys(earlier))
    before = _KEPT.set((*_KEPT.get(), said))
    spelled = _SPELLING.set(spelling or _SPELLING.get())
    try:
        yield said
    finally:
        _SPELLING.reset(spelled)
        _KEPT.reset(before)


@contextmanager
def without_warnings() -> Iterator[None]:
    """Leaves out what is warned of in the block, as of ranges that are only tried; nor is it kept."""
    kept = _KEPT.set(())
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        _KEPT.reset(kept)


def kept_warnings() -> tuple[str, ...]:
    """What was warned of since the outermost :func:`keeping_warnings` began; empty outside of one."""
    return tuple(_KEPT.get()[0]) if _KEPT.get() else ()


def doubts_among(kept: Iterable[str]) -> tuple[str, ...]:
    """Those of the warnings that a result keeps that may make its figures doubtful."""
    return tuple(said for said in kept if not said.startswith(NOTE))


def notes_among(kept: Iterable[str]) -> tuple[str, ...]:
    """The other warnings that a result keeps, as they were shown."""
    return tuple(said.removeprefix(NOTE) for said in kept if said.startswith(NOTE))


def warn_user(
    message: str, category: type[Warning] = UserWarning, *, kept: bool = True, note: bool = False
) -> None:
    """Warns, at the line outside the two packages that led here.

    Modules are told by their names and not by their files: the ``__init__`` of a data class has no file.

    Args:
        message: What the user should know, and what to do.
        category: The warning's class; another one where the message names arguments.
        kept: Whether the results that are being made keep it.
        note: Whether their figures are as good as without it: reports show it below them.
    """
    line, parts = _users_line(), parts_of(message)
    named = any(not isinstance(part, str) for part in parts)
    said = _ArgumentWarning(*parts) if named else message
    text = (NOTE if note else "") + _SPELLING.get()(said)
    for said_before in _KEPT.get() if kept else ():
        if text not in said_before:
            said_before.append(text)
    warnings.warn_explicit(said, category, line.file, line.number, line.module, line.registry)


def with_users_line(function: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
    """A function for another thread, whose warnings name the line of the user's that leads here.

    Args:
        function: The function.
    """
    line, kept, spelling = _users_line(), _KEPT.get(), _SPELLING.get()

    def called(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Result:
        _STARTED_BY.set(line)
        _KEPT.set(kept)
        _SPELLING.set(spelling)
        return function(*args, **kwargs)

    return called


def _users_line() -> _Line:
    """The innermost line outside the two packages; where there is none, the one that led to this thread."""
    call = call_of_the_user()
    return _Line.of(call.f_back) if call.f_back else _STARTED_BY.get() or _Line.of(call)
