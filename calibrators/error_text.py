"""Errors of code that is not ours, in words that fit into a message."""

from __future__ import annotations

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
