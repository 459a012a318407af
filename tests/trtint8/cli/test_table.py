"""Tables shown, converted, extracted, merged and edited."""

import dataclasses
import json
import shutil

import numpy as np
import pytest

from calibrators.errors import TableError
from calibrators.tables.cache_origin import CacheOrigin
from calibrators.tables.choice import RangeChoice
from calibrators.tables.table import CalibrationTable
from calibrators.tensorrt.calibration_cache import write_cache
from tests.calibrators.histograms.kernels import whole
from tests.trtint8.cli.calls import succeeds
from trtint8.data import DEMO_MODEL


# Tables: extract, drop, merge, convert.
def test_extract_and_convert(cache, tmp_path, monkeypatch, refused):
    monkeypatch.chdir(tmp_path)
    succeeds("migrate", DEMO_MODEL, cache, "-o q.onnx --no-proof")
    succeeds("table extract q.onnx -o t.csv")
    succeeds("table convert t.csv p.json --format ppq")
    document = json.loads((tmp_path / "p.json").read_text())
    assert document["act_quant_info"] == pytest.approx(dict(CalibrationTable.load("t.csv").amax))
    assert "has no Q/DQ pairs on activations" in refused("table extract", DEMO_MODEL, "-o no.json")


def test_a_version_that_no_file_would_name(cache, tmp_path, refused):
    version = ["--tensorrt-version 8502"]
    for to in (["t.json"], ["t.txt"], ["t.cache", "--format", "text"]):
        said = refused("table convert", cache, tmp_path / to[0], *to[1:], *version)
        assert "--tensorrt-version has no effect" in said
    assert list(tmp_path.iterdir()) == []
    succeeds("table convert", cache, tmp_path / "t.cache", *version)
    assert (tmp_path / "t.cache").read_text().startswith("TRT-8502-")


def test_drop_merge_and_compare(tmp_path, monkeypatch, prints):
    monkeypatch.chdir(tmp_path)
    CalibrationTable({"a": 1.0, "b": 2.0}, "entropy").save("first.json")
    CalibrationTable({"b": 3.0, "c": 4.0}, "minmax").save("second.json")
    assert "3 tensors, 2 of them from 'second.json'" in prints(
        "table merge first.json second.json -o both.json"
    )
    assert "'both.cache.json'" in prints("table convert both.json both.cache")  # the sidecar
    both = CalibrationTable.load("both.json")
    assert (both.amax, both.method) == ({"a": 1.0, "b": 3.0, "c": 4.0}, "entropy")
    assert both.overridden == {"b", "c"}
    succeeds("table drop both.json b -o less.json")
    less = CalibrationTable.load("less.json")
    assert (less.amax, less.overridden) == ({"a": 1.0, "c": 4.0}, {"c"})
    with pytest.raises(TableError, match=r"'z\*'"):
        less.without(["z*"])
    CalibrationTable({"d": 1.0, "e": 1.0, "b": 2.0}).save("third.json")
    compared = prints("table diff first.json third.json")  # of both tables
    assert "'first.json'" in compared and "'third.json'" in compared
    assert compared.endswith("3 of 4 tensors differ; 2 missing in A, 1 in B\n")


@pytest.mark.parametrize("ending", ["json", "cache", "txt", "csv", "flatbuffers"])
def test_dropping_all_tensors_is_refused(ending, tmp_path, refused):
    table = CalibrationTable({"a": 1.0, "b": 2.0}).save(tmp_path / "t.json")
    output = tmp_path / f"less.{ending}"
    output.write_bytes(b"kept")
    assert refused("table drop", table, "* -o", output).startswith("trtint8 table: without '*'")
    assert output.read_bytes() == b"kept"


def test_every_format_that_is_written_under_a_name_is_read_from_it(tmp_path, refused):
    table = CalibrationTable({"a": 1.0, "b": 2.5}).save(tmp_path / "t.json")
    output = tmp_path / "o.dat"
    for name in ("ppq", "onnxruntime-json"):
        succeeds("table convert", table, output, "--format", name)
        assert CalibrationTable.load(output).amax == {"a": 1.0, "b": 2.5}
    before = output.read_bytes()
    for name, ending in (("text", ".txt"), ("csv", ".csv"), ("onnxruntime", ".flatbuffers")):
        error = refused("table convert", table, output, "--format", name)
        assert f"'{name}'" in error and f"'{output}'" in error and error.endswith(f" {ending}")
        assert output.read_bytes() == before
    ncnn = tmp_path / "o.table"
    network = ["--network", DEMO_MODEL, "--format ppq"]
    assert f"--format ppq does not fit '{ncnn}'" in refused("table convert", table, ncnn, *network)
    assert not ncnn.exists()


def test_table_verbs(table, tmp_path, capsys, prints, as_json):
    cache, back, edited = (str(tmp_path / name) for name in ("t.cache", "back.json", "edited.json"))
    succeeds("table convert", table, cache)
    assert f"'{cache}' is a calibration cache" in capsys.readouterr().err
    succeeds("table convert", cache, back)
    capsys.readouterr()
    succeeds("table diff", table, back)
    count = len(CalibrationTable.load(table).amax)
    assert capsys.readouterr() == (f"0 of {count} tensors differ\n", "")
    succeeds("table set", table, "images=1.5 --method minmax -o", edited)
    shown = as_json("table show", edited)
    assert shown["method"] == "minmax" and shown["amax"]["images"] == 1.5
    assert "images" in prints("table diff", table, edited)


