"""Which files a report is made of."""

import dataclasses
import errno
import json
import os
import shutil
from dataclasses import replace

import pytest

from calibrators import records
from calibrators.errors import ModelError, TableError
from calibrators.tables.table import CalibrationTable, Provenance
from tests.calibrators.data.sample_data import hide
from tests.trtint8.report.samples import ACCURACY, TUNING_LOG, printed_tuning, write_all, write_json
from trtint8.cli.output import print_json
from trtint8.data import DEMO_MODEL
from trtint8.engine.file import read_engine_info, save_engine
from trtint8.models.model import load_model, record_calibration
from trtint8.models.serialization import save_model
from trtint8.report.facts import gather
from trtint8.report.files import ReportFiles, find_report_files

KINDS = ["engine", "qdq", "table", "sensitivity", "accuracy", "audit", "bench", "tuning"]


@pytest.fixture
def folder(tmp_path):
    write_all(tmp_path)
    return tmp_path


def test_a_folder(folder):
    (folder / "notes.txt").write_text("not ours")
    (folder / "other.json").write_text('{"colour": 1}')
    found = find_report_files([folder])
    assert list(found.paths) == KINDS and found.stem == "net"
    assert found.engine.weights_bytes == 5248 and found.table.provenance.samples == 500
    assert found.sensitivity.samples == 128 and found.accuracy == ACCURACY
    assert found.bench.gpu == "GPU 1"
    assert (found.tuning.keep_float, found.tuning.trials[0]) == (("second",), TUNING_LOG.trials[0])


def test_links_that_lead_nowhere_are_left_out(folder):
    for name, goal in (("loop.json", "loop.json"), ("net2.engine", "net2.engine"), ("gone.json", "none")):
        (folder / name).symlink_to(goal)
    assert list(find_report_files([folder]).paths) == KINDS
    assert list(find_report_files([folder / "net.engine"]).paths) == KINDS


def test_an_engine_brings_what_has_its_name(folder):
    other = dataclasses.replace(CalibrationTable.load(folder / "net.table.json"), amax={"images": 3.0})
    other.save(folder / "network.table.json")
    found = find_report_files([str(folder / "net.engine")])
    assert list(found.paths) == KINDS and found.paths["table"].name == "net.table.json"


def test_of_several_tables_in_a_folder_the_own_one_is_taken(folder):
    own = CalibrationTable.load(folder / "net.table.json")
    assert read_engine_info(folder / "net.engine").table_fingerprint == own.fingerprint
    dataclasses.replace(own, amax={"images": 3.0}).save(folder / "another.table.json")
    own.save(folder / "copy.table.json")
    found = find_report_files([folder])
    assert list(found.paths) == KINDS and found.table.amax == own.amax
    with pytest.raises(TableError, match=r"another\.table\.json.*net\.table\.json"):
        find_report_files([folder / "another.table.json", folder / "net.engine"])
    for path in (folder / "net.engine", folder / "net.qdq.onnx"):
        path.unlink()
    with pytest.raises(TableError, match=r"another\.table\.json.*copy\.table\.json"):
        find_report_files([folder])


def test_files_of_other_models_whose_names_begin_alike_are_left_out(folder):
    for ending in ("table.json", "tuning.json", "accuracy.json", "qdq.onnx", "engine"):
        shutil.copy(folder / f"net.{ending}", folder / f"net.tuned.{ending}")
    shutil.copy(folder / "net.engine", folder / "net.plan")
    (folder / "net.accuracy.json").rename(folder / "net.heldout.json")
    found = find_report_files([folder / "net.engine"])
    assert list(found.paths) == KINDS
    assert {path.name for path in found.paths.values()} >= {
        "net.engine",
        "net.table.json",
        "net.heldout.json",
    }
    assert not any("tuned" in path.name for path in found.paths.values())


def test_an_engine_was_written_with_one_of_two_tables(folder):
    shutil.copy(folder / "net.table.json", folder / "net.json")
    found = find_report_files([folder / "net.engine"])
    assert list(found.paths) == KINDS and found.paths["table"].name == "net.table.json"
    (folder / "net.table.json").unlink()
    assert find_report_files([folder / "net.engine"]).paths["table"].name == "net.json"


