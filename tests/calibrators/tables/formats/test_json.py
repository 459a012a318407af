"""The project's own table format."""

import json

import numpy as np
import pytest

from calibrators.errors import TableError
from calibrators.histograms.histogram import Histogram
from calibrators.tables.table import CalibrationTable, Provenance


@pytest.fixture
def table():
    histogram = Histogram()
    histogram.observe(np.array([0, 0.5, -1.0, 3.0, np.inf], np.float32))
    return CalibrationTable.from_histograms(
        {"a::b": histogram}, "minmax", Provenance("model", "data", 5, {"numpy": "2"})
    )


def test_the_file_is_json_that_a_person_can_read(table, tmp_path):
    document = json.loads(table.save(tmp_path / "t.json").read_text())
    assert list(document)[:2] == ["format", "version"] and list(document)[-1] == "histograms"
    assert (document["format"], document["version"]) == ("trtint8-calibration-table", 1)
    assert document["amax"] == {"a::b": 3.0} and document["method"] == "minmax"
    stored = document["histograms"]["a::b"]
    assert (stored["amax"], stored["zeros"], stored["infs"]) == (3.0, 1, 1)


def test_it_reads_back_to_the_same_table(table, tmp_path):
    assert CalibrationTable.load(table.save(tmp_path / "t.json")) == table


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"format": "other"}, "not a calibration table"),
        ({"version": 2}, "version 2"),
        ({"amax": {"a::b": "wide"}}, "amax"),
        ({"amax": {"a::b": True}}, "amax"),
        ({"amax": [1.0]}, "amax"),
        ({"histograms": {"a::b": {"counts": "!"}}}, "histogram"),
        ({"histograms": {"a::b": 3}}, "histogram"),
    ],
)
def test_a_field_that_is_wrong_is_named(table, tmp_path, change, words):
    path = table.save(tmp_path / "t.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(TableError, match=words):
        CalibrationTable.load(path)


def test_a_histogram_that_was_cut_is_refused(table, tmp_path):
    path = table.save(tmp_path / "t.json")
    document = json.loads(path.read_text())
    document["histograms"]["a::b"]["counts"] = document["histograms"]["a::b"]["counts"][:20]
    path.write_text(json.dumps(document))
    with pytest.raises(TableError, match="histogram"):
        CalibrationTable.load(path)
