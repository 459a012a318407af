"""Values of options that were given with spaces between them, where commas belong."""

from __future__ import annotations

import re
from collections.abc import Sequence

from calibrators.files import exists

#: Options that take several numbers.
_OPTIONS = ("--mean", "--std", "--resize", "--crop", "--letterbox")

_NUMBER = re.compile(r"-?[0-9.]+(e-?[0-9]+)?,?")


def spaced_values(words: Sequence[str]) -> str | None:
    """What is wrong with an option whose values are words of their own; None where there is none.

    The parser would take the second value for the model or the data.

    Args:
        words: The command line without the program's name.
    """
    for index, option in enumerate(words):
        if option not in _OPTIONS:
            continue
        values: list[str] = []
        for word in words[index + 1 :]:
            if not _NUMBER.fullmatch(word) or (values and exists(word)):
                break
            values.append(word.rstrip(","))
        if len(values) > 1:
            return (
                f"{option} takes one value, and '{' '.join(values)}' are {len(values)}; write them with "
                f"commas and without spaces: {option} {','.join(values)}"
            )
    return None
