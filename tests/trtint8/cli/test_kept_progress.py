"""What is said after Ctrl-C, and after an error in the data, of a run that can be continued."""

import functools
import pkgutil
from pathlib import Path

import numpy as np
import pytest

import trtint8
from calibrators.errors import CalibrationDataError, TableError
from trtint8.cli.main import main
from trtint8.data import DEMO_MODEL
from trtint8.tuning.speed import SpeedTrial

RESUME = "keeps what was done; --resume continues from it\ninterrupted\n"
AGAIN = "keeps what was done; the same command continues from it\ninterrupted\n"


@pytest.fixture(autouse=True)
def data(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("data.npy", np.zeros((4, 1, 8, 8), np.float32))


@pytest.mark.parametrize(
    ("work", "arguments", "kept", "said"),
    [
        ("calibrate.calibrate", ["data.npy", "-o", "t.json"], "t.json.checkpoint", RESUME),
        (
            "sensitivity.measure_sensitivity",
            ["table.json", "data.npy", "-o", "s.json"],
            "s.json.partial",
            AGAIN,
        ),
        ("tune.tune", ["data.npy", "data.npy", "-o", "q.onnx"], "q.onnx.checkpoint", RESUME),
    ],
)
@pytest.mark.parametrize("begun", [True, False])
def test_a_run_that_can_be_continued(work, arguments, kept, said, begun, monkeypatch, capsys):
    verb, _, call = work.partition(".")

    @functools.wraps(pkgutil.resolve_name(f"trtint8.cli.{verb}:{call}"))
    def interrupted(*_args, **_options):
        if begun:
            Path(kept).touch()
        raise KeyboardInterrupt

    monkeypatch.setattr(f"trtint8.cli.{work}", interrupted)
    assert main([work.partition(".")[0], str(DEMO_MODEL), *arguments]) == 130
    assert capsys.readouterr().err == (f"'{kept}' {said}" if begun else "interrupted\n")


def test_a_measurement_that_keeps_nothing(monkeypatch, capsys):
    @functools.wraps(trtint8.measure_sensitivity)
    def interrupted(*_args, **_options):
        raise KeyboardInterrupt

    monkeypatch.setattr("trtint8.cli.sensitivity.measure_sensitivity", interrupted)
    assert main(["sensitivity", str(DEMO_MODEL), "table.json", "data.npy"]) == 130
    assert capsys.readouterr().err == "interrupted\n"


@pytest.mark.parametrize(
    ("error", "tried", "kept", "continues"),
    [
        (CalibrationDataError, True, True, True),
        (CalibrationDataError, True, False, False),
        (CalibrationDataError, False, True, False),  # what an earlier run has left
        (TableError, True, True, False),  # the checkpoint may be what is wrong
    ],
)
def test_an_error_in_the_data_after_a_long_search(error, tried, kept, continues, monkeypatch, capsys):
    @functools.wraps(trtint8.tune)
    def fails(*_args, on_speed_trial, **_options):
        if kept:
            Path("q.onnx.checkpoint").touch()
        if tried:
            on_speed_trial(SpeedTrial("all layers in INT8", 0.001, True, 0))
        raise error("label 10 is none")

    monkeypatch.setattr("trtint8.cli.tune.tune", fails)
    assert main(["tune", str(DEMO_MODEL), "data.npy", "data.npy", "-o", "q.onnx"]) == 2
    said = ["+ all layers in INT8: estimated 1.0000 ms"] if tried else []
    said += ["'q.onnx.checkpoint' keeps what was done; --resume continues from it"] if continues else []
    assert capsys.readouterr().err.splitlines() == [*said, "trtint8 tune: label 10 is none"]
