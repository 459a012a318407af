"""An engine by the public call."""

import trtint8
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
