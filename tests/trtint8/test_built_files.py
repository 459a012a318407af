"""What a build leaves."""

import dataclasses
import errno
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

import trtint8
from calibrators.errors import EngineError, ModelError, OutputError
from calibrators.tables.cache_origin import CacheOrigin, origin_path, write_with_origin
from tests.trtint8.engines import build_rtx
from tests.trtint8.onnx_models import Graph, conv_relu_conv, normal
from trtint8 import built_files
from trtint8.built_files import (
    _holds,
    _settle_earlier,
    cache_file_of,
    check_files_beside,
    float_file_of,
    qdq_file_of,
    tail_file_of,
)
from trtint8.data import DEMO_MODEL
from trtint8.engine.file import EngineInfo, read_engine_info, save_engine, table_file_of
from trtint8.models.model import inputs_of, load_model

# What is in the engines plays no part here.
pytestmark = pytest.mark.filterwarnings("ignore:INT8 would be slower")

DOUBLE = onnx.TensorProto.DOUBLE


@pytest.mark.slow
def test_types_are_those_of_the_engine_and_not_those_of_the_model(rtx, tmp_path):
    g = Graph()
    product = g.MatMul("product", g.Cast("single", "x", to=1), g.weights(4, 8))
    model = g.model({"x": ["N", 4]}, g.Cast("double", product, to=DOUBLE))
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = DOUBLE
    onnx.save(model, tmp_path / "m.onnx")
    samples = {"x": np.random.default_rng(0).standard_normal((16, 4))}
    result = build_rtx(
        samples, tmp_path / "m.engine", model=tmp_path / "m.onnx", compute_capabilities=["8.6"]
    )
    # TensorRT has no DOUBLE. Names of dimensions are the model's, because a network has none.
    assert [(spec.name, spec.dtype) for spec in (*result.info.inputs, *result.info.outputs)] == [
        ("x", "float32"),
        ("double_out", "float32"),
    ]
    assert result.info.inputs[0].shape == ("N", 4)
    trtint8.deploy(result.engine, "docker", tmp_path / "image")
    document = json.loads((tmp_path / "image" / "model.json").read_text())
    assert [spec["dtype"] for spec in document["inputs"] + document["outputs"]] == ["float32", "float32"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("over_time", "quantized", "joins"),
    [(True, False, False), (True, True, False), (False, False, True), (False, True, True)],
)
def test_whether_samples_may_be_joined_is_found_by_running_the_network(
    rtx, tmp_path, over_time, quantized, joins
):
    """Both leave two sizes open and call them alike; along axis 0 one has time, and the other its samples."""
    g = Graph()
    first = "x" if over_time else g.Transpose("first", "x", perm=[1, 0, 2])
    hidden = g.GRU("gru", first, g.weights(1, 18, 8), g.weights(1, 18, 6), hidden_size=6)
    last = g.Squeeze("last", hidden, g.constant(np.array([1])))
    back = last if over_time else g.Transpose("back", last, perm=[1, 0, 2])
    model = g.model({"x": ["one", "other", 8]}, g.MatMul("y", back, g.weights(6, 5)))
    x = normal(9, 4, 8)
    table = trtint8.calibrate(model, trtint8.BatchAxes({"x": x}, {"x": int(over_time)}))
    built, calibration = (trtint8.quantize(model, table), None) if quantized else (model, table)
    profile = {"x": trtint8.ShapeRange((1, 1, 8), (8, 4, 8), (16, 16, 8))}
    result = build_rtx(calibration, tmp_path / "e.engine", model=built, profiles=[profile])
    assert result.info.joins_samples is joins
    assert read_engine_info(result.engine).joins_samples is joins


