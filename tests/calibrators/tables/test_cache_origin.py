"""A cache and its sidecar belong together, whatever happens between the writing of the two."""

import dataclasses
import hashlib
import json

import pytest

from calibrators.errors import OutputError, TableError
from calibrators.tables import cache_origin
from calibrators.tables.cache_origin import (
    CacheOrigin,
    origin_path,
    read_origin,
    runs_before_fusion,
    write_with_origin,
)
from calibrators.tables.table import CalibrationTable, Provenance
from calibrators.tensorrt.calibration_cache import read_cache

DATA = b"TRT-8601-EntropyCalibration2\nimages: 3c010204\n"
NEWER = DATA.replace(b"3c", b"3d")
ORIGIN = CacheOrigin("EntropyCalibration2", "8.6.1", "model", "data", 500, 50, True)


def test_the_sidecar_has_the_hash_of_its_cache(tmp_path):
    cache = write_with_origin(tmp_path / "model.cache", DATA, ORIGIN)
    hashed = dataclasses.replace(ORIGIN, sha256=hashlib.sha256(DATA).hexdigest())
    assert origin_path(cache).name == "model.cache.json"
    assert read_origin(cache, DATA) == hashed
    assert hashed.differences(ORIGIN) == []
    origin_path(cache).unlink()
    assert read_origin(cache, DATA) is None


@pytest.mark.parametrize("written", [1, 2])
def test_a_stop_between_cache_and_sidecar_leaves_no_wrong_sidecar(tmp_path, monkeypatch, written):
    cache = write_with_origin(tmp_path / "model.cache", DATA, ORIGIN)
    writes = []

    def write(path, data):
        writes.append(path)
        if len(writes) == written:
            raise OutputError(f"cannot write '{path}'")
        path.write_bytes(data)

    monkeypatch.setattr(cache_origin, "write_atomically", write)
    with pytest.raises(OutputError):
        write_with_origin(cache, NEWER, dataclasses.replace(ORIGIN, model="other"))
    assert cache.read_bytes() == DATA
    assert read_origin(cache, DATA).model == "model"
    assert CalibrationTable.load(cache).provenance.model == "model"


def test_a_cache_that_is_not_its_sidecars_is_refused(tmp_path):
    cache = write_with_origin(tmp_path / "model.cache", DATA, ORIGIN)
    cache.write_bytes(NEWER)
    with pytest.raises(TableError, match=f"'{cache}' .*'model.cache.json'"):
        CalibrationTable.load(cache)


def test_a_first_cache_that_cannot_be_written_leaves_no_sidecar(tmp_path):
    (tmp_path / "model.cache").mkdir()
    with pytest.raises(OutputError):
        write_with_origin(tmp_path / "model.cache", DATA, ORIGIN)
    assert [path.name for path in tmp_path.iterdir()] == ["model.cache"]


def test_a_table_knows_its_origin_as_a_cache_too(tmp_path):
    table = CalibrationTable({"images": 1.0}, "minmax", Provenance("model", "data", 500, {"onnx": "1"}))
    cache = table.save(tmp_path / "model.cache")
    written = read_origin(cache, cache.read_bytes())
    assert dataclasses.replace(written, sha256=None) == CacheOrigin(
        "MinMaxCalibration", "8601", "model", "data", 500, None, None
    )
    assert CalibrationTable.load(cache).provenance == Provenance("model", "data", 500, {"tensorrt": "8601"})


def test_who_calibrates_before_fusion():
    assert runs_before_fusion("EntropyCalibration2")
    assert runs_before_fusion("MinMaxCalibration")
    assert not runs_before_fusion("EntropyCalibration")
    assert runs_before_fusion("LegacyCalibration", forced=True)


@pytest.mark.parametrize("content", ["[1, 2]", '{"colour": 1}', "not JSON"])
def test_a_file_that_is_no_sidecar_is_not_replaced(tmp_path, content):
    cache = tmp_path / "model.cache"
    table = CalibrationTable({"images": 2.5}, "entropy")
    origin_path(cache).write_text(content)
    for write in (table.save, lambda path: read_cache(path, ORIGIN)):
        with pytest.raises(OutputError, match=r"'.*model\.cache\.json'"):
            write(cache)
    assert origin_path(cache).read_text() == content and not cache.exists()
    origin_path(cache).unlink()
    for amax in (2.5, 3.5):  # its own sidecar is replaced
        table.override({"images": amax}).save(cache)
    assert CalibrationTable.load(cache).amax["images"] == pytest.approx(3.5)


@pytest.mark.parametrize("field", ["calibrator", "tensorrt", "model", "data", "settings"])
def test_a_text_with_a_line_break_is_refused(tmp_path, field):
    cache = write_with_origin(tmp_path / "model.cache", DATA, ORIGIN)
    document = json.loads(origin_path(cache).read_text())
    origin_path(cache).write_text(json.dumps({**document, field: "a\nb"}))
    with pytest.raises(TableError, match=rf"is malformed .*\$\.{field}"):
        read_origin(cache, DATA)
