"""Errors of code that is not ours, in words that fit into a message.

Numbers of things, and things themselves, in words.
"""

from __future__ import annotations

from collections.abc import Iterable

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


def enumerated(names: Iterable[str], most: int = 5) -> str:
    """The first of some names, and how many more there are, such as ``'a', 'b' and 3 more``.

    Args:
        names: The names, as they are written.
        most: How many of them are written.
    """
    every = list(names)
    more = f" and {len(every) - most} more" if len(every) > most else ""
    return ", ".join(every[:most]) + more


def megabytes(count: int) -> str:
    """A number of bytes in units of 10^6."""
    return f"{count / 1e6:,.{1 if count >= _WHOLE_MEGABYTES else 3}f} MB"
