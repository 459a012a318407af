"""What a type checker, and Python itself, see of the public names."""

import ast
import inspect
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import get_args

import pytest

import trtint8
from calibrators.histograms.thresholds import METHODS, Method
from trtint8.cli.verbs import described

ROOT = Path(__file__).parents[2]
USER_SCRIPT = ROOT / "tests" / "typing" / "user_script.py"

#: The public functions.
CALLS = [name for name in trtint8.__all__ if name[0].islower()]

#: NumPy's own types name element types and shapes that nobody declared by Any.
_NUMPY = re.compile(r"numpy\.(dtype|generic)\[Any\]|tuple\[Any, \.\.\.\]")


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """What mypy says, line by line, by the name of each of four scripts; they are checked in one run."""
    pytest.importorskip("mypy", reason="mypy is not installed")
    folder = tmp_path_factory.mktemp("scripts")
    calls, wrong = folder / "calls.py", folder / "wrong.py"
    calls.write_text("import trtint8\n" + "".join(f"reveal_type(trtint8.{name})\n" for name in CALLS))
    wrong.write_text(
        'import trtint8\ntrtint8.calibrated\ntrtint8.calibrate("m.onnx", "d.npz", method="best")\n'
    )
    readme = folder / "readme.py"
    readme.write_text(_READERS_OWN + "\n".join(_BLOCK.findall((ROOT / "README.md").read_text())))
    # The settings and the cache of the project, so that the packages are not checked anew.
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file", ROOT / "pyproject.toml"]
    done = subprocess.run(
        [*command, USER_SCRIPT, calls, wrong, readme], cwd=ROOT, capture_output=True, text=True, check=False
    )
    lines = done.stdout.splitlines()
    scripts = (USER_SCRIPT, calls, wrong, readme)
    # Of an installed package mypy reports nothing; here the packages themselves are checked in place.
    return {s.name: [line for line in lines if Path(line.split(":")[0]).name == s.name] for s in scripts}


#: A block of Python on a page.
_BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)

#: What the code of the README takes from its reader.
_READERS_OWN = "from typing import Any\nmodule: Any\nloader: Any\ntorch: Any\nbatch: Any\n"


def revealed(lines):
    return [line.split("Revealed type is ")[1] for line in lines if "Revealed type is" in line]


def errors(lines):
    return [line for line in lines if ": error:" in line]


@pytest.mark.slow
def test_the_code_of_the_readme_is_checked_strictly(report):
    assert _BLOCK.search((ROOT / "README.md").read_text())
    assert not errors(report["readme.py"])


@pytest.mark.slow
def test_a_users_script_is_checked_strictly(report):
    lines = report[USER_SCRIPT.name]
    assert not errors(lines)
    types = revealed(lines)
    assert len(types) == USER_SCRIPT.read_text().count("reveal_type(")
    assert not [one for one in types if re.search(r"\bAny\b", _NUMPY.sub("", one))]


@pytest.mark.slow
def test_signatures_hold_no_any(report):
    lines = report["calls.py"]
    assert not errors(lines)
    types = revealed(lines)
    assert len(types) == len(CALLS) > 12
    assert not [one for one in types if re.search(r"\bAny\b", _NUMPY.sub("", one))]


@pytest.mark.slow
def test_mistakes_are_errors_for_the_checker(report):
    found = errors(report["wrong.py"])
    assert len(found) == 2 and "attr-defined" in found[0] and "method" in found[1]


def test_the_users_script_has_every_public_name():
    text = USER_SCRIPT.read_text()
    assert not [name for name in trtint8.__all__ if f"trtint8.{name}" not in text]


def test_python_finds_the_names_that_type_checkers_see():
    stub = ast.parse(Path(trtint8.__file__).with_suffix(".pyi").read_text())
    imported = {alias.asname: node.module for node in stub.body[1:] for alias in node.names}
    assert trtint8.__all__ == dir(trtint8) == sorted(imported)
    assert all(getattr(trtint8, name) is getattr(import_module(imported[name]), name) for name in imported)
    with pytest.raises(AttributeError, match=r"'trtint8'.*'calibrated'"):
        trtint8.calibrated  # noqa: B018
    assert not hasattr(trtint8, "__nothing__")


def test_methods_are_those_of_the_type():
    assert get_args(Method) == ("auto", *METHODS)


def test_importing_loads_nothing_heavy():
    code = (
        "import sys, trtint8; "
        "print([name for name in ('numpy', 'onnx', 'onnxruntime', 'onnx_ir') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_no_public_name_is_hidden_by_a_package():
    packages = {path.stem for path in (ROOT / "trtint8").iterdir()}
    assert not packages & set(trtint8.__all__)


#: What is made by calls alone.
NOT_MADE = ("Engine",)


@pytest.mark.parametrize("name", [name for name in trtint8.__all__ if callable(getattr(trtint8, name))])
def test_an_editor_shows_what_each_parameter_means(name):
    call = getattr(trtint8, name)
    if name not in NOT_MADE and not name.endswith("Error"):
        assert described(call).keys() >= inspect.signature(call).parameters.keys()


#: Parameters that mean the same wherever they occur, and how they are described there.
SHARED = {
    "allow_host_code": "Whether code that an engine contains may run; see :meth:`Engine.load`.",
    "batch_size": "Samples per batch",
    "example_inputs": "What the forward of ",
    "labels": "Labels that do not come with the data",
    "limit": "Use only this many samples",
    "plugins": "Paths of shared libraries with the plugins that engines use",
    "preprocessing": "How raw images become inputs.",
    "progress": "Show a progress bar on a terminal",
    "skip_bad": "Leave out the files of a folder that cannot be read, such as damaged images, with their "
    "labels, and warn of them by name. By default the first such file is an error.",
}


@pytest.mark.parametrize("name", SHARED)
def test_a_parameter_is_described_alike_in_all_calls(name):
    calls = {
        call: getattr(trtint8, call) for call in CALLS if call != "model_inputs"
    }  # which others refer to
    found = {call: text for call, function in calls.items() if (text := described(function).get(name))}
    assert len(found) > 3
    assert not {call: text for call, text in found.items() if not text.startswith(SHARED[name])}
