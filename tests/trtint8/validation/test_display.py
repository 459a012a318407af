"""The parts of a comparison's display."""

import dataclasses

import pytest

from tests.trtint8.report.samples import ACCURACY
from trtint8.validation.display import accuracy_frame, accuracy_html, accuracy_summary


def test_one_metric_and_one_output_are_summarized():
    assert accuracy_summary(ACCURACY) == "top-1 79.00 % (FP32 80.00 %), SQNR of 'scores' 26.25 dB"
    assert accuracy_summary(dataclasses.replace(ACCURACY, measures=())) == "SQNR of 'scores' 26.25 dB"


def test_a_table_has_every_model_and_what_differences_mean():
    page = accuracy_html("title", dataclasses.replace(ACCURACY, also={"FP16": ACCURACY}))
    assert page.count("80.00 % (75.8-83.6)") == 1 and page.count("79.00 % (74.7-82.7)") == 2
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


def test_the_data_frame_has_cosines_of_tokens_where_there_are_some():
    pytest.importorskip("pandas", reason="pandas is not installed (pip install 'trtint8[notebook]')")
    (scores,) = ACCURACY.outputs
    outputs = (scores, dataclasses.replace(scores, name="tokens", token_cosine=0.875))
    frame = accuracy_frame(dataclasses.replace(ACCURACY, outputs=outputs)).set_index("metric")
    assert frame.loc["token_cosine:tokens", "INT8"] == 0.875
    assert frame["FP32"].isna().sum() == 8  # agreement, and seven of single outputs
    assert "token_cosine:scores" not in frame.index
