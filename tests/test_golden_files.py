"""Files that version 0.1 wrote still load and mean the same; what is written now is the same document."""

import base64
import hashlib
import json
import math
import shutil
import zlib
from functools import wraps
from pathlib import Path

import numpy as np
import pytest

from calibrators import records
from calibrators.tables.cache_origin import CacheOrigin, read_origin
from calibrators.tables.table import CalibrationTable, Provenance
from calibrators.tensorrt.calibration_cache import read_cache, write_cache
from trtint8.cli.main import main
from trtint8.cli.output import print_json
from trtint8.engine.file import TensorSpec, read_engine_info, save_engine
from trtint8.engine.layers import Layer
from trtint8.engine.profiles import ShapeRange
from trtint8.report.files import find_report_files, parse
from trtint8.runtime.bench import Benchmarks, BenchReport, Summary, bench
from trtint8.sensitivity.results import Sensitivity, Suspect
from trtint8.tuning.candidates import Trial
from trtint8.tuning.tune import TuningLog
from trtint8.validation.accuracy import Measure
from trtint8.validation.budget import Score
from trtint8.validation.fidelity import Fidelity
from trtint8.validation.significance import Comparison, Share

GOLDEN = Path(__file__).parent / "golden" / "0.1"
MODEL, TABLE, DATA = "0a" * 32, "2c" * 32, "1b" * 32

DROP = Comparison(
    "FP32", 0.025, (-0.03471088150622515, 0.08518438561810243), 0.4995598332025143, "McNemar", 200,
    gained=20, lost=15,
)  # fmt: skip


def document(path):
    return json.loads(path.read_bytes())


def unpacked(path):
    """A table's document with the bytes of its counts, which zlib packs in several ways."""
    table = document(path)
    for histogram in table["histograms"].values():
        histogram["counts"] = zlib.decompress(base64.b64decode(histogram["counts"]))
    return table


def test_table(tmp_path):
    path = GOLDEN / "model.table.json"
    table = CalibrationTable.load(path)
    assert table.amax == {"images": 1.0, "étage/relu:0": 3.0660367012023926, "by_hand": 2.5}
    assert (table.method, table.overridden) == ("minmax", {"by_hand"})
    assert table.provenance == Provenance(MODEL, DATA, 500, {"trtint8": "0.1.0", "onnxruntime": "1.20.0"})
    images = table.histograms["images"]
    assert (images.bin_width, images.amax, images.zeros, images.infs) == (2.0**-10, 1.0, 1, 1)
    assert {i: images.counts[i] for i in np.flatnonzero(images.counts)} == {512: 1, 1024: 2}
    relu = table.histograms["étage/relu:0"]
    assert (relu.counts.sum(), relu.bin_width, relu.zeros, relu.infs) == (466, 2.0**-9, 534, 0)
    assert table.with_method("percentile").amax["étage/relu:0"] == pytest.approx(3.06, abs=0.01)
    again = table.save(tmp_path / "t.json")
    assert CalibrationTable.load(again) == table
    empty = dict.fromkeys(("choice", "float_layers", "inputs", "cut_from"))
    newer = {**empty, "input_sizes": {}, "left_out": {}, "modules": {}, "warnings": []}
    expected = {**newer, **unpacked(path)}
    for histogram in expected["histograms"].values():
        histogram.update(octave=None, octaves=None, ends=None)
    assert unpacked(again) == expected


