"""Verbs made from the public calls, whose signatures and docstrings give names, choices, defaults and help.

A parameter without a default is an argument, any other an option: ``batch_size`` is ``--batch-size``. What a
type means on a command line is said once, in ``_BY_TYPE``. What neither name nor type says, such as a short
name, is said in ``_BY_NAME``, or by a verb for itself. Values are read after parsing, so that a mistake in
one is an error as any other.

``argparse`` parses them: it is part of Python, and costs 5 ms at the start of a process where typer costs 36
and cyclopts 48.
"""

from __future__ import annotations

import argparse
import inspect
import itertools
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, get_args

from calibrators.checks import several
from calibrators.errors import CalibrationDataError, UnsupportedError
from calibrators.files import refuse_overwriting
from trtint8.cli.output import FIRST, named_values

# What reads values is imported where it is needed, so that a verb loads only what its own call is about.
if TYPE_CHECKING:
    from calibrators.data.images.preprocessing import Preprocessing
    from calibrators.ray.cluster import RayExecutor
    from trtint8.builder.config import BuildOptions
    from trtint8.engine.profiles import ShapeRange

#: A file that a function of a verb reads, as the command line names it.
File: TypeAlias = str

#: Reads a value, of its text or texts, the name of the option or argument, and the whole command line.
_Reader = Callable[[Any, str, argparse.Namespace], Any]

#: Bytes in the units that sizes are given in.
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}

#: Parameters that are for Python alone: a terminal shows progress anyway, and no file holds what these say.
_FOR_PYTHON = ("progress", "example_inputs")


class Once(argparse.Action):
    """Stores a value, and refuses a second one.

    A plain parser takes the last one in silence. Here that would pass for all of them, as another verb, or
    another kind of argument, takes several.
    """

    def __call__(
        self,
        parser: argparse.ArgumentParser,  # noqa: ARG002  # named as in the base class
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,  # noqa: ARG002
    ) -> None:
        """Stores the value.

        Raises:
            argparse.ArgumentError: There is one already.
        """
        if (first := getattr(namespace, self.dest)) is not None:
            raise argparse.ArgumentError(
                self, f"it is given as {first} and as {values}, and only one is taken; give it once"
            )
        setattr(namespace, self.dest, values)


@dataclass(frozen=True)
class Way:
    """How a command line gives a parameter: what its type says of that, then its name, then the verb.

    Attributes:
        flags: The names of the option; from the parameter's name where None. An argument has none.
        metavar: What stands for the value in the help.
        help: The help, in place of the docstring; that of a type is for arguments only.
        read: Reads what was given; it stays as it is where None.
        required: Whether it must be given here, and not in Python.
        choices: The values that it may have; those of the type where None. Where there are none, the call
            refuses what it does not know.
        action: What the parser does with the option.
        nargs: How many values there are.
        type: What the parser itself makes of a text, where it is a number and nothing else reads it.
        several: Whether it may be given several times.
        file: Whether it may name a file that is read.
    """

    flags: tuple[str, ...] | None = None
    metavar: str | None = None
    help: str | None = None
    read: _Reader | None = None
    required: bool = False
    choices: tuple[str, ...] | None = None
    action: Any = None
    nargs: str | None = None
    type: type | None = None
    several: bool = False
    file: bool = False

    def but(self, other: Way) -> Way:
        """Returns this way, but for what another one says."""
        said = {name: value for name, value in vars(other).items() if value != getattr(Way, name)}
        return replace(self, **said)


def _mapping(form: str, read: Callable[[str], Any] = str, **more: Any) -> Way:
    """The way of NAME=VALUE."""

    def values(texts: Sequence[str], name: str, _options: argparse.Namespace) -> dict[str, Any]:
        return named_values(name, texts, form, read=read, **more)

    return Way(metavar=form, read=values, several=True)


def _size(text: str) -> int:
    match = re.fullmatch(r"(\d{1,30}(?:\.\d+)?)([KMG]?)(?:i?B)?", text, re.IGNORECASE)
    if not match:
        raise ValueError(text)
    return int(float(match[1]) * _UNITS[match[2].upper()])


def _profiles(texts: Sequence[str], _name: str, _options: argparse.Namespace) -> list[dict[str, ShapeRange]]:
    """Reads profiles; an input that is named again begins the next one."""
    from trtint8.engine.profiles import parse_profile

    profiles: list[dict[str, ShapeRange]] = []
    for text in texts:
        key, shapes = parse_profile(text)
        if not profiles or key in profiles[-1]:
            profiles.append({})
        profiles[-1][key] = shapes
    return profiles


