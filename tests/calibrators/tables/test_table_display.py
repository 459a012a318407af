"""How a table shows itself."""

import numpy as np
import pytest

from calibrators.histograms.histogram import Histogram
from calibrators.tables.choice import RangeChoice
from calibrators.tables.table import CalibrationTable, Provenance
from calibrators.tables.table_display import ShownRange, ranges_frame, ranges_html


@pytest.fixture
def table():
    histogram = Histogram()
    histogram.observe(np.array([0, 0, 1, 1, 1, 1, 1, 8], np.float32))
    return CalibrationTable.from_histograms({"<x>": histogram}, "minmax", Provenance(samples=7))


def test_the_text_is_one_line(table):
    assert repr(table) == "<CalibrationTable: 1 tensor, minmax, 7 samples>"
    chosen = table.with_choice({"<x>": 2.0}, RangeChoice("mse", {"mse": 30.0}, {"mse": 4}))
    assert repr(chosen) == "<CalibrationTable: 1 tensor, auto (mse), 7 samples>"
    assert repr(CalibrationTable({"x": 1.0, "y": 2.0})) == "<CalibrationTable: 2 tensors, manual>"


def test_a_notebook_shows_every_tensor(table):
    page = table.override({"<x>": 2.54})._repr_html_()
    for cell in ("&lt;x&gt;", "2.54", "0.02", "by hand", "8", "12.500 %"):
        assert f">{cell}</td>" in page
    assert "<svg" in page and "<x>" not in page


def test_tables_without_histograms_have_no_columns_for_them():
    page = CalibrationTable({"x": 1.27})._repr_html_()
    assert ">0.01</td>" in page and "magnitudes" not in page


def test_a_tensor_without_a_histogram_among_others_has_empty_cells(table):
    shown = [ShownRange("y", 1.0, "by hand", None), ShownRange("x", 1.0, "mse", table.histograms["<x>"])]
    assert ranges_html("t", shown).count("<td") == 14


def test_the_data_frame_has_what_is_known(table):
    pytest.importorskip("pandas", reason="pandas is not installed (pip install 'trtint8[notebook]')")
    (row,) = table.override({"<x>": 2.54}).to_pandas().to_dict("records")
    assert row == {
        "tensor": "<x>",
        "amax": 2.54,
        "scale": pytest.approx(0.02),
        "method": "by hand",
        "largest": 8.0,
        "zeros": 0.25,
        "clipped": 0.125,
    }
    frame = ranges_frame([ShownRange("y", 1.0, "by hand", None)])
    assert frame["largest"].isna().all()