def test_engine_sidecar(tmp_path):
    info = read_engine_info(GOLDEN / "model.engine")
    assert (info.flavor, info.tensorrt_version, info.route) == ("rtx", "1.7.1.116", "explicit")
    assert info.compute_capabilities == ("8.6", "12.0")
    assert info.inputs == (TensorSpec("images", "float32", ("N", 3, None, 16)),)
    assert info.outputs[1] == TensorSpec("total", "int64", ())
    assert info.profiles == ({"images": ShapeRange((1, 3, 16, 16), (8, 3, 16, 16), (32, 3, 16, 16))},)
    assert info.layers.layers[0] == Layer(
        "conv_myl0_2", "correlation", ("Int8",), ("Int8", "Float"), ("Float",), ("étage",)
    )
    assert info.int8_layers == (1, 2)
    assert info.missing_ranges == (("y", "fc"),)
    assert info.shared_scales == (("a_scale", "b_scale"), ("c_scale",))
    assert (info.weights_bytes, info.method, info.qdq_model) == (5248, "entropy", "model.qdq.onnx")
    assert (info.model_fingerprint, info.table_fingerprint) == (MODEL, TABLE)
    assert (info.created_by, info.format_version) == ("trtint8 0.1.0", 1)
    again = tmp_path / "model.engine"
    save_engine(again, (GOLDEN / "model.engine").read_bytes(), info)
    assert read_engine_info(again) == info
    # What is written today says more: the kernels by part, why nodes stay in float, which Q/DQ model, and the
    # files beside the engine, and whether it joins samples.
    before = document(GOLDEN / "model.engine.json")
    more = {"kernels": [], "float_nodes": [], "qdq_fingerprint": None, "written": {}, "joins_samples": None}
    newer = {
        "calibrated_inputs": None,
        "changed_weights": [],
        "warnings": [],
        "float_causes": {},
        "modules": {},
    }
    assert document(tmp_path / "model.engine.json") == {**before, **more, **newer}


def test_cache_sidecar(tmp_path):
    origin = CacheOrigin("EntropyCalibration2", "8.6.1", MODEL, DATA, 500, 50, True)
    data = read_cache(GOLDEN / "model.cache", origin)
    assert read_origin(GOLDEN / "model.cache", data) == origin
    assert data == b"TRT-8601-EntropyCalibration2\nimages: 3c010204\n"
    write_cache(tmp_path / "model.cache", data, origin)
    # Sidecars of earlier versions, like the golden one, have neither a hash nor settings.
    more = {"sha256": hashlib.sha256(data).hexdigest(), "settings": None}
    assert document(tmp_path / "model.cache.json") == {**document(GOLDEN / "model.cache.json"), **more}


def test_accuracy(tmp_path, capsys):
    path = GOLDEN / "model.accuracy.json"
    accuracy = parse("accuracy", document(path), str(path))
    assert (accuracy.judged, accuracy.samples) == ("the Q/DQ model in ONNX Runtime", 200)
    assert (accuracy.top1, accuracy.top5, accuracy.reference_top1) == (Share(180, 200), None, Share(175, 200))
    assert accuracy.agreement == Share(195, 200)
    assert accuracy.outputs == (
        Fidelity("scores", 31.5, 0.9995, 0.25, 0.75),
        Fidelity("total", -math.inf, 0.0, 2.0),
    )
    top1, agreement, loss = accuracy.measures
    assert top1 == Measure("top1", Share(180, 200), Share(175, 200), (DROP,))
    assert agreement == Measure("agreement", Share(195, 200))
    bootstrap = Comparison("FP32", 0.25, (-0.5, 1.0), 0.5, "bootstrap", 4, "batches")
    assert math.isnan(loss.value) and (loss.reference, loss.comparisons) == (0.5, (bootstrap,))
    equal, broken = accuracy.also["FP16"].outputs
    assert equal == Fidelity("scores", math.inf, 1.0, 0.0)
    assert math.isnan(broken.sqnr_db) and math.isnan(broken.cosine) and math.isnan(broken.max_error)
    assert (top1.title, top1.unit, top1.perfect, accuracy.chosen) == ("", "", None, None)
    print_json(accuracy)
    assert without_newer(json.loads(capsys.readouterr().out)) == document(path)


