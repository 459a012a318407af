"""How what a search tried shows itself."""

import pytest

from trtint8.tuning.candidates import Trial
from trtint8.tuning.tune import Tuned, trials_html
from trtint8.validation.budget import Goal, Score

GOAL = Goal("top1", "top1", "%", 0.5, None)
TRIALS = (
    Trial("as calibrated", Score(1.25, 20.0, 78.75, True), True, 0, 0.0, 0.5, 3.0),
    Trial("2 layers in float", Score(0.25, 31.5, 79.75, True), False, 2, 0.125, 1.0),
)
TUNED = Tuned(None, None, None, None, TRIALS, chosen=0, float_cost=0.0, goal=GOAL)


def test_a_notebook_shows_every_trial():
    page = trials_html(TRIALS, GOAL)
    assert "tried for top1: a drop of at most 0.5 points" in page
    for cell in ("as calibrated", "yes", "drop 1.25 points, top1 78.75 %", "20.00 dB", "12.5 %", "0.5 s"):
        assert f">{cell}</td>" in page


def test_the_picture_has_the_values():
    pytest.importorskip("matplotlib", reason="matplotlib is not installed (pip install 'trtint8[notebook]')")
    picture = TUNED.plot()
    assert picture.title == "top1 over the share of the arithmetic in float"
    assert ">0 %<" in picture.svg and ">79 %<" in picture.svg
    assert "top1, % (filled:" in picture.svg
    # FP32 has 80 %, of which half a point may be lost.
    assert ">budget<" in picture.svg and ">as calibrated<" in picture.svg
    assert GOAL.limit_of_value(TRIALS[0].score) == 79.5


def test_the_data_frame_has_numbers():
    pytest.importorskip("pandas", reason="pandas is not installed (pip install 'trtint8[notebook]')")
    assert TUNED.to_pandas().to_dict("records")[1] == {
        "what": "2 layers in float",
        "taken": False,
        "value": 79.75,
        "drop": 0.25,
        "value_percent": 79.75,
        "drop_percent": 0.25,
        "sqnr_db": 31.5,
        "keep_float": 2,
        "float_cost": 0.125,
        "seconds": 1.0,
    }
