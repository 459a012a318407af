"""Texts in the languages that deployments are written in, one function per language.

Names of tensors and of their dimensions come from a model or a sidecar, which may be anyone's, and may hold
anything. In a deployed file they stand inside a literal of its language, and nowhere else.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable
from typing import NewType

#: Text in the language of the file that it goes into. Templates take nothing else.
Code = NewType("Code", str)


def c_literal(text: str) -> Code:
    """Returns a string literal of C++, which is one of protobuf's text format too.

    Args:
        text: Any text. What is not printable ASCII stands in octal, byte by byte of UTF-8, and so does ``?``,
            which begins a trigraph in old C++.
    """
    return Code('"' + "".join(map(_c_letter, text.encode())) + '"')


def _c_letter(byte: int) -> str:
    letter = chr(byte)
    if letter in '"\\':
        return f"\\{letter}"
    return letter if 32 <= byte < 127 and letter != "?" else f"\\{byte:03o}"


def json_document(value: object) -> Code:
    """Returns a JSON document, in ASCII and with a line break at its end."""
    return Code(json.dumps(value, indent=2) + "\n")


def shell_words(words: Iterable[str]) -> Code:
    """Returns a command of a shell, in which every word is quoted where it has to be."""
    return Code(" ".join(map(shlex.quote, words)))


def fits_command(text: str) -> bool:
    """True if a text can be a part of a program's argument that is written on one line."""
    return text.isprintable()


def fits_key_file(text: str) -> bool:
    """True if a text can be a value in a list of GLib's key files, which other readers understand alike.

    GLib separates by ``;``, reads escapes that begin with a backslash and trims values, and some readers of
    such files replace what follows ``%``.
    """
    return bool(text) and text == text.strip() and text.isprintable() and not set(text) & set(";\\%")


def markdown_code(text: str) -> Code:
    """Returns a code span of Markdown that is safe in a cell of a table as well.

    Args:
        text: Any text. What is not printable is shown as an escape of Python, as are backticks, which would
            end the span, bars, which would end the cell, and backslashes, which some readers obey in cells.
    """
    return Code(f"`{''.join(map(_markdown_letter, text)) or ' '}`")


def _markdown_letter(letter: str) -> str:
    if letter.isprintable() and letter not in "`|\\":
        return letter
    code = ord(letter)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
