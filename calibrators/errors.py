"""The one family of errors that both packages raise, and the words of their messages.

A message is one sentence: what was wrong, with the offending name and value, and what to do about it. A
parameter of a public call is named by an :class:`Argument`: Python and the command line spell it differently.
Where it depends on the call what can be done, :func:`advice` says all ways, and those that name a parameter
which the call lacks are left out. Errors of code that is not ours become words that fit into such a sentence.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import TypeAlias, TypeGuard

#: What an argument stands between in a text, what ways stand between, and what stands between two of them.
#: Unicode sets these apart: no text of a user's has them.
_BEGIN, _END = "\ufdd0", "\ufdd1"
_FIRST_WAY, _NEXT_WAY, _LAST_WAY = "\ufdd2", "\ufdd3", "\ufdd4"

_MARKED = re.compile(f"{_BEGIN}([^{_BEGIN}{_END}]*){_END}")
_WAYS = re.compile(f"{_FIRST_WAY}([^{_FIRST_WAY}{_LAST_WAY}]*){_LAST_WAY}")

#: Between the call, the name and the value of a marked argument.
_BETWEEN = "|"


@dataclass(frozen=True)
class Argument:
    """A parameter of a public call, in a message.

    In an f-string it stays data: ``f"{Argument('batch_size')} is 0"`` is for :class:`TrtInt8Error` and
    :func:`calibrators.checks.warn_user` alone.

    Attributes:
        name: The parameter, such as ``batch_size``; or the class of such a value, such as ``BatchAxes``.
        value: What is given for it, as Python writes it, such as ``True``; ``...`` for any value; empty where
            the parameter is only named.
        call: The public call that has the parameter, such as ``calibrate``; empty where it is the one that
            the message comes from.
    """

    name: str
    value: str = ""
    call: str = ""

    def __str__(self) -> str:
        given = f"{self.name}={self.value}" if self.value else self.name
        return f"{given} of trtint8.{self.call}" if self.call else given

    def __format__(self, specification: str) -> str:
        return f"{_BEGIN}{self.call}{_BETWEEN}{self.name}{_BETWEEN}{self.value}{_END}"

    def spelled(self, options: Mapping[str, str]) -> str:
        """Returns the argument as a command line has it.

        Args:
            options: The names of parameters to options; ``name=False`` to that which switches one off. What
                is not among them is written in words.
        """
        plain = options.get(self.name, self.name.replace("_", " "))
        option = options.get(f"{self.name}={self.value}", plain)
        if not self.value or self.value in ("...", "True", "False") or self.value.endswith("(...)"):
            return option
        return f"{option} {self.value}"


@dataclass(frozen=True)
class Advice:
    """What can be done about a mistake, in one way or another.

    Attributes:
        ways: The ways, each a text with the arguments in it.
    """

    ways: tuple[tuple[str | Argument, ...], ...]

    def __format__(self, specification: str) -> str:
        return advice(*("".join(map(format, way)) for way in self.ways))

    def open_to(self, names: Container[str] | None) -> tuple[str | Argument, ...]:
        """The ways that a call with these parameters has, with ``, or`` between them; else the last way."""
        open_ways = (
            way
            for way in self.ways
            if names is None or all(part.name in names for part in way if _is_own(part))
        )
        parts = tuple(part for way in open_ways for part in (", or ", *way))
        return parts[1:] or self.ways[-1]


def _is_own(part: str | Argument) -> TypeGuard[Argument]:
    """True if a part names a parameter of the call that the message comes from."""
    return isinstance(part, Argument) and not part.call


#: The parts of a message.
Part: TypeAlias = str | Argument | Advice


def advice(*ways: str) -> str:
    """Returns what a user can do, for an f-string of :class:`TrtInt8Error` or of a warning.

    Args:
        ways: One way or more, with arguments as an f-string has them. Those that name a parameter which the
            call or the verb lacks are not shown. The last one names none, so that one is always left.
    """
    return f"{_FIRST_WAY}{_NEXT_WAY.join(ways)}{_LAST_WAY}"


def as_argument(text: str) -> Argument | str:
    """Returns the argument of that name; words in place of a name stay words."""
    return Argument(text) if text.isidentifier() else text


def parts_of(text: str) -> tuple[Part, ...]:
    """The texts of a message, and the arguments and ways between them.

    Args:
        text: The message, with arguments as an f-string has them.
    """
    parts: list[Part] = []
    for index, piece in enumerate(_WAYS.split(text)):
        if index % 2:
            parts.append(Advice(tuple(map(_arguments_in, piece.split(_NEXT_WAY)))))
        else:
            parts += _arguments_in(piece)
    return tuple(parts)


def _arguments_in(text: str) -> tuple[str | Argument, ...]:
    return tuple(
        _argument(piece) if index % 2 else piece for index, piece in enumerate(_MARKED.split(text)) if piece
    )


def _argument(marked: str) -> Argument:
    call, name, value = marked.split(_BETWEEN, 2)
    return Argument(name, value, call)


def followed(parts: Iterable[Part], names: Container[str] | None) -> Iterator[str | Argument]:
    """The parts of a message, with the ways that are open to a call or a verb.

    Args:
        parts: The message.
        names: The parameters that the call has, or that the verb spells; None where it takes any.
    """
    for part in parts:
        yield from part.open_to(names) if isinstance(part, Advice) else (part,)


def in_python(parts: Sequence[Part]) -> str:
    """A message as Python shows it, with the ways that are open to the call that the user's line makes."""
    advises = any(isinstance(part, Advice) for part in parts)
    return "".join(map(str, followed(parts, _parameters_of_the_call() if advises else ())))


