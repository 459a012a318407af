"""A report from files and data to one HTML file; cli/test_report.py has it on the demo model."""

import json

import pytest

import tests.trtint8.report.extra  # noqa: F401
from calibrators.data.options import DataOptions
from calibrators.errors import CalibrationDataError, ModelError, OutputError
from trtint8.report.writing import write_report


def write(found, output, **options):
    sources = [found.paths["table"].parent]
    return write_report(sources, output, data_options=DataOptions(), **options)


def test_one_file_is_written(found, tmp_path):
    output = tmp_path / "report.html"
    assert write(found, output) == output
    assert output.read_text().lstrip().startswith("<!DOCTYPE html>")


def test_what_is_missing_is_said_before_anything_is_written(found, tmp_path):
    output = tmp_path / "report.html"
    with pytest.raises(ModelError, match="needs the float model too; give --model"):
        write(found, output, data="heldout.npz")
    with pytest.raises(CalibrationDataError, match="--classes has no effect without --data"):
        write(found, output, class_names=["cat"])
    with pytest.raises(OutputError, match="does not exist"):
        write(found, tmp_path / "no" / "report.html")
    assert not output.exists()


def test_half_a_character_in_a_name_is_replaced(found, tmp_path):
    path = found.paths["sensitivity"]
    whole = path.read_text()
    (name,) = [layer["node"] for layer in json.loads(whole)["layers"]][:1]
    try:
        path.write_text(whole.replace(json.dumps(name), json.dumps(f"{name}\ud800")))
        page = write(found, tmp_path / "report.html").read_text()
    finally:
        path.write_text(whole)
    assert f"{name}?" in page
