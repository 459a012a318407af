"""Models validated on one data set."""

import re
import threading
import warnings
from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import trtint8
from calibrators.data.sources.folders import Files
from calibrators.errors import CalibrationDataError, EngineError, ModelError
from tests.trtint8.detectors import (
    BOXES,
    PICKED_FROM,
    SCORES,
    detector,
    images,
    ranking_detector,
    suppressing_detector,
    unordered_detector,
)
from tests.trtint8.range_choice import networks
from tests.trtint8.validation.small_models import rows_as_they_are, scaled
from trtint8.engine.file import EngineInfo, TensorSpec, save_engine
from trtint8.models.model import load_model
from trtint8.models.serialization import fingerprint
from trtint8.models.session import open_model
from trtint8.validation import opening

DATA = np.eye(4, dtype=np.float32) + np.float32(1 / 3)


def validated(model, data=DATA, **options):
    """A model beside the network that gives out what it is fed."""
    return trtint8.validate(model, data, **{"reference": scaled(1.0), **options})


def test_several_models_side_by_side():
    result = validated(
        scaled(-1.0),
        also={"FP16": scaled(1.0, "float16")},
        labels=np.arange(4),
    )
    assert result.judged == "the model in ONNX Runtime"
    assert (result.top1.count, result.also["FP16"].top1.count, result.reference_top1.count) == (0, 4, 4)
    # The input is rounded to FP16, whose spacing is 2^-12 at 1/3 and 2^-10 at 4/3.
    rounded = DATA.astype(np.float16).astype(np.float64)
    assert result.also["FP16"].outputs[0].max_error == pytest.approx(np.abs(rounded - DATA).max())
    assert 0 < result.also["FP16"].outputs[0].max_error <= 2**-11


@pytest.mark.parametrize(("name", "error"), [("no.onnx", ModelError), ("no.engine", EngineError)])
def test_what_is_missing_is_named_before_samples_are_looked_at(name, error, tmp_path):
    """It may be what says how images become inputs."""
    images = {"images": np.zeros((2, 4, 4, 1), np.uint8)}
    with pytest.raises(error, match=name):
        validated(tmp_path / name, images)
    with pytest.raises(error, match=name):
        validated(scaled(1.0), images, also={"other": tmp_path / name})


def test_a_budget_is_of_the_first_metric():
    """The negative network has every class wrong."""
    data = np.concatenate([DATA, 2 * DATA])
    asked = {"data": data, "labels": np.arange(8) % 4}
    kept = validated(scaled(0.5), max_drop=0, **asked).judgement
    assert (kept.goal, kept.fits, kept.drop) == ("top1: a drop of at most 0 points", True, 0)
    assert kept.step == 12.5 and kept.unjudged is None
    missed = validated(scaled(-1.0), max_drop=50, also={"half": scaled(0.5)}, **asked)
    assert (missed.judgement.fits, missed.judgement.drop) == (False, 100.0)
    assert missed.also["half"].judgement is None
    level = validated(scaled(0.5), metrics=["sqnr", "top1"], minimum=6, **asked).judgement
    # Half the signal is noise of a quarter of its power.
    assert (level.goal, level.fits) == ("sqnr: at least 6 dB", True)
    assert level.value == pytest.approx(6.0206, abs=1e-4)
    assert validated(scaled(0.5), **asked).judgement is None
    with pytest.raises(CalibrationDataError, match="max_drop"):
        validated(scaled(0.5), metrics=[], minimum=6, **asked)


def test_the_float_model_opens_while_the_other_one_is_read(monkeypatch):
    other, opened = scaled(0.5), threading.Event()

    def read(source):
        assert source is not other or opened.wait(60)
        return load_model(source)

    def open_and_tell(*args, **options):
        session = open_model(*args, **options)
        opened.set()
        return session

    monkeypatch.setattr("trtint8.validation.validate.load_model", read)
    monkeypatch.setattr("trtint8.validation.validate.open_model", open_and_tell)
    result = validated(other)
    assert result.outputs[0].sqnr_db == pytest.approx(6.0206, abs=1e-4)


