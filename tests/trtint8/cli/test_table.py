"""Tables shown, converted, extracted, merged and edited."""

import dataclasses
import json
import shutil

import numpy as np
import pytest

from calibrators.errors import TableError
from calibrators.histograms.histogram import Histogram
from calibrators.tables.cache_origin import CacheOrigin
from calibrators.tables.choice import RangeChoice
from calibrators.tables.table import CalibrationTable
from calibrators.tensorrt.calibration_cache import write_cache
from trtint8.cli.main import main
from trtint8.data import DEMO_MODEL


# Tables: extract, drop, merge, convert.
def test_extract_and_convert(cache, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["migrate", str(DEMO_MODEL), str(cache), "-o", "q.onnx", "--no-proof"]) == 0
    assert main(["table", "extract", "q.onnx", "-o", "t.csv"]) == 0
    assert main(["table", "convert", "t.csv", "p.json", "--format", "ppq"]) == 0
    document = json.loads((tmp_path / "p.json").read_text())
    assert document["act_quant_info"] == pytest.approx(dict(CalibrationTable.load("t.csv").amax))
    assert main(["table", "extract", str(DEMO_MODEL), "-o", "no.json"]) == 2
    assert "has no Q/DQ pairs on activations" in capsys.readouterr().err


def test_a_version_that_no_file_would_name(cache, tmp_path, capsys):
    version = ["--tensorrt-version", "8502"]
    for to in (["t.json"], ["t.txt"], ["t.cache", "--format", "text"]):
        assert main(["table", "convert", str(cache), str(tmp_path / to[0]), *to[1:], *version]) == 2
        error = capsys.readouterr().err
        assert error.startswith("trtint8 table: --tensorrt-version has no effect") and error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
    assert main(["table", "convert", str(cache), str(tmp_path / "t.cache"), *version]) == 0
    assert (tmp_path / "t.cache").read_text().startswith("TRT-8502-")


