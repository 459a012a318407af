"""Completion, asked for as bash does."""

import os
import subprocess
import sys

import pytest

from trtint8.cli.completion import typed_words


def completions(line, tmp_path):
    """What the shell would offer behind a command line."""
    answers = tmp_path / "answers"
    asked = {
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_STDOUT_FILENAME": str(answers),
        "_ARGCOMPLETE_SUPPRESS_SPACE": "1",
        "_ARGCOMPLETE_IFS": "\n",
        "COMP_LINE": line,
        "COMP_POINT": str(len(line)),
        "COMP_TYPE": "9",
    }
    done = subprocess.run(
        [sys.executable, "-m", "trtint8"],
        env=os.environ | asked,
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    return answers.read_text().split("\n")


@pytest.mark.slow
def test_verbs_options_choices_and_files_are_completed(tmp_path):
    pytest.importorskip("argcomplete", reason="argcomplete is not installed")
    (tmp_path / "resnet50.onnx").touch()
    (tmp_path / "resnet50.npz").touch()
    assert completions("trtint8 va", tmp_path) == ["validate"]
    assert completions("trtint8 calibrate --resu", tmp_path) == ["--resume"]
    found = completions("trtint8 calibrate --method m", tmp_path)
    assert sorted(found) == ["minmax", "mse"]
    assert completions("trtint8 lint resnet50.o", tmp_path) == ["resnet50.onnx"]
    assert completions("trtint8 table con", tmp_path) == ["convert"]


def test_without_argcomplete_nothing_is_printed(monkeypatch, capsys):
    from trtint8.cli.main import main

    monkeypatch.setenv("_ARGCOMPLETE", "1")
    monkeypatch.setitem(sys.modules, "argcomplete", None)
    with pytest.raises(SystemExit) as stop:
        main(["calibrate"])
    assert stop.value.code == 1 and capsys.readouterr() == ("", "")


def test_words_of_an_unfinished_line():
    assert typed_words("trtint8 build 'a b.onnx' -o") == ["trtint8", "build", "a b.onnx", "-o"]
    assert typed_words("trtint8 build 'a b") == ["trtint8", "build", "'a", "b"]