def test_threads_run_parts_of_a_batch_with_the_same_results(monkeypatch):
    data, opened = np.concatenate([DATA] * 9), []

    def open_and_tell(*args, **options):
        session = open_model(*args, **options)
        opened.append(session.runs_at_once)
        return session

    for module in ("validate", "opening"):
        monkeypatch.setattr(f"trtint8.validation.{module}.open_model", open_and_tell)
    results = [
        validated(scaled(0.5), data, threads=threads, batch_size=rows)
        for threads, rows in ((1, 8), (2, 8), (3, 8), (2, 1))
    ]
    # Batches that come as they are may have one sample each.
    results.append(validated(scaled(0.5), iter([{"x": data}]), threads=2))
    assert opened == [1, 1, 2, 2, 3, 3, 1, 1, 1, 1]
    for result in results[1:]:
        assert result.outputs[0].sqnr_db == pytest.approx(results[0].outputs[0].sqnr_db, rel=1e-12)
        assert result.samples == len(data)


@pytest.mark.parametrize("name", ["INT8", "FP32"])
def test_names_that_are_taken(name):
    with pytest.raises(ModelError, match=f"'{name}' in also is the name of the"):
        validated(scaled(1.0), also={name: scaled(1.0)})


def test_what_has_no_layer_in_int8_is_not_called_int8(tmp_path):
    with pytest.warns(UserWarning, match="neither Q/DQ pairs"):
        found = validated(scaled(1.0))
    assert found.name == "float" and "<th>float</th>" in re.sub(r"<th[^>]*>", "<th>", found._repr_html_())
    with pytest.warns(UserWarning, match="neither Q/DQ pairs"):
        other = validated(scaled(1.0), also={"float": scaled(0.5)})
    assert other.name == "INT8" and set(other.also) == {"float"}  # a name that somebody gave stays that one's
    onnx.save(scaled(0.5), tmp_path / "e.qdq.onnx")
    # No node was meant to run in INT8.
    engine_beside(tmp_path, fingerprint(load_model(tmp_path / "e.qdq.onnx").graph_model))
    assert validated(tmp_path / "e.engine").name == "float"


def engine_beside(folder, fingerprint, **fields):
    """Saves e.engine, which was made from a model with a fingerprint, beside e.qdq.onnx."""
    spec, result = (TensorSpec(name, "float32", (None, 4)) for name in ("x", "y"))
    info = EngineInfo(
        "tensorrt", "10.0", ("8.6",), (spec,), (result,), (), None, (), None, fingerprint, **fields
    )
    return save_engine(folder / "e.engine", b"plan", replace(info, qdq_model="e.qdq.onnx"))


@pytest.mark.parametrize("table", ["0a", None])
def test_an_engine_of_another_model_than_the_reference_is_named(tmp_path, monkeypatch, table):
    monkeypatch.setattr(opening, "gpu_problem", lambda: "there is none")
    files = {name: str(tmp_path / f"{name}.onnx") for name in ("mine", "other", "e.qdq")}
    for name, factor in (("mine", 1.0), ("other", 2.0), ("e.qdq", 1.0)):
        onnx.save(scaled(factor), files[name])
    mine, other = (load_model(files[name]).fingerprint for name in ("mine", "other"))
    engine_beside(tmp_path, mine, table_fingerprint=table)
    said = {}
    for name in ("mine", "other"):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            trtint8.validate(tmp_path / "e.engine", DATA, reference=files[name])
        said[name] = [str(warning.message) for warning in caught if warning.category is UserWarning]
    assert said["mine"] == [] and len(said["other"]) == (1 if table else 0)
    for part in (f"'{tmp_path / 'e.engine'}'", "'other.onnx'", mine[:12], other[:12]):
        assert all(part in sentence for sentence in said["other"])


