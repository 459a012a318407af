"""What is known of an engine that is deployed."""

import json

import pytest

from calibrators.data.images.preprocessing import Preprocessing
from calibrators.errors import CalibrationDataError, EngineError, UnsupportedError
from calibrators.tables.table import CalibrationTable
from tests.trtint8.deployment.conftest import AMAX, IMAGES, LOGITS, shapes
from trtint8.deployment.source import Batching, read_source
from trtint8.engine.file import TensorSpec, sidecar_path
from trtint8.models.model import load_model


def test_the_files_beside_an_engine_are_found(make_source, tmp_path):
    source = make_source("my net")
    assert source.name == "my_net"
    assert list(source.qdq_files()) == ["model.qdq.onnx"]
    assert source.qdq_model.fingerprint == load_model(tmp_path / "my net.qdq.onnx").fingerprint
    assert source.table.amax == AMAX


@pytest.mark.parametrize(
    "name",
    [
        "build_plan.sh",
        "README.md",
        "run.py",
        "config.pbtxt",
        "a/net.qdq.onnx",
        "../net.qdq.onnx",
        "/etc/net.onnx",
        "..",
        ".net.onnx",
        "a\\b.onnx",
        "C:net.onnx",
        "net.onnx\n",
        "net.onnx\x00",
        "a\nb.onnx",
        "",
    ],
)
def test_a_model_of_another_kind_of_name_is_refused(make_engine, tmp_path, name):
    engine = make_engine()
    document = json.loads(sidecar_path(engine).read_text())
    sidecar_path(engine).write_text(json.dumps({**document, "qdq_model": name}))
    with pytest.raises(EngineError, match=r"is no plain name of an \.onnx file"):
        read_source(engine, None)


def test_a_model_that_was_renamed_is_found(make_engine, tmp_path):
    engine = make_engine(qdq_model="other name.onnx")
    (tmp_path / "net.qdq.onnx").rename(tmp_path / "other name.onnx")
    assert list(read_source(engine, None).qdq_files()) == ["model.qdq.onnx"]


@pytest.mark.parametrize("stem", [".hidden", "a\nb", "a\\b", "a:b", "-x", "é", "a\udcffb"])
def test_an_engine_of_any_name_finds_its_model(make_engine, stem):
    try:
        engine = make_engine(stem)
    except OSError:
        pytest.skip("no file can have that name here")
    assert list(read_source(engine, None).qdq_files()) == ["model.qdq.onnx"]


def test_a_link_out_of_the_folder_is_not_followed(make_engine, tmp_path):
    folder = tmp_path / "cloned"
    folder.mkdir()
    engine = make_engine()
    for file in tmp_path.glob("net.*"):
        file.rename(folder / file.name)
    engine, model = folder / engine.name, folder / "net.qdq.onnx"
    model.rename(tmp_path / "private.onnx")
    model.symlink_to("../private.onnx")
    with pytest.raises(EngineError, match=r"net\.qdq\.onnx' is a link out of the engine's folder"):
        read_source(engine, None)
    model.unlink()
    (folder / "inside").mkdir()
    (tmp_path / "private.onnx").rename(folder / "inside" / "m.onnx")
    model.symlink_to("inside/m.onnx")
    assert read_source(engine, None).qdq_model is not None
    # A cache of downloads: links to files without names of their own, in one folder.
    cache = tmp_path / "cache" / "snapshots"
    cache.mkdir(parents=True)
    (tmp_path / "cache" / "blobs").mkdir()
    for number, file in enumerate(path for path in folder.iterdir() if path.name.startswith("net.")):
        (tmp_path / "cache" / "blobs" / str(number)).write_bytes(file.read_bytes())
        (cache / file.name).symlink_to(f"../blobs/{number}")
    assert read_source(cache / "net.engine", None).qdq_model is not None