@pytest.mark.parametrize(
    ("algorithm", "sidecar", "words"),
    [
        ("EntropyCalibration2", None, "portable: ranges from before layer fusion"),
        ("LegacyCalibration", None, "not portable unless it was made with CALIBRATE_BEFORE_FUSION"),
        ("LegacyCalibration", True, "portable: ranges from before layer fusion"),
        ("EntropyCalibration", False, "not portable: ranges from after layer fusion"),
    ],
)
def test_the_portability_of_a_cache_is_shown(tmp_path, prints, as_json, algorithm, sidecar, words):
    cache = tmp_path / "model.cache"
    data = f"TRT-8601-{algorithm}\nimages: 3c010204\n".encode()
    cache.write_bytes(data)
    if sidecar is not None:
        write_cache(cache, data, CacheOrigin(algorithm, "8.6.1", None, "d", 500, 50, sidecar))
    shown = as_json("table show", cache)
    assert shown["cache"]["portability"].startswith(words)
    assert shown["cache"].get("from") == (None if sidecar is None else "500 samples in batches of 50")
    assert words in prints("table show", cache)


def test_a_table_is_listed_with_what_it_clips(tmp_path, prints):
    histogram = whole(np.float32([0.0] * 50 + [1.0] * 49 + [8.0]))
    table = CalibrationTable({"a": 2.0, "b": 9.0}, "entropy", histograms={"a": histogram, "b": histogram})
    path = table.override({"b": 9.0}).save(tmp_path / "t.json")
    lines = prints("table show", path).splitlines()
    cells = {line.split()[1]: line.replace("│", "").split() for line in lines if line.startswith("│")}
    assert cells["a"] == ["a", "2", "0.015748", "8", "50.0", "%", "1.000", "%", "entropy"]
    assert cells["b"] == ["b", "9", "0.0708661", "8", "50.0", "%", "0.000", "%", "by", "hand"]


def test_the_choice_and_what_ranges_lose_are_shown(tmp_path, capsys, as_json):
    histogram = whole(np.random.default_rng(0).random(10_000).astype(np.float32))
    choice = RangeChoice("wide", {"wide": 31.25, "mse": 30.5}, {"wide": 16, "mse": 4})
    table = CalibrationTable({}, histograms={"a": histogram}).with_choice({"a": 0.5}, choice)
    path = str(table.save(tmp_path / "t.json"))
    succeeds("table show", path)
    shown = " ".join("".join(capsys.readouterr()).split())
    assert f"chosen: {choice.reason}" in shown
    assert "warning: 1 range loses much of the tensor's values: 'a' (49." in shown
    document = as_json("table show", path)
    assert document["choice"] == dataclasses.asdict(choice)
    assert document["losses"]["a"] == dataclasses.asdict(table.excessive_losses["a"])
    succeeds("table set", path, "--method mse -o", path)
    capsys.readouterr()
    succeeds("table show", path)
    shown = "".join(capsys.readouterr())
    assert "chosen" not in shown and "warning" not in shown


def test_a_conversion_says_what_it_loses(cache, tmp_path, capsys):
    for name in ("t.csv", "t.json", "t.cache"):
        succeeds("table convert", cache, tmp_path / name)
    assert capsys.readouterr().err == (
        f"'{tmp_path / 't.csv'}' holds ranges alone: it does not say which model they are of, so it can no "
        "longer be refused for another one\n"
    )
    written = (tmp_path / "t.json", tmp_path / "t.cache")
    kept = {CalibrationTable.load(path).provenance.model for path in written}
    assert kept == {CalibrationTable.load(cache).provenance.model} != {None}
    assert (tmp_path / "t.cache.json").is_file()
    succeeds("table convert", tmp_path / "t.csv", tmp_path / "t.txt")
    assert capsys.readouterr().err == ""


def test_a_table_or_model_that_is_read_is_not_overwritten(cache, tmp_path, refused):
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
        assert f"cannot write '{read}': it is read as well; give another name" in refused("table", *arguments)
        assert read.read_bytes() == before


def test_a_name_that_the_table_lacks_is_said(tmp_path, capsys):
    table = CalibrationTable({"input": 1.0, "b": 2.0, "c": 3.0}).save(tmp_path / "t.json")
    edited = tmp_path / "s.json"
    succeeds("table set", table, "inptu=2.64 b=1 -o", edited)
    said = capsys.readouterr().err
    assert said.startswith("warning: ") and "'inptu'" in said and said.endswith("'input', 'b', 'c'\n")
    assert CalibrationTable.load(edited).amax == {"input": 1.0, "b": 1.0, "c": 3.0, "inptu": 2.64}
    succeeds("table set", table, "input=2.64 -o", edited)
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
def test_ranges_that_cannot_be_set(tmp_path, refused, ranges, named):
    table = CalibrationTable({"a": 1.0}).save(tmp_path / "t.json")
    assert named in refused("table set", table, *ranges, "-o", tmp_path / "s.json")
    assert not (tmp_path / "s.json").exists()
