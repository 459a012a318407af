"""Messages name arguments as data: the library spells no option, and a verb no parameter of Python."""

import argparse
import ast
import importlib
import inspect
import re
import types
from pathlib import Path

import numpy as np
import pytest

import trtint8
from calibrators.checks import warn_user
from calibrators.errors import Advice, Argument, advice, followed
from trtint8.cli.main import VERBS, main
from trtint8.cli.verbs import VERB_OF, spellings_of
from trtint8.data import DEMO_MODEL

ROOT = Path(__file__).parents[1]

#: What writes no messages: templates of files, commands that a page or ``doctor`` lists, and pictures.
OTHERS = (
    "trtint8/cli",
    "trtint8/api/doctor.py",
    "trtint8/deployment",
    "trtint8/report/facts.py",
    "calibrators/display",
)

#: A command that a message tells the user to type, in quotes, or one of another program.
COMMANDS = re.compile(r"'(?:trtint8|trtexec) [^']*'|`trtint8 [^`]*`|pip install .*")

OPTION = re.compile(r"(?<![-\w])--[a-z][a-z-]+")


def parameters():
    """Names of all parameters of public calls and of the methods of public classes."""
    for name in trtint8.__all__:
        found = getattr(trtint8, name)
        functions = [found] if inspect.isfunction(found) else []
        if inspect.isclass(found):
            functions = [
                found.__init__,
                *(one for key, one in vars(found).items() if not key.startswith("_")),
            ]
        for function in map(inspect.unwrap, functions):
            function = getattr(function, "__func__", function)
            if inspect.isfunction(function):
                yield from inspect.signature(function).parameters


#: Names that can only be those of parameters.
PARAMETERS = sorted({name for name in parameters() if "_" in name.strip("_")})


def texts(path):
    """The texts of a module that are no docstrings; ``{}`` stands for what an f-string computes."""
    tree = ast.parse(path.read_text())
    skipped = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            skipped |= set(map(id, node.values))
            pieces = (piece.value if isinstance(piece, ast.Constant) else "{}" for piece in node.values)
            yield node.lineno, "".join(map(str, pieces))
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in skipped:
            yield node.lineno, node.value


def messages():
    """The sentences of the library, each with its place."""
    for path in sorted(
        path for package in ("calibrators", "trtint8") for path in (ROOT / package).rglob("*.py")
    ):
        place = path.relative_to(ROOT).as_posix()
        if not place.startswith(OTHERS):
            for line, text in texts(path):
                if " " in text.strip() and not text.startswith("<"):
                    yield f"{place}:{line}", COMMANDS.sub("", text)


def test_the_library_spells_no_option_of_the_command_line():
    assert not [(place, text) for place, text in messages() if OPTION.search(text)]


def test_the_library_names_parameters_as_data():
    named = re.compile(rf"(?<![-\w.'<])({'|'.join(PARAMETERS)})(?![\w.'(])")
    assert not [(place, text) for place, text in messages() if named.search(text)]


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_spells_every_parameter_as_a_command_line_does(verb):
    parser = argparse.ArgumentParser()
    importlib.import_module(f"trtint8.cli.{verb}").configure(parser)
    spelled = spellings_of(parser)
    for name in PARAMETERS:
        for argument in (Argument(name), Argument(name, "True"), Argument(name, "...")):
            shown = argument.spelled(spelled)
            assert "_" not in shown.replace("DATA_OR_TABLE", "").replace("MODEL_OR_ENGINE", ""), shown
    options = {option for action in parser._actions for option in action.option_strings}
    assert {text.partition(" ")[0] for text in spelled.values() if text.startswith("-")} <= options


