"""What is said after Ctrl-C of a run that can be continued."""

from pathlib import Path

import numpy as np
import pytest

from trtint8.cli.main import main
from trtint8.data import DEMO_MODEL

RESUME = "keeps what was done; --resume continues from it\ninterrupted\n"
AGAIN = "keeps what was done; the same command continues from it\ninterrupted\n"


@pytest.fixture(autouse=True)
def data(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("data.npy", np.zeros((4, 1, 8, 8), np.float32))


@pytest.mark.parametrize(
    ("work", "arguments", "kept", "said"),
    [
        ("calibrate.calibrate_model", ["data.npy", "-o", "t.json"], "t.json.checkpoint", RESUME),
        (
            "sensitivity.measure_sensitivity",
            ["table.json", "data.npy", "-o", "s.json"],
            "s.json.partial",
            AGAIN,
        ),
        ("tune.tuning.tune", ["data.npy", "data.npy", "-o", "q.onnx"], "q.onnx.checkpoint", RESUME),
    ],
)
@pytest.mark.parametrize("begun", [True, False])
def test_a_run_that_can_be_continued(work, arguments, kept, said, begun, monkeypatch, capsys):
    def interrupted(*_args, **_options):
        if begun:
            Path(kept).touch()
        raise KeyboardInterrupt

    monkeypatch.setattr(f"trtint8.cli.{work}", interrupted)
    assert main([work.partition(".")[0], str(DEMO_MODEL), *arguments]) == 130
    assert capsys.readouterr().err == (f"'{kept}' {said}" if begun else "interrupted\n")


def test_a_measurement_that_keeps_nothing(monkeypatch, capsys):
    def interrupted(*_args, **_options):
        raise KeyboardInterrupt

    monkeypatch.setattr("trtint8.cli.sensitivity.measure_sensitivity", interrupted)
    assert main(["sensitivity", str(DEMO_MODEL), "table.json", "data.npy"]) == 130
    assert capsys.readouterr().err == "interrupted\n"
