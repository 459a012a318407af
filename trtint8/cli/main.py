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
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn

from calibrators.checks import keeping_warnings
from calibrators.errors import Argument, TrtInt8Error, enumerated, followed, in_one_line
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
    if "_ARGCOMPLETE" in os.environ:  # a shell has started the program for that alone
        _complete()
    if argv[:1] == ["help"]:
        argv = [*argv[1:2], "--help"]
    verb = argv[0] if argv else ""
    if verb not in VERBS and not verb.startswith("-"):
        wrong = f"there is no verb '{verb}'{likely(verb, VERBS)}" if verb else "there is no verb"
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
        except (TrtInt8Error, OSError, SystemExit) as error:
            raise_if_stopped(error)  # by which a module could not be imported, for example
            say(f"trtint8 {options.verb}: {_sentence(error, options)}")
            return 2
    return status or 0


def _sentence(error: BaseException, options: argparse.Namespace) -> str:
    """What went wrong, and what to do."""
    if isinstance(error, OSError):  # of a disk that fails at any call
        named = f"'{error.filename}'" if error.filename else "a file"
        return f"cannot use {named}: {error.strerror or error}; make it usable, or choose another place"
    if isinstance(error, SystemExit):
        # Python code of the user's, whose status would pass for the result of what it took part in.
        last = traceback.extract_tb(error.__traceback__)[-1]
        return (
            f"'{last.filename}' ends the program in line {last.lineno} ({in_one_line(error)}); remove that "
            "from what is imported and called here"
        )
    return _spelled(error, options)


def _spelled(message: object, options: argparse.Namespace) -> str:
    """What an error or a warning says, with the arguments that it names as the verb has them."""
    spelled, parts = getattr(options, "spelled", {}), getattr(message, "parts", None) or (str(message),)
    return "".join(
        part if isinstance(part, str) else _as_option(part, spelled) for part in followed(parts, spelled)
    )


def _as_option(argument: Argument, spelled: Mapping[str, str]) -> str:
    """An argument as the verb spells it; that of another call as part of the other verb."""
    if not argument.call:
        return argument.spelled(spelled)
    from trtint8.cli.verbs import VERB_OF, spellings_of

    verb = VERB_OF[argument.call]
    return f"'trtint8 {verb} {argument.spelled(spellings_of(_parser_of(verb)))}'"


def _parser_of(verb: str) -> VerbParser:
    """A parser that knows the options of a verb."""
    parser = VerbParser(verb)
    importlib.import_module(f"trtint8.cli.{verb}").configure(parser)
    return parser