def test_an_engine_may_be_called_a_plan(folder):
    (folder / "net.engine").rename(folder / "net.plan")
    (folder / "net.engine.json").rename(folder / "net.plan.json")
    for source in (folder, folder / "net.plan"):
        found = find_report_files([source])
        assert list(found.paths) == KINDS and found.stem == "net"
        assert found.engine.weights_bytes == 5248


def test_an_engine_whose_name_is_a_pattern(folder):
    for path in list(folder.iterdir()):
        path.rename(folder / path.name.replace("net", "n[e]t*"))
    (folder / "net.table.json").write_text("{}")
    assert find_report_files([folder / "n[e]t*.engine"]).paths["table"].name == "n[e]t*.table.json"


def test_names_with_dots(folder):
    for name in ("net.v2.engine", "net.v2.qdq.onnx", "net.v2.table.json", "net.v2.json"):
        assert ReportFiles({"any": folder / name}).stem == "net.v2"


def test_single_files_may_be_named_twice(folder):
    found = find_report_files(
        [folder / "net.table.json", folder / "net.accuracy.json", folder / "net.table.json"]
    )
    assert list(found.paths) == ["table", "accuracy"]
    assert found.engine is found.sensitivity is found.bench is None


def test_what_verbs_print_is_parsed_once(folder, monkeypatch):
    parsed, read = [], records.read
    monkeypatch.setattr(records, "read", lambda path: (parsed.append(path), read(path))[1])
    paths = [folder / f"net.{kind}.json" for kind in ("accuracy", "audit", "bench", "tuning")]
    for sources in ([folder], [folder / "net.engine"], paths):
        parsed.clear()
        find_report_files(sources)
        assert [parsed.count(path) for path in paths] == [1, 1, 1, 1]


def test_what_tune_prints_is_a_log_and_an_accuracy(folder):
    document = {**printed_tuning(), "goal": "printed"}
    write_json(folder / "printed.json", document)
    alone = find_report_files([folder / "printed.json"])
    assert list(alone.paths) == ["tuned"] and alone.accuracy == ACCURACY
    assert (alone.tuning.command, alone.tuning.goal) == (TUNING_LOG.command, "printed")
    # Files that hold only one of both come first.
    beside = find_report_files([folder])
    assert list(beside.paths) == [*KINDS, "tuned"] and beside.tuning.goal == TUNING_LOG.goal


def test_sensitivity_as_it_is_printed(folder, capsys):
    print_json(find_report_files([folder]).sensitivity)
    (folder / "printed.json").write_text(capsys.readouterr().out)
    for source in (folder, folder / "printed.json"):
        with pytest.raises(TableError, match="--json"):
            find_report_files([source])


def test_a_model_with_pairs_and_a_cache_are_recognized_by_what_they_hold(folder):
    (folder / "net.qdq.onnx").rename(folder / "int8.onnx")
    found = find_report_files([folder / "int8.onnx"])
    assert (found.paths, found.stem) == ({"qdq": folder / "int8.onnx"}, "int8")
    ranges = CalibrationTable({"images": 2.5, "hidden": 4.0}, "entropy")
    ranges.save(folder / "net.cache")
    found = find_report_files([folder / "net.cache"])
    assert list(found.paths) == ["table"] and list(found.table.amax) == ["images", "hidden"]
    shutil.copy(DEMO_MODEL, folder / "float.onnx")
    (folder / "broken.onnx").write_bytes(b"no model")
    (folder / "timing.cache").write_bytes(b"\0\1 of another kind")
    assert list(find_report_files([folder]).paths) == [kind for kind in KINDS if kind != "qdq"]
    for name in ("net.engine", "net.table.json"):
        (folder / name).unlink()
    found = find_report_files([folder])
    assert (found.paths["qdq"], found.paths["table"]) == (folder / "int8.onnx", folder / "net.cache")
    shutil.copy(folder / "int8.onnx", folder / "net.qdq.onnx")
    assert find_report_files([folder]).paths["qdq"] == folder / "net.qdq.onnx"
    with pytest.raises(TableError, match=r"float\.onnx' holds no Q/DQ pairs; give the quantized model here"):
        find_report_files([folder / "float.onnx"])
    with pytest.raises(ModelError, match=r"broken\.onnx"):
        find_report_files([folder / "broken.onnx"])


