"""The verb: remedies for what calibration lost."""

import dataclasses
import json
import shlex
from pathlib import Path

import numpy as np
import onnx
import pytest

from calibrators import records
from calibrators.tables.choice import FloatLayers
from tests.trtint8.cli.calls import succeeds
from trtint8.auditing import gpus
from trtint8.auditing.gpus import find_gpu
from trtint8.cli.main import main
from trtint8.data import DEMO_MODEL
from trtint8.tuning.tune import TuningLog


@pytest.fixture
def arguments(wild_table, tmp_path, held_out, monkeypatch):
    """A command line with a table that ruins the network, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    np.savez("d.npz", **held_out)
    wild_table.save("wild.json")
    return ["tune", str(DEMO_MODEL), "wild.json", "d.npz", "-o", "out.onnx"]


def log():
    return records.to_record(records.read("out.tuning.json"), TuningLog, exact=True, numbers_as_text=True)


@pytest.mark.slow
def test_the_verb(arguments, tmp_path, capsys, as_json):
    succeeds(*arguments, "--max-drop 0.5")
    printed = capsys.readouterr()
    assert "+ as calibrated: drop " in printed.err
    assert "samples that the search did not use" in printed.out
    assert "before tuning it was" in printed.out
    assert onnx.load("out.onnx").graph.node
    assert {path.name for path in tmp_path.iterdir()} >= {"out.onnx", "out.table.json", "out.tuning.json"}
    assert log().command.startswith("trtint8 quantize ")
    assert f"To make it anew: {log().command}\n" in printed.out
    assert log().trials[0].what == "as calibrated"
    assert main([*arguments[:-1], "no/out.onnx", "--max-drop", "0.5"]) == 2
    assert as_json(*arguments, "--max-drop 0.5")["files"]["model"] == "out.onnx"


@pytest.mark.slow
def test_least_values_and_budgets_that_are_not_kept(arguments, capsys, refused):
    arguments += ["--metric", "sqnr"]
    succeeds(*arguments, "--min 15")
    printed = capsys.readouterr()
    assert "searching for sqnr: at least 15 dB\n+ as calibrated: sqnr " in printed.err
    assert "nothing was found" not in printed.err
    assert log().goal == "sqnr: at least 15 dB" and log().trials[-1].score.value > 15
    assert "metric 'sqnr' has no drop" in refused(*arguments, "--max-drop 1")
    # With all layers in float the outputs are FP32's, whose cosine is 1.
    assert main([*arguments[:-1], "cosine", "--min", "1.5"]) == 2
    assert "FP32 itself has cosine 1 on" in capsys.readouterr().err
    before = Path("out.onnx").read_bytes()
    missing = [*arguments[:-1], "cosine", "--min", "0.99999", "--minutes", "0.0001", "--json"]
    assert main(missing) == 1
    printed = capsys.readouterr()
    assert "cosine: at least 0.99999" in printed.err and "--keep-best" in printed.err
    result = json.loads(printed.out)
    assert result["fits"] is result["accuracy"]["judgement"]["fits"] is False
    # What misses the budget does not have the name that was asked for.
    assert result["files"]["model"] == "out.missed.onnx" and onnx.load("out.missed.onnx").graph.node
    assert Path("out.missed.tuning.json").exists() and Path("out.onnx").read_bytes() == before
    assert main([*missing, "--keep-best"]) == 1
    assert json.loads(capsys.readouterr().out)["files"]["model"] == "out.onnx"
    assert Path("out.onnx").read_bytes() == Path("out.missed.onnx").read_bytes()


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ("--max-drop 0.5 --certain", "--certain"),  # the samples are too few
        ("--metric max_error --max-drop 1 --certain", "--certain"),
        ("--max-drop 0.5 --groups 1000", "--groups"),  # all are one group
    ],
)
def test_what_is_never_certain_is_refused_before_the_search(arguments, capsys, more, named):
    assert main([*arguments, *more.split()]) == 2
    *said, error = capsys.readouterr().err.splitlines()
    assert named in error and not any("as calibrated" in line for line in said)


def test_files_that_a_missed_budget_would_replace_are_refused_first(arguments, refused):
    Path("out.missed.float.onnx").write_bytes(b"of the user")
    assert "out.missed.float.onnx" in refused(*arguments, "--max-drop 0.5")


@pytest.mark.slow
def test_budgets_that_the_samples_tuned_on_keep_and_others_miss(arguments, capsys, held_out):
    brighter = {**held_out, "images": 50 * held_out["images"]}  # far beyond the ranges of the table
    np.savez("judge.npz", **brighter)
    arguments += ["--metric", "sqnr", "--min", "15", "--judge", "judge.npz"]
    missed = "the budget (sqnr: at least 15 dB) is missed: sqnr "
    assert main(arguments) == 1
    printed = capsys.readouterr()
    assert f"on {len(held_out['labels'])} samples {missed}" in printed.out
    assert "nothing was found" not in printed.err
    assert not Path("out.onnx").exists() and Path("out.missed.onnx").exists()
    assert main([*arguments, "--json"]) == 1
    result = json.loads(capsys.readouterr().out)
    judgement = result["accuracy"]["judgement"]
    assert result["fits"] and not judgement["fits"] and judgement["value"] < 15
    assert missed in judgement["notes"][0]


@pytest.mark.slow
def test_a_search_that_ran_out_of_time_is_continued(arguments, tmp_path, capsys, prints, refused):
    arguments += ["--json", "--max-drop", "0.5"]
    checkpoint = tmp_path / "out.onnx.checkpoint"
    assert main([*arguments, "--minutes", "0.0001"]) == 1
    printed = capsys.readouterr()
    command = ["trtint8", "tune", "--resume", *arguments[1:], "--minutes", "0.0001"]
    assert f"'{checkpoint.name}' with: {shlex.join(command)}\n" in printed.err
    ended = json.loads(printed.out)
    assert (ended["complete"], [trial["what"] for trial in ended["trials"]]) == (False, ["as calibrated"])
    # The best so far is written and judged as usual.
    assert ended["accuracy"]["samples"] > 0 and checkpoint.exists()
    assert (tmp_path / "out.missed.onnx").exists()
    continued = json.loads(prints(*arguments, "--resume"))
    assert continued["complete"] and not checkpoint.exists()
    whole = json.loads(prints(*arguments))
    for key in ("accuracy", "keep_float", "remedies", "fits"):
        assert continued[key] == whole[key], key
    scores = [[(trial["what"], trial["score"]) for trial in run["trials"]] for run in (continued, whole)]
    assert scores[0] == scores[1]
    assert "minutes is 0.0" in refused(*arguments, "--minutes 0")


@pytest.mark.slow
def test_speed_on_a_gpu(rtx, arguments, tmp_path, capsys, refused, monkeypatch):
    fast = dataclasses.replace(find_gpu("A10"), bandwidth_gbs=1e6, fp16_tflops=0.001, int8_tops=1.0)
    monkeypatch.setattr(gpus, "GPUS", (fast,))
    arguments += ["--no-round-weights", "--max-drop", "5"]
    succeeds(*arguments, "--speed a10 --profile images=1x1x8x8,2x1x8x8,4x1x8x8")
    printed = capsys.readouterr()
    for precision in ("FP16", "INT8"):
        assert f"+ all layers in {precision}: estimated " in printed.err
    assert "estimated on A10" in printed.out and "--float16 --float32-io" in " ".join(printed.out.split())
    made = log()
    assert made.speed.gpu == "A10" and made.speed.seconds < made.speed.fp16_seconds
    # In the form in which TensorRT for RTX stores less; the command makes the same model again.
    written = (tmp_path / "out.onnx").read_bytes()
    names = {node.name for node in onnx.load_from_string(written).graph.node}
    assert any(name.endswith("_by_one_scale") for name in names)
    assert "--target rtx" in made.command
    assert main(shlex.split(made.command)[1:]) == 0
    assert (tmp_path / "out.onnx").read_bytes() == written
    error = refused(*arguments, "--speed T4")
    assert "'T4'" in error and "A10" in error


@pytest.mark.parametrize(
    ("name", "read", "words"),
    [
        *(
            (name, True, "it is read as well")
            for name in ("out.table.json", "out.tuning.json", "out.float.onnx", "out.onnx")
        ),
        *(
            (name, False, "no earlier run")
            for name in ("out.table.json", "out.tuning.json", "out.float.onnx")
        ),
    ],
)
def test_what_is_read_or_no_tuning_has_made_is_not_lost(tmp_path, refused, name, read, words):
    """It is known before the search."""
    (tmp_path / name).write_bytes(b"as it was")
    data = str(tmp_path / name) if read else "nowhere.npz"
    said = refused("tune", DEMO_MODEL, data, "nowhere.npz -o", tmp_path / "out.onnx")
    assert f"cannot write '{tmp_path / name}': {words}" in said
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [(name, b"as it was")]
    (tmp_path / name).unlink()
    output = tmp_path / f"{'a' * 240}.onnx"
    said = refused("tune", DEMO_MODEL, "nowhere.npz nowhere.npz -o", output)
    assert f"cannot write '{output}.checkpoint': File name too long" in said
    assert list(tmp_path.iterdir()) == []


def test_layers_that_the_table_keeps_in_float_are_named(arguments, wild_table, prints):
    kept = FloatLayers(("/fc/Gemm",), 0.01)
    dataclasses.replace(wild_table, float_layers=kept).save("wild.json")
    [row] = [
        line for line in prints(*arguments, "--metric sqnr --min 0.1").splitlines() if "accuracy" in line
    ]
    assert "in float for accuracy" in row and "/fc/Gemm" in row


def test_what_no_search_can_mend_is_refused_at_once(split, tmp_path, capsys):
    data, labelled, judge = (tmp_path / name for name in ("c.npz", "h.npz", "j.npz"))
    np.savez(data, images=split.calibration_images[:64])
    images, labels = split.heldout_images[:64], split.heldout_labels[:64].copy()
    np.savez(labelled, images=images, labels=(labels + 1) % 10)  # all wrong
    command = ["tune", str(DEMO_MODEL), str(data), str(labelled), "-o", str(tmp_path / "tuned.onnx")]
    assert main([*command, "--min", "50"]) == 2
    assert "FP32 itself has top1 0.00 % on" in capsys.readouterr().err
    np.savez(labelled, images=images, labels=labels)
    labels[63] = 10
    np.savez(judge, images=images, labels=labels)
    assert main([*command, "--judge", str(judge)]) == 2
    *_, goal, error = capsys.readouterr().err.splitlines()
    assert goal == "searching for top1: a drop of at most 1 point"
    assert error.startswith("trtint8 tune: label 10 is not one of the model's 10 classes (0 to 9)")
    assert sorted(tmp_path.iterdir()) == [data, labelled, judge]