@pytest.mark.slow
def test_files_of_samples_that_are_no_path_are_written_again(rtx, tmp_path):
    g = Graph()
    onnx.save(g.model({"x": ["N", 4]}, g.MatMul("product", "x", g.weights(4, 8))), tmp_path / "m.onnx")
    for samples in ("random:4", "random:8"):
        with pytest.warns(UserWarning, match=f"the calibration data is '{samples}'"):
            result = build_rtx(
                samples, tmp_path / "m.engine", model=tmp_path / "m.onnx", compute_capabilities=["8.6"]
            )
    assert trtint8.CalibrationTable.load(result.table_file) == result.table
    assert result.table.provenance.samples == 8


def test_the_table_of_another_model_with_the_same_ranges_is_written_again(table, tmp_path):
    file, loaded = table.save(tmp_path / "m.table.json"), load_model(DEMO_MODEL)
    assert _holds(file, table, loaded)
    for changed in (
        dataclasses.replace(table, provenance=dataclasses.replace(table.provenance, data="other samples")),
        dataclasses.replace(table, method="mse"),
        dataclasses.replace(table, choice=None),
        table.override({"images": table.amax["images"]}),
    ):
        assert not _holds(file, changed, loaded)
    # An imported table says less than the file does, but must not leave one of another model there.
    imported = trtint8.CalibrationTable(table.amax)
    assert _holds(file, imported, loaded)
    provenance = dataclasses.replace(table.provenance, model="another")
    dataclasses.replace(table, provenance=provenance).save(file)
    assert not _holds(file, table, loaded) and not _holds(file, imported, loaded)
    imported.save(file)
    assert not _holds(file, table, loaded) and _holds(file, imported, loaded)


def test_a_calibration_cache_is_replaced_only_as_a_calibrator_has_written_it(tmp_path):
    output, loaded = tmp_path / "m.engine", load_model(DEMO_MODEL)
    cache, data = tmp_path / "m.cache", b"TRT-8601-EntropyCalibration2\nimages: 3c010204\n"

    def check(*, cached=True):
        how = {"implicit": True, "cached": cached, "changed": True, "calibrated": True}
        check_files_beside(output, loaded, DEMO_MODEL, None, None, **how)

    def refused():
        contents = {file: file.read_bytes() for file in tmp_path.iterdir()}
        with pytest.raises(OutputError, match=r"m\.cache': no build of '.*m\.engine' has made what it holds"):
            check()
        assert {file: file.read_bytes() for file in tmp_path.iterdir()} == contents
        check(cached=False)

    check()
    origin_path(cache).write_text("notes")
    with pytest.raises(
        OutputError, match=r"m\.cache\.json', the sidecar of the cache .*: the file is something"
    ):
        check()
    origin_path(cache).unlink()
    cache.write_bytes(data)
    refused()
    cache.write_text("notes")
    refused()
    write_with_origin(cache, data, CacheOrigin("EntropyCalibration2", "8.6.1", "m", "d", 8, 4, True))
    check()
    cache.write_bytes(data + b"more: 3c010204\n")
    refused()
    trtint8.CalibrationTable({"images": 1.0}).save(cache)
    refused()
    origin_path(cache).write_text("{}")
    refused()


def test_files_stand_beside_the_engine_under_its_name():
    engine = Path("engines") / "resnet50.v2.engine"
    assert qdq_file_of(engine) == Path("engines/resnet50.v2.qdq.onnx")
    assert float_file_of(engine) == Path("engines/resnet50.v2.float.onnx")
    assert tail_file_of(engine) == Path("engines/resnet50.v2.tail.onnx")
    assert cache_file_of(engine) == Path("engines/resnet50.v2.cache")
    assert table_file_of(engine) == Path("engines/resnet50.v2.table.json")


@pytest.mark.slow
@pytest.mark.usefixtures("rtx")
def test_a_table_may_be_where_the_build_would_write_it(table, tmp_path):
    path = table.save(tmp_path / "d.table.json")
    before = path.stat().st_ino
    result = build_rtx(path, tmp_path / "d.engine")
    assert result.table_file == path and path.stat().st_ino == before
    ranges = {"images": 2.5}
    with pytest.raises(OutputError, match=r"d\.table\.json': it is read as well"):
        build_rtx(path, tmp_path / "d.engine", dynamic_ranges=ranges)


