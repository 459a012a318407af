"""An engine by the public call."""

import pytest

import trtint8
from calibrators.errors import BuildError, UnsupportedError
from trtint8.data import DEMO_MODEL


def test_keywords_reach_the_build(rtx, table, tmp_path):
    result = trtint8.build_int8_engine(
        DEMO_MODEL,
        table,
        tmp_path / "m.engine",
        target="rtx",
        compute_capabilities=["8.6"],
        keep_float=["/fc/*"],
        dynamic_ranges={"images": 3.5},
        progress=False,
    )
    assert result.table.amax["images"] == 3.5
    assert result.info.compute_capabilities == ("8.6",)
    assert result.info.int8_layers == (8, 8)
    assert {path.name for path in tmp_path.iterdir()} >= {"m.engine", "m.engine.json", "m.qdq.onnx"}


@pytest.mark.parametrize(
    ("wrong", "error", "words"),
    [
        ({"route": "implict"}, UnsupportedError, "route is 'implict'; use one of auto, explicit, implicit"),
        (
            {"target": "tensorrt-10"},
            UnsupportedError,
            "target is 'tensorrt-10'; use one of auto, rtx, tensor",
        ),
        ({"profiles": {"images": None}}, BuildError, "profiles is a dict; give a list"),
    ],
)
def test_misspelt_options_are_refused(wrong, error, words, table, tmp_path):
    with pytest.raises(error, match=words):
        trtint8.build_int8_engine(DEMO_MODEL, table, tmp_path / "m.engine", progress=False, **wrong)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("capabilities", ["8.6", [8.6]])
def test_one_compute_capability_by_itself(rtx, capabilities, table, tmp_path):
    result = trtint8.build_int8_engine(
        DEMO_MODEL,
        table,
        tmp_path / "m.engine",
        target="rtx",
        compute_capabilities=capabilities,
        progress=False,
    )
    assert result.info.compute_capabilities == ("8.6",)
