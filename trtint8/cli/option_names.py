"""Messages of the library as a command line needs them: options in place of keywords of Python."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping

#: Texts in quotes, such as names of files, which stay as they are.
_QUOTED = re.compile(r"('[^']*')")


def names_of_options(parser: argparse.ArgumentParser) -> dict[str, str]:
    """The name of an argument, as the library has it, to the option of a parser."""
    names = {
        action.dest: next(name for name in action.option_strings if name.startswith("--"))
        for action in parser._actions
        if action.option_strings
    }
    names |= {f"{name[3:]}=False": option for name, option in names.items() if name.startswith("no_")}
    if "preprocess" in names:
        names["preprocessing"] = names["preprocess"]  # a file here, an object in Python
    return names


def with_options(message: str, options: Mapping[str, str]) -> str:
    """A message with the options of a verb in place of the keywords that it has in Python.

    Args:
        message: What an error or a warning says.
        options: The name of an argument, as the library has it, to the option of the command line.
    """
    return "".join(
        part if part.startswith("'") else _in_plain_text(part, options) for part in _QUOTED.split(message)
    )


def _in_plain_text(text: str, options: Mapping[str, str]) -> str:
    for name, option in options.items():
        word = rf"(?<![-\w.]){re.escape(name)}(?![\w.])"
        # Where both are named, the option remains.
        text = re.sub(rf"{word} \({re.escape(option)}\)", option, text)
        text = re.sub(rf"{word}=\w+(\(\.\.\.\))?,? or (?=--)", "", text)
        text = re.sub(rf"{word}=(True\b|\.\.\.)", option, text)
        text = re.sub(rf"{word}=(?=\w)", f"{option} ", text)
        # A single word may be one of the sentence; with an underscore, or as its subject, it is none.
        if "_" in name:
            text = re.sub(word, option, text)
        else:
            text = re.sub(rf"^{re.escape(name)}(?= is \S+; give )", option, text)
            text = re.sub(rf"(?<=, so ){re.escape(name)}(?= has no effect)", option, text)
    return text
