"""Completion of command lines in a shell, by argcomplete where that is installed."""

from __future__ import annotations

import argparse
import importlib
import os
import shlex
from collections.abc import Callable, Sequence

#: Set by the shell when it asks for completions; the program is then started only to give them.
_ASKED = "_ARGCOMPLETE"

#: The command line as it was typed so far.
_LINE = "COMP_LINE"


def asked_to_complete() -> bool:
    """Whether a shell has started the program to complete a command line."""
    return _ASKED in os.environ


def complete(parser_of: Callable[[Sequence[str]], argparse.ArgumentParser]) -> None:
    """Gives the shell what may come next, and ends the process.

    Args:
        parser_of: Makes the parser of a command line from its words, without the program's name.
    """
    try:
        argcomplete = importlib.import_module("argcomplete")
    except ModuleNotFoundError:
        raise SystemExit(1) from None  # nothing may be printed amid what is typed
    argcomplete.autocomplete(parser_of(typed_words(os.environ.get(_LINE, ""))[1:]))


def typed_words(line: str) -> list[str]:
    """The words of a command line that may end within quotes.

    Args:
        line: The command line.
    """
    try:
        return shlex.split(line)
    except ValueError:
        return line.split()