def _profile(texts: Sequence[str], name: str, options: argparse.Namespace) -> dict[str, ShapeRange]:
    profile, *others = _profiles(texts, name, options) or [{}]
    if others:
        raise UnsupportedError(f"{name} gives '{next(iter(others[0]))}' twice; give each name once")
    return profile


def _numbers(kind: Callable[[str], Any], what: str, more: str = "") -> _Reader:
    """Reads numbers with commas between them; a single one is one."""

    def read(text: str, name: str, _options: argparse.Namespace) -> Any:
        parts = text.split(",")
        for part in parts:
            try:
                kind(part)
            except ValueError:
                raise CalibrationDataError(f"{name}: '{part}' is not {what}; give {what}{more}") from None
        return kind(text) if len(parts) == 1 else tuple(map(kind, parts))

    return read


_integers = _numbers(int, "an integer", ", or H,W for height and width")
_floats = _numbers(float, "a number")


def _fraction(text: str, name: str, options: argparse.Namespace) -> float:
    numerator, _, denominator = text.partition("/")
    divisor = _floats(denominator or "1", name, options)
    if not divisor:
        raise CalibrationDataError(f"{name}: '{text}' divides by zero; write 1/255 or a number")
    return float(_floats(numerator, name, options) / divisor)


def _share(text: str | float, name: str, options: argparse.Namespace) -> float:
    number, percent, _ = str(text).partition("%")
    return float(_floats(number, name, options)) / (100 if percent else 1)


def _square(text: str, name: str, options: argparse.Namespace) -> tuple[int, ...]:
    size = _integers(text, name, options)
    return (size, size) if isinstance(size, int) else size


def _preprocessing(_value: object, _name: str, options: argparse.Namespace) -> Preprocessing | None:
    from calibrators.data.images.preprocessing import Preprocessing

    given = {name: value for name, value in values_of(Preprocessing, options).items() if value is not None}
    if options.preprocess is not None and given:
        raise CalibrationDataError(f"give --preprocess or {options.spelled[next(iter(given))]}, not both")
    if options.preprocess is not None:
        return Preprocessing.load(options.preprocess)
    if not given:
        return None
    options.spelled = {**options.spelled, "preprocessing": options.spelled[next(iter(given))]}
    return Preprocessing(**given)


def _executor(_value: object, _name: str, options: argparse.Namespace) -> str | RayExecutor:
    from calibrators.ray.cluster import RayExecutor

    if options.ray is not None:
        return RayExecutor(options.ray or None, num_gpus=options.num_gpus or 0)
    if options.num_gpus is not None:
        raise CalibrationDataError("--num-gpus is for workers of Ray; add --ray, or leave it out")
    return "local"


def _build_options(_value: object, _name: str, options: argparse.Namespace) -> BuildOptions:
    from trtint8.builder.config import BuildOptions

    return BuildOptions(**values_of(BuildOptions, options))


def _data(text: str, _name: str, options: argparse.Namespace) -> Any:
    from trtint8.cli.own_code import data_from

    return data_from(text, options)


def _groups(text: str, _name: str, _options: argparse.Namespace) -> int | str:
    return int(text) if text.isdecimal() else text


def _metric(text: str, _name: str, _options: argparse.Namespace) -> Any:
    from trtint8.cli.own_code import metric_from

    return metric_from(text)


def _metrics(texts: Sequence[str], name: str, options: argparse.Namespace) -> list[Any]:
    return [_metric(text, name, options) for text in texts]


_FILE, _FILES = Way(metavar="FILE", file=True), Way(metavar="FILE", several=True, file=True)

