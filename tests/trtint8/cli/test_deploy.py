"""`trtint8 deploy`."""

import json

from tests.trtint8.deployment.conftest import make_engine  # noqa: F401
from trtint8.cli.main import main


def test_the_preprocessing_travels_along(make_engine, tmp_path, capsys):  # noqa: F811
    folder = tmp_path / "models"
    command = ["deploy", str(make_engine()), "--to", "triton", "-o", str(folder), "--mean", "0.5", "--json"]
    assert main(command) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["to"] == "triton"
    assert str(folder / "net" / "config.pbtxt") in shown["files"]
    assert json.loads((folder / "model.json").read_text())["preprocessing"]["mean"] == [0.5]
    assert main(command) == 2
    assert "the folder is not empty; give a new one" in capsys.readouterr().err


def test_the_files_are_listed(make_engine, tmp_path, capsys):  # noqa: F811
    assert main(["deploy", str(make_engine()), "--to", "docker", "-o", str(tmp_path / "image")]) == 0
    output = capsys.readouterr()
    assert "Dockerfile" in output.out
    assert "README.md says how to run it" in output.err
