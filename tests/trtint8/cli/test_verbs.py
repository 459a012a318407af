"""Verbs made from calls: what stands on the command line for each kind of parameter."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import pytest

from calibrators.checks import FilePath
from calibrators.data.images.preprocessing import Preprocessing
from calibrators.errors import Argument, CalibrationDataError, OutputError, TrtInt8Error
from calibrators.ray.cluster import RayExecutor
from calibrators.run import Executor
from trtint8.builder.config import BuildOptions
from trtint8.cli.main import VERBS
from trtint8.cli.verbs import Once, Way, add_arguments, refuse_overwriting_arguments, spellings_of, values_of
from trtint8.engine.profiles import Profile, ShapeRange

Kind = Literal["good", "bad"]


def call(
    model: FilePath,
    others: Sequence[str],
    *,
    kind: Kind = "good",
    tf32: bool = True,
    quick: bool = False,
    seconds: float = 2.0,
    batch_size: int | None = None,
    keep_float: Sequence[str] = (),
    memory_pools: Mapping[str, int] | None = None,
    io_types: Mapping[str, str] | None = None,
    profile: Profile | None = None,
    profiles: Sequence[Profile] = (),
    preprocessing: Preprocessing | None = None,
    executor: Executor = "local",
    options: BuildOptions | None = None,
    on_end: Callable[[], None] | None = None,
    progress: bool = True,
) -> None:
    """Does nothing.

    Args:
        model: The model.
        others: Other ones.
        kind: How good; ``seconds`` do not count. See :func:`trtint8.calibrate`.
        tf32: Whether TF32 is used.
        quick: Whether it is quick, 100 % of the time.
        seconds: How long it takes, with ``batch_size``;
            and more.
        batch_size: How many; one where None.
        keep_float: Names of a :class:`~trtint8.some.Thing`.
        memory_pools: Sizes.
        io_types: Types.
        profile: Shapes.
        profiles: More shapes.
        preprocessing: How images are changed.
        executor: Where.
        options: What else.
        on_end: Called at the end.
        progress: Show it.

    Raises:
        ValueError: Never.
    """


def parser(**ways):
    made = argparse.ArgumentParser("verb")
    add_arguments(made, call, **{"profiles": Way(("--profiles",))} | ways)
    return made


def values(*arguments):
    return values_of(call, parser().parse_args(["m", "a", *arguments]))


def test_nothing_given_leaves_every_default():
    assert values() == {
        "model": "m",
        "others": ["a"],
        "kind": "good",
        "tf32": True,
        "quick": False,
        "seconds": 2.0,
        "batch_size": None,
        "keep_float": [],
        "memory_pools": {},
        "io_types": {},
        "profile": {},
        "profiles": [],
        "preprocessing": None,
        "executor": "local",
        "options": BuildOptions(),
    }


@pytest.mark.parametrize(
    ("arguments", "name", "value"),
    [
        (["b"], "others", ["a", "b"]),
        (["--kind", "bad"], "kind", "bad"),
        (["--no-tf32"], "tf32", False),
        (["--quick"], "quick", True),
        (["--seconds", "1.5"], "seconds", 1.5),
        (["--batch-size", "8"], "batch_size", 8),
        (["--keep-float", "a*", "--keep-float", "b"], "keep_float", ["a*", "b"]),
        (["--memory-pool", "workspace=1.5G"], "memory_pools", {"workspace": 3 << 29}),
        (["--io-type", "a=b=int8"], "io_types", {"a=b": "int8"}),
        (["--ray"], "executor", RayExecutor()),
        (["--ray", "there:1", "--num-gpus", "0.5"], "executor", RayExecutor("there:1", num_gpus=0.5)),
        (["--no-gpu-fallback", "--dla-core", "1"], "options", BuildOptions(gpu_fallback=False, dla_core=1)),
        (["--mean", "0.5", "--crop", "3,4"], "preprocessing", Preprocessing(mean=(0.5,), crop=(3, 4))),
        (["--crop", "224"], "preprocessing", Preprocessing(crop=(224, 224))),
        (
            ["--letterbox", "64", "--scale", "1/128"],
            "preprocessing",
            Preprocessing(letterbox=(64, 64), scale=1 / 128),
        ),
        (["--resize", "256", "--layout", "NHWC"], "preprocessing", Preprocessing(resize=256, layout="NHWC")),
    ],
)
def test_what_is_given(arguments, name, value):
    assert values(*arguments)[name] == value


def test_an_input_that_is_named_again_begins_another_profile():
    one, two = ShapeRange((1, 3), (2, 3), (4, 3)), ShapeRange((8, 3), (8, 3), (8, 3))
    mask = ShapeRange((1,), (2,), (4,))
    texts = ["x=1x3,2x3,4x3", "mask=1,2,4", "x=8x3,8x3,8x3"]
    given = values(*(word for text in texts for word in ("--profiles", text)))
    assert given["profiles"] == [{"x": one, "mask": mask}, {"x": two}]
    assert values("--profile", texts[0])["profile"] == {"x": one}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--io-type", "a"], ["--io-type", "'a'", "NAME=VALUE"]),
        (["--io-type", "=a"], ["--io-type", "'=a'"]),
        (["--io-type", "x=a", "--io-type", "x=b"], ["--io-type", "'x'", "twice"]),
        (["--memory-pool", "x=big"], ["--memory-pool", "'x=big'"]),
        (["--memory-pool", f"x={'9' * 400}G"], ["--memory-pool"]),
        (["--profile", "x=1"], ["'x=1'"]),
        (["--num-gpus", "1"], ["--num-gpus", "--ray"]),
        (["--mean", "a,1"], ["--mean", "'a'"]),
        (["--crop", "2.5,1"], ["--crop", "'2.5'"]),
        (["--scale", "1/0"], ["--scale", "'1/0'"]),
        (["--preprocess", "p.toml", "--std", "1"], ["--preprocess", "--std"]),
    ],
)
def test_malformed_values_are_named_as_they_are_given(arguments, words):
    with pytest.raises(TrtInt8Error) as refused:
        values(*arguments)
    assert all(word in str(refused.value) for word in words)


def test_preprocessing_from_a_file(tmp_path):
    (tmp_path / "p.toml").write_text('layout = "NHWC"\n')
    found = values("--preprocess", str(tmp_path / "p.toml"))
    assert found["preprocessing"] == Preprocessing(layout="NHWC")


@pytest.mark.parametrize("name", ["", "a\0b", "missing.toml"])
def test_a_file_of_preprocessing_that_is_none_is_refused(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CalibrationDataError):
        values("--preprocess", name)


def test_help_is_what_the_docstring_says():
    helps = {action.dest: action.help for action in parser()._actions}
    assert helps["kind"] == "how good; --seconds do not count. See 'trtint8 calibrate'; default good"
    assert helps["tf32"] == "unless given, TF32 is used"
    assert helps["quick"] == "it is quick, 100 %% of the time"
    assert helps["seconds"] == "how long it takes, with --batch-size; and more; default 2"
    assert helps["batch_size"] == "how many; one by default"
    assert helps["keep_float"] == "names of a Thing; repeatable"
    assert not {"on_end", "progress"} & helps.keys()
    assert "100 %" in parser().format_help()


def test_ways_of_a_verb_come_first():
    made = parser(
        others=Way(nargs="?", metavar="B", help="one other"),
        kind=Way(("-k", "--sort"), choices=()),
        batch_size=Way(action=Once),
        seconds=Way(required=True),
    )
    assert spellings_of(made)["kind"] == "--sort"
    assert spellings_of(made)["others"] == "B"
    given = values_of(call, made.parse_args(["m", "--seconds", "1", "-k", "else"]))
    assert (given["others"], given["kind"]) == (None, "else")
    with pytest.raises(SystemExit):
        made.parse_args(["m"])
    with pytest.raises(SystemExit):
        made.parse_args(["m", "--seconds", "1", "--batch-size", "1", "--batch-size", "2"])


def test_what_a_verb_gives_itself_is_no_option():
    made = argparse.ArgumentParser()
    add_arguments(made, call, without=("options", "seconds", "profiles"), json="all")
    options = made.parse_args(["m", "a", "--json"])
    assert options.json
    assert not {"options", "seconds"} & values_of(call, options).keys()


def test_how_parameters_are_spelled():
    spelled = spellings_of(parser())
    assert spelled["model"] == "MODEL"
    assert spelled["batch_size"] == "--batch-size"
    assert spelled["tf32"] == "--no-tf32"
    made = argparse.ArgumentParser()
    made.add_argument("--fp16", action=argparse.BooleanOptionalAction)
    both = {value: Argument("fp16", value).spelled(spellings_of(made)) for value in ("", "True", "False")}
    assert both == {"": "--fp16", "True": "--fp16", "False": "--no-fp16"}
    assert (spelled["preprocessing"], spelled["executor"]) == ("--preprocess", "--ray")


@pytest.mark.parametrize(
    "arguments", [["f", "a"], ["m", "a", "--preprocess", "f"], ["m", "a", "--timing-cache", "f"]]
)
def test_what_the_command_line_names_is_not_overwritten(tmp_path, monkeypatch, arguments):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "f").touch()
    options = parser().parse_args(arguments)
    with pytest.raises(OutputError, match=r"'.*f'"):
        refuse_overwriting_arguments([tmp_path / "f"], options)
    refuse_overwriting_arguments([tmp_path / "h"], options)


def parsers_of(parser, name):
    """A parser and those of its actions, by the words that lead to them."""
    yield name, parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for word, sub in action.choices.items():
                yield from parsers_of(sub, f"{name} {word}")


@pytest.mark.parametrize("verb", VERBS)
def test_every_argument_of_every_verb_has_a_text(verb):
    parser = argparse.ArgumentParser()
    importlib.import_module(f"trtint8.cli.{verb}").configure(parser)
    for name, sub in parsers_of(parser, verb):
        formatter = sub._get_formatter()
        texts = {
            action.dest: formatter._expand_help(action).strip() if action.help else ""
            for action in sub._actions
            if not isinstance(action, argparse._SubParsersAction)
        }
        assert [what for what, text in texts.items() if len(text) < 5] == [], name
