"""Code of the user's by name."""

import importlib.util
import math
import subprocess
import sys
from pathlib import Path

import pytest

from calibrators.errors import CalibrationDataError
from trtint8.cli.main import main
from trtint8.cli.own_code import named_object
from trtint8.data import DEMO_MODEL


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "own_code_wrong.py").write_text("1 / 0\n")


def test_an_object_of_an_installed_module():
    assert named_object("math:pi", "data", "a file", "a number") == math.pi


def test_text_of_another_form_names_nothing():
    for text in ("random:3", "data.npz", "folder/a:b", "a:b:c", "1a:b", "a:", ":b", ""):
        assert named_object(text, "data", "a file", "a function") is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("math:tau2", "the metric 'math:tau2': the module 'math' has no 'tau2'; name a function of it$"),
        (
            "own_code_none.part:f",
            "^the metric 'own_code_none.part:f' is neither a name nor a function: there is no module "
            "'own_code_none' in the current folder or among what is installed; check the spelling$",
        ),
        (
            "own_code_wrong:f",
            "the module 'own_code_wrong' cannot be imported: ZeroDivisionError: division by zero; correct it",
        ),
    ],
)
def test_mistakes_are_named(text, message):
    with pytest.raises(CalibrationDataError, match=message):
        named_object(text, "metric", "a name", "a function of it")


@pytest.mark.parametrize("status", [0, 1])
def test_a_module_that_ends_the_program_is_named(status, tmp_path, monkeypatch, capsys):
    """With its status 0 a budget would seem to be kept, with 1 to be missed."""
    module = tmp_path / f"own_code_ends_{status}.py"
    module.write_text(f"import sys\n\nsys.exit({status})\n")
    monkeypatch.chdir(tmp_path)
    arguments = [str(DEMO_MODEL), "random:4", "--reference", str(DEMO_MODEL), "--metric", f"{module.stem}:f"]
    assert main(["validate", *arguments, "--min", "1"]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.splitlines()[-1] == (
        f"trtint8 validate: '{module}' ends the program in line 3 (SystemExit: {status}); remove that from "
        "what is imported and called here"
    )


def test_files_beside_a_named_module_are_imported_by_nothing_else(tmp_path):
    """They would come in place of what is installed, and of what is not."""
    traps = ("rich", "numpy", "json", "onnx", "onnxruntime", "cupy", "torch", "sympy", "pandas", "psutil")
    for name in traps:
        (tmp_path / f"{name}.py").write_text(f"open('trap', 'a').write('{name} ')\nraise ImportError\n")
    (tmp_path / "own_beside.py").write_text("COUNT = 4\n")
    (tmp_path / "own_named.py").write_text(
        "import numpy\nimport own_beside\n"
        "def images():\n    return [numpy.ones((1, 1, 8, 8), 'f4') * k for k in range(own_beside.COUNT)]\n"
    )
    for program in ([Path(sys.executable).with_name("trtint8")], [sys.executable, "-m", "trtint8"]):
        command = [*program, "calibrate", DEMO_MODEL, "own_named:images", "-o", "t.json"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        assert not (tmp_path / "trap").exists()


@pytest.mark.parametrize("name", ["rich", "sqlite3", "lib2to3"])
def test_a_file_with_the_name_of_an_installed_module_is_not_run(name, tmp_path, monkeypatch):
    monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place != str(tmp_path)])
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"there is no {name}")
    (tmp_path / f"{name}.py").write_text("raise SystemExit\n")
    with pytest.raises(CalibrationDataError, match=f"'{name}'.* rename"):
        named_object(f"{name}:f", "data", "a file", "a function")