#: Packages and modules that are no user's: the two packages, what calls their context managers, and what
#: their threads begin with.
_PASSED_OVER = frozenset({"calibrators", "trtint8", "contextlib", "threading", "concurrent"})


def call_of_the_user() -> FrameType:
    """The frame of the call by which a line outside the two packages led here.

    The frame behind it is the user's; there is none in a thread of the packages' own.
    """
    frame = inspect.currentframe()
    assert frame is not None
    while frame.f_back and str(frame.f_back.f_globals.get("__name__")).partition(".")[0] in _PASSED_OVER:
        frame = frame.f_back
    return frame


def _parameters_of_the_call() -> Container[str] | None:
    """The parameters of the function that a user's line has called; None where that takes any."""
    code = call_of_the_user().f_code
    if code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS):
        return None
    return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]


class TrtInt8Error(Exception):
    """Base of every error that a user can cause or correct.

    Attributes:
        parts: The message: texts, and between them each :class:`Argument` of a public call, and
            :class:`Advice` where there are several ways.
    """

    def __init__(self, message: object = "") -> None:
        self.parts = parts_of(str(message))
        super().__init__(in_python(self.parts))

    @property
    def template(self) -> str:
        """The message for the f-string of another one, in which arguments stay data."""
        return "".join(map(format, self.parts))


class ModelError(TrtInt8Error):
    """The ONNX model cannot be read, is invalid, or lacks something that the call needs."""


class CalibrationDataError(TrtInt8Error):
    """The calibration or validation data does not fit the model, or is unusable."""


class DamagedFileError(CalibrationDataError):
    """One of many files of data cannot be read. Its samples can be left out: see ``DataOptions.skip_bad``."""


class TableError(TrtInt8Error):
    """A calibration table or cache is malformed, stale, or belongs to another model."""


class OutputError(TrtInt8Error):
    """A file cannot be written."""


class UnsupportedError(TrtInt8Error):
    """Something is not available in this installation. The message says what has it."""


class BuildError(TrtInt8Error):
    """TensorRT refused the network or failed to build the engine."""


class EngineError(TrtInt8Error):
    """An engine file or its sidecar is unusable."""


class GpuUnavailableError(TrtInt8Error):
    """The call needs an NVIDIA GPU and driver, and there is none."""


class GpuMemoryError(TrtInt8Error):
    """The GPU has too little free memory, or the host too little page-locked memory."""


class WorkerError(TrtInt8Error):
    """A worker of a Ray cluster died repeatedly."""


#: Characters of what an error says that are kept.
_MOST = 300


def in_one_line(error: BaseException) -> str:
    """An error as one line.

    Args:
        error: The error.

    Returns:
        Its type and at most 300 characters of what it says, without a full stop.
    """
    kind, words = type(error).__name__, in_words(error)
    return kind if words == kind else f"{kind}: {words}"


def in_words(error: BaseException) -> str:
    """What an error says, as one line of at most 300 characters without a full stop; its type if nothing.

    Args:
        error: The error.
    """
    return " ".join(str(error).split())[:_MOST].rstrip(".") or type(error).__name__


def cause_in_words(error: BaseException) -> str:
    """What the error that began a chain of errors says, as :func:`in_words`.

    Args:
        error: The last one of the chain.
    """
    while error.__cause__ is not None:
        error = error.__cause__
    return in_words(error)


#: Numbers of bytes from which one digit after the point is enough, in megabytes.
_WHOLE_MEGABYTES = 10_000_000


def counted(number: int, noun: str, form: str = "") -> str:
    """A number and what it counts, such as ``1 sample`` or ``500 samples``.

    Args:
        number: How many there are.
        noun: What is counted, in the singular; its plural ends in ``s``.
        form: How the number is written, as in :func:`format`.
    """
    return f"{number:{form}} {noun}{'' if number == 1 else 's'}"


def titled(name: str, module: str) -> str:
    """A node or a tensor with its module of PyTorch, such as ``node_Gemm_3 (encoder.dense)``.

    Args:
        name: Its name, perhaps in quotation marks. One that is a path already is left alone.
        module: The path of the module; empty where it is not known.
    """
    return f"{name} ({module})" if module and not name.lstrip("'").startswith("/") else name


def enumerated(names: Iterable[str], most: int = 5) -> str:
    """The first of some names, and how many more there are, such as ``'a', 'b' and 3 more``.

    Args:
        names: The names, as they are written.
        most: How many of them are written.
    """
    every = list(names)
    more = f" and {len(every) - most} more" if len(every) > most else ""
    return ", ".join(every[:most]) + more


def such_as(names: Iterable[object], most: int = 3) -> str:
    """The first of the names that there are, for a message about another one; ``none`` if there are none.

    Args:
        names: The names.
        most: How many of them are written.
    """
    return enumerated(map(repr, names), most) or "none"


def megabytes(count: int) -> str:
    """A number of bytes in units of 10^6."""
    return f"{count / 1e6:,.{1 if count >= _WHOLE_MEGABYTES else 3}f} MB"


@contextmanager
def failures_named(failure: str, advice: str = "correct it") -> Iterator[None]:
    """Says which function failed; the error itself is the cause of the one that is raised.

    Args:
        failure: What failed, in words.
        advice: What to do.

    Raises:
        CalibrationDataError: What stands in the block fails.
    """
    try:
        yield
    except TrtInt8Error:
        raise
    except Exception as error:
        raise CalibrationDataError(f"{failure}: {in_one_line(error)}; {advice}") from error
