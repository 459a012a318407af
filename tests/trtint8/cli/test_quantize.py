"""The verb, and the model that it writes."""

import json

from trtint8.cli.main import main
from trtint8.data import DEMO_MODEL

MODEL = str(DEMO_MODEL)


def test_calibrate_quantize_validate(files, table, tmp_path, capsys):
    model = str(tmp_path / "q.onnx")
    assert main(["quantize", MODEL, table, "-o", model, "--explain"]) == 0
    assert "fuses into" in capsys.readouterr().out
    assert main(["validate", model, str(files / "heldout.npz"), "--reference", MODEL, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["reference_top1"]["count"] == 594
    assert abs(result["top1"]["count"] - 594) <= 2
