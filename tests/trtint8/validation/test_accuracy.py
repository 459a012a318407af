"""How a comparison shows itself."""

import dataclasses

import pytest

from tests.trtint8.report.samples import ACCURACY
from trtint8.validation.accuracy import Accuracy


def test_the_text_is_one_line():
    assert repr(ACCURACY) == (
        "<Accuracy: 400 samples, top-1 79.00 % (FP32 80.00 %), SQNR of 'scores' 26.25 dB>"
    )
    assert repr(Accuracy("a test", 4, None, None, None, None, None, ())) == "<Accuracy: 4 samples>"


def test_a_notebook_shows_how_it_was_judged_and_why():
    page = dataclasses.replace(ACCURACY, chosen="chosen by <shape>")._repr_html_()
    assert "400 samples; INT8 is the Q/DQ model as fake quantization" in page
    assert "chosen by &lt;shape&gt;" in page


def test_the_data_frame_has_the_metrics():
    pytest.importorskip("pandas", reason="pandas is not installed (pip install 'trtint8[notebook]')")
    assert ACCURACY.to_pandas()["FP32"].isna().tolist() == [False, True, False, True, True, True]
