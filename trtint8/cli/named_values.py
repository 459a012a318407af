"""Values by name, as an option gives them that may be repeated."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from calibrators.errors import TrtInt8Error

_Value = TypeVar("_Value")


def named_values(
    option: str, pairs: Iterable[tuple[str, _Value]], error: type[TrtInt8Error]
) -> dict[str, _Value]:
    """The values of an option by name; refuses a name that is given twice.

    Args:
        option: The option.
        pairs: Names and values, in the order of the command line.
        error: The error of the refusal.

    Raises:
        TrtInt8Error: A name is given twice.
    """
    named: dict[str, _Value] = {}
    for name, value in pairs:
        if name in named:
            raise error(f"{option} gives '{name}' twice; give each name once")
        named[name] = value
    return named
