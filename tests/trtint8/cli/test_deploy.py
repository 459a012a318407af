"""`trtint8 deploy`."""

import json

from tests.trtint8.cli.calls import succeeds
from tests.trtint8.deployment.conftest import make_engine  # noqa: F401


def test_the_preprocessing_travels_along(make_engine, tmp_path, as_json, refused):  # noqa: F811
    folder = tmp_path / "models"
    command = ["deploy", make_engine(), "--to triton -o", folder, "--mean 0.5"]
    shown = as_json(*command)
    assert shown["to"] == "triton"
    assert str(folder / "net" / "config.pbtxt") in shown["files"]
    assert json.loads((folder / "model.json").read_text())["preprocessing"]["mean"] == [0.5]
    assert "the folder is not empty; give a new one" in refused(*command)


def test_the_files_are_listed(make_engine, tmp_path, capsys):  # noqa: F811
    succeeds("deploy", make_engine(), "--to docker -o", tmp_path / "image")
    output = capsys.readouterr()
    assert "Dockerfile" in output.out
    assert "README.md says how to run it" in output.err
