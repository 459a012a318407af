"""Folders are written as a whole."""

import os
from pathlib import Path
from typing import get_args

import onnx
import pytest

import trtint8
from calibrators.errors import EngineError, OutputError, UnsupportedError
from tests.trtint8.deployment.conftest import PLAN, QDQ
from trtint8.deployment import writing
from trtint8.deployment.writing import Destination, deploy
from trtint8.models import serialization
from trtint8.models.model import load_model

TAKE_MODELS = [to for to, kind in writing._KINDS.items() if kind.takes_models]

USER = '--user "$(id -u):$(id -g)"'


@pytest.mark.parametrize("to", get_args(Destination))
def test_every_destination_is_documented(to):
    page = Path(trtint8.__file__).parents[1] / "docs" / "how-to" / "deploy.md"
    assert f"\n| `{to}` |" in page.read_text() and f"``{to}``" in trtint8.deploy.__doc__


@pytest.mark.parametrize("to", get_args(Destination))
def test_everything_is_written(make_engine, tmp_path, to):
    folder = tmp_path / "there"
    files = trtint8.deploy(make_engine(), to, folder)
    assert sorted(path for path in folder.rglob("*") if path.is_file()) == sorted(files)
    assert (folder / "README.md").read_text().startswith("# `net` ")
    plans = [path for path in files if path.name in ("model.plan", "model.engine")]
    assert [path.read_bytes() for path in plans] == ([] if to == "ort-trt" else [PLAN])
    models = [path for path in files if path.suffix == ".onnx"]
    assert [path.name for path in models] == (["model.qdq.onnx"] if to in TAKE_MODELS else [])
    assert all(load_model(path).fingerprint == load_model(QDQ).fingerprint for path in models)
    assert all(os.access(path, os.X_OK) for path in files if path.suffix == ".sh")
    assert "$" not in (folder / "README.md").read_text().replace('"$PWD"', "").replace(USER, "")


@pytest.mark.parametrize("to", TAKE_MODELS)
def test_a_file_that_the_model_does_not_name_stays_where_it_is(make_engine, tmp_path, to):
    engine = make_engine()
    (tmp_path / "secret").write_text("SECRET")
    (tmp_path / "net.qdq.onnx.data").symlink_to("secret")
    files = deploy(engine, to, tmp_path / "there")
    assert all(b"SECRET" not in path.read_bytes() for path in files)
    assert not list((tmp_path / "there").rglob("*.data"))


@pytest.mark.parametrize("to", TAKE_MODELS)
def test_weights_beside_a_model_go_along(make_engine, tmp_path, monkeypatch, to):
    engine = make_engine()
    model = onnx.load_from_string(QDQ)
    onnx.save(
        model, tmp_path / "net.qdq.onnx", save_as_external_data=True, location="model.json", size_threshold=0
    )
    before = load_model(tmp_path / "net.qdq.onnx").fingerprint
    for largest in (serialization._LARGEST_INLINE, 0):  # in the model, and beside it
        monkeypatch.setattr(serialization, "_LARGEST_INLINE", largest)
        folder = tmp_path / f"there{largest}"
        files = deploy(engine, to, folder)
        assert sorted(path for path in folder.rglob("*") if path.is_file()) == sorted(files)
        (found,) = (path for path in files if path.suffix == ".onnx")
        assert load_model(found).fingerprint == before
        assert (folder / "README.md").read_text().startswith("# `net` ")
        assert found.with_name("model.qdq.onnx.data").exists() == (largest == 0)


@pytest.mark.parametrize("name", ["README.md", "client.py", "readme.MD", "model.json"])
def test_an_engine_with_the_name_of_a_file_beside_it(make_engine, tmp_path, name):
    with pytest.raises(UnsupportedError, match=f"'{name}' is a file beside it; give the engine another name"):
        deploy(make_engine(name), "triton", tmp_path / "there")
    assert deploy(make_engine(name), "cpp", tmp_path / "there")


def test_a_folder_that_is_not_empty_is_refused(make_engine, tmp_path):
    engine, folder = make_engine(), tmp_path / "there"
    folder.mkdir()
    deploy(engine, "docker", folder)
    with pytest.raises(OutputError, match=r"cannot write '.*there': the folder is not empty; give a new one"):
        deploy(engine, "docker", folder)
    with pytest.raises(OutputError, match="it is no folder; give a new one"):
        deploy(engine, "docker", engine)


@pytest.mark.parametrize(
    ("changes", "error", "sentence"),
    [
        ({"to": ["cpp"]}, UnsupportedError, "cannot deploy to ['cpp']; use one of triton, deepstream, "),
        ({"to": None}, UnsupportedError, "cannot deploy to None; use one of triton, deepstream, "),
        ({"engine": None}, EngineError, "the engine is given as NoneType; give the path"),
        ({"output": 3}, OutputError, "a folder to write is given as int; give the path"),
    ],
)
def test_arguments_of_other_types(make_engine, tmp_path, changes, error, sentence):
    arguments = {"engine": make_engine(), "to": "cpp", "output": tmp_path / "there", **changes}
    with pytest.raises(error) as raised:
        trtint8.deploy(**arguments)
    assert str(raised.value).startswith(sentence)
    assert not (tmp_path / "there").exists()


def test_nothing_is_left_of_what_fails(make_engine, tmp_path, monkeypatch):
    engine = make_engine()
    before = sorted(tmp_path.iterdir())
    with pytest.raises(
        UnsupportedError, match="cannot deploy to 'moon'; use one of triton, deepstream, ort-trt"
    ):
        deploy(engine, "moon", tmp_path / "there")
    with pytest.raises(EngineError):
        deploy(tmp_path / "missing.engine", "docker", tmp_path / "there")
    with pytest.raises(OutputError, match=r"the folder '.*none' does not exist; create it first"):
        deploy(engine, "docker", tmp_path / "none" / "there")

    def full(*_arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(writing.shutil, "copyfile", full)
    with pytest.raises(OutputError, match=r"cannot write '.*there': No space left on device"):
        deploy(engine, "docker", tmp_path / "there")
    assert sorted(tmp_path.iterdir()) == before