#: How parameters are given by their types, as signatures write them; those with choices have none here.
_BY_TYPE = {
    "": Way(),
    "bool": Way(),
    "int": Way(metavar="N", type=int),
    "float": Way(metavar="X", type=float),
    "str": Way(),
    "File": _FILE,
    "FilePath": _FILE,
    "FilePath | Sequence[str]": _FILE,
    "Sequence[str]": Way(several=True),
    "Sequence[int]": Way(metavar="N", type=int, several=True),
    "Sequence[FilePath]": _FILES,
    "Iterable[FilePath]": _FILES,
    "Mapping[str, str]": _mapping("NAME=VALUE"),
    "Mapping[str, int]": _mapping("NAME=SIZE", _size, advice="write for example workspace=512M"),
    "Mapping[str, Sequence[str]]": _mapping("NAME=VALUE,...", lambda text: text.split(",")),
    "Mapping[str, ShapeRange]": Way(metavar="NAME=MIN,OPT,MAX", read=_profile, several=True),
    # A file's name may hold "=", that of a model never does.
    "Mapping[str, AnyModel]": _mapping(
        "NAME=MODEL", advice="write for example FP16=fp16.onnx", pattern=FIRST
    ),
    "Profile": Way(metavar="NAME=MIN,OPT,MAX", read=_profile, several=True),
    "Sequence[Profile]": Way(metavar="NAME=MIN,OPT,MAX", read=_profiles, several=True),
    "tuple[float, ...]": Way(metavar="R,G,B", read=_floats),
    "tuple[int, int]": Way(metavar="H,W", read=_integers),
    "tuple[int, int] | int": Way(metavar="N or H,W", read=_integers),
    "AnyModel": Way(file=True, help="a float ONNX model"),
    "ModelSource": Way(file=True, help="an ONNX model"),
    "TableSource": Way(file=True),
    "DynamicRanges": _FILE,
    "LabelSource": _FILE,
    "GroupSource": Way(metavar="N or FILE", read=_groups, file=True),
    "DataSource": Way(
        metavar="DATA",
        read=_data,
        file=True,
        help="an .npz, a folder of images or arrays, random:COUNT, or MODULE:FUNCTION, which returns a data "
        "loader",
    ),
    "DataSource | CalibrationTable": Way(read=_data, file=True),
    "CalibrationSource": Way(read=_data, file=True),
    "Metric": Way(metavar="NAME", read=_metric),
    "Metric | Sequence[Metric]": Way(metavar="NAME", read=_metrics, several=True),
    "str | Gpu": Way(metavar="GPU"),
    "Preprocessing": Way(read=_preprocessing),
    "Executor": Way(read=_executor),
    "BuildOptions": Way(read=_build_options),
}

#: What a verb takes for a metric with a decoder.
_DECODING_METRIC = "--metric MODULE:NAME of a trtint8.DetectionAgreement"

#: Parameters, and classes of values, to the options that stand for them, and how these are written if they
#: have a value.
_AS_OPTIONS = {
    ("executor", "ray"): "",
    ("format_name", "format"): "",
    ("preprocessing", "preprocess"): "",
    ("BatchAxes", "batch_axis"): "--batch-axis NAME=K",
    ("StateSequences", "state"): "--state INPUT=OUTPUT",
    ("DetectionAgreement", "metrics"): _DECODING_METRIC,
    ("DetectionAgreement", "metric"): _DECODING_METRIC,
}

#: The types whose values are samples.
_SAMPLES = ("DataSource", "DataSource | CalibrationTable", "CalibrationSource")

#: How parameters are given by their names, where their types do not say it.
_BY_NAME = {
    "checkpoint_seconds": Way(metavar="S"),
    "class_names": Way(("--classes",)),
    "compute_capabilities": Way(("--gpu", "--compute-capability"), "GPU"),
    "compute_capability": Way(("--gpu", "--compute-capability"), "GPU"),
    "crop": Way(read=_square),
    "cut_at": Way(metavar="TENSOR"),
    "fp16": Way(action=argparse.BooleanOptionalAction),
    "gpu_fallback": Way(help="fail where the DLA lacks a layer; by default such layers run on the GPU"),
    "keep_float": Way(metavar="PATTERN"),
    "keep_int8": Way(metavar="PATTERN"),
    "io_formats": Way(
        ("--io-format",),
        "NAME=FORMAT,...",
        "formats that an input or output may have, like images=LINEAR,CHW32",
    ),
    "io_types": Way(
        ("--io-type",), "NAME=TYPE", "type of an input or output in the engine: fp32, fp16, bf16 or int8"
    ),
    "labels": Way(help="labels that do not come with the data: .npy, .npz or, for images, .json of COCO"),
    "layer_precisions": Way(
        ("--layer-precision",),
        "LAYER=TYPE",
        "type of the layers of a name or pattern (*, ?): fp32, fp16, bf16 or int8",
    ),
    "letterbox": Way(metavar="N or H,W", read=_square),
    "max_drop": Way(metavar="POINTS"),
    "memory_pools": Way(("--memory-pool",), "POOL=SIZE", "size of a memory pool, like workspace=1G"),
    "metrics": Way(("--metric",)),
    "minimum": Way(("--min",), "VALUE"),
    "minutes": Way(metavar="N"),
    "optimization_level": Way(metavar="0-5"),
    "output": Way(("-o", "--output")),
    "output_types": Way(
        ("--output-type",),
        "LAYER=TYPE",
        "type of the outputs of the layers of a name or pattern: fp32, fp16, bf16 or int8",
    ),
    "plugins": Way(("--plugin",), "FILE.so"),
    "profiles": Way(("--profile",)),
    "round_weights": Way(action=argparse.BooleanOptionalAction),
    "scale": Way(metavar="X", read=_fraction),
    "seconds": Way(metavar="S"),
    "shape_values": Way(help="values of an input that decides shapes, like size=64x64,128x128,256x256"),
    "spend": Way(metavar="SHARE", read=_share),
    "tactic_sources": Way(("--tactic-source",), "NAME"),
    "tolerance_db": Way(("--tolerance",), "DB"),
}


