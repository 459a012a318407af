"""Calibration that is interrupted, through the API and the command line, on the demo model."""

import json

import numpy as np
import onnx
import pytest

import trtint8
from calibrators.errors import CalibrationDataError, OutputError, TableError
from trtint8.cli.main import main
from trtint8.data import DEMO_MODEL, load_digits_split


@pytest.fixture(scope="module")
def images():
    return load_digits_split().calibration_images[:40]


def _interrupted(images, path):
    name = trtint8.model_inputs(DEMO_MODEL)[0].name

    def feeds():
        yield from ({name: images[start : start + 4]} for start in range(0, 20, 4))
        raise ConnectionError("gone")

    with pytest.raises(ConnectionError):
        trtint8.calibrate(DEMO_MODEL, feeds, checkpoint=path, checkpoint_seconds=0, progress=False)
    assert path.exists()


def test_it_continues_with_the_same_table_and_removes_the_file(images, tmp_path):
    path = tmp_path / "c"
    _interrupted(images, path)
    found = trtint8.calibrate(DEMO_MODEL, images, checkpoint=path, resume=True, progress=False)
    whole = trtint8.calibrate(DEMO_MODEL, images, progress=False)
    found.save(tmp_path / "found.json")
    whole.save(tmp_path / "whole.json")
    assert (tmp_path / "found.json").read_bytes() == (tmp_path / "whole.json").read_bytes()
    assert not path.exists()


def test_resume_without_a_file_begins_at_the_beginning(images, tmp_path):
    found = trtint8.calibrate(DEMO_MODEL, images, checkpoint=tmp_path / "c", resume=True, progress=False)
    assert found.provenance.samples == 40


def test_other_data_or_another_model_is_refused_and_the_file_stays(images, tmp_path):
    path = tmp_path / "c"
    _interrupted(images, path)
    options = {"checkpoint": path, "resume": True, "progress": False}
    with pytest.raises(CalibrationDataError, match="are not those that the checkpoint has seen"):
        trtint8.calibrate(DEMO_MODEL, images[::-1], **options)
    other = onnx.load(DEMO_MODEL)
    weight = max(other.graph.initializer, key=lambda tensor: len(tensor.raw_data))
    weight.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(weight) * 2, weight.name))
    with pytest.raises(TableError, match="was made with another model"):
        trtint8.calibrate(other, images, **options)
    assert path.exists()


def test_a_place_that_cannot_be_written_is_refused_before_the_run(images, tmp_path):
    with pytest.raises(OutputError, match="does not exist"):
        trtint8.calibrate(DEMO_MODEL, images, checkpoint=tmp_path / "no" / "c", progress=False)
    with pytest.raises(CalibrationDataError, match="checkpoint_seconds is -1"):
        trtint8.calibrate(
            DEMO_MODEL, images, checkpoint=tmp_path / "c", checkpoint_seconds=-1, progress=False
        )


def test_the_command_says_what_it_leaves_unused_and_continues_when_asked(images, tmp_path, capsys):
    np.save(tmp_path / "d.npy", images)
    output, path = tmp_path / "t.json", tmp_path / "t.json.checkpoint"
    command = ["calibrate", str(DEMO_MODEL), str(tmp_path / "d.npy"), "-o", str(output), "--json"]
    _interrupted(images, path)
    assert main(command) == 0
    captured = capsys.readouterr()
    assert "t.json.checkpoint' is left from an interrupted run: beginning anew" in captured.err
    assert json.loads(captured.out)["samples"] == 40
    first = output.read_bytes()

    _interrupted(images, path)
    assert main([*command, "--resume"]) == 0
    assert capsys.readouterr().err == ""
    assert output.read_bytes() == first
    assert not path.exists()

    _interrupted(images, path)
    path.write_bytes(b"nonsense")
    assert main([*command, "--resume"]) == 2
    assert "cannot read the checkpoint" in capsys.readouterr().err


def test_a_model_that_fits_no_message_is_calibrated_from_a_file(images, monkeypatch):
    whole = trtint8.calibrate(DEMO_MODEL, images, progress=False)
    monkeypatch.setattr("trtint8.models.model._LARGEST_INLINE", 1000)
    found = trtint8.calibrate(DEMO_MODEL, images, progress=False)
    assert found.histograms == whole.histograms
