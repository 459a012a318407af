"""A report from files and data to one HTML file; cli/test_report.py has it on the demo model."""

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