#: Values that calls refuse, and how `trtint8 calibrate` is given them.
REFUSED = {
    "batch_size": (0, "--batch-size"),
    "limit": (-2, "--limit"),
    "threads": (0, "--threads"),
    "seed": (-1, "--seed"),
    "checkpoint_seconds": (-1.0, "--checkpoint-seconds"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_one_error_for_both_doors(name, tmp_path, capsys):
    value, option = REFUSED[name]
    np.savez(tmp_path / "d.npz", images=np.zeros((4, 1, 8, 8), np.float32))
    with pytest.raises(trtint8.TrtInt8Error) as refused:
        trtint8.calibrate(DEMO_MODEL, tmp_path / "d.npz", **{name: value})
    assert Argument(name) in refused.value.parts
    arguments = ["calibrate", str(DEMO_MODEL), str(tmp_path / "d.npz"), "-o", str(tmp_path / "t.json")]
    assert main([*arguments, option, str(value)]) == 2
    assert capsys.readouterr().err == f"trtint8 calibrate: {refused.value}\n".replace(name, option)


def test_one_warning_for_both_doors(tmp_path, monkeypatch, capsys):
    def calibrated(*_arguments, **_keywords):
        warn_user(f"set {Argument('batch_size')} or {Argument('BatchAxes')}, not 'batch_size'")
        raise trtint8.ModelError("no more")

    monkeypatch.setattr("trtint8.calibration.calibrate_model", calibrated)
    with pytest.warns(UserWarning) as said, pytest.raises(trtint8.ModelError):
        trtint8.calibrate(DEMO_MODEL, "d.npz")
    assert str(said[0].message) == "set batch_size or BatchAxes, not 'batch_size'"
    assert Argument("batch_size") in said[0].message.parts
    assert main(["calibrate", str(DEMO_MODEL), "d.npz", "-o", str(tmp_path / "t.json")]) == 2
    warning = capsys.readouterr().err.splitlines()[0]
    assert warning == "warning: set --batch-size or --batch-axis NAME=K, not 'batch_size'"


def test_arguments_of_other_calls_exist():
    found = re.compile(r"Argument\('(\w+)', '[^']*', '(\w+)'\)")
    text = "".join(
        path.read_text() for package in ("calibrators", "trtint8") for path in (ROOT / package).rglob("*.py")
    )
    named = found.findall(text)
    assert named
    for name, call in named:
        assert name in (*inspect.signature(getattr(trtint8, call)).parameters, *BUILD_OPTIONS)
        parser = argparse.ArgumentParser()
        importlib.import_module(f"trtint8.cli.{VERB_OF[call]}").configure(parser)
        assert name in spellings_of(parser)


#: Options of a build that are fields of ``BuildOptions``.
BUILD_OPTIONS = tuple(inspect.signature(trtint8.BuildOptions).parameters)


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_advises_only_what_it_takes(verb):
    parser = argparse.ArgumentParser()
    importlib.import_module(f"trtint8.cli.{verb}").configure(parser)
    spelled = spellings_of(parser)
    ways = [f"give {Argument(name)}" for name in PARAMETERS]
    error = trtint8.ModelError(f"it is wrong; {advice(*ways, 'mend it')}")
    assert isinstance(error.parts[-1], Advice)
    named = {part.name for part in followed(error.parts, spelled) if isinstance(part, Argument)}
    assert named == {name for name in PARAMETERS if name in spelled}


def test_a_call_advises_only_what_it_takes(monkeypatch):
    def refuses(*_arguments, **_keywords):
        ways = advice(f"give {Argument('batch_size')}", f"give {Argument('max_drop')}", "mend it")
        raise trtint8.ModelError(f"it is wrong; {ways}")

    # As if it stood in the package, since a user's function would be the one that is called.
    inside = types.FunctionType(refuses.__code__, globals() | {"__name__": "trtint8.calibration"})
    monkeypatch.setattr("trtint8.calibration.calibrate_model", inside)
    with pytest.raises(trtint8.ModelError) as refused:
        trtint8.calibrate(DEMO_MODEL, "d.npz")
    assert str(refused.value) == "it is wrong; give batch_size, or mend it"


def test_a_way_of_another_verb_is_spelled_as_its_own(monkeypatch, tmp_path, capsys):
    def refuses(*_arguments, **_keywords):
        raise trtint8.ModelError(f"use {Argument('tensors', 'all', 'calibrate')}")

    monkeypatch.setattr("trtint8.calibration.calibrate_model", refuses)
    assert main(["calibrate", str(DEMO_MODEL), "d.npz", "-o", str(tmp_path / "t.json")]) == 2
    assert capsys.readouterr().err.endswith("use 'trtint8 calibrate --tensors all'\n")


#: A command that takes trtint8 from an index, where it is not. A folder of wheels is no index.
FROM_AN_INDEX = re.compile(r"pip3? (?:install|download)\b(?![^\n`]*--no-index)[^\n`]*[ \"']trtint8(?![-\w])")

#: What users read: pages, examples, the code with its messages, and templates.
READ = [
    path
    for pattern in (
        "*.md",
        "docs/**/*.md",
        "examples/**/*.*",
        "trtint8/**/*.*",
        "calibrators/**/*.py",
        "Dockerfile",
    )
    for path in sorted(ROOT.glob(pattern))
    if path.suffix in ("", ".md", ".py", ".in", ".sh", ".html")
]


def test_nothing_tells_to_install_from_an_index():
    found = [path.relative_to(ROOT) for path in READ if FROM_AN_INDEX.search(path.read_text())]
    assert len(READ) > 250 and not found


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ('pip install "trtint8[rtx]"', True),
        ("`pip install trtint8 tensorrt`", True),
        ("pip download --dest wheels 'trtint8[images]'", True),
        ('pip install ".[rtx]"', False),
        ('pip install --no-index --find-links wheels "trtint8[images]"', False),
        ("pip install dist/trtint8-1.whl", False),
        ("`pip install pillow`, with which trtint8 reads images", False),
    ],
)
def test_a_command_that_takes_from_an_index_is_told(text, wrong):
    assert bool(FROM_AN_INDEX.search(text)) == wrong
