"""The verbs and their arguments are a promise: what was there stays, and nothing changes its meaning."""

import argparse
import importlib
import json
import re
from pathlib import Path

import pytest

import trtint8
from trtint8.cli.main import VERBS

GOLDEN = json.loads((Path(__file__).parent / "golden" / "command_line.json").read_text())


def arguments_of(parser):
    """Each argument of a parser, and of its sub-parsers, as plain data."""
    found = {}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            found |= {
                f"{name} {argument}": entry
                for name, sub in action.choices.items()
                for argument, entry in arguments_of(sub).items()
            }
        elif not isinstance(action, argparse._HelpAction):
            is_switch = isinstance(action, argparse._StoreConstAction)
            entry = {
                "nargs": action.nargs,
                "choices": list(action.choices) if action.choices else None,
                "metavar": action.metavar,
                "required": action.required,
                # That of a switch is not to be given, whatever stands for that.
                "default": repr(action.default == action.const if is_switch else action.default),
                "type": getattr(action.type, "__name__", None),
            }
            names = action.option_strings
            # An option may get a further name.
            found |= dict.fromkeys(("/".join(names) or action.dest, *names), entry)
    return found


def arguments_of_verb(verb):
    parser = argparse.ArgumentParser()
    importlib.import_module(f"trtint8.cli.{verb}").configure(parser)
    return arguments_of(parser)


@pytest.mark.parametrize("verb", GOLDEN["verbs"])
def test_arguments_of_a_verb_stay(verb):
    found = arguments_of_verb(verb)
    for name, promised in GOLDEN["verbs"][verb].items():
        # An argument may take more choices than it did, in any order.
        choices = set(promised["choices"] or ())
        assert name in found and choices <= set(found[name]["choices"] or ()), name
        assert bool(choices) == bool(found[name]["choices"]), name
        assert {**found[name], "choices": None} == {**promised, "choices": None}


def helps(parser):
    """What each argument of a parser, and of its sub-parsers, is said to be."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for sub in action.choices.values():
                yield from helps(sub)
        else:
            yield action, action.help


@pytest.mark.parametrize("verb", VERBS)
def test_every_option_is_described(verb):
    parser = argparse.ArgumentParser()
    importlib.import_module(f"trtint8.cli.{verb}").configure(parser)
    for action, text in helps(parser):
        # An argument may say all by its name.
        assert text or not action.option_strings, action
        # What is for Python alone, and markup, is left out.
        assert not re.search(r"``|:\w+:`|\bNone\b|of the result has", text or ""), action


def test_public_names_stay():
    assert set(GOLDEN["names"]) <= set(trtint8.__all__)
