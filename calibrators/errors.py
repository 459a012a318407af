"""The one family of errors that both packages raise.

A message is one sentence: what was wrong, with the offending name and value, and what to do about it. A
parameter of a public call is named by an :class:`Argument`: Python and the command line spell it differently.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

#: What an argument stands between in a text. Unicode sets these two apart: no text of a user's has them.
_BEGIN, _END = "\ufdd0", "\ufdd1"

_MARKED = re.compile(f"{_BEGIN}([^{_BEGIN}{_END}]*){_END}")


@dataclass(frozen=True)
class Argument:
    """A parameter of a public call, in a message.

    In an f-string it stays data: ``f"{Argument('batch_size')} is 0"`` is for :class:`TrtInt8Error` and
    :func:`calibrators.checks.warn_user` alone.

    Attributes:
        name: The parameter, such as ``batch_size``; or the class of such a value, such as ``BatchAxes``.
        value: What is given for it, as Python writes it, such as ``True``; ``...`` for any value; empty where
            the parameter is only named.
    """

    name: str
    value: str = ""

    def __str__(self) -> str:
        return f"{self.name}={self.value}" if self.value else self.name

    def __format__(self, specification: str) -> str:
        return f"{_BEGIN}{self!s}{_END}"

    def spelled(self, options: Mapping[str, str]) -> str:
        """Returns the argument as a command line has it.

        Args:
            options: The names of parameters to options. What is not among them is written in words.
        """
        option = options.get(self.name, self.name.replace("_", " "))
        if not self.value or self.value in ("...", "True", "False") or self.value.endswith("(...)"):
            return option
        return f"{option} {self.value}"


def as_argument(text: str) -> Argument | str:
    """Returns the argument of that name; words in place of a name stay words."""
    return Argument(text) if text.isidentifier() else text


def parts_of(text: str) -> tuple[str | Argument, ...]:
    """The texts of a message, and the arguments between them.

    Args:
        text: The message, with arguments as an f-string has them.
    """
    pieces = _MARKED.split(text)
    return tuple(
        Argument(*piece.split("=", 1)) if index % 2 else piece for index, piece in enumerate(pieces) if piece
    )


class TrtInt8Error(Exception):
    """Base of every error that a user can cause or mend.

    Attributes:
        parts: The message: texts, and the :class:`Argument` of a public call between them.
    """

    def __init__(self, message: object = "") -> None:
        self.parts = parts_of(str(message))
        super().__init__("".join(map(str, self.parts)))

    @property
    def template(self) -> str:
        """The message for the f-string of another one, in which arguments stay data."""
        return "".join(map(format, self.parts))


class ModelError(TrtInt8Error):
    """The ONNX model cannot be read, is invalid, or lacks what was asked of it."""


class CalibrationDataError(TrtInt8Error):
    """The calibration or validation data does not fit the model, or is unusable."""


class TableError(TrtInt8Error):
    """A calibration table or cache is malformed, stale, or belongs to another model."""


class OutputError(TrtInt8Error):
    """A file cannot be written."""


class UnsupportedError(TrtInt8Error):
    """What was asked is not available in this installation; names what has it."""


class BuildError(TrtInt8Error):
    """TensorRT refused the network or failed to build the engine."""


class EngineError(TrtInt8Error):
    """An engine file or its sidecar is unusable."""


class GpuUnavailableError(TrtInt8Error):
    """The call needs an NVIDIA GPU and driver, and there is none."""


class GpuMemoryError(TrtInt8Error):
    """The GPU, or page-locked host memory, has not enough room."""


class WorkerError(TrtInt8Error):
    """A worker of a Ray cluster died again and again."""
