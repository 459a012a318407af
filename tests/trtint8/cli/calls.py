"""Calls of verbs, whose words stand in lines or alone."""

import itertools
import shlex

from trtint8.cli.main import main


def words_of(parts):
    """The words of a command line: those of lines, and paths."""
    lines = (shlex.split(part) or [""] if isinstance(part, str) else [str(part)] for part in parts)
    return list(itertools.chain.from_iterable(lines))


def succeeds(*parts):
    """Calls a verb that has to end with status 0."""
    assert main(words_of(parts)) == 0
