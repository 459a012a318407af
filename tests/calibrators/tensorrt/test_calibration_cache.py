import dataclasses
import json

import pytest

from calibrators.errors import OutputError, TableError
from calibrators.tables.cache_origin import CacheOrigin, origin_path
from calibrators.tensorrt.calibration_cache import portability, read_cache, write_cache

DATA = b"TRT-8601-EntropyCalibration2\nimages: 3c010204\n"
ORIGIN = CacheOrigin("EntropyCalibration2", "8.6.1", "model", "data", 500, 50, True)


@pytest.fixture
def cache(tmp_path):
    path = tmp_path / "model.cache"
    write_cache(path, DATA, ORIGIN)
    return path


def test_round_trip(cache):
    assert read_cache(cache, ORIGIN) == DATA


def test_no_cache_yet(tmp_path):
    assert read_cache(tmp_path / "missing.cache", ORIGIN) is None


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("model", "other", "model model instead of other"),
        ("data", "x" * 64, "data data instead of xxxxxxxxxxxx…"),
        ("samples", 499, "samples 500 instead of 499"),
        ("batch_size", 25, "batch size 50 instead of 25"),
        ("tensorrt", "10.0.1", "tensorrt 8.6.1 instead of 10.0.1"),
        ("before_fusion", False, "before fusion True instead of False"),
    ],
)
def test_every_difference_makes_it_stale(cache, field, value, words):
    with pytest.raises(TableError, match=f"is stale: {words}; calibrate again"):
        read_cache(cache, dataclasses.replace(ORIGIN, **{field: value}))


def test_what_is_not_known_is_not_compared(cache):
    unknown = dataclasses.replace(ORIGIN, model=None, data=None, samples=None, batch_size=None)
    assert read_cache(cache, unknown) == DATA


def test_another_algorithm_is_named(cache):
    wanted = dataclasses.replace(ORIGIN, calibrator="MinMaxCalibration")
    with pytest.raises(
        TableError, match="is of EntropyCalibration2, and TensorRT would ignore it for MinMax"
    ):
        read_cache(cache, wanted)


@pytest.mark.parametrize("content", ["", "[]", "{", json.dumps({"calibrator": "x"})])
def test_malformed_sidecars(cache, content):
    origin_path(cache).write_text(content)
    with pytest.raises(TableError, match="is malformed"):
        read_cache(cache, ORIGIN)


@pytest.mark.parametrize(
    ("field", "value", "problem"),
    [
        ("samples", -1, "Expected `int` >= 0 - at `$.samples`"),
        ("batch_size", 0, "Expected `int` >= 1 - at `$.batch_size`"),
        ("model", 5, "Expected `str | null`, got `int` - at `$.model`"),
        ("before_fusion", "yes", "Expected `bool | null`, got `str` - at `$.before_fusion`"),
        ("surplus", 1, "Object contains unknown field `surplus`"),
    ],
)
def test_wrong_fields_are_named(cache, field, value, problem):
    path = origin_path(cache)
    path.write_text(json.dumps({**json.loads(path.read_text()), field: value}))
    with pytest.raises(TableError) as caught:
        read_cache(cache, ORIGIN)
    assert str(caught.value) == (
        f"the sidecar '{path}' is malformed ({problem}); remove it and calibrate again"
    )


def test_garbage_is_not_written(tmp_path):
    with pytest.raises(TableError, match="the cache that TensorRT wrote"):
        write_cache(tmp_path / "x.cache", b"garbage", ORIGIN)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("algorithm", "before", "words"),
    [
        ("EntropyCalibration2", "no sidecar", "portable: "),
        ("EntropyCalibration2", None, "not known: "),
        ("EntropyCalibration2", False, "not portable: "),
        ("MinMaxCalibration", True, "portable: "),
        ("LegacyCalibration", "no sidecar", "not portable unless"),
        ("EntropyCalibration", False, "not portable: "),
        ("EntropyCalibration", True, "portable: "),
    ],
)
def test_portability(algorithm, before, words):
    origin = None if before == "no sidecar" else dataclasses.replace(ORIGIN, before_fusion=before)
    assert portability(algorithm, origin).startswith(words)


def test_a_cache_beside_the_sidecar_of_another_is_calibrated_again(tmp_path):
    """So a writer leaves them that was killed before the cache had its place."""
    path = tmp_path / "model.cache"
    write_cache(path, DATA, ORIGIN)
    path.unlink()
    assert read_cache(path, ORIGIN) is None
    write_cache(path, DATA, ORIGIN)
    assert read_cache(path, ORIGIN) == DATA


def test_a_sidecar_that_is_a_link_is_not_followed(tmp_path):
    path, victim = tmp_path / "model.cache", tmp_path / "victim"
    write_cache(victim, DATA, ORIGIN)
    (tmp_path / "model.cache.json").symlink_to(tmp_path / "victim.json")
    before = (tmp_path / "victim.json").read_bytes()
    for write in (lambda: read_cache(path, ORIGIN), lambda: write_cache(path, DATA, ORIGIN)):
        with pytest.raises(OutputError, match=r"model\.cache\.json"):
            write()
    assert (tmp_path / "victim.json").read_bytes() == before and not path.exists()


def test_a_cache_of_an_unknown_model_is_stale_for_a_known_one(tmp_path):
    path = tmp_path / "model.cache"
    write_cache(path, DATA, dataclasses.replace(ORIGIN, model=None))
    with pytest.raises(TableError, match="stale: of an unknown model instead of model; calibrate again"):
        read_cache(path, ORIGIN)
    assert read_cache(path, dataclasses.replace(ORIGIN, model=None)) == DATA
