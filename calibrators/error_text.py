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
    reason = " ".join(str(error).split())[:_MOST].rstrip(".")
    return f"{type(error).__name__}: {reason}" if reason else type(error).__name__
