"""Warnings that name a line of the user's, however deep in the two packages they are found."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from types import FrameType
from typing import Any, ParamSpec, TypeVar

from calibrators.errors import Argument, parts_of

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")

#: Packages and modules that are no user's: the two packages, what calls their context managers, and what
#: their threads begin with.
_PASSED_OVER = frozenset({"calibrators", "trtint8", "contextlib", "threading", "concurrent"})


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


class ArgumentWarning(UserWarning):
    """A warning that names arguments of a public call.

    Attributes:
        parts: The message: texts, and the :class:`calibrators.errors.Argument` between them.
    """

    def __init__(self, *parts: str | Argument) -> None:
        super().__init__("".join(map(str, parts)))
        self.parts = parts


def warn_user(message: str, category: type[Warning] = UserWarning) -> None:
    """Warns, at the line outside the two packages that led here.

    Modules are told by their names and not by their files: the ``__init__`` of a data class has no file.

    Args:
        message: What the user should know, and what to do.
        category: The warning's class; another one where the message names arguments.
    """
    line, parts = _users_line(), parts_of(message)
    named = any(isinstance(part, Argument) for part in parts)
    said = ArgumentWarning(*parts) if named else message
    warnings.warn_explicit(said, category, line.file, line.number, line.module, line.registry)


def with_users_line(function: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
    """A function for another thread, whose warnings name the line of the user's that leads here.

    Args:
        function: The function.
    """
    line = _users_line()

    def called(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Result:
        _STARTED_BY.set(line)
        return function(*args, **kwargs)

    return called


def _users_line() -> _Line:
    """The innermost line outside the two packages; where there is none, the one that led to this thread."""
    frame = inspect.currentframe()
    assert frame is not None
    while str(frame.f_globals.get("__name__")).partition(".")[0] in _PASSED_OVER:
        if frame.f_back is None:
            return _STARTED_BY.get() or _Line.of(frame)
        frame = frame.f_back
    return _Line.of(frame)
