"""Verbs made from the public calls, whose signatures and docstrings give names, choices, defaults and help.

A parameter without a default is an argument, any other an option: ``batch_size`` is ``--batch-size``. What a
type means on a command line is said once, in ``_FORMS``. What neither name nor type says, such as a short
name, is said in ``_WAYS``, or by a verb for itself. Values are read after parsing, so that a mistake in one
is an error as any other.

``argparse`` parses them: it is part of Python, and costs 5 ms at the start of a process where typer costs 36
and cyclopts 48.
"""

from __future__ import annotations

import argparse
import inspect
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from calibrators.checks import several
from calibrators.errors import CalibrationDataError, UnsupportedError
from calibrators.files import refuse_overwriting
from trtint8.cli.output import named_values

# What reads values is imported where it is needed, so that a verb loads only what its own call is about.
if TYPE_CHECKING:
    from calibrators.data.images.preprocessing import Preprocessing
    from calibrators.ray.cluster import RayExecutor
    from trtint8.builder.config import BuildOptions
    from trtint8.engine.profiles import ShapeRange

#: Reads a value, of its text or texts, the name of the option or argument, and the whole command line.
_Reader = Callable[[Any, str, argparse.Namespace], Any]

#: Bytes in the units that sizes are given in.
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}

#: Parameters that are for Python alone: a terminal shows progress anyway, and no file holds what these say.
_FOR_PYTHON = ("progress", "example_inputs")

#: What data may be, for the help of a verb.
_DATA = "an .npz, a folder of images or arrays, random:COUNT, or MODULE:FUNCTION, which returns a data loader"


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
    """How a command line gives a parameter, as far as neither its name and type nor its docstring says so.

    Attributes:
        flags: The names of the option; from the parameter's name where empty.
        metavar: What stands for the value in the help; by the type where None.
        help: The help; from the docstring where None.
        read: Reads what was given; by the type where None.
        required: Whether it must be given here, and not in Python.
        choices: Whether the parser refuses what is no choice; else the call does.
        once: Whether a second value is refused, where the last one would be taken.
        action: What the parser does with the option; by the type where None.
        nargs: How many values there are; by the type where None.
    """

    flags: tuple[str, ...] = ()
    metavar: str | None = None
    help: str | None = None
    read: _Reader | None = None
    once: bool = False
    required: bool = False
    choices: bool = True
    action: Any = None
    nargs: str | None = None


@dataclass(frozen=True)
class _Form:
    """How values of a type are given on a command line.

    Attributes:
        metavar: What stands for a value in the help.
        read: Reads what was given.
        type: What the parser itself makes of a text, where it is a number.
        several: Whether it may be given several times.
        file: Whether it may name a file that is read.
        help: The help of an argument, in place of what Python takes.
    """

    metavar: str | None = None
    read: _Reader = lambda value, _name, _options: value
    type: type | None = None
    several: bool = False
    file: bool = False
    help: str | None = None


def _pairs(read: Callable[[str, str], Any] = lambda text, _name: text) -> _Reader:
    """Reads NAME=VALUE; names may hold "=", values never do."""

    def pair(text: str, name: str) -> tuple[str, Any]:
        key, equals, value = text.rpartition("=")
        if not (equals and key and value):
            raise UnsupportedError(f"{name}: '{text}' is not NAME=VALUE; give a name, '=' and a value")
        return key, read(value, name)

    return lambda texts, name, _options: _named((pair(text, name) for text in texts), name)


def _named(pairs: Iterable[tuple[str, Any]], name: str) -> dict[str, Any]:
    return named_values(name, pairs, UnsupportedError)


def _models(texts: Sequence[str], name: str, _options: argparse.Namespace) -> dict[str, str]:
    """Reads NAME=MODEL; a file's name may hold "=", that of a model never does."""
    pairs = [text.partition("=") for text in texts]
    for text, (key, _, model) in zip(texts, pairs, strict=True):
        if not (key and model):
            raise UnsupportedError(f"{name}: '{text}' is not NAME=MODEL; write for example FP16=fp16.onnx")
    return _named(((key, model) for key, _, model in pairs), name)


