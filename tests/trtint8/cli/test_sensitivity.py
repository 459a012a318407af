"""The verb: layers, the worst first."""

from dataclasses import replace

import numpy as np
import onnx
import pytest

from tests.trtint8.cli.calls import succeeds
from tests.trtint8.detectors import images, ranking_detector
from tests.trtint8.report.samples import SENSITIVITY
from tests.trtint8.sensitivity.measuring import SPLIT
from trtint8.cli import sensitivity
from trtint8.data import DEMO_MODEL
from trtint8.sensitivity.measure import Plan
from trtint8.sensitivity.results import Sensitivity

HELD_OUT = {"images": SPLIT.heldout_images, "labels": SPLIT.heldout_labels}


@pytest.mark.slow
def test_the_verb(table, tmp_path, capsys, as_json, refused):
    np.savez(tmp_path / "d.npz", **HELD_OUT)
    arguments = ["sensitivity", str(DEMO_MODEL), table, str(tmp_path / "d.npz")]
    succeeds(*arguments, "-o", tmp_path / "s.json", "--limit 64")
    printed = capsys.readouterr()
    found = Sensitivity.load(tmp_path / "s.json")
    assert f"{len(found.layers)} layers, at most 64 samples: about" in printed.err
    assert (
        f"All layers in INT8: {found.quantized.sqnr_db:.1f} dB; levels in dB; measured with 64 samples"
        in printed.out
    )
    assert printed.out.index(found.worst_first[0].node) < printed.out.index(found.worst_first[1].node)
    assert not (tmp_path / "s.json.partial").exists()
    assert as_json(*arguments, "--limit 64")["samples"] == 64
    assert "there is no model 'missing.onnx'" in refused("sensitivity missing.onnx", *arguments[2:])


def test_what_a_detector_picks_from_is_named(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    onnx.save(ranking_detector(), "m.onnx")
    np.savez("d.npz", images=images(8))
    succeeds("calibrate m.onnx d.npz -o t.json")
    succeeds("sensitivity m.onnx t.json d.npz")
    wanted = "noise is that of 'corners_out', 'scores_last_out', from which the network picks what it gives"
    assert wanted in capsys.readouterr().err


def test_an_interval_that_is_not_known_is_not_shown(table, tmp_path, prints):
    np.savez(tmp_path / "d.npz", **HELD_OUT)
    arguments = ["sensitivity", DEMO_MODEL, table, tmp_path / "d.npz"]
    for limit, known in (("1", False), ("2", True)):
        printed = prints(*arguments, "--limit", limit)
        assert "less certain than --tolerance asks for" in printed
        assert "inf" not in printed and ("±" in printed) == known
    assert "All layers in INT8: exact" in prints(*arguments, "--keep-float * --limit 8")


def test_all_samples_that_were_asked_for_are_enough(table, tmp_path, prints):
    np.savez(tmp_path / "d.npz", **HELD_OUT)
    output = tmp_path / "s.json"
    arguments = ["sensitivity", DEMO_MODEL, table, tmp_path / "d.npz", "--limit 24"]
    shown = prints(*arguments, "--tolerance 0 -o", output)
    assert "less certain" not in shown
    found = Sensitivity.load(output)
    assert (found.converged, found.samples, found.shown) == (True, 24, 24)
    # One sample of eight shows its class.
    assert {layer.only.agreement.total for layer in found.layers} == {3}
    assert "same class of 3 samples" in shown and "100.0 %" in shown


def test_the_table_is_that_of_the_report(capsys):
    sensitivity._print(SENSITIVITY, None)
    printed = capsys.readouterr()
    lines = [line.strip("│").split("│") for line in printed.out.splitlines() if line.startswith("│")]
    rows = [[cell.strip() for cell in line] for line in lines]
    assert [row[1] for row in rows] == ["75.0 %", "20.0 %", "5.0 %"]  # the worst first, as in the report
    assert rows[1] == ["second", "20.0 %", "40.0 ± 0.5", "26.5", "44.0", "41.0", "33.0", "97.5 %"]
    assert rows[2][2:] == ["exact", "26.0", "-", "50.0", "-", "97.5 %"]
    assert "same class of 400 samples" in " ".join(printed.out.split())
    assert {len(line) for line in printed.out.splitlines() if line.startswith("│")} == {100}


def test_a_network_without_classes_has_no_column_of_classes(capsys):
    layers = [replace(layer, only=replace(layer.only, agreement=None)) for layer in SENSITIVITY.layers]
    sensitivity._print(replace(SENSITIVITY, layers=layers), None)
    printed = capsys.readouterr().out
    assert "same" not in printed and "class" not in printed
    assert {line.count("│") for line in printed.splitlines() if line.startswith("│")} == {8}


def test_only_the_first_layers_are_printed_where_so_many_are_asked_for(table, tmp_path, capsys, refused):
    np.savez(tmp_path / "d.npz", **HELD_OUT)
    arguments = ["sensitivity", DEMO_MODEL, table, tmp_path / "d.npz", "--limit 8"]
    succeeds(*arguments, "--top 2 -o", tmp_path / "s.json")
    printed = capsys.readouterr()
    found = Sensitivity.load(tmp_path / "s.json")
    assert printed.out.count("│\n") == 2 and f"{len(found.layers) - 2} more layers" in printed.err
    for number in ("0", "-1"):
        assert f"--top is {number}" in refused(*arguments, "--top", number)


def test_the_result_is_written_under_the_name_of_a_json_file(tmp_path, refused):
    """Before anything is read."""
    data, long = tmp_path / "heldout.npz", tmp_path / f"{'a' * 245}.json"
    data.write_bytes(b"samples")
    for name, words in (
        (str(data), f"'{data}' does not end in .json"),
        (".json", "'.json' is an ending alone"),
        ("", "empty"),
        (str(long), f"cannot write '{long}.partial': File name too long"),
    ):
        assert words in refused("sensitivity nowhere.onnx nowhere.json nowhere.npz -o", name)
    assert [(path, path.read_bytes()) for path in tmp_path.iterdir()] == [(data, b"samples")]


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        (Plan(1, 1, 0.5), "1 layer, at most 1 sample: about 0 s, 500 ms each\n"),
        (Plan(2, 64, 0.5), "2 layers, at most 64 samples: about 32 s, 500 ms each\n"),
        (Plan(2, None, 0.5), "2 layers, all samples: 500 ms each\n"),
    ],
)
def test_what_a_measurement_will_cost(plan, words, capsys):
    sensitivity._announce(plan)
    assert capsys.readouterr().err == words