@pytest.mark.usefixtures("rtx")
def test_what_no_build_has_made_is_not_overwritten(split, table, tmp_path):
    def build(source=DEMO_MODEL, calibration=table):
        output = tmp_path / "d.engine"
        return build_rtx(calibration, output, model=source)

    def refused(name, *sources):
        path, contents = tmp_path / name, {file: file.read_bytes() for file in tmp_path.iterdir()}
        words = (
            f"cannot write '{path}': no build of '{tmp_path / 'd.engine'}' has made what it holds, which "
            "would be lost; build from it, move it away, or give the engine another name"
        )
        with pytest.raises(OutputError, match=f"^{re.escape(words)}$"):
            build(*sources)
        assert {file: file.read_bytes() for file in tmp_path.iterdir()} == contents

    # Files of others in the place of the sidecar.
    path = tmp_path / "d.engine.json"
    for content in ('{"my": "labels"}', "[1, 2]", "no JSON"):
        path.write_text(content)
        refused("d.engine.json")
    path.unlink()
    # Tables and models that were there before the first build.
    path = table.override({"images": 1.5}).save(tmp_path / "d.table.json")
    refused("d.table.json")
    refused("d.table.json", DEMO_MODEL, split.calibration_images)
    path.write_text("no table")
    refused("d.table.json")
    path.unlink()
    model = tmp_path / "d.qdq.onnx"
    model.write_bytes(DEMO_MODEL.read_bytes())
    refused("d.qdq.onnx")
    model.unlink()

    # Nor is a table with the same ranges, of which something else is said.
    table.save(path)
    refused("d.table.json", DEMO_MODEL, dataclasses.replace(table, method="mse", choice=None))

    # What a build has made is replaced by the next one; the table that it is given stays.
    before = path.stat().st_ino
    assert build().info.table_fingerprint == table.fingerprint
    assert path.stat().st_ino == before
    other = table.override({"images": 2.0})
    assert build(calibration=other).info.table_fingerprint == other.fingerprint
    assert trtint8.CalibrationTable.load(path).fingerprint == other.fingerprint

    # What was changed since is not.
    other.override({"images": 1.5}).save(path)
    refused("d.table.json")
    refused("d.table.json", DEMO_MODEL, split.calibration_images)
    assert build(calibration=path).info.table_fingerprint == other.override({"images": 1.5}).fingerprint


@pytest.mark.usefixtures("rtx")
def test_a_float_model_that_no_build_has_made_is_not_overwritten(table, tmp_path):
    loaded = load_model(DEMO_MODEL)
    model = tmp_path / "d.float.onnx"
    model.write_bytes(conv_relu_conv().SerializeToString())

    def build():
        return build_rtx(table, tmp_path / "d.engine", model=loaded)

    with pytest.raises(OutputError, match=r"d\.float\.onnx': no build of '.*' has made what it holds"):
        build()
    assert list(tmp_path.iterdir()) == [model]
    model.unlink()
    assert build().float_model == model
    assert build().float_model == model