def _size(text: str, name: str) -> int:
    match = re.fullmatch(r"(\d{1,30}(?:\.\d+)?)([KMG]?)(?:i?B)?", text, re.IGNORECASE)
    if not match:
        raise UnsupportedError(f"{name}: '{text}' is not a size; write for example 512M or 1G")
    return int(float(match[1]) * _UNITS[match[2].upper()])


def _profile(texts: Sequence[str], name: str, _options: argparse.Namespace) -> dict[str, ShapeRange]:
    from trtint8.engine.profiles import parse_profile

    return _named(map(parse_profile, texts), name)


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


def _numbers(kind: Callable[[str], Any], what: str) -> _Reader:
    """Reads numbers with commas between them; a single one is one."""

    def read(text: str, name: str, _options: argparse.Namespace) -> Any:
        parts = text.split(",")
        for part in parts:
            try:
                kind(part)
            except ValueError:
                raise CalibrationDataError(f"{name}: '{part}' is not {what}; give {what}") from None
        return kind(text) if len(parts) == 1 else tuple(map(kind, parts))

    return read


_integers, _floats = _numbers(int, "an integer"), _numbers(float, "a number")


def _fraction(text: str, name: str, options: argparse.Namespace) -> float:
    numerator, _, denominator = text.partition("/")
    divisor = _floats(denominator or "1", name, options)
    if not divisor:
        raise CalibrationDataError(f"{name}: '{text}' divides by zero; write 1/255 or a number")
    return float(_floats(numerator, name, options) / divisor)


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


def _data(text: str | None, _name: str, options: argparse.Namespace) -> Any:
    from trtint8.cli.own_code import data_from

    return data_from(text, options)


def _build_options(_value: object, _name: str, options: argparse.Namespace) -> BuildOptions:
    from trtint8.builder.config import BuildOptions

    return BuildOptions(**values_of(BuildOptions, options))


def _metric(text: str, _name: str, _options: argparse.Namespace) -> Any:
    from trtint8.cli.own_code import metric_from

    return metric_from(text) if text else None


def _metrics(texts: Sequence[str], name: str, options: argparse.Namespace) -> list[Any] | None:
    return [_metric(text, name, options) for text in texts] or None


#: What types of parameters, as signatures write them, are on a command line.
_FORMS = {
    "int": _Form("N", type=int),
    "float": _Form("X", type=float),
    "str": _Form(),
    "str | os.PathLike[str]": _Form("FILE", file=True),
    "str | os.PathLike[str] | Sequence[str]": _Form("FILE", file=True),
    "Sequence[str]": _Form(several=True),
    "Sequence[int]": _Form("N", type=int, several=True),
    "Sequence[str | os.PathLike[str]]": _Form("FILE", several=True, file=True),
    "Iterable[str | os.PathLike[str]]": _Form("FILE", several=True, file=True),
    "Mapping[str, str]": _Form("NAME=VALUE", _pairs(), several=True),
    "Mapping[str, int]": _Form("NAME=SIZE", _pairs(_size), several=True),
    "Mapping[str, Sequence[str]]": _Form(
        "NAME=VALUE,...", _pairs(lambda text, _name: text.split(",")), several=True
    ),
    "Mapping[str, ShapeRange]": _Form("NAME=MIN,OPT,MAX", _profile, several=True),
    "Mapping[str, AnyModel]": _Form("NAME=MODEL", _models, several=True),
    "Profile": _Form("NAME=MIN,OPT,MAX", _profile, several=True),
    "Sequence[Profile]": _Form("NAME=MIN,OPT,MAX", _profiles, several=True),
    "tuple[float, ...]": _Form("R,G,B", _floats),
    "tuple[int, int]": _Form("H,W", _integers),
    "tuple[int, int] | int": _Form("N or H,W", _integers),
    "AnyModel": _Form(file=True, help="a float ONNX model"),
    "ModelSource": _Form(file=True, help="an ONNX model"),
    "TableSource": _Form(file=True),
    "DynamicRanges": _Form("FILE", file=True),
    "LabelSource": _Form("FILE", file=True),
    "DataSource": _Form("DATA", _data, file=True, help=_DATA),
    "DataSource | CalibrationTable": _Form(None, _data, file=True),
    "CalibrationSource": _Form(None, _data, file=True),
    "Metric": _Form("NAME", _metric),
    "Metric | Sequence[Metric]": _Form("NAME", _metrics, several=True),
    "str | Gpu": _Form("GPU"),
    "Preprocessing": _Form(read=_preprocessing),
    "Executor": _Form(read=_executor),
    "BuildOptions": _Form(read=_build_options),
}

