"""What is known of an engine that is deployed."""

import json

import pytest

from calibrators.data.images.preprocessing import Preprocessing
from calibrators.errors import CalibrationDataError, EngineError, UnsupportedError
from calibrators.tables.table import CalibrationTable
from tests.trtint8.deployment.conftest import AMAX, IMAGES, LOGITS, shapes
from trtint8.deployment.source import Batching, read_source
from trtint8.engine.file import TensorSpec


def test_the_files_beside_an_engine_are_found(make_source, tmp_path):
    source = make_source("my net")
    assert source.name == "my_net"
    assert source.qdq_files() == {"my net.qdq.onnx": tmp_path / "my net.qdq.onnx"}
    assert source.table.amax == AMAX
    (tmp_path / "my net.qdq.onnx.data").write_bytes(b"weights")
    assert list(source.qdq_files()) == ["my net.qdq.onnx", "my net.qdq.onnx.data"]


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