@pytest.mark.usefixtures("rtx")
def test_a_table_that_does_not_fit_a_new_engine_is_removed_if_a_build_made_it(table, tmp_path):
    output, path, other = tmp_path / "d.engine", tmp_path / "d.table.json", tmp_path / "other.onnx"
    onnx.save(trtint8.quantize(DEMO_MODEL, table.override({"images": 2.0})), other)

    def build(model, calibration=None):
        options = {"keep_int8": ["*"]} if calibration else {}
        return build_rtx(calibration, output, model=model, **options).info

    first = build(DEMO_MODEL, table)
    assert first.written.keys() == {"qdq.onnx", "table.json"}
    assert first.written["table.json"] == hashlib.sha256(path.read_bytes()).hexdigest()
    # The Q/DQ model that a build has written has the ranges of the table.
    shutil.copy(tmp_path / "d.qdq.onnx", tmp_path / "same.onnx")
    assert build(tmp_path / "same.onnx").written["table.json"] == first.written["table.json"]
    info = build(other)
    assert info.table_fingerprint is None and info.written.keys() == {"qdq.onnx"}
    assert {file.name for file in tmp_path.glob("d.*")} == {"d.engine", "d.engine.json", "d.qdq.onnx"}

    # A table of the user stays, although an engine was built from it.
    table.save(path)
    assert build(DEMO_MODEL, path).written.keys() == {"qdq.onnx"}
    build(other)
    assert trtint8.CalibrationTable.load(path) == table
    # So does one that a build has made, and that was changed since.
    path.unlink()
    build(DEMO_MODEL, table)
    changed = table.override({"images": 1.5})
    changed.save(path)
    build(other)
    assert trtint8.CalibrationTable.load(path) == changed


def test_large_models_are_told_by_their_weights_too(tmp_path):
    output, file = tmp_path / "d.engine", tmp_path / "d.tail.onnx"
    weights = tmp_path / "d.tail.onnx.data"
    file.write_bytes(b"graph")
    weights.write_bytes(b"weights")
    written = {"tail.onnx": hashlib.sha256(b"graphweights").hexdigest()}
    info = EngineInfo("rtx", "1.7", ("8.6",), (), (), (), None, (), None, "abc", written=written)
    save_engine(output, b"plan", info)
    loaded, staging, gone = load_model(DEMO_MODEL), tmp_path / "new", tmp_path / "gone"
    staging.mkdir()
    gone.mkdir()
    assert _settle_earlier(output, loaded, [file], lambda path: staging / path.name) == written
    assert not list(gone.iterdir())
    assert _settle_earlier(output, loaded, [], lambda path: staging / path.name) == {}
    assert {path.name for path in gone.iterdir()} == {"d.tail.onnx", "d.tail.onnx.data"}
    weights.write_bytes(b"others")
    assert _settle_earlier(output, loaded, [file], lambda path: tmp_path / "none" / path.name) == {}


@pytest.mark.parametrize("name", ["d.engine.json", "d.table.json", "d.m.onnx"])
def test_what_cannot_be_read_is_an_error_and_not_a_file_that_says_less(name, tmp_path, monkeypatch):
    """As on a disk that fails once."""
    output, model = tmp_path / "d.engine", shutil.copy(DEMO_MODEL, tmp_path / "d.m.onnx")
    written = {"table.json": hashlib.sha256(b"table").hexdigest()}
    info = EngineInfo("rtx", "1.7", ("8.6",), (), (), (), None, (), None, "abc", written=written)
    save_engine(output, b"plan", info)
    (tmp_path / "d.table.json").write_bytes(b"table")
    (tmp_path / "gone").mkdir()
    loaded, opened = load_model(model), os.open

    def failing(path, *arguments, **options):
        if os.fspath(path).endswith(name):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return opened(path, *arguments, **options)

    monkeypatch.setattr(os, "open", failing)
    with pytest.raises((EngineError, ModelError, OutputError), match="Input/output error"):
        _settle_earlier(output, loaded, [], lambda path: tmp_path / "new" / path.name)
        inputs_of(model)


@pytest.mark.usefixtures("rtx")
def test_a_sidecar_that_cannot_be_written_takes_the_other_files_back(split, tmp_path):
    (tmp_path / "d.engine.json").mkdir()
    with pytest.raises(OutputError, match=r"d\.engine\.json"):
        build_rtx(split.calibration_images[:32], tmp_path / "d.engine")
    assert [path.name for path in tmp_path.iterdir()] == ["d.engine.json"]


def _assert_one_set(output):
    """The files belong together, and they can be built again."""
    trtint8.deploy(output, "cpp", output.parent / "deployed")  # which reads all of them
    shutil.rmtree(output.parent / "deployed")