@pytest.mark.parametrize("name", ["int8.onnx", "net.cache"])
def test_what_cannot_be_read_is_not_left_out(name, folder, monkeypatch):
    for engine in (folder / "net.engine", folder / "net.table.json"):
        engine.unlink()
    (folder / "net.qdq.onnx").rename(folder / "int8.onnx")
    CalibrationTable({"images": 2.5}, "entropy").save(folder / "net.cache")
    opened = os.open

    def failing(path, *arguments, **options):
        if os.fspath(path).endswith(name):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return opened(path, *arguments, **options)

    monkeypatch.setattr(os, "open", failing)
    with pytest.raises((ModelError, TableError), match=f"{name}.*Input/output error"):
        find_report_files([folder])


def test_mistakes(folder):
    empty = folder / "empty"
    empty.mkdir()
    with pytest.raises(TableError, match="nothing to report on in"):
        find_report_files([empty])
    with pytest.raises(TableError, match="there is no"):
        find_report_files([folder / "nowhere"])
    (folder / "notes.txt").write_text("")
    with pytest.raises(TableError, match=r"notes\.txt' is no file that a report knows"):
        find_report_files([folder / "notes.txt"])
    (folder / "net.accuracy.json").write_text("{")
    with pytest.raises(TableError, match=r"net\.accuracy\.json' is not JSON"):
        find_report_files([folder])


def test_a_file_that_a_shell_has_made_for_what_is_not_printed_yet(folder):
    for name in ("net.comparison.json", "comparison.json", "net.accuracy.json"):
        (folder / name).write_text("")
    for source in (folder, folder / "net.engine"):
        assert list(find_report_files([source]).paths) == [kind for kind in KINDS if kind != "accuracy"]
    with pytest.raises(TableError, match=r"comparison\.json' is not JSON"):
        find_report_files([folder / "comparison.json"])


def test_audits_for_two_gpus_are_told_apart(folder):
    document = records.read(folder / "net.audit.json")
    document["gpu"]["name"] = "Another"
    (folder / "another.json").write_text(json.dumps(document))
    with pytest.raises(TableError, match=r"another\.json' for Another and .*net\.audit\.json' for \w+"):
        find_report_files([folder])


def test_a_folder_that_may_not_be_read(folder, monkeypatch):
    hide(monkeypatch, folder)
    words = f"cannot read the folder '{folder}': Permission denied; make it readable, or give another"
    with pytest.raises(TableError, match=words):
        find_report_files([folder])


def test_an_engine_s_sidecar_counts_as_read(folder):
    read = find_report_files([folder]).read
    assert {path.name for path in read} == {path.name for path in folder.iterdir()}
    assert find_report_files([folder / "net.table.json"]).read == (folder / "net.table.json",)


def test_a_table_of_an_earlier_build_is_left_out(folder):
    info = read_engine_info(folder / "net.engine")
    save_engine(folder / "net.engine", bytes(1000), replace(info, table_fingerprint=None))
    without = [kind for kind in KINDS if kind != "table"]
    for source in (folder, folder / "net.engine"):
        found = find_report_files([source])
        assert list(found.paths) == without and found.table is None
    named = find_report_files([folder / "net.engine", folder / "net.table.json"])
    assert list(named.paths) == KINDS and named.table.method == "entropy"
    assert gather(named).mismatches[0].startswith("The engine was built without the calibration table")
    assert find_report_files([folder / "net.table.json"]).table == named.table
    # Whoever needs a damaged model says so.
    (folder / "net.qdq.onnx").write_bytes(b"damaged")
    assert find_report_files([folder / "net.engine"]).table is None


def test_the_table_that_a_model_was_quantized_with_stays(folder):
    model = load_model(folder / "net.qdq.onnx")
    record_calibration(model.graph_model, "samples", 100)
    save_model(model.graph_model, folder / "net.qdq.onnx")
    provenance = Provenance(model="1a", data="samples", samples=100)
    CalibrationTable({"images": 2.54, "relu_out": 2.54}, provenance=provenance).save(
        folder / "net.table.json"
    )
    info = read_engine_info(folder / "net.engine")
    save_engine(folder / "net.engine", bytes(1000), replace(info, table_fingerprint=None))
    assert find_report_files([folder / "net.engine"]).paths["table"].name == "net.table.json"
