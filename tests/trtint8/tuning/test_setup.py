"""Samples and ranges that tuning begins with."""

import numpy as np
import pytest

import trtint8
from calibrators.errors import CalibrationDataError, TableError
from calibrators.tables.table import CalibrationTable
from tests.trtint8.onnx_models import Graph
from trtint8.data import DEMO_MODEL

pytestmark = pytest.mark.slow


def test_other_samples_to_judge_by(wild_table, held_out):
    judge = {name: array[:100] for name, array in held_out.items()}
    rest = {name: array[100:] for name, array in held_out.items()}
    found = trtint8.tune(DEMO_MODEL, wild_table, rest, judge=judge, max_drop=1.0)
    assert found.accuracy.samples == 100


def test_samples_to_judge_by_are_checked_before_the_search(wild_table, held_out, tmp_path):
    """Also those that are given together with the samples tuned on."""
    trials = []
    judge = {name: array[:100].copy() for name, array in held_out.items()}
    judge["images"][70] = np.nan
    options = {"max_drop": 1.0, "batch_size": 50, "on_trial": trials.append, "checkpoint": tmp_path / "c"}
    for data, judged in ((held_out, judge), (judge, None)):
        with pytest.raises(CalibrationDataError, match="NaN or infinite, the first in sample"):
            trtint8.tune(DEMO_MODEL, wild_table, data, judge=judged, **options)
    assert not trials and not (tmp_path / "c").exists()


def test_samples_to_judge_by_without_labels_are_refused_before_the_calibration(held_out):
    judge = {"images": held_out["images"][:100]}
    with pytest.raises(CalibrationDataError, match="'top1'"):
        trtint8.tune(DEMO_MODEL, lambda: pytest.fail("calibrates"), held_out, judge=judge, max_drop=1.0)


@pytest.mark.parametrize("together", [False, True])
def test_labels_to_judge_by_are_checked_before_the_calibration(held_out, together):
    """Also those of the second batch of a loader, which judges what is tuned on the first."""
    parts = [
        {name: array[part].copy() for name, array in held_out.items()} for part in (slice(9), slice(9, 20))
    ]
    parts[1]["labels"][10] = 10
    data, judge = (parts, None) if together else parts
    with pytest.raises(CalibrationDataError, match=r"label 10.*10"):
        trtint8.tune(DEMO_MODEL, lambda: pytest.fail("calibrates"), data, judge=judge, max_drop=1.0)


def test_samples_to_judge_by_are_others(held_out, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.savez("d.npz", **held_out)
    np.savez("c.npz", images=held_out["images"][:16])
    message = "'d.npz'"
    with pytest.raises(CalibrationDataError, match=message):
        trtint8.tune(DEMO_MODEL, "c.npz", tmp_path / "d.npz", judge="d.npz", max_drop=1.0)
    for data, judge in (("d.npz", None), ("c.npz", "d.npz")):
        with pytest.warns(UserWarning, match="'d.npz'"):
            trtint8.tune(
                DEMO_MODEL,
                "d.npz",
                data,
                judge=judge,
                metric="agreement",
                max_drop=50.0,
                limit=16,
                batch_size=4,
                round_weights=False,
            )


def test_a_generator_to_judge_by_is_read_once(wild_table, held_out):
    judge = ({name: array[first : first + 50] for name, array in held_out.items()} for first in (0, 50))
    found = trtint8.tune(DEMO_MODEL, wild_table, held_out, judge=judge, max_drop=50.0)
    assert found.accuracy.samples == 100


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"metric": "sqnr"}, CalibrationDataError, "'sqnr'"),
        ({"max_drop": -1.0}, CalibrationDataError, "max_drop is -1.0; give 0 or more"),
        ({"metric": "speed"}, CalibrationDataError, "there is no metric 'speed'"),
        ({"batch_size": 9999}, CalibrationDataError, "are one batch, which cannot be split"),
    ],
)
def test_what_cannot_be_tuned(wild_table, options, error, message, held_out):
    with pytest.raises(error, match=message):
        trtint8.tune(DEMO_MODEL, wild_table, held_out, **{"max_drop": 1.0, **options})


def test_a_loader_of_one_batch_is_refused_before_the_calibration(held_out):
    with pytest.raises(CalibrationDataError, match=r"^the data is one batch, which cannot be split"):
        trtint8.tune(DEMO_MODEL, lambda: pytest.fail("calibrates"), [held_out], max_drop=1.0)


def test_a_table_of_another_model(held_out):
    with pytest.raises(TableError, match="no range for"):
        trtint8.tune(DEMO_MODEL, CalibrationTable({"x": 1.0}), held_out, max_drop=1.0)


def test_a_model_that_takes_one_sample_is_tuned_with_one_at_a_time():
    g = Graph()
    hidden = g.op("MatMul", ["x", g.weights(16, 32)], "hidden")
    one = g.op("Reshape", [hidden, g.constant(np.array([1, 16, 16]))], "one")
    model = g.model({"x": ["n", 8, 16]}, g.op("MatMul", [one, g.weights(16, 8)], "y"))
    samples, judge = np.random.default_rng(0).standard_normal((2, 24, 8, 16)).astype(np.float32)
    table = trtint8.calibrate(model, samples, batch_size=1, progress=False)
    with pytest.warns(UserWarning, match="takes one sample at a time"):
        tuned = trtint8.tune(model, table, {"x": samples}, judge={"x": judge}, batch_size=8)
    assert tuned.accuracy.samples == 24
    assert tuned.accuracy.outputs[0].sqnr_db > 20


@pytest.mark.parametrize(("options", "samples"), [({}, 7), ({"batch_size": 16}, 16)])
def test_too_few_samples_to_divide_are_named(wild_table, held_out, options, samples):
    judge = {name: array[:100] for name, array in held_out.items()}
    data = {name: array[100 : 100 + samples] for name, array in held_out.items()}
    options = {"judge": judge, "max_drop": 50.0, "round_weights": False, **options}
    with pytest.warns(UserWarning, match=f"^{samples} samples to tune on cannot be divided"):
        found = trtint8.tune(DEMO_MODEL, wild_table, data, **options)
    assert found.accuracy.samples == 100
