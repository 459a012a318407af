"""The verb: interrupted and continued, and on which device."""

import json

import numpy as np
import onnx
import pytest

import trtint8
from tests.trtint8.interruptions import interrupted
from trtint8.cli.main import main
from trtint8.data import DEMO_MODEL


@pytest.fixture
def images(split):
    return split.calibration_images[:40]


def test_the_command_says_what_it_leaves_unused_and_continues_when_asked(images, tmp_path, capsys):
    np.save(tmp_path / "d.npy", images)
    output, path = tmp_path / "t.json", tmp_path / "t.json.checkpoint"
    command = ["calibrate", str(DEMO_MODEL), str(tmp_path / "d.npy"), "-o", str(output), "--json"]
    interrupted(images, path)
    assert main(command) == 0
    captured = capsys.readouterr()
    assert "t.json.checkpoint' is left from an interrupted run: beginning anew" in captured.err
    summary = json.loads(captured.out)
    assert (summary["method"], summary["samples"]) == ("auto", 40)
    assert summary["chosen"].startswith("'") and " for a typical one of " in summary["chosen"]
    first = output.read_bytes()

    interrupted(images, path)
    assert main([*command, "--resume"]) == 0
    assert capsys.readouterr().err == ""
    assert output.read_bytes() == first
    assert not path.exists()

    interrupted(images, path)
    path.write_bytes(b"nonsense")
    assert main([*command, "--resume"]) == 2
    assert "cannot read the checkpoint" in capsys.readouterr().err


def test_a_quantized_model_is_refused(images, table, tmp_path, capsys):
    np.save(tmp_path / "d.npy", images)
    onnx.save(trtint8.quantize(DEMO_MODEL, table), tmp_path / "q.onnx")
    output = tmp_path / "t.json"
    assert main(["calibrate", str(tmp_path / "q.onnx"), str(tmp_path / "d.npy"), "-o", str(output)]) == 2
    assert "'q.onnx' holds Q/DQ pairs already; build it as it is" in capsys.readouterr().err
    assert not output.exists()


def test_random_data_is_warned_of_once(tmp_path, capsys):
    assert main(["calibrate", str(DEMO_MODEL), "random:16", "-o", str(tmp_path / "t.json")]) == 0
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith("warning: the calibration data is 'random:16'")


def test_a_foreign_file_in_the_place_of_a_cache_s_sidecar_is_refused_before_calibration(tmp_path, capsys):
    (tmp_path / "t.cache.json").write_text("mine")
    assert (
        main(["calibrate", str(DEMO_MODEL), str(tmp_path / "none.npz"), "-o", str(tmp_path / "t.cache")]) == 2
    )
    assert "t.cache.json', the sidecar of the cache" in capsys.readouterr().err
    assert (tmp_path / "t.cache.json").read_text() == "mine"


def test_a_name_beside_which_no_checkpoint_has_room(tmp_path, monkeypatch, capsys):
    """The table's own name is short enough for every file system, and that of its checkpoint is not."""
    monkeypatch.chdir(tmp_path)
    output = "o" * 241 + ".json"
    assert main(["calibrate", str(DEMO_MODEL), "random:2", "-o", output]) == 2
    assert f"cannot write '{output}.checkpoint'" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("output", ["", ".", "none/t.json", "t.png"])
def test_a_table_that_cannot_be_written_is_refused_by_its_own_name(output, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["calibrate", str(DEMO_MODEL), "random:2", "-o", output]) == 2
    said = capsys.readouterr().err
    assert f"'{output}'" in said
    assert "checkpoint" not in said
    assert not list(tmp_path.iterdir())


def test_what_makes_the_size_of_images_is_named_as_options(tmp_path, capsys):
    pytest.importorskip("PIL.Image").new("RGB", (9, 7)).save(tmp_path / "a.png")
    arguments = ["calibrate", str(DEMO_MODEL), str(tmp_path), "-o", str(tmp_path / "t.json")]
    for given in (["--scale", "1"], ["--std", "2"]):
        assert main([*arguments, *given]) == 2
        said = capsys.readouterr().err
        assert all(option in said for option in ("7x9", "--resize", "--crop", "--letterbox"))
        assert given[0] not in said


def test_raw_images_without_preprocessing_name_its_options(tmp_path, capsys):
    np.savez(tmp_path / "raw.npz", images=np.zeros((2, 8, 8, 1), np.uint8))
    arguments = ["calibrate", str(DEMO_MODEL), str(tmp_path / "raw.npz"), "-o", str(tmp_path / "t.json")]
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert all(option in said for option in ("--preprocess", "--scale", "--mean", "--std"))