#: Parameters to the options that give them under another name.
_ALSO = {"executor": "ray", "format_name": "format", "preprocessing": "preprocess"}

#: What a verb takes for a metric with a decoder.
_DECODING_METRIC = "--metric MODULE:NAME of a trtint8.DetectionAgreement"

#: Classes of values, the options that stand for them, and how these are written.
_AS_OPTIONS = (
    ("BatchAxes", "batch_axis", "--batch-axis NAME=K"),
    ("StateSequences", "state", "--state INPUT=OUTPUT"),
    ("DetectionAgreement", "metrics", _DECODING_METRIC),
    ("DetectionAgreement", "metric", _DECODING_METRIC),
)

#: The types whose values are samples.
_SAMPLES = ("DataSource", "DataSource | CalibrationTable", "CalibrationSource")

#: How parameters are given whose names and types do not say it, wherever they occur.
_WAYS = {
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
    "tactic_sources": Way(("--tactic-source",), "NAME"),
    "tolerance_db": Way(("--tolerance",), "DB"),
}


def add_arguments(
    parser: argparse.ArgumentParser,
    call: Callable[..., object],
    *,
    without: Sequence[str] = (),
    states: bool = True,
    json: str | None = None,
    docs: Callable[..., object] | None = None,
    **ways: Way,
) -> None:
    """Adds what a public call takes to the parser of a verb.

    Args:
        parser: The verb's parser.
        call: The call.
        without: Parameters that the verb gives itself.
        states: Whether there is a float model to record states with.
        json: What is printed with ``--json``, in words; None where the verb has no such option.
        docs: Another call, which describes the parameters that the docstring of this one leaves out.
        ways: How parameters are given here, in place of what holds for all verbs.
    """
    described = (_described(docs) if docs else {}) | _described(call)
    parameters = _parameters(call, without)
    kinds = {_kind(parameter) for parameter in parameters}
    # What an executor of Ray is made of is no parameter of the call.
    spellings = {"num_gpus": "--num-gpus", **{one.name: _flag(one, ways) for one in parameters}}
    files = ["preprocess", *(one.name for one in parameters if _is_read(one))]
    for parameter in parameters:
        kind = _kind(parameter)
        if kind == "Preprocessing":
            _add_images(parser, spellings)
        elif kind == "Executor":
            _add_workers(parser)
        elif kind == "BuildOptions":
            files += _add_building(parser, spellings)
        else:
            text, way = described.get(parameter.name, ""), _way(parameter.name, ways)
            _add(parser, parameter, text, spellings, way)
    if kinds & {*_SAMPLES}:
        _add_sequences(parser, states)
    if json is not None:
        parser.add_argument("--json", action="store_true", help=f"print {json} as JSON")
    parser.set_defaults(taken=[one.name for one in parameters], files=files, spelled=spellings_of(parser))


def values_of(call: Callable[..., object], options: argparse.Namespace) -> dict[str, Any]:
    """The keywords of a call as a command line gives them.

    Args:
        call: What :func:`add_arguments` has added.
        options: The parsed command line.

    Raises:
        TrtInt8Error: A value is malformed, or an option has no effect.
    """
    parameters = [one for one in _parameters(call, ()) if _is_given(one, options)]
    samples = [one.name for one in parameters if _kind(one) in _SAMPLES]
    if samples:
        _refuse_without_samples(samples, options)
    return {one.name: _value(one, options) for one in parameters}


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


def _is_read(parameter: inspect.Parameter) -> bool:
    """True if a parameter may be a file that is read."""
    form = _FORMS.get(_kind(parameter))
    return form is not None and form.file and parameter.name != "output"


