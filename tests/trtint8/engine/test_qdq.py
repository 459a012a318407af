"""The Q/DQ model beside an engine."""

import shutil
from dataclasses import replace

import pytest

import trtint8
from calibrators.errors import EngineError
from trtint8.data import DEMO_MODEL
from trtint8.engine.file import read_engine_info
from trtint8.engine.qdq import load_engine_qdq


@pytest.fixture
def built(rtx, table, tmp_path):
    return trtint8.build_int8_engine(DEMO_MODEL, table, tmp_path / "m.engine", target="rtx", progress=False)


def test_the_model_that_the_engine_was_built_from(built):
    info = read_engine_info(built.engine)
    assert load_engine_qdq(built.qdq_model, info).fingerprint == info.qdq_fingerprint
    assert load_engine_qdq(built.qdq_model, replace(info, qdq_fingerprint=None)).is_quantized


def test_another_model_in_its_place_is_refused(built, table, split, tmp_path):
    """It would be validated, deployed and reported on in the engine's place."""
    onnx = trtint8.quantize(DEMO_MODEL, table.override({"images": 0.5})).SerializeToString()
    for other in (onnx, None):
        if other is None:
            shutil.copy(DEMO_MODEL, built.qdq_model)
        else:
            built.qdq_model.write_bytes(other)
        for call in (
            lambda: trtint8.validate(built.engine, split.heldout_images[:8], reference=DEMO_MODEL),
            lambda: trtint8.deploy(built.engine, "cpp", tmp_path / "deployed"),
            lambda: trtint8.write_report([built.engine], tmp_path / "page.html"),
        ):
            with pytest.raises(EngineError, match=r"m\.qdq\.onnx' is not the Q/DQ model that the engine was"):
                call()
    assert not (tmp_path / "deployed").exists() and not (tmp_path / "page.html").exists()