def test_what_is_not_there(make_source, tmp_path):
    source = make_source(qdq=False, table=False)
    assert (source.qdq_model, source.qdq_files(), source.table) == (None, {}, None)
    with pytest.raises(
        EngineError, match=r"has no 'b\.qdq\.onnx' beside it, which it was built from; copy it"
    ):
        read_source(make_source("b").engine.parent / _without_qdq(tmp_path, "b"), None)


def _without_qdq(folder, name):
    (folder / f"{name}.qdq.onnx").unlink()
    return f"{name}.engine"


def test_preprocessing_of_another_type(make_source):
    with pytest.raises(CalibrationDataError, match=r"preprocessing is a dict; give trtint8\.Preprocessing"):
        read_source(make_source("a").engine, {"mean": (0.5,)})


def test_a_table_of_another_engine_is_refused(make_engine, tmp_path):
    engine = make_engine()
    CalibrationTable({"images": 1.0}).save(tmp_path / "net.table.json")
    with pytest.raises(EngineError, match="is not the table that the engine was built with; move it away"):
        read_source(engine, None)


ANY = Batching(1, (8,), 32)
UNNAMED = TensorSpec("images", "float32", (None, 3, None, 6))
TIME_FIRST = {"outputs": (TensorSpec("logits", "float32", ("time", None, 29)),)}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, ANY),
        (
            {"profiles": ({"images": shapes(2, 4, 4)}, {"images": shapes(4, 16, 64)})},
            Batching(2, (4, 16), 64),
        ),
        ({"profiles": ()}, None),
        ({"inputs": (TensorSpec("images", "float32", (4, 3, 8, 6)),)}, None),
        ({"outputs": (LOGITS, TensorSpec("boxes", "float32", (100, 4)))}, None),
        ({"outputs": (TensorSpec("loss", "float32", ()),)}, None),
        ({"inputs": (IMAGES, TensorSpec("boxes", "float32", ("boxes", 4)))}, None),
        # The batch is not the first dimension of an output.
        ({"outputs": (TensorSpec("logits", "float32", ("steps", "batch", 29)),)}, None),
        ({"outputs": (TensorSpec("similarity", "float32", ("batch", "batch")),)}, None),
        ({"inputs": (TensorSpec("images", "float32", ("batch", 3, "time", 6)),), **TIME_FIRST}, None),
        # Samples that are joined change each other, whatever the axes are called.
        ({"joins_samples": False}, None),
        ({"joins_samples": True}, ANY),
        # Dimensions without names say nothing.
        ({"inputs": (UNNAMED,), "outputs": (TensorSpec("y", "float32", (None, None)),)}, ANY),
    ],
)
def test_batches(make_source, changes, expected):
    assert make_source(**changes).batching == expected


def test_what_a_program_needs_to_know(make_source):
    source = make_source(preprocessing=Preprocessing(mean=(0.1, 0.2, 0.3)))
    known = json.loads(source.description())
    assert known["inputs"] == [{"name": "images", "dtype": "float32", "shape": ["batch", 3, 8, 6]}]
    assert known["profiles"][0]["images"]["max"] == [32, 3, 8, 6]
    assert (known["image_input"], known["preprocessing"]["mean"]) == ("images", [0.1, 0.2, 0.3])
    assert known["batching"] == {"smallest": 1, "preferred": [8], "largest": 32}
    known = json.loads(make_source(profiles=()).description())
    assert known["batching"] is known["preprocessing"] is None


def test_preprocessing_that_no_input_takes_is_refused(make_source):
    with pytest.raises(
        CalibrationDataError, match="makes images of 8x7, and the engine takes 'images' of 8x6 "
    ):
        make_source(preprocessing=Preprocessing(crop=(8, 7)))


def test_an_engine_that_cannot_be_loaded_or_built_anew(make_source):
    make_source(flavor="rtx").check_plan("Triton")
    make_source(qdq=False).check_plan("Triton")
    with pytest.raises(
        UnsupportedError, match=r"Triton loads no engine of TensorRT for RTX, and '.*net\.engine'"
    ):
        make_source(flavor="rtx", qdq=False).check_plan("Triton")
