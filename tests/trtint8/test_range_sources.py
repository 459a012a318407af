"""Where the ranges of an engine come from."""

import pytest

from calibrators.data.inputs import DataOptions
from calibrators.errors import CalibrationDataError
from calibrators.tables.table import CalibrationTable
from trtint8.data import DEMO_MODEL
from trtint8.int8_engine import RangeSources
from trtint8.models.model import load_model, prepare


def sources(calibration, manual=None, method="auto"):
    return RangeSources(calibration, manual or {}, method, DataOptions(), progress=False)


@pytest.mark.parametrize(
    ("calibration", "method", "calibrator"),
    [
        ("samples.npz", "auto", "EntropyCalibrator2"),
        ("samples.npz", "minmax", "MinMaxCalibrator"),
        ("samples.npz", "mse", None),
        ("ranges.json", "auto", None),
        (CalibrationTable({"x": 1.0}), "auto", None),
        (None, "auto", None),
    ],
)
def test_tensorrts_calibrator_is_for_samples(calibration, method, calibrator):
    found = sources(calibration, method=method)
    assert found.calibrator == calibrator
    assert found.calibrates == (calibration == "samples.npz")


def test_ranges_by_hand_stand_above_those_of_a_table():
    prepared = prepare(load_model(DEMO_MODEL))
    table = sources(CalibrationTable({"x": 1.0, "y": 2.0}), {"y": 3.0}).table(prepared, "all")
    assert table.amax == {"x": 1.0, "y": 3.0} and table.overridden == {"y"}
    assert sources(None, {"y": 3.0}).table(None, "all").amax == {"y": 3.0}


def test_samples_are_calibrated_on_the_cpu(split):
    prepared = prepare(load_model(DEMO_MODEL))
    table = sources(split.calibration_images[:32], {"images": 9.0}, "minmax").table(prepared, "placed")
    assert table.amax["images"] == 9.0 and table.provenance.samples == 32


def test_nothing_to_take_ranges_from():
    with pytest.raises(CalibrationDataError, match="nothing to take ranges from"):
        sources(None).table(None, "all")
