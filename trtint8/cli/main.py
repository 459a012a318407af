"""The command line: finds the verb, and turns errors of this project into one sentence and exit status 2.

Parsers of verbs are made here, values with spaces between them are taken where commas belong, and argcomplete
completes command lines in a shell where it is installed.
"""

from __future__ import annotations

import argparse
import difflib
import gc
import importlib
import logging
import os
import re
import shlex
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from typing import Any

from calibrators.checks import keeping_warnings
from calibrators.errors import Advice, Argument, TrtInt8Error, in_one_line
from calibrators.files import exists, noting_what_is_written, remove_temporary
from calibrators.imports import import_lazily
from calibrators.interruption import STATUS, raise_if_stopped, stop
from calibrators.progress import lines_without_terminal
from trtint8.cli.output import say, say_interrupted
from trtint8.models.garbage_collection import pause_garbage_collection
from trtint8.version import __version__

#: Verb to its one-line help; its module is ``trtint8.cli.<verb>``.
VERBS = {
    "demo": "all steps on real data: calibrate, quantize, build, validate",
    "doctor": "what is installed here, and which routes work",
    "calibrate": "find the range of every tensor on sample inputs",
    "quantize": "put Q/DQ pairs into an ONNX model",
    "migrate": "turn the calibration cache of an implicit engine into a Q/DQ model",
    "lint": "check a Q/DQ model made elsewhere, and mend it",
    "build": "make an INT8 engine",
    "audit": "what INT8 would gain on a GPU, estimated from compiled engines",
    "validate": "compare INT8 with FP32 on held-out data",
    "sensitivity": "which layers cost accuracy in INT8, and why",
    "tune": "the cheapest mix of remedies that keeps accuracy within a budget",
    "run": "run an engine on data and write its outputs",
    "bench": "latency and throughput of engines, side by side",
    "deploy": "what runs an engine in Triton, DeepStream, ONNX Runtime, C++ or a container",
    "report": "a self-contained HTML page on one INT8 model",
    "compare": "several runs side by side: layers, kernels, bytes, accuracy, latency",
    "table": "show, compare, convert and change calibration tables",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one verb.

    Args:
        arguments: The command line without the program's name; ``sys.argv`` where None.

    Returns:
        The exit status: 0, 1 where a check that was asked for fails, 2 for a user's mistake, 130 after
        Ctrl-C.

    Raises:
        SystemExit: The command line cannot be parsed (2), or the process was asked to terminate (143).
    """
    if threading.current_thread() is not threading.main_thread():
        return _run(arguments)  # only the main thread receives signals
    before = signal.signal(signal.SIGTERM, stop)
    with noting_what_is_written() as written:
        try:
            return _until_stopped(arguments)
        except KeyboardInterrupt as interrupt:
            say_interrupted(interrupt, written())
            return STATUS
        finally:
            signal.signal(signal.SIGTERM, before)


def _until_stopped(arguments: Sequence[str] | None) -> int:
    """Runs one verb, which a signal ends even where it has become another error, or none."""
    try:
        status = _run(arguments)
    except Exception as error:
        raise_if_stopped(error)
        raise
    finally:
        remove_temporary()
    raise_if_stopped()
    return status


class _Messages(logging.Handler):
    """Prints what is logged like all other messages: names in it may hold anything."""

    def emit(self, record: logging.LogRecord) -> None:
        """Prints one message."""
        say(record.getMessage())


def _run(arguments: Sequence[str] | None) -> int:
    logging.basicConfig(level=logging.WARNING, handlers=[_Messages()])
    import_lazily()
    argv = list(sys.argv[1:] if arguments is None else arguments)
    if asked_to_complete():
        complete(_parser)
    if argv[:1] == ["help"]:
        argv = [*argv[1:2], "--help"]
    verb = argv[0] if argv else ""
    if verb not in VERBS and not verb.startswith("-"):
        wrong = f"there is no verb '{verb}'{_similar(verb)}" if verb else "there is no verb"
        say(f"trtint8: {wrong}; 'trtint8 --help' lists all")
        return 2
    if argv[0] in VERBS and (problem := spaced_values(argv)):
        say(f"trtint8 {argv[0]}: {problem}")
        return 2
    with pause_garbage_collection():
        options = _parser(argv).parse_args(argv)
        options.given = argv  # as it was typed, for a command that continues this one
        if arguments is None:  # the process runs nothing else, and what modules define stays until it ends
            gc.freeze()

    def spelling(message: object) -> str:
        return _spelled(message, options)

    with warnings.catch_warnings(), keeping_warnings(spelling=spelling), lines_without_terminal(say):
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = lambda message, *_args, **_kwargs: say(f"warning: {spelling(message)}")
        try:
            status: int | None = options.run(options)
        except TrtInt8Error as error:
            raise_if_stopped(error)  # by which a module could not be imported, for example
            say(f"trtint8 {options.verb}: {_spelled(error, options)}")
            return 2
        except SystemExit as error:
            raise_if_stopped(error)
            # Python code of the user's, whose status would pass for the result of what it took part in.
            last = traceback.extract_tb(error.__traceback__)[-1]
            say(
                f"trtint8 {options.verb}: '{last.filename}' ends the program in line {last.lineno} "
                f"({in_one_line(error)}); remove that from what is imported and called here"
            )
            return 2
    return status or 0


def _similar(verb: str) -> str:
    """The verb that was probably meant, as a question."""
    found = difflib.get_close_matches(verb.lower(), VERBS, 1)
    return f" (did you mean '{found[0]}'?)" if found else ""


def _spelled(message: object, options: argparse.Namespace) -> str:
    """What an error or a warning says, with the arguments that it names as the verb has them."""
    spelled = getattr(options, "spelled", {})
    return "".join(
        part if isinstance(part, str) else _as_option(part, spelled) for part in said_parts(message, spelled)
    )


def said_parts(message: object, names: Container[str]) -> Iterator[str | Argument]:
    """The parts of a message to a verb, with the ways that are open to it.

    Args:
        message: An error or a warning.
        names: The parameters that the verb spells.
    """
    for part in getattr(message, "parts", None) or (str(message),):
        yield from part.followed(names) if isinstance(part, Advice) else (part,)


def _as_option(argument: Argument, spelled: Mapping[str, str]) -> str:
    """An argument as the verb spells it; that of another call as part of the other verb."""
    if not argument.call:
        return argument.spelled(spelled)
    from trtint8.cli.verbs import VERB_OF, spellings_of

    verb, parser = VERB_OF[argument.call], argparse.ArgumentParser()
    importlib.import_module(f"trtint8.cli.{verb}").configure(parser)
    return f"'trtint8 {verb} {argument.spelled(spellings_of(parser))}'"


def _parser(argv: Sequence[str]) -> argparse.ArgumentParser:
    """The parser of a command line, which knows the options of the verb that stands first."""
    parser = argparse.ArgumentParser("trtint8", description="INT8 TensorRT engines from ONNX models.")
    parser.add_argument("--version", action="version", version=f"trtint8 {__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True, parser_class=VerbParser)
    for verb, text in VERBS.items():
        sub = verbs.add_parser(verb, help=text, formatter_class=argparse.RawDescriptionHelpFormatter)
        # Only the verb that was asked for is imported: help and table need no ONNX Runtime.
        if verb in argv[:1]:
            module = importlib.import_module(f"trtint8.cli.{verb}")
            sub.description, sub.epilog = text[0].upper() + text[1:] + ".", module.EXAMPLE
            module.configure(sub)
            sub.set_defaults(run=module.run)
    return parser


class VerbParser(argparse.ArgumentParser):
    """A parser that takes options between positional arguments, too, as in ``build MODEL -o ENGINE DATA``.

    A plain parser gives a positional argument that may be left out, or repeated, nothing more once an option
    has come after the first.
    """

    _within = False

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """Parses as any parser, and where something was not understood, options before the rest.

        Args:
            args: The arguments.
            namespace: None: the attributes are those of a new one.

        Returns:
            The namespace, and the arguments that were not understood.
        """
        found, left = super().parse_known_args(args, namespace)
        # A verb with verbs of its own cannot be parsed in two passes, which are calls of this method.
        if not left or self._within or self._subparsers is not None:
            return found, left
        self._within = True
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self._within = False


#: Set by the shell when it asks for completions; the program is then started only to give them.
_ASKED = "_ARGCOMPLETE"

#: The command line as it was typed so far.
_LINE = "COMP_LINE"


def asked_to_complete() -> bool:
    """Whether a shell has started the program to complete a command line."""
    return _ASKED in os.environ


def complete(parser_of: Callable[[Sequence[str]], argparse.ArgumentParser]) -> None:
    """Gives the shell what may come next, and ends the process.

    Args:
        parser_of: Makes the parser of a command line from its words, without the program's name.
    """
    try:
        argcomplete = importlib.import_module("argcomplete")
    except ModuleNotFoundError:
        raise SystemExit(1) from None  # nothing may be printed amid what is typed
    argcomplete.autocomplete(parser_of(typed_words(os.environ.get(_LINE, ""))[1:]))


def typed_words(line: str) -> list[str]:
    """The words of a command line that may end within quotes.

    Args:
        line: The command line.
    """
    try:
        return shlex.split(line)
    except ValueError:
        return line.split()


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


if __name__ == "__main__":
    sys.exit(main())