@dataclass(frozen=True)
class _Parameter:
    """A parameter of a call that a command line gives.

    Attributes:
        name: Its name.
        kind: Its type as it is written, without None; empty where it has choices.
        choices: The values that it may have, where its type is a literal.
        default: Its default; ``inspect.Parameter.empty`` where it has none.
        positional: Whether it is an argument, unless it has flags.
        text: What the docstring says of it.
    """

    name: str
    kind: str
    choices: tuple[str, ...]
    default: Any
    positional: bool
    text: str

    def way(self, ways: Mapping[str, Way]) -> Way:
        """How it is given, as far as its type does not say so."""
        return _BY_NAME.get(self.name, Way()).but(ways.get(self.name, Way()))

    @property
    def may_be_read(self) -> bool:
        """True if it may be a file that is read."""
        return self.name != "output" and _BY_TYPE[self.kind].file

    def add(self, group: Any, ways: Mapping[str, Way]) -> Any:
        """Adds it to a parser or a group of it; returns the action."""
        by_type, way = _BY_TYPE[self.kind], self.way(ways)
        if self.positional and not way.flags:
            return group.add_argument(
                self.name,
                metavar=way.metavar or self.name.upper(),
                nargs=way.nargs or ("+" if by_type.several else None),
                help=way.help or by_type.help or self.text,
            )
        by_type = by_type.but(way)
        required, negates = self.default is _NO_DEFAULT, self.default is True and way.action is None
        given = {"action": way.action, "default": None if required else self.default}
        if self.kind == "bool":
            given["action"] = way.action or ("store_false" if negates else "store_true")
        else:
            given |= {"metavar": by_type.metavar, "type": None if by_type.read else by_type.type}
        if choices := self.choices if way.choices is None else way.choices:
            given["choices"] = choices
        if by_type.several:
            # Without metrics or sources of kernels, something else decides which.
            decided = self.default is None and self.kind.startswith(("Metric", "Sequence"))
            given |= {"action": "append", "default": None if decided else []}
        return group.add_argument(
            *(way.flags or (f"--{'no-' if negates else ''}{self.name.replace('_', '-')}",)),
            dest=self.name,
            required=way.required or required,
            help=way.help or self.text,
            **given,
        )


_NO_DEFAULT = inspect.Parameter.empty


@cache
def _parameters(call: Callable[..., object]) -> tuple[_Parameter, ...]:
    """What of a call, or of a data class, a command line gives: all that is not for Python alone."""
    names, texts = vars(sys.modules[call.__module__]), described(call)
    parameters = []
    for one in inspect.signature(call).parameters.values():
        kind = one.annotation.removesuffix(" | None")
        if one.name in _FOR_PYTHON or kind.startswith("Callable"):
            continue
        choices = () if kind in _BY_TYPE else get_args(eval(kind, dict(names)))  # our own text
        positional = one.kind is one.POSITIONAL_OR_KEYWORD and not inspect.isclass(call)
        text = texts.get(one.name, "")
        parameters.append(
            _Parameter(one.name, "" if choices else kind, choices, one.default, positional, text)
        )
    return tuple(parameters)


