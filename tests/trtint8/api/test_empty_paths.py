"""What is no path is refused in any public call, and an empty text is not the current folder."""

import numpy as np
import pytest

import trtint8
from calibrators.errors import TrtInt8Error
from trtint8.data import DEMO_MODEL

IMAGES = np.zeros((2, 1, 8, 8), np.float32)
TABLE = trtint8.CalibrationTable({"images": 1.0})


@pytest.mark.parametrize(
    ("message", "call"),
    [
        ("the path of the model is empty", lambda: trtint8.calibrate("", IMAGES)),
        ("the path of the model is empty", lambda: trtint8.validate("", IMAGES, reference=DEMO_MODEL)),
        ("the path of the model is empty", lambda: trtint8.write_report(["."], "r.html", model="")),
        ("the path of the data is empty", lambda: trtint8.calibrate(DEMO_MODEL, "")),
        ("the path of the data is empty", lambda: trtint8.build_int8_engine(DEMO_MODEL, "", "e.engine")),
        ("the path of the data is empty", lambda: trtint8.tune(DEMO_MODEL, IMAGES, "")),
        (
            "the path of the labels is empty",
            lambda: trtint8.validate(DEMO_MODEL, IMAGES, reference=DEMO_MODEL, labels=""),
        ),
        ("the path of a file to write is empty", lambda: trtint8.build_int8_engine(DEMO_MODEL, TABLE, "")),
        ("the path of a checkpoint is empty", lambda: trtint8.calibrate(DEMO_MODEL, IMAGES, checkpoint="")),
        ("the path of a file to write is empty", lambda: trtint8.write_report(["."], "")),
        ("the path of a folder or file to report on is empty", lambda: trtint8.write_report("", "r.html")),
        ("the path of the engine is empty", lambda: trtint8.deploy("", "triton", "folder")),
        ("the path of the engine is empty", lambda: trtint8.Engine.load("")),
        ("a file to write is given as NoneType", lambda: trtint8.build_int8_engine(DEMO_MODEL, TABLE, None)),
        ("a checkpoint is given as int", lambda: trtint8.calibrate(DEMO_MODEL, IMAGES, checkpoint=5)),
        ("a file to write is given as list", lambda: trtint8.write_report(["."], ["r.html"])),
        ("the engine is given as NoneType", lambda: trtint8.read_engine_info(None)),
        ("the engine is given as NoneType", lambda: trtint8.Engine.load(None)),
        ("the table is given as int", lambda: trtint8.CalibrationTable.load(5)),
    ],
)
def test_what_is_no_path_is_refused(message, call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TrtInt8Error, match=f"^{message}; give the path$"):
        call()
    assert not list(tmp_path.iterdir())
