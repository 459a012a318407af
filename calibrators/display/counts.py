"""Numbers of things in words."""

from __future__ import annotations


def counted(number: int, noun: str, form: str = "") -> str:
    """A number and what it counts, such as ``1 sample`` or ``500 samples``.

    Args:
        number: How many there are.
        noun: What is counted, in the singular; its plural ends in ``s``.
        form: How the number is written, as in :func:`format`.
    """
    return f"{number:{form}} {noun}{'' if number == 1 else 's'}"
