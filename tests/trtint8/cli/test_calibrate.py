"""The verb: interrupted and continued, and on which device."""

import json

import numpy as np
import onnx
import pytest

import trtint8
from tests.trtint8.cli.calls import succeeds
from tests.trtint8.interruptions import interrupted
from trtint8.data import DEMO_MODEL


@pytest.fixture
def images(split):
    return split.calibration_images[:40]


def test_the_command_says_what_it_leaves_unused_and_continues_when_asked(images, tmp_path, capsys, refused):
    np.save(tmp_path / "d.npy", images)
    output, path = tmp_path / "t.json", tmp_path / "t.json.checkpoint"
    command = ["calibrate", DEMO_MODEL, tmp_path / "d.npy", "-o", output, "--json"]
    interrupted(images, path)
    succeeds(*command)
    captured = capsys.readouterr()
    assert "t.json.checkpoint' is left from an interrupted run: beginning anew" in captured.err
    summary = json.loads(captured.out)
    assert (summary["method"], summary["samples"]) == ("auto", 40)
    assert summary["chosen"].startswith("'") and " for a typical one of " in summary["chosen"]
    first = output.read_bytes()

    interrupted(images, path)
    succeeds(*command, "--resume")
    assert capsys.readouterr().err == ""
    assert output.read_bytes() == first
    assert not path.exists()

    interrupted(images, path)
    path.write_bytes(b"nonsense")
    assert "cannot read the checkpoint" in refused(*command, "--resume")


def test_a_quantized_model_is_refused(images, table, tmp_path, refused):
    np.save(tmp_path / "d.npy", images)
    onnx.save(trtint8.quantize(DEMO_MODEL, table), tmp_path / "q.onnx")
    output = tmp_path / "t.json"
    said = refused("calibrate", tmp_path / "q.onnx", tmp_path / "d.npy", "-o", output)
    assert "'q.onnx' holds Q/DQ pairs already; build it as it is" in said
    assert not output.exists()


def test_random_data_is_warned_of_once(tmp_path, capsys):
    succeeds("calibrate", DEMO_MODEL, "random:16 -o", tmp_path / "t.json")
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith("warning: the calibration data is 'random:16'")


def test_a_foreign_file_in_the_place_of_a_cache_s_sidecar_is_refused_before_calibration(tmp_path, refused):
    (tmp_path / "t.cache.json").write_text("mine")
    said = refused("calibrate", DEMO_MODEL, tmp_path / "none.npz", "-o", tmp_path / "t.cache")
    assert "t.cache.json', the sidecar of the cache" in said
    assert (tmp_path / "t.cache.json").read_text() == "mine"


def test_a_name_beside_which_no_checkpoint_has_room(tmp_path, monkeypatch, refused):
    """The table's own name is short enough for every file system, and that of its checkpoint is not."""
    monkeypatch.chdir(tmp_path)
    output = "o" * 241 + ".json"
    assert f"cannot write '{output}.checkpoint'" in refused("calibrate", DEMO_MODEL, "random:2 -o", output)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("output", ["", ".", "none/t.json", "t.png"])
def test_a_table_that_cannot_be_written_is_refused_by_its_own_name(output, tmp_path, monkeypatch, refused):
    monkeypatch.chdir(tmp_path)
    said = refused("calibrate", DEMO_MODEL, "random:2 -o", output)
    assert f"'{output}'" in said
    assert "checkpoint" not in said
    assert not list(tmp_path.iterdir())


def test_what_makes_the_size_of_images_is_named_as_options(tmp_path, refused):
    pytest.importorskip("PIL.Image").new("RGB", (9, 7)).save(tmp_path / "a.png")
    arguments = ["calibrate", DEMO_MODEL, tmp_path, "-o", tmp_path / "t.json"]
    for given in (["--scale", "1"], ["--std", "2"]):
        said = refused(*arguments, *given)
        assert all(option in said for option in ("7x9", "--resize", "--crop", "--letterbox"))
        assert given[0] not in said


def test_raw_images_without_preprocessing_name_its_options(tmp_path, refused):
    np.savez(tmp_path / "raw.npz", images=np.zeros((2, 8, 8, 1), np.uint8))
    arguments = ["calibrate", DEMO_MODEL, tmp_path / "raw.npz", "-o", tmp_path / "t.json"]
    said = refused(*arguments)
    assert all(option in said for option in ("--preprocess", "--scale", "--mean", "--std"))