def add_arguments(
    parser: argparse.ArgumentParser,
    call: Callable[..., object],
    *,
    without: Sequence[str] = (),
    json: str | None = None,
    **ways: Way,
) -> None:
    """Adds what a public call takes to the parser of a verb.

    Args:
        parser: The verb's parser.
        call: The call.
        without: Parameters that the verb gives itself.
        json: What is printed with ``--json``, in words; None where the verb has no such option.
        ways: How parameters are given here, in place of what holds for all verbs.
    """
    parameters = {one.name: one for one in _parameters(call) if one.name not in without}
    fields: dict[str, list[_Parameter]] = {}
    actions = []
    for one in parameters.values():
        if one.kind not in _GROUPS:
            actions.append(one.add(parser, ways))
            continue
        group, made = _GROUPS[one.kind](parser)
        # A parameter comes before a field of that name.
        fields[one.kind] = [field for field in made if field.name not in parameters]
        actions += [field.add(group, {}) for field in fields[one.kind]]
    if any(one.kind in _SAMPLES for one in parameters.values()):
        # Only where there is a float model are there states to record with it.
        _add_sequences(parser, states="model" in parameters)
    if json is not None:
        parser.add_argument("--json", action="store_true", help=f"print {json} as JSON")
    spelled = spellings_of(parser)
    for action in actions:
        action.help = _help(action, spelled)
    # What is made of several options is always there; of images nothing is given.
    parser.set_defaults(**dict.fromkeys(one.name for one in fields.get("Preprocessing", ())))
    parser.set_defaults(**{one.name: ... for one in parameters.values() if one.kind in _GROUPS})
    every = [*parameters.values(), *itertools.chain.from_iterable(fields.values())]
    files = ["preprocess", *(one.name for one in every if one.may_be_read)]
    parser.set_defaults(files=files, spelled=spelled)


def values_of(call: Callable[..., object], options: argparse.Namespace) -> dict[str, Any]:
    """The keywords of a call as a command line gives them.

    Args:
        call: What :func:`add_arguments` has added.
        options: The parsed command line.

    Raises:
        TrtInt8Error: A value is malformed, or an option has no effect.
    """
    parameters = [one for one in _parameters(call) if hasattr(options, one.name)]
    if samples := [one.name for one in parameters if one.kind in _SAMPLES]:
        _refuse_without_samples(samples, options)
    return {one.name: _value(one, options) for one in parameters}


def _value(parameter: _Parameter, options: argparse.Namespace) -> Any:
    """The value of a parameter, read from what the command line gives."""
    name, given = parameter.name, getattr(options, parameter.name)
    read = _BY_TYPE[parameter.kind].but(parameter.way({})).read
    if given is None or read is None:
        return given
    return read(given, options.spelled.get(name, name), options)


def refuse_overwriting_arguments(outputs: Iterable[Path], options: argparse.Namespace) -> None:
    """Refuses to write a file that the command line names as one to read.

    Args:
        outputs: The files that will be written.
        options: The parsed command line.

    Raises:
        OutputError: An output is one of the files that are read.
    """
    given = (getattr(options, name, None) for name in options.files)
    refuse_overwriting(outputs, [path for value in given if value is not None for path in several(value)])


def command_to_continue(options: argparse.Namespace) -> str:
    """Returns a command line to copy, which continues from what the given one has kept.

    Args:
        options: The parsed command line.
    """
    resume = [] if getattr(options, "resume", True) else ["--resume"]
    return shlex.join(["trtint8", options.verb, *resume, *options.given[1:]])


def spellings_of(parser: argparse.ArgumentParser) -> dict[str, str]:
    """How a verb spells the parameters of its call, by their names."""
    spelled = {
        action.dest: next((name for name in action.option_strings if name.startswith("--")), action.metavar)
        for action in parser._actions
    }
    for (name, option), text in _AS_OPTIONS.items():
        if option in spelled:
            spelled[name] = text or spelled[option]
    for action in parser._actions:
        if isinstance(action, argparse.BooleanOptionalAction):
            spelled[f"{action.dest}=False"] = action.option_strings[-1]
    return {name: str(option) for name, option in spelled.items() if option}


def _add_images(parser: argparse.ArgumentParser) -> tuple[Any, Iterable[_Parameter]]:
    """Begins the group of how raw images become what a model is fed; returns it, and what belongs there."""
    from calibrators.data.images.preprocessing import Preprocessing

    group = parser.add_argument_group("images (.npz with uint8 images, or folders)")
    group.add_argument("--preprocess", metavar="FILE", help="a .toml or .json file with the options below")
    return group, _parameters(Preprocessing)


def _add_building(parser: argparse.ArgumentParser) -> tuple[Any, Iterable[_Parameter]]:
    """Begins the group of the options of a build."""
    from trtint8.builder.config import BuildOptions

    return parser.add_argument_group("building"), _parameters(BuildOptions)


