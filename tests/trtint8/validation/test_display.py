"""How a comparison shows itself."""

import dataclasses

import pytest

from tests.trtint8.report.samples import ACCURACY
from trtint8.validation.accuracy import Accuracy
from trtint8.validation.display import accuracy_frame, accuracy_html, accuracy_summary


def test_the_text_is_one_line():
    assert repr(ACCURACY) == (
        "<Accuracy: 400 samples, top-1 79.00 % (FP32 80.00 %), SQNR of 'scores' 26.25 dB>"
    )
    only_output = dataclasses.replace(ACCURACY, measures=())
    assert accuracy_summary(only_output) == "SQNR of 'scores' 26.25 dB"
    assert repr(Accuracy("a test", 4, None, None, None, None, None, ())) == "<Accuracy: 4 samples>"


def test_a_notebook_shows_the_table_and_what_differences_mean():
    page = dataclasses.replace(ACCURACY, also={"FP16": ACCURACY}, chosen="chosen by <shape>")._repr_html_()
    assert "400 samples; INT8 is the Q/DQ model as fake quantization" in page
    assert page.count("80.00 % (75.8-83.6)") == 1 and page.count("79.00 % (74.7-82.7)") == 2
    assert "chosen by &lt;shape&gt;" in page
    assert "top-1: INT8 is 1.00 points below FP32" in page and "top-1: FP16 is 1.00 points below" in page


def test_the_model_may_have_another_name():
    page = accuracy_html("title", ACCURACY, ("a note",), "tuned")
    assert ">tuned</th>" in page and "<div>a note</div>" in page and "tuned is 1.00 points below" in page


def test_the_data_frame_has_numbers():
    pytest.importorskip("pandas", reason="pandas is not installed (pip install 'trtint8[notebook]')")
    frame = accuracy_frame(dataclasses.replace(ACCURACY, also={"FP16": ACCURACY})).set_index("metric")
    assert list(frame.columns) == ["FP32", "INT8", "FP16"]
    assert frame.loc["top1"].tolist() == [0.8, 0.79, 0.79]
    assert frame["INT8"].tolist() == [0.79, 0.975, 0.75, 26.25, 0.998, 1.5]
    assert list(frame.index[3:]) == ["sqnr:scores", "cosine:scores", "max_error:scores"]
    assert ACCURACY.to_pandas()["FP32"].isna().tolist() == [False, True, False, True, True, True]