@pytest.mark.parametrize("kept", [True, False])
def test_results_say_which_engine_was_judged(tmp_path, monkeypatch, kept):
    monkeypatch.setattr(opening, "gpu_problem", lambda: "there is none")
    onnx.save(scaled(1.0), tmp_path / "e.qdq.onnx")
    fingerprint = load_model(tmp_path / "e.qdq.onnx").fingerprint
    fields = {"table_fingerprint": "0a", "qdq_fingerprint": fingerprint if kept else None}
    info = engine_beside(tmp_path, fingerprint, **fields)
    found = validated(tmp_path / "e.engine")
    assert found.judged_fingerprint == (fingerprint if kept else info.plan_sha256)
    assert found.reference_fingerprint == fingerprint


def test_results_say_which_model_was_judged():
    model, data = detector(), images(8)
    table = trtint8.calibrate(model, images(16, seed=1))
    quantized = trtint8.quantize(model, table)
    fingerprint = load_model(quantized).fingerprint
    options = {"reference": model, "metrics": "sqnr"}
    assert trtint8.validate(quantized, data, **options).judged_fingerprint == fingerprint
    in_integers = trtint8.validate(quantized, data, arithmetic="explicit", **options)
    assert in_integers.judged_fingerprint == fingerprint
    # What a table makes of a float model is not the float model.
    of_table = trtint8.validate(model, data, table=table, arithmetic="explicit", **options)
    assert of_table.judged_fingerprint is None


def test_the_scores_of_a_detector_are_measured_beside_its_boxes():
    model, data = detector(), images(8)
    table = trtint8.calibrate(model, images(16, seed=1))
    quantized = trtint8.quantize(model, table)
    found = trtint8.validate(quantized, data, reference=model)
    assert [output.name for output in found.outputs] == [BOXES, SCORES]
    wanted, got = (open_model(load_model(one)).run({"images": data})[0] for one in (model, quantized))
    for output, index in zip(found.outputs, (slice(0, 4), slice(4, None)), strict=True):
        error = (wanted - got)[:, index].astype(np.float64)
        level = 10 * np.log10(np.square(wanted[:, index], dtype=np.float64).sum() / np.square(error).sum())
        assert output.sqnr_db == pytest.approx(level, abs=1e-3)
        assert output.max_error == pytest.approx(np.abs(error).max())


@pytest.mark.parametrize(("build", "batch"), [(ranking_detector, 4), (suppressing_detector, 1)])
def test_detections_are_judged_by_matches_and_by_what_they_are_picked_from(build, batch):
    model, data = build(), images(8)
    options = {"batch_size": batch}
    table = trtint8.calibrate(model, images(16, seed=1), **options)
    quantized = trtint8.quantize(model, table)
    found = trtint8.validate(quantized, data, reference=model, also={"same": model}, **options)
    assert [measure.name for measure in found.measures] == ["detections"]
    assert found.also["same"].measures[0].value == 1.0
    assert "hold" in found.chosen and "what the network picks by its scores: chose" in found.chosen
    dense = unordered_detector()
    wanted = trtint8.validate(
        trtint8.quantize(dense, table_of(dense, table)), data, reference=dense, **options
    )
    levels = {output.name: output.sqnr_db for output in wanted.outputs}
    got = {output.name: output.sqnr_db for output in found.outputs}
    assert set(levels) == set(PICKED_FROM) == set(got)
    for name, level in levels.items():
        assert got[name] == pytest.approx(level, abs=0.1) and 30 < level < 70


def table_of(model, table):
    """A table for another model that has the same tensors."""
    return trtint8.CalibrationTable(
        {name: table.amax[name] for name in trtint8.calibrate(model, images(2)).amax}
    )


def test_a_model_that_does_not_compute_what_detections_are_picked_from():
    """As an engine, which gives its outputs alone."""
    model, other = suppressing_detector(), suppressing_detector()
    for node in other.graph.node:
        for names in (node.input, node.output):
            names[:] = [name.replace(PICKED_FROM[1], "unknown") for name in names]
    del other.graph.value_info[:]
    found = trtint8.validate(other, images(3), reference=model, batch_size=1)
    assert found.measures[0].value == 1.0
    assert [output.name for output in found.outputs] == list(PICKED_FROM)
    assert all(np.isnan(output.sqnr_db) for output in found.outputs)