def spellings_of(parser: argparse.ArgumentParser) -> dict[str, str]:
    """How a verb spells the parameters of its call, by their names."""
    spelled = {
        action.dest: next((name for name in action.option_strings if name.startswith("--")), action.metavar)
        for action in parser._actions
    }
    spelled |= {name.removeprefix("no_"): option for name, option in spelled.items()}
    spelled |= {name: spelled.get(option) for name, option in _ALSO.items()}
    spelled |= {name: text for name, option, text in _AS_OPTIONS if option in spelled}
    return {name: str(option) for name, option in spelled.items() if option}


def _parameters(call: Callable[..., object], without: Sequence[str]) -> list[inspect.Parameter]:
    """What of a call a command line gives: what has a form, or a choice of values."""
    return [
        parameter
        for parameter in _signature(call).parameters.values()
        if parameter.name not in (*_FOR_PYTHON, *without) and not parameter.annotation.startswith("Callable")
    ]


@cache
def _signature(call: Callable[..., object]) -> inspect.Signature:
    """The signature of a call, whose types stand as they are written, but literals."""
    found, names = inspect.signature(call), vars(sys.modules[call.__module__])
    parameters = [
        one.replace(annotation=_annotation(one.annotation, names)) for one in found.parameters.values()
    ]
    return found.replace(parameters=parameters)


def _annotation(text: str, names: Mapping[str, Any]) -> str:
    """A type as it is written, without None; of literals, the choices with | between them and before."""
    kind = text.removesuffix(" | None")
    if kind in ("bool", *_FORMS) or kind.startswith("Callable") or kind == "object":
        return kind
    return "".join(f"|{choice}" for choice in get_args(eval(kind, dict(names))))  # our own text


def _kind(parameter: inspect.Parameter) -> str:
    return str(parameter.annotation)


def _flag(parameter: inspect.Parameter, ways: Mapping[str, Way]) -> str:
    """How a command line writes a parameter."""
    way = _way(parameter.name, ways)
    if _is_argument(parameter, way):
        return way.metavar or parameter.name.upper()
    if way.flags:
        return way.flags[-1]
    return f"--{'no-' if parameter.default is True and way.action is None else ''}{_dashed(parameter.name)}"


def _way(name: str, ways: Mapping[str, Way]) -> Way:
    return ways.get(name, _WAYS.get(name, Way()))


def _dashed(name: str) -> str:
    return name.replace("_", "-")


def _is_argument(parameter: inspect.Parameter, way: Way) -> bool:
    return not way.flags and parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD


def _add(group: Any, parameter: inspect.Parameter, text: str, spellings: Mapping[str, str], way: Way) -> None:
    """Adds one parameter to a parser or a group of it."""
    name, form = parameter.name, _FORMS.get(_kind(parameter), _Form())
    if _is_argument(parameter, way):
        nargs = way.nargs or ("+" if form.several else None)
        text = _help(way.help or form.help or text, spellings, {})
        group.add_argument(name, metavar=way.metavar or name.upper(), nargs=nargs, help=text)
        return
    given = _given(parameter, form, way)
    flags = way.flags or (f"--{_dashed(given['dest'])}",)
    required = way.required or parameter.default is parameter.empty
    text = _help(way.help or text, spellings, given)
    group.add_argument(*flags, required=required, help=text, **given)


def _given(parameter: inspect.Parameter, form: _Form, way: Way) -> dict[str, Any]:
    """What a parser does with an option."""
    name, kind, default = parameter.name, _kind(parameter), parameter.default
    given = {"dest": name, "default": None if default is parameter.empty else default}
    action = way.action or (Once if way.once else None)
    if action is not None:
        given["action"] = action
    if kind.startswith("|"):
        return given | {"choices": kind[1:].split("|") if way.choices else None, "metavar": way.metavar}
    if kind == "bool":
        if action is not None:
            return given
        return {"dest": f"no_{name}" if default is True else name, "action": "store_true", "default": False}
    given |= {"metavar": way.metavar or form.metavar, "type": None if way.read else form.type}
    if form.several:
        # Without metrics or sources of kernels, something else decides which.
        decided = default is None and kind.startswith(("Metric", "Sequence"))
        given |= {"action": "append", "default": None if decided else []}
    return given