def without_newer(value):
    """A document without the fields that later versions write as well, which are empty for old files."""
    if isinstance(value, dict):
        newer = {
            "title": "",
            "unit": "",
            "perfect": None,
            "chosen": None,
            "judgement": None,
            "judged_fingerprint": None,
            "reference_fingerprint": None,
            "cpu_ms": None,
            "overlapped": False,
            "shown": None,
            "in_integers": None,
            "tensors": None,
            "picks_changed": [],
            "warnings": [],
            "name": "INT8",
            "same_answer": None,
            "seen": None,
        }
        return {
            key: without_newer(entry)
            for key, entry in value.items()
            if key not in newer or entry != newer[key]
        }
    return [without_newer(entry) for entry in value] if isinstance(value, list) else value


def test_bench(monkeypatch, capsys):
    path = GOLDEN / "model.bench.json"
    times = {
        phase: Summary(low, low + 0.25, low + 0.125, low + 0.125, low + 0.25, low + 0.25, low + 0.25)
        for phase, low in (
            ("latency", 1.5),
            ("enqueue", 0.25),
            ("compute", 1.0),
            ("h2d", 0.25),
            ("d2h", 0.125),
        )
    }
    report = BenchReport("model.engine", 8, True, False, 1000, 2.0, times)
    measured = Benchmarks("NVIDIA A100", "random", (report,))
    assert parse("bench", document(path), str(path)) == measured
    monkeypatch.setattr("trtint8.cli.bench.bench", wraps(bench)(lambda **_: measured))
    assert main(["bench", "model.engine", "--json"]) == 0
    assert without_newer(json.loads(capsys.readouterr().out)) == without_newer(document(path))


def test_sensitivity(tmp_path):
    path = GOLDEN / "model.sensitivity.json"
    found = Sensitivity.load(path)
    assert (found.samples, found.converged, found.tolerance_db) == (200, True, 0.5)
    assert (found.model_fingerprint, found.table_fingerprint, found.data_fingerprint) == (MODEL, TABLE, DATA)
    assert (found.quantized.sqnr_db, found.quantized.interval_db) == (30.25, (30.0, 30.5))
    assert (found.quantized.top1, found.quantized.drop) == (Share(180, 200), DROP)
    assert found.reference_top1 == Share(175, 200)
    conv, add = found.layers
    assert (conv.node, conv.operator, conv.noise_share) == ("conv", "Conv", 1.0)
    assert (conv.weights_db, conv.activations_db, conv.cumulative_db) == (40.0, 35.0, 33.0)
    assert conv.without.interval_db == (math.inf, math.inf)
    assert conv.suspects == (Suspect("outliers", "the range is 20 times that of 99.9 % of the values"),)
    assert (add.weights_db, add.activations_db, add.cumulative_db) == (None, math.inf, None)
    assert (add.only.sqnr_db, add.without.sqnr_db, add.only.agreement) == (math.inf, -math.inf, None)
    assert math.isnan(add.without.interval_db[1])
    assert found.shown is None and found.samples_text == "200 samples"
    assert without_newer(document(found.save(tmp_path / "s.json"))) == document(path)


def test_tuning_log():
    path = GOLDEN / "model.tuning.json"
    log = records.to_record(records.read(path), TuningLog)  # version 0.1 also wrote a method for each tensor
    assert log == TuningLog(
        "trtint8 quantize m.onnx 'my table.json'",
        ("fc",),
        ("bias correction",),
        0.125,
        (
            Trial("as calibrated", Score(1.5, 20.25), True, 0, 0.0, 0.5),
            Trial("fc in float", Score(-0.5, math.inf), True, 1, 0.125, 1.5),
        ),
    )
    # Version 0.1 wrote the bare word Infinity, which few parsers but Python's take; it is text now.
    again = records.parse(records.render(log))
    assert again["trials"][1]["score"] == {"drop": -0.5, "sqnr_db": "inf"}
    assert records.to_record(again, TuningLog, numbers_as_text=True) == log


def test_a_report_finds_all_of_them(tmp_path):
    folder = shutil.copytree(GOLDEN, tmp_path / "out")
    found = find_report_files([folder])
    assert list(found.paths) == ["engine", "table", "sensitivity", "accuracy", "bench", "tuning"]
    assert (found.stem, found.bench.gpu, found.accuracy.samples) == ("model", "NVIDIA A100", 200)