@pytest.mark.parametrize("beside", [False, True])
def test_maps_of_classes_are_judged_by_their_positions(beside):
    """Also where the scores are an output beside them."""
    model = networks.class_numbers()
    if beside:
        value = helper.make_tensor_value_info("first_out", TensorProto.FLOAT, ["N", 4, 8, 8])
        model.graph.output.append(value)
    assert trtint8.validate(model, networks.normal(5), reference=model).measures[0].value == 1
    table = trtint8.calibrate(model, networks.normal(12))
    quantized = trtint8.quantize(model, table)
    found = trtint8.validate(quantized, networks.normal(5, seed=1), reference=model)
    assert [measure.name for measure in found.measures] == ["pixels"]
    assert [output.name for output in found.outputs] == ["first_out"] and found.outputs[0].sqnr_db > 30


def poses():
    """Rows of box, score, class and keypoints, filled up with zeros; nobody is in one of the images."""
    random = np.random.default_rng(0)
    rows, labels = np.zeros((6, 60, 6 + 17 * 3), np.float32), np.full((6, 2, 5), -1, np.float32)
    for image in (0, 1, 2, 4, 5):
        for row in range(2):
            x, y = random.uniform(0, 300, 2)
            labels[image, row] = x, y, x + 100, y + 200, 0
            rows[image, row] = *labels[image, row, :4], 0.9, 0, *random.uniform(0, 600, 51)
    return rows_as_they_are(rows.shape[2]), rows, labels


def numbered():
    """Rows of image, box, class and score; in a corner of an image a box begins with zeros."""
    boxes = [[0, 0, 150, 200], [40.3, 30.7, 150, 200]] * 3
    rows = np.array([[[0, *box, 3, 0.9]] for box in boxes], np.float32)
    return rows_as_they_are(7, (-1, 7)), rows, np.array([[[*box, 3]] for box in boxes], np.float32)


def centred():
    """Rows of centre, size, score and class, which are corners of boxes too where an object is large."""
    rows, labels = np.zeros((8, 1, 6), np.float32), np.zeros((8, 1, 5), np.float32)
    for image in range(8):
        side = 90 if image % 4 == 0 else 20
        rows[image, 0] = 50, 50 - image, side, side, 0.9, 2
        labels[image, 0] = 50 - side / 2, 50 - image - side / 2, 50 + side / 2, 50 - image + side / 2, 2
    return rows_as_they_are(6), rows, labels


@pytest.mark.parametrize("layout", [poses, numbered, centred])
@pytest.mark.parametrize("metrics", [["map50", "detections"], None])
def test_detections_are_read_alike_whatever_a_single_image_shows(layout, metrics):
    pytest.importorskip("faster_coco_eval", reason="faster-coco-eval is not installed")
    model, rows, labels = layout()
    found = trtint8.validate(
        model, {"x": rows, "labels": labels}, reference=model, metrics=metrics, batch_size=1
    )
    assert [measure.value for measure in found.measures] == [pytest.approx(1.0)] * 2


@pytest.mark.parametrize("batch_size", [1, 4])
def test_samples_that_are_not_finite_are_named_by_their_file(tmp_path, batch_size):
    for number, row in enumerate(DATA):
        np.save(tmp_path / f"{number}.npy", np.full_like(row, np.nan) if number == 2 else row)
    with pytest.raises(
        CalibrationDataError, match=r"4 values that are NaN .* the first in '.*2\.npy'; remove"
    ):
        validated(scaled(0.5), tmp_path, batch_size=batch_size)


@pytest.mark.parametrize("labels", [np.arange(4), None])
def test_every_sample_is_read_once(labels, tmp_path, monkeypatch):
    """Also those that are read ahead, and looked at ahead where their labels may be boxes."""
    for number, row in enumerate(DATA):
        np.save(tmp_path / f"{number}.npy", row)
    read, known = Files.read, []

    def recorded(folder, batch):
        known.extend(batch.tolist())
        return read(folder, batch)

    monkeypatch.setattr(Files, "read", recorded)
    validated(scaled(0.5), tmp_path, labels=labels, batch_size=2)
    assert known == list(range(len(DATA)))