def _parser(argv: Sequence[str]) -> argparse.ArgumentParser:
    """The parser of a command line, which knows the options of the verb that stands first."""
    parser = VerbParser("trtint8", description="INT8 TensorRT engines from ONNX models.")
    parser.add_argument("--version", action="version", version=f"trtint8 {__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
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
    """A parser that says a mistake in one sentence, and takes options between positional arguments, too.

    A plain parser prints the whole usage, and for an option that a verb lacks that of ``trtint8`` itself. It
    gives a positional argument that may be left out, or repeated, nothing more once an option has come after
    the first, as in ``build MODEL -o ENGINE DATA``.
    """

    _within = False
    _found: argparse.Namespace | None = None

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """Parses as any parser, and where something was not understood, options before the rest.

        Args:
            args: The arguments.
            namespace: Gets the attributes; a new one where None.

        Returns:
            The namespace, and no arguments: those that were not understood are refused.
        """
        if self._within:
            return super().parse_known_args(args, namespace)
        words = sys.argv[1:] if args is None else list(args)
        self._refuse_unknown_options(words)
        self._found = namespace or argparse.Namespace()
        _, left = super().parse_known_args(words, self._found)
        # A verb with verbs of its own cannot be parsed in two passes, which are calls of this method.
        if left and self._subparsers is None:
            self._within = True
            try:
                self._found, left = self.parse_known_intermixed_args(words, namespace)
            finally:
                self._within = False
        if left:
            self.error(
                f"'{left[0]}' is one argument too many{self._given()}; leave it out, or name its option"
            )
        return self._found, left

    def error(self, message: str) -> NoReturn:
        """Says a mistake in one sentence and ends with status 2.

        Args:
            message: What is wrong, in words of this class or of ``argparse``.
        """
        for pattern, sentence in _MISTAKES.items():
            if match := re.fullmatch(pattern, message):
                names, value, choices = (*match.groups(), "", "")[:3]
                every = [name.partition("/")[0] for name in names.split(", ")]
                action = self._option_string_actions.get(every[0])
                message = sentence.format(
                    name=every[0],
                    value=value,
                    choices=choices,
                    missing=f"{_listed(every)} {'is' if len(every) == 1 else 'are'} missing",
                    written=_written(action) if action else every[0],
                    likely=likely(value, re.findall(r"[^', ]+", choices)),
                    given=self._given(),
                    usage=self.short_usage(),
                )
                break
        say(f"{self.prog}: {message}")
        raise SystemExit(2)

    def format_help(self) -> str:
        """Returns the help; its usage is short, because it lists all options below."""
        self.usage = self.short_usage().replace("%", "%%")
        return super().format_help()

    def short_usage(self) -> str:
        """Returns the command line with what has to be given."""
        wanted = [one for one in self._actions if one.required and one.option_strings]
        options = [] if self._subparsers else ["[OPTION ...]"]
        return " ".join([self.prog, *map(_written, (*self._get_positional_actions(), *wanted)), *options])

    def _refuse_unknown_options(self, words: Sequence[str]) -> None:
        """Refuses an option that there is not, which may be why others seem to be missing."""
        known = self._option_string_actions
        for word in words:
            if word == "--" or (self._subparsers and not word.startswith("-")):
                return  # no options follow, or those of another parser
            name = word.partition("=")[0]
            named = any(option.startswith(name) or option == name[:2] for option in known)
            if re.fullmatch(r"-[^\d.\s]\S*", name) and not named:
                self.error(f"there is no option {name}{self._meant(name)}")

    def _meant(self, name: str) -> str:
        """What was probably meant by an option that there is not."""
        for one in self._get_positional_actions():
            if _bare(name) in (_bare(one.dest), _bare(_name(one))):
                return f": {_name(one)} is given without one, as in '{self.short_usage()}'"
        if name.startswith("--"):
            verbs = [verb for verb in VERBS if name in _parser_of(verb)._option_string_actions]
            if verbs:
                return f" here, only for {enumerated(verbs)}; leave it out"
        return f"{likely(name, self._option_string_actions)}; '{self.prog} --help' lists all"

    def _given(self) -> str:
        """What stands for which argument."""
        values = {_name(one): getattr(self._found, one.dest, None) for one in self._get_positional_actions()}
        given = [f"{name} is '{value}'" for name, value in values.items() if isinstance(value, str)]
        return f", and {_listed(given)}" if given else ""


#: Mistakes in the words of ``argparse``, and as they are said here.
_MISTAKES = {
    "the following arguments are required: (.+)": "{missing}{given}; write '{usage}'",
    "argument (.+): expected .+": "{name} is given without a value; write '{written}'",
    "argument (.+): invalid int value: '(.*)'": "{name} is '{value}'; give an integer",
    "argument (.+): invalid float value: '(.*)'": "{name} is '{value}'; give a number",
    r"argument (.+): invalid choice: '(.*?)'.*\(choose from (.+)\)": (
        "{name} is '{value}'{likely}; choose among {choices}"
    ),
    "argument (.+): ignored explicit argument '(.*)'": "{name} takes no value; leave out '={value}'",
    "ambiguous option: (.+) could match (.+)": "{name} could be {value}; write it out",
    "argument (.+): (.+)": "{name}: {value}",
}


def likely(word: str, names: Iterable[str]) -> str:
    """Returns the name that a word was probably meant to be, as a question; nothing where there is none.

    Args:
        word: The word.
        names: The names that there are.
    """
    bare = {name.lstrip("-"): name for name in names}
    found = difflib.get_close_matches(_bare(word), bare, 1)
    return f" (did you mean {bare[found[0]]}?)" if found else ""


def _bare(word: str) -> str:
    """Returns a word as names are written, without the dashes of an option."""
    return word.lstrip("-").replace("_", "-").lower()


def _listed(words: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def _name(action: argparse.Action) -> str:
    return str(action.metavar or action.dest.upper())


def _written(action: argparse.Action) -> str:
    """Returns an argument as a command line has it."""
    if action.option_strings:
        value = _name(action)
        if action.choices and not action.metavar:
            value = f"{{{','.join(action.choices)}}}"
        return f"{action.option_strings[0]} {value}"
    several = f"{_name(action)} ..."
    forms = {"?": f"[{_name(action)}]", "*": f"[{several}]", "+": several, argparse.PARSER: several}
    return forms.get(str(action.nargs), _name(action))


def _complete() -> None:
    """Gives the shell what may come next, and ends the process."""
    try:
        argcomplete = importlib.import_module("argcomplete")
    except ModuleNotFoundError:
        raise SystemExit(1) from None  # nothing may be printed amid what is typed
    # The command line as it was typed so far.
    argcomplete.autocomplete(_parser(typed_words(os.environ.get("COMP_LINE", ""))[1:]))


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