def test_drop_merge_and_compare(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    CalibrationTable({"a": 1.0, "b": 2.0}, "entropy").save("first.json")
    CalibrationTable({"b": 3.0, "c": 4.0}, "minmax").save("second.json")
    assert main(["table", "merge", "first.json", "second.json", "-o", "both.json"]) == 0
    both = CalibrationTable.load("both.json")
    assert (both.amax, both.method) == ({"a": 1.0, "b": 3.0, "c": 4.0}, "entropy")
    assert both.overridden == {"b", "c"}
    assert main(["table", "drop", "both.json", "b", "-o", "less.json"]) == 0
    less = CalibrationTable.load("less.json")
    assert (less.amax, less.overridden) == ({"a": 1.0, "c": 4.0}, {"c"})
    with pytest.raises(TableError, match=r"'z\*'"):
        less.without(["z*"])
    CalibrationTable({"d": 1.0, "e": 1.0, "b": 2.0}).save("third.json")
    capsys.readouterr()
    assert main(["table", "diff", "first.json", "third.json"]) == 0
    assert "3 of 4 tensors differ" in capsys.readouterr().out  # of both tables


@pytest.mark.parametrize("ending", ["json", "cache", "txt", "csv", "flatbuffers"])
def test_dropping_all_tensors_is_refused(ending, tmp_path, capsys):
    table = CalibrationTable({"a": 1.0, "b": 2.0}).save(tmp_path / "t.json")
    output = tmp_path / f"less.{ending}"
    output.write_bytes(b"kept")
    assert main(["table", "drop", str(table), "*", "-o", str(output)]) == 2
    assert capsys.readouterr().err.startswith("trtint8 table: without '*'")
    assert output.read_bytes() == b"kept"


def test_every_format_that_is_written_under_a_name_is_read_from_it(tmp_path, capsys):
    table = CalibrationTable({"a": 1.0, "b": 2.5}).save(tmp_path / "t.json")
    output = tmp_path / "o.dat"
    for name in ("ppq", "onnxruntime-json"):
        assert main(["table", "convert", str(table), str(output), "--format", name]) == 0
        assert CalibrationTable.load(output).amax == {"a": 1.0, "b": 2.5}
    before = output.read_bytes()
    for name, ending in (("text", ".txt"), ("csv", ".csv"), ("onnxruntime", ".flatbuffers")):
        assert main(["table", "convert", str(table), str(output), "--format", name]) == 2
        error = capsys.readouterr().err
        assert f"'{name}'" in error and f"'{output}'" in error and error.endswith(f" {ending}\n")
        assert output.read_bytes() == before
    ncnn = tmp_path / "o.table"
    network = ["--network", str(DEMO_MODEL), "--format", "ppq"]
    assert main(["table", "convert", str(table), str(ncnn), *network]) == 2
    assert f"--format ppq does not fit '{ncnn}'" in capsys.readouterr().err
    assert not ncnn.exists()


def test_table_verbs(table, tmp_path, capsys):
    cache, back, edited = (str(tmp_path / name) for name in ("t.cache", "back.json", "edited.json"))
    assert main(["table", "convert", table, cache]) == 0
    assert f"'{cache}' is a calibration cache" in capsys.readouterr().err
    assert main(["table", "convert", cache, back]) == 0
    assert main(["table", "diff", table, back]) == 0
    count = len(CalibrationTable.load(table).amax)
    assert capsys.readouterr() == (f"0 of {count} tensors differ\n", "")
    assert main(["table", "set", table, "images=1.5", "--method", "minmax", "-o", edited]) == 0
    capsys.readouterr()
    assert main(["table", "show", edited, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["method"] == "minmax" and shown["amax"]["images"] == 1.5
    assert main(["table", "diff", table, edited]) == 0
    assert "images" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("algorithm", "sidecar", "words"),
    [
        ("EntropyCalibration2", None, "portable: ranges from before layer fusion"),
        ("LegacyCalibration", None, "not portable unless it was made with CALIBRATE_BEFORE_FUSION"),
        ("LegacyCalibration", True, "portable: ranges from before layer fusion"),
        ("EntropyCalibration", False, "not portable: ranges from after layer fusion"),
    ],
)
def test_the_portability_of_a_cache_is_shown(tmp_path, capsys, algorithm, sidecar, words):
    cache = tmp_path / "model.cache"
    data = f"TRT-8601-{algorithm}\nimages: 3c010204\n".encode()
    cache.write_bytes(data)
    if sidecar is not None:
        write_cache(cache, data, CacheOrigin(algorithm, "8.6.1", None, "d", 500, 50, sidecar))
    assert main(["table", "show", str(cache), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["cache"]["portability"].startswith(words)
    assert shown["cache"].get("from") == (None if sidecar is None else "500 samples in batches of 50")
    assert main(["table", "show", str(cache)]) == 0
    assert words in capsys.readouterr().out


def test_a_table_is_listed_with_what_it_clips(tmp_path, capsys):
    histogram = Histogram()
    histogram.observe(np.array([0.0] * 50 + [1.0] * 49 + [8.0], np.float32))
    table = CalibrationTable({"a": 2.0, "b": 9.0}, "entropy", histograms={"a": histogram, "b": histogram})
    path = table.override({"b": 9.0}).save(tmp_path / "t.json")
    assert main(["table", "show", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    cells = {line.split()[1]: line.replace("│", "").split() for line in lines if line.startswith("│")}
    assert cells["a"] == ["a", "2", "0.015748", "8", "50.0", "%", "1.000", "%", "entropy"]
    assert cells["b"] == ["b", "9", "0.0708661", "8", "50.0", "%", "0.000", "%", "by", "hand"]


def test_the_choice_and_what_ranges_lose_are_shown(tmp_path, capsys):
    histogram = Histogram()
    histogram.observe(np.random.default_rng(0).random(10_000).astype(np.float32))
    choice = RangeChoice("wide", {"wide": 31.25, "mse": 30.5}, {"wide": 16, "mse": 4})
    table = CalibrationTable({}, histograms={"a": histogram}).with_choice({"a": 0.5}, choice)
    path = str(table.save(tmp_path / "t.json"))
    assert main(["table", "show", path]) == 0
    shown = " ".join("".join(capsys.readouterr()).split())
    assert f"chosen: {choice.reason}" in shown
    assert "warning: 1 range loses much of the tensor's values: 'a' (49." in shown
    assert main(["table", "show", path, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["choice"] == dataclasses.asdict(choice)
    assert document["losses"]["a"] == dataclasses.asdict(table.excessive_losses["a"])
    assert main(["table", "set", path, "--method", "mse", "-o", path]) == 0
    capsys.readouterr()
    assert main(["table", "show", path]) == 0
    shown = "".join(capsys.readouterr())
    assert "chosen" not in shown and "warning" not in shown


def test_a_conversion_says_what_it_loses(cache, tmp_path, capsys):
    for name in ("t.csv", "t.json", "t.cache"):
        assert main(["table", "convert", str(cache), str(tmp_path / name)]) == 0
    assert capsys.readouterr().err == (
        f"'{tmp_path / 't.csv'}' holds ranges alone: it does not say which model they are of, so it can no "
        "longer be refused for another one\n"
    )
    written = (tmp_path / "t.json", tmp_path / "t.cache")
    kept = {CalibrationTable.load(path).provenance.model for path in written}
    assert kept == {CalibrationTable.load(cache).provenance.model} != {None}
    assert (tmp_path / "t.cache.json").is_file()
    assert main(["table", "convert", str(tmp_path / "t.csv"), str(tmp_path / "t.txt")]) == 0
    assert capsys.readouterr().err == ""


def test_a_table_or_model_that_is_read_is_not_overwritten(cache, tmp_path, capsys):
    table, model = tmp_path / "t.json", tmp_path / "model.json"
    beside = CalibrationTable({"a": 1.0}, "entropy").save(tmp_path / "t.cache.json")
    CalibrationTable({"a": 1.0}, "entropy").save(table)
    shutil.copy(DEMO_MODEL, model)
    for read, arguments in (
        (beside, ["convert", str(beside), str(tmp_path / "t.cache")]),
        (table, ["convert", str(table), str(table), "--format", "ppq"]),
        (model, ["convert", str(table), str(model), "--network", str(model)]),
        (model, ["extract", str(model), "-o", str(model)]),
    ):
        before = read.read_bytes()
        assert main(["table", *arguments]) == 2
        assert f"cannot write '{read}': it is read as well; give another name" in capsys.readouterr().err
        assert read.read_bytes() == before


def test_a_name_that_the_table_lacks_is_said(tmp_path, capsys):
    table = CalibrationTable({"input": 1.0, "b": 2.0, "c": 3.0}).save(tmp_path / "t.json")
    edited = tmp_path / "s.json"
    assert main(["table", "set", str(table), "inptu=2.64", "b=1", "-o", str(edited)]) == 0
    said = capsys.readouterr().err
    assert said.startswith("warning: ") and "'inptu'" in said and said.endswith("'input', 'b', 'c'\n")
    assert CalibrationTable.load(edited).amax == {"input": 1.0, "b": 1.0, "c": 3.0, "inptu": 2.64}
    assert main(["table", "set", str(table), "input=2.64", "-o", str(edited)]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("ranges", "named"),
    [
        ([], "--method"),
        (["a=1", "a=2"], "'a' twice"),
        (["a"], "TENSOR=AMAX: 'a' is not"),
        (["=1"], "'=1' is not"),
    ],
)
def test_ranges_that_cannot_be_set(tmp_path, capsys, ranges, named):
    table = CalibrationTable({"a": 1.0}).save(tmp_path / "t.json")
    assert main(["table", "set", str(table), *ranges, "-o", str(tmp_path / "s.json")]) == 2
    error = capsys.readouterr().err
    assert error.startswith("trtint8 table: ") and named in error and error.count("\n") == 1
    assert not (tmp_path / "s.json").exists()
