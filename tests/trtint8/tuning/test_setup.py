"""Samples and ranges that tuning begins with."""

import pytest

import trtint8
from calibrators.errors import CalibrationDataError, TableError
from calibrators.tables.table import CalibrationTable
from trtint8.data import DEMO_MODEL, load_digits_split

pytestmark = pytest.mark.slow

pytest.importorskip("sklearn", reason="scikit-learn is not installed (pip install 'trtint8[demo]')")


SPLIT = load_digits_split()


HELD_OUT = {"images": SPLIT.heldout_images, "labels": SPLIT.heldout_labels}


def wild_images():
    """The calibration images, with one pixel four hundred times as bright as any other."""
    images = SPLIT.calibration_images.copy()
    images[0, 0, 4, 4] = 400
    return images


@pytest.fixture(scope="module")
def wild_table():
    return trtint8.calibrate(DEMO_MODEL, wild_images(), method="minmax", progress=False)


def test_other_samples_to_judge_by(wild_table):
    judge = {name: array[:100] for name, array in HELD_OUT.items()}
    rest = {name: array[100:] for name, array in HELD_OUT.items()}
    found = trtint8.tune(DEMO_MODEL, wild_table, rest, judge=judge, max_drop=1.0)
    assert found.accuracy.samples == 100


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"metric": "sqnr"}, CalibrationDataError, "'sqnr' has no budget in points; give topK, agreement"),
        ({"max_drop": -1.0}, CalibrationDataError, "max_drop is -1.0; give 0 or more"),
        ({"metric": "speed"}, CalibrationDataError, "there is no metric 'speed'"),
        ({"batch_size": 9999}, CalibrationDataError, "are one batch, which cannot be split"),
    ],
)
def test_what_cannot_be_tuned(wild_table, options, error, message):
    with pytest.raises(error, match=message):
        trtint8.tune(DEMO_MODEL, wild_table, HELD_OUT, **{"max_drop": 1.0, **options})


def test_a_table_of_another_model():
    with pytest.raises(TableError, match="no range for"):
        trtint8.tune(DEMO_MODEL, CalibrationTable({"x": 1.0}), HELD_OUT, max_drop=1.0)