def _add_fields(
    group: Any, kind: Callable[..., object], spellings: Mapping[str, str], skip: Iterable[str] = ()
) -> None:
    """Adds the fields of a data class, each as an option of its own."""
    described = _described(kind)
    fields = [
        one.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for one in _parameters(kind, ())
        if one.name not in skip
    ]
    spelled = {**spellings, **{one.name: _flag(one, {}) for one in fields}}
    for one in fields:
        _add(group, one, described.get(one.name, ""), spelled, _way(one.name, {}))


def _add_building(parser: argparse.ArgumentParser, spellings: Mapping[str, str]) -> list[str]:
    """Adds the fields of the options of a build that are no parameters; returns which may be files."""
    from trtint8.builder.config import BuildOptions

    _add_fields(parser.add_argument_group("building"), BuildOptions, spellings, skip=spellings)
    return [one.name for one in _parameters(BuildOptions, ()) if _is_read(one)]


def _add_images(parser: argparse.ArgumentParser, spellings: Mapping[str, str]) -> None:
    """Adds how raw images become what a model is fed."""
    from calibrators.data.images.preprocessing import Preprocessing

    group = parser.add_argument_group("images (.npz with uint8 images, or folders)")
    group.add_argument("--preprocess", metavar="FILE", help="a .toml or .json file with the options below")
    _add_fields(group, Preprocessing, spellings)
    parser.set_defaults(**dict.fromkeys(_signature(Preprocessing).parameters))  # None: not given


def _add_workers(parser: argparse.ArgumentParser) -> None:
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


def _is_given(parameter: inspect.Parameter, options: argparse.Namespace) -> bool:
    given = parameter.name in options.taken or hasattr(options, parameter.name)
    return given or _is_negated(parameter, options)


def _is_negated(parameter: inspect.Parameter, options: argparse.Namespace) -> bool:
    return hasattr(options, f"no_{parameter.name}")


def _value(parameter: inspect.Parameter, options: argparse.Namespace) -> Any:
    """The value of a parameter, read from what the command line gives."""
    name, kind = parameter.name, _kind(parameter)
    if _is_negated(parameter, options):
        return not getattr(options, f"no_{name}")
    given = getattr(options, name, None)
    read = _way(name, {}).read or _FORMS.get(kind, _Form()).read
    if given is None and hasattr(options, name):
        return None
    return read(given, options.spelled.get(name, name), options)


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
def _described(call: Callable[..., object]) -> dict[str, str]:
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


def _help(text: str, spellings: Mapping[str, str], given: Mapping[str, Any]) -> str:
    """The help of an option, from what a docstring says of a parameter, with its default."""
    text = re.sub(r" \(see [^)]*\)|[;:] see :\w+:`[^`]*`|[,;] or None\b", "", text)
    # What attributes of the result hold, and what None does, is for Python.
    text = re.sub(r" ?(None \w|``\w+`` of the result )[^.]*\.", "", text)
    text = re.sub(r"(?:where|Where) (?:``\w+`` is )?None", _by_default, text)
    text = re.sub(r":\w+:`~?(?:[\w.]*\.)?(\w+)`", lambda found: _called(found[1]), text)
    text = re.sub(r"``([^`]*)``", lambda found: spellings.get(found[1], found[1]), text)
    if given.get("action") == "store_true":
        text = re.sub(r"^Whether (to )?", "unless given, " if given["dest"].startswith("no_") else "", text)
    text = text.removesuffix(".")
    first = text.partition(" ")[0]
    if first[1:] == first[1:].lower():  # no name
        text = text[:1].lower() + text[1:]
    default = given.get("default")
    if isinstance(default, (str, int, float)) and not isinstance(default, bool) and "default" not in text:
        text += f"; default {default:g}" if isinstance(default, float) else f"; default {default}"
    if given.get("action") == "append":
        text += "; repeatable"
    return text.replace("%", "%%")


def _by_default(found: re.Match[str]) -> str:
    """What is not given is None in Python."""
    return "By default" if found[0][0] == "W" else "by default"


def _called(name: str) -> str:
    return f"'trtint8 {VERB_OF[name]}'" if name in VERB_OF else name
