import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from calibrators.tables.table import CalibrationTable

#: Ctrl-C when a module is first looked for, within code that is made from text, as data classes make it.
CTRL_C = """
import os, signal, sys
class Finder:
    def find_spec(self, name, *_):
        if name == {module!r}:
            exec("os.kill(os.getpid(), signal.SIGINT)")
sys.meta_path.insert(0, Finder())
"""


@pytest.mark.parametrize("module", ["trtint8.cli.main", "trtint8.cli.output", "numpy", "trtint8.cli.table"])
def test_ctrl_c_while_the_program_is_imported(module, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(CTRL_C.format(module=module))
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(tmp_path), str(Path(__file__).parents[2])]),
    }
    command = [sys.executable, "-m", "trtint8", "table", "show", "x"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (130, "", 1)
    assert done.stderr.startswith("interrupted: nothing was written")


def test_the_program_ends_without_a_search_for_garbage():
    script = (
        "import atexit, gc, trtint8.__main__, trtint8.cli.main\n"
        "atexit.register(lambda: print(len(gc.get_objects())))\n"
        "made = []\n"
        "trtint8.cli.main.main = lambda: made.extend([] for _ in range(5000)) or 0\n"
        "trtint8.__main__.main()"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert int(done.stdout) < 1000


def test_the_program_is_the_command_line(tmp_path):
    command = [sys.executable, "-m", "trtint8", "table", "show", "x.json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("trtint8 table: ") and "'x.json'" in done.stderr


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "latin-1:surrogateescape", "utf-8"])
def test_characters_that_standard_output_lacks_are_replaced(tmp_path, encoding):
    CalibrationTable({"größe/張": 1.0}).save(tmp_path / "t.json")
    name = encoding.partition(":")[0]
    command = [sys.executable, "-m", "trtint8", "table", "show", "t.json"]
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    done = subprocess.run(command, capture_output=True, timeout=60, cwd=tmp_path, env=environment)
    assert (done.returncode, done.stderr) == (0, b"")
    assert f" {'größe/張'.encode(name, 'replace').decode(name)} " in done.stdout.decode(name)
    assert ("+---" in done.stdout.decode(name)) == (name != "utf-8")
    done = subprocess.run(
        [*command, "--json"], capture_output=True, timeout=60, cwd=tmp_path, env=environment
    )
    assert json.loads(done.stdout.decode(name))["amax"] == {"größe/張": 1.0}


def test_files_of_the_current_folder_are_not_imported(tmp_path):
    for name in ("rich", "numpy", "json", "msgspec", "argparse", "pathlib", "logging"):
        (tmp_path / f"{name}.py").write_text(f"open('trap', 'a').write('{name} ')\nraise ImportError\n")
    CalibrationTable({"a": 1.0}).save(tmp_path / "t.json")
    command = [sys.executable, "-m", "trtint8", "table", "show", "t.json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert not (tmp_path / "trap").exists()


@pytest.mark.parametrize("options", [["-m", "trtint8"], ["-P", "-m", "trtint8"]])
def test_folders_of_pythonpath_stay(options, tmp_path):
    if "-P" in options and sys.version_info < (3, 11):
        pytest.skip("Python 3.10 has no -P")
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "sitecustomize.py").write_text(
        "import atexit, sys\natexit.register(lambda: print(sys.path[:2], file=sys.stderr))\n"
    )
    # With -P, the current folder is there because the user wants it to be.
    places = [str(tmp_path / "here"), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(places)}
    done = subprocess.run(
        [sys.executable, *options, "--version"],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=tmp_path / "here",
        env=environment,
    )
    assert done.returncode == 0
    assert done.stderr.startswith(f"['{tmp_path / 'here'}', ")
    assert done.stderr.count(str(tmp_path / "here")) == 1