def _add_workers(parser: argparse.ArgumentParser) -> tuple[Any, Iterable[_Parameter]]:
    """Adds where work runs."""
    parser.add_argument(
        "--ray",
        nargs="?",
        const="",
        metavar="ADDRESS",
        help="share the work out over Ray: the cluster there, else the one that Ray finds, else this machine",
    )
    parser.add_argument(
        "--num-gpus",
        type=float,
        metavar="N",
        help="over Ray: GPUs per worker, which may be a fraction; default 0",
    )
    return parser, ()


#: The types that are given by several options, which these functions add.
_GROUPS = {"Preprocessing": _add_images, "Executor": _add_workers, "BuildOptions": _add_building}


def _add_sequences(parser: argparse.ArgumentParser, states: bool) -> None:
    """Adds what says more of data than its name: the axes of batches, and states."""
    group = parser.add_argument_group("data")
    group.add_argument(
        "--batch-axis",
        action="append",
        default=[],
        metavar="NAME=K",
        help="of an .npz: the samples of this input lie along axis K, and each is fed by itself; repeatable",
    )
    if not states:
        parser.set_defaults(state=[])
        return
    group.add_argument(
        "--state",
        action="append",
        default=[],
        metavar="INPUT=OUTPUT",
        help="the data holds sequences of steps, and this input is fed what this output was at the step "
        "before: the float model is run along them, from zeros or from the data's INPUT; repeatable",
    )


def _refuse_without_samples(names: Sequence[str], options: argparse.Namespace) -> None:
    """Refuses what says how samples are read where there are none.

    Raises:
        CalibrationDataError: ``--batch-axis`` or ``--state`` is given.
    """
    from calibrators.tables.files import is_table_name

    given = (getattr(options, name) for name in names)
    if any(text is not None and not is_table_name(text) for text in given):
        return
    for option, texts in (("--batch-axis", options.batch_axis), ("--state", options.state)):
        if texts:
            spelled = " or ".join(options.spelled[name] for name in names)
            without = spelled if spelled.startswith("--") else f"samples as {spelled}"
            raise CalibrationDataError(f"{option} has no effect without {without}; leave it out")


@cache
def described(call: Callable[..., object]) -> dict[str, str]:
    """What the docstring of a call says of its parameters, or that of a class of its attributes."""
    text = f"{inspect.getdoc(call)}\n"
    section = re.search(r"^(?:Args|Attributes):\n((?:    .*\n|\n)+)", text, re.MULTILINE)
    entries = re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", section[1] if section else "", re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in entries}


#: Public calls that are verbs, by their names in docstrings.
VERB_OF = {
    "audit": "audit",
    "build_int8_engine": "build",
    "calibrate": "calibrate",
    "measure_sensitivity": "sensitivity",
    "quantize": "quantize",
    "tune": "tune",
    "validate": "validate",
}


def _help(action: argparse.Action, spelled: Mapping[str, str]) -> str:
    """The help of an option, from what a docstring says of a parameter, with its default."""
    text = re.sub(r" \(see [^)]*\)|[;:] see :\w+:`[^`]*`|[,;] or None\b", "", action.help or "")
    # What attributes of the result hold, and what None does, is for Python.
    text = re.sub(r" ?(None \w|``\w+`` of the result )[^.]*\.", "", text)
    text = re.sub(r"(?:where|Where) (?:``\w+`` is )?None", _by_default, text)
    text = re.sub(r":\w+:`~?(?:[\w.]*\.)?(\w+)`", lambda found: _called(found[1]), text)
    text = re.sub(r"``([^`]*)``", lambda found: spelled.get(found[1], found[1]), text)
    if action.const is not None:  # a switch
        text = re.sub(r"^Whether (to )?", "" if action.const else "unless given, ", text)
    text = text.removesuffix(".")
    first = text.partition(" ")[0]
    if first[1:] == first[1:].lower():  # no name
        text = text[:1].lower() + text[1:]
    default = action.default
    if isinstance(default, (str, int, float)) and not isinstance(default, bool) and "default" not in text:
        text += f"; default {default:g}" if isinstance(default, float) else f"; default {default}"
    if isinstance(action, argparse._AppendAction):
        text += "; repeatable"
    return text.replace("%", "%%")


def _by_default(found: re.Match[str]) -> str:
    """What is not given is None in Python."""
    return "By default" if found[0][0] == "W" else "by default"


def _called(name: str) -> str:
    return f"'trtint8 {VERB_OF[name]}'" if name in VERB_OF else name
