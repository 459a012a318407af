"""A model equalized and calibrated anew."""

import dataclasses

import numpy as np
import pytest

from calibrators.data.inputs import DataOptions
from calibrators.errors import CalibrationDataError, TableError
from calibrators.run import RunOptions
from tests.trtint8.equalization.layers import even, only_one_layer, two_layers
from tests.trtint8.tuning.networks import normal
from trtint8.calibration import CalibrationOptions, calibrate_model
from trtint8.equalization.recalibration import equalize_and_calibrate
from trtint8.models.model import load_model, prepare

DATA = normal(200, 6)
EVEN = np.random.default_rng(0).uniform(-1, 1, (200, 6)).astype(np.float32)


def calibrated(model, method="minmax", data=DATA):
    model = prepare(load_model(model))
    table = calibrate_model(
        model, data, CalibrationOptions(method, "placed"), DataOptions(), RunOptions(progress=False)
    )
    return model, table


def equalized(model, table, data=DATA, **options):
    return equalize_and_calibrate(model, table, data, DataOptions(**options), progress=False)


def test_the_equalized_model_has_a_table_of_its_own():
    model, table = calibrated(two_layers())
    found = equalized(model, table)
    assert len(found.equalized.forms) == 1
    assert found.model.name == model.name and found.model.fingerprint != model.fingerprint
    assert found.table.provenance.model == found.model.fingerprint
    assert found.table.provenance.samples == 200
    assert found.table.method == "minmax"
    assert found.table.amax["x"] == table.amax["x"]
    assert found.table.amax["relu_out"] < table.amax["relu_out"] / 10


def test_data_options_reach_the_calibration():
    model, table = calibrated(two_layers(), "percentile")
    found = equalized(model, table, limit=50)
    assert found.table.provenance.samples == 50 and found.table.method == "percentile"


def test_a_model_that_gains_nothing_stays_as_it_is_with_its_table_and_a_warning():
    for made, data, words in (
        (only_one_layer(), DATA, r"nothing in 'model' can be equalized \('only_out' is an output"),
        (even(), EVEN, "even enough that equalization gains nothing; the model is quantized as it is"),
    ):
        model, table = calibrated(made, data=data)
        with pytest.warns(UserWarning, match=words):
            found = equalized(model, table, data)
        assert found.model is model and found.table is table and not found.equalized.forms


def test_tables_that_do_not_fit_are_refused():
    model, table = calibrated(two_layers())
    with pytest.raises(TableError, match="unknown calibration method 'by hand'"):
        equalized(model, dataclasses.replace(table, method="by hand"))
    with pytest.raises(TableError, match="the range of 'x' was set by hand"):
        equalized(model, table.override({"x": 3.0}))
    other, _ = calibrated(even())
    with pytest.raises(TableError):
        equalized(other, table)


def test_data_that_can_be_read_once_is_refused():
    model, table = calibrated(two_layers())
    with pytest.raises(CalibrationDataError, match="cannot be read again"):
        equalized(model, table, ({"x": DATA[at : at + 20]} for at in range(0, 200, 20)))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_values_without_meaning_are_refused(value, recwarn):
    model, table = calibrated(two_layers())
    data = DATA.copy()
    data[40, 2] = value
    words = "has 1 value that is NaN or infinite, the first in sample 40; remove such samples"
    with pytest.raises(CalibrationDataError, match=words):
        equalized(model, table, data)
    assert not recwarn.list
