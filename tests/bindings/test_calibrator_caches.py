"""The caches of our four calibrators, and the settings of the legacy one, as the bindings pass them on."""

import hashlib
import json

import pytest

from calibrators.errors import CalibrationDataError, TableError
from tests.bindings.driven import DATA, cache_of, images


def calibrated(make, tmp_path, kind="EntropyCalibrator2", **options):
    calibrator, driver = make(kind, batch_size=5, cache=tmp_path / "model.cache", **options)
    if driver.read_cache() is None:
        driver.calibrate(["images"], images)
        driver.write_cache(cache_of(kind))
    return calibrator, driver


def test_the_cache_is_written_as_it_came_and_read_again(make, tmp_path, kind):
    calibrator, _ = calibrated(make, tmp_path, kind)
    calibrator.raise_failure()
    assert (tmp_path / "model.cache").read_bytes() == cache_of(kind)
    assert calibrator.table.amax == pytest.approx({"images": 1.0, "logits": 127 * 0.03569444}, rel=1e-6)
    again, driver = make(kind, batch_size=5, cache=tmp_path / "model.cache")
    assert driver.read_cache() == cache_of(kind)
    assert again.table.amax == calibrator.table.amax
    assert again.batches == 0
    again.raise_failure()


def test_the_sidecar_says_what_it_was_made_from(make, tmp_path, trt):
    calibrated(make, tmp_path, model_fingerprint="abc")
    origin = json.loads((tmp_path / "model.cache.json").read_text())
    fingerprint = origin.pop("data")
    assert len(fingerprint) == 64
    cache = (tmp_path / "model.cache").read_bytes()
    assert origin == {
        "sha256": hashlib.sha256(cache).hexdigest(),
        "calibrator": "EntropyCalibration2",
        "tensorrt": trt.__version__,
        "model": "abc",
        "samples": 20,
        "batch_size": 5,
        "before_fusion": True,
        "settings": None,
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"data": DATA[::-1][:15]}, "data .* instead of"),
        ({"batch_size": 4}, "batch size 5 instead of 4"),
        ({"model_fingerprint": "other"}, "model one instead of other"),
        ({"kind": "MinMaxCalibrator"}, "is of EntropyCalibration2, and TensorRT would ignore it for MinMax"),
    ],
)
def test_a_stale_cache_is_refused_or_made_again(make, tmp_path, change, message):
    calibrated(make, tmp_path, model_fingerprint="one")
    options = {"batch_size": 5, "model_fingerprint": "one", "cache": tmp_path / "model.cache", **change}
    refusing, driver = make(**options)
    with pytest.raises(TableError, match=message):
        refusing.prepare()
    assert driver.read_cache() is None  # without prepare(), TensorRT's own question finds it
    assert not driver.batch("images")[0]
    with pytest.raises(TableError, match=message):
        refusing.raise_failure()
    making, driver = make(**options, stale="recalibrate")
    with pytest.warns(UserWarning, match=message):
        assert driver.read_cache() is None
    rows = options["batch_size"]
    assert driver.calibrate(["images"], lambda a: images(a, rows))
    driver.write_cache(cache_of(options.get("kind", "EntropyCalibrator2")))
    making.raise_failure()
    _, driver = make(**options)
    assert driver.read_cache() is not None


def test_the_order_of_the_samples_does_not_make_a_cache_stale(make, tmp_path):
    calibrated(make, tmp_path)
    _, driver = make(data=DATA[::-1], batch_size=5, cache=tmp_path / "model.cache")
    assert driver.read_cache() is not None


def test_a_cache_without_a_sidecar_is_not_trusted(make, tmp_path):
    (tmp_path / "model.cache").write_bytes(cache_of("EntropyCalibrator2"))
    calibrator, _ = make(batch_size=5, cache=tmp_path / "model.cache")
    with pytest.raises(TableError, match=r"has no sidecar 'model.cache.json'"):
        calibrator.prepare()


def test_a_cache_alone(make, tmp_path):
    calibrated(make, tmp_path)
    calibrator, driver = make(data=None, inputs=(), cache=tmp_path / "model.cache")
    assert calibrator.shapes() is None
    assert driver.read_cache() == cache_of("EntropyCalibrator2")
    assert not driver.batch("images")[0]  # as when TensorRT does not like the cache
    with pytest.raises(CalibrationDataError, match="asks for data, but there is none"):
        calibrator.raise_failure()


def test_neither_data_nor_a_cache(make, tmp_path):
    with pytest.raises(CalibrationDataError, match="nothing to calibrate with"):
        make(data=None, cache=tmp_path / "missing.cache")


def test_a_generator_checked_against_its_cache_can_still_be_used(make, tmp_path):
    calibrated(make, tmp_path)
    calibrator, driver = make(
        data=({"images": DATA[i : i + 5]} for i in range(0, 20, 5)), cache=tmp_path / "model.cache"
    )
    assert driver.read_cache() is not None
    assert calibrator.shapes() == {"images": (5, 3, 4, 5)}


def test_garbage_from_tensorrt_is_not_kept(make, tmp_path):
    calibrator, driver = make(batch_size=5, cache=tmp_path / "model.cache")
    driver.calibrate(["images"], images)
    driver.write_cache(b"no cache")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(TableError, match="is not a calibration cache"):
        calibrator.raise_failure()


def test_tensors_that_were_always_zero(make, tmp_path):
    calibrator, driver = make(batch_size=5, cache=tmp_path / "model.cache")
    driver.calibrate(["images"], images)
    with pytest.warns(UserWarning, match="tensor 'dead' had only zeros in all batches"):
        driver.write_cache(b"TRT-8601-EntropyCalibration2\nimages: 3c010204\ndead: 0\n")
    calibrator.raise_failure()
    assert calibrator.table.amax["dead"] == 0


# The legacy calibrator.


def test_quantile_and_cutoff_reach_tensorrt(make):
    _, driver = make("LegacyCalibrator", quantile=0.25, regression_cutoff=0.75)
    assert (driver.quantile(), driver.regression_cutoff()) == (0.25, 0.75)


def test_a_cache_of_another_quantile_is_stale(make, tmp_path):
    options = {"batch_size": 5, "cache": tmp_path / "model.cache"}
    calibrator, driver = make("LegacyCalibrator", **options)
    driver.calibrate(["images"], images)
    driver.write_cache(cache_of("LegacyCalibrator"))
    calibrator.raise_failure()
    _, again = make("LegacyCalibrator", **options)
    assert again.read_cache() == cache_of("LegacyCalibrator")
    other, _ = make("LegacyCalibrator", quantile=0.5, **options)
    with pytest.raises(TableError, match=r"stale: settings 0\.9999 and 1\.0 instead of 0\.5 and 1\.0;"):
        other.prepare()


@pytest.mark.parametrize("options", [{"quantile": 0}, {"quantile": 1.5}, {"regression_cutoff": -0.1}])
def test_their_bounds(make, options):
    with pytest.raises(CalibrationDataError, match=f"{next(iter(options))} is"):
        make("LegacyCalibrator", **options)