@pytest.mark.usefixtures("rtx")
@pytest.mark.parametrize("moment", ["_read", "_holds", "_unchanged_files", "_settle_earlier", "save_engine"])
def test_two_builds_of_one_output_leave_the_files_of_one(moment, table, tmp_path, monkeypatch):
    """A build decides by what is there; what another build writes meanwhile is not mixed with its own."""
    output, other = tmp_path / "d.engine", table.override({"images": 2.0})
    build_rtx(table, output)
    step, done = getattr(built_files, moment), []

    def another_build_ends_meanwhile(*arguments, **options):
        result = step(*arguments, **options)
        if not done:
            done.append(moment)
            monkeypatch.setattr(built_files, moment, step)
            build_rtx(other, output)
        return result

    monkeypatch.setattr(built_files, moment, another_build_ends_meanwhile)
    result = build_rtx(table, output)
    assert done == [moment]
    assert trtint8.read_engine_info(output).table_fingerprint == table.fingerprint
    assert trtint8.CalibrationTable.load(result.table_file) == table
    _assert_one_set(output)
    for again in (other, table):
        build_rtx(again, output)
        _assert_one_set(output)
    assert {path.name for path in tmp_path.iterdir()} == {
        "d.engine",
        "d.engine.json",
        "d.qdq.onnx",
        "d.table.json",
    }


@pytest.mark.slow
@pytest.mark.usefixtures("rtx")
@pytest.mark.parametrize("first", [False, True])
def test_the_next_build_mends_what_a_kill_has_left(first, nightly, table, tmp_path):
    """Killed before one of its renames, whatever the next build is."""
    output, others = tmp_path / "d.engine", [table.override({"images": value}) for value in (2.0, 3.0)]
    for index, name in enumerate(("a.json", "b.json")):
        others[index].save(tmp_path / name)
    killed = (
        "import itertools, os, signal, sys, pathlib\n"
        "import trtint8\n"
        "from trtint8.data import DEMO_MODEL\n"
        "replace, seen = pathlib.Path.replace, itertools.count()\n"
        "def counting(self, target):\n"
        "    if next(seen) == int(sys.argv[1]): os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return replace(self, target)\n"
        "pathlib.Path.replace = counting\n"
        "trtint8.build_int8_engine(DEMO_MODEL, sys.argv[2], 'd.engine', target='rtx', progress=False)\n"
    )
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    for renames in range(20) if nightly else (1, 3):
        for path in tmp_path.glob("d.*"):
            path.unlink()
        if not first:
            build_rtx(table, output)
        command = [sys.executable, "-W", "ignore", "-c", killed, str(renames), "a.json"]
        done = subprocess.run(command, cwd=tmp_path, env=environment, check=False)
        if done.returncode == 0 and renames > 3:
            break
        assert done.returncode == -signal.SIGKILL
        try:
            found = trtint8.read_engine_info(output).table_fingerprint
            _assert_one_set(output)
            assert found in (table.fingerprint, others[0].fingerprint)
        except EngineError:
            assert not output.exists()
        build_rtx(others[1], output)
        assert trtint8.read_engine_info(output).table_fingerprint == others[1].fingerprint
        _assert_one_set(output)
        assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


@pytest.mark.usefixtures("rtx")
@pytest.mark.parametrize("name", ["d.engine.json", "d.qdq.onnx", "d.table.json"])
def test_no_file_beside_an_engine_is_written_through_a_link(name, table, tmp_path):
    output, elsewhere = tmp_path / "d.engine", tmp_path / "elsewhere"
    elsewhere.mkdir()
    build_rtx(table, output)
    (tmp_path / name).rename(elsewhere / name)
    (tmp_path / name).symlink_to(elsewhere / name)
    before = (elsewhere / name).read_bytes()
    with pytest.raises(OutputError, match=re.escape(name)):
        build_rtx(table.override({"images": 2.0}), output)
    assert (elsewhere / name).read_bytes() == before and (tmp_path / name).is_symlink()
    _assert_one_set(output)
