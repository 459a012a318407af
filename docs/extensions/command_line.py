"""Writes the reference of the command line from the parsers of the verbs, so that it is never out of date."""

from __future__ import annotations

import argparse
import importlib
import re
import textwrap
from collections.abc import Iterator

from docs.extensions.places import Place
from trtint8.cli.main import VERBS

#: The line of a page that the reference takes the place of.
PLACE = "<!-- the verbs -->"


def makeExtension() -> Place:  # noqa: N802 - the name that Python-Markdown calls
    """Returns the extension that fills in the reference."""
    return Place(PLACE, reference)


def reference() -> Iterator[str]:
    """The sections of all verbs, as lines of Markdown."""
    for verb, summary in VERBS.items():
        parser = argparse.ArgumentParser(f"trtint8 {verb}")
        module = importlib.import_module(f"trtint8.cli.{verb}")
        module.configure(parser)
        yield from section(parser, f"{summary[0].upper()}{summary[1:]}.", 2)
        yield from example(module.EXAMPLE)


def example(text: str) -> Iterator[str]:
    """A verb's examples: commands that can be copied, and what is said below them."""
    _, *lines = text.split("\n")  # the first one says that these are examples
    commands = [line for line in lines if line.startswith(" ")]
    yield from ["```sh", *textwrap.dedent("\n".join(commands)).split("\n"), "```", ""]
    yield from [line for line in lines if not line.startswith(" ")]
    yield ""


def section(parser: argparse.ArgumentParser, summary: str, level: int) -> Iterator[str]:
    """One verb, or one action of a verb."""
    name = parser.prog.removeprefix("trtint8 ")
    yield from [f"{'#' * level} {name} {{ #{name.replace(' ', '-')} }}", "", summary, ""]
    groups = parser._action_groups
    actions = next((a for a in parser._actions if isinstance(a, argparse._SubParsersAction)), None)
    if actions is not None:
        helps = {choice.dest: choice.help or "" for choice in actions._choices_actions}
        for action, sub in actions.choices.items():
            text = helps[action]
            yield from section(sub, f"{text[0].upper()}{text[1:]}.", level + 1)
        return
    yield from ["| | |", "|---|---|"]
    for group in groups:
        for action in group._group_actions:
            if not isinstance(action, argparse._HelpAction):
                yield f"| {invocation(action)} | {escaped(described(parser, action))} |"
    yield ""


def invocation(action: argparse.Action) -> str:
    """How an argument is written."""
    value = _value(action)
    if not action.option_strings:
        return f"`{value}`"
    suffix = f" {value}" if value else ""
    return ", ".join(f"`{option}{suffix}`".replace("|", "\\|") for option in action.option_strings)


def _value(action: argparse.Action) -> str:
    if action.nargs == 0 or isinstance(action, argparse.BooleanOptionalAction):
        return ""
    if action.metavar is not None:
        name = action.metavar if isinstance(action.metavar, str) else " ".join(action.metavar)
    elif action.choices is not None:
        name = "{" + ", ".join(map(str, action.choices)) + "}"  # lines break at spaces
    else:
        name = action.dest.upper() if action.option_strings else action.dest
    return {"?": f"[{name}]", "*": f"[{name} ...]", "+": f"{name} [{name} ...]"}.get(str(action.nargs), name)


def described(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    """The help of an argument with its default, and whether it must be given."""
    text = parser._get_formatter()._expand_help(action) if action.help else ""
    if action.option_strings and action.required:
        text = f"{text}; required" if text else "required"
    return text


def escaped(text: str) -> str:
    """A text for a cell of a table."""
    return re.sub(r"([|*_])", r"\\\1", text.replace("<", "&lt;"))
