"""A measurement from end to end: its figures, when it stops, and how it goes on after an interruption."""

import json
import math

import numpy as np
import pytest

import trtint8
from calibrators.errors import CalibrationDataError, TableError
from calibrators.tables.table import CalibrationTable
from tests.trtint8.onnx_models import Shaped
from trtint8.cli.main import main
from trtint8.data import DEMO_MODEL, load_digits_split
from trtint8.sensitivity.results import Sensitivity

SPLIT = load_digits_split()
HELD_OUT = {"images": SPLIT.heldout_images, "labels": SPLIT.heldout_labels}


@pytest.fixture(scope="module")
def table():
    return trtint8.calibrate(DEMO_MODEL, SPLIT.calibration_images, progress=False)


def measured(table, data=None, **options):
    data = SPLIT.heldout_images if data is None else data
    options.setdefault("labels", SPLIT.heldout_labels)
    options.setdefault("progress", False)
    return trtint8.measure_sensitivity(DEMO_MODEL, table, data, **options)


def test_the_whole_network_costs_what_validation_says(table):
    found = measured(table, limit=None, tolerance_db=0.0)
    accuracy = trtint8.validate(
        trtint8.quantize(DEMO_MODEL, table),
        SPLIT.heldout_images,
        labels=SPLIT.heldout_labels,
        reference=DEMO_MODEL,
        progress=False,
    )
    assert found.samples == accuracy.samples
    assert found.quantized.sqnr_db == pytest.approx(accuracy.outputs[0].sqnr_db, abs=0.05)
    assert found.quantized.top1 == accuracy.top1
    assert found.reference_top1 == accuracy.reference_top1
    assert found.quantized.agreement == accuracy.agreement


def test_layers_by_name_with_shares_that_add_up(table):
    found = measured(table, limit=64)
    assert [layer.operator for layer in found.layers].count("Conv") + 1 <= len(found.layers)
    assert sum(layer.noise_share for layer in found.layers) == pytest.approx(1)
    loudest = found.worst_first[0]
    assert loudest.noise_share == max(layer.noise_share for layer in found.layers)
    for layer in found.layers:
        assert layer.only.sqnr_db > found.quantized.sqnr_db
        assert (layer.weights_db is None) == (layer.operator == "Add")
        assert layer.activations_db > 20


def test_an_outlier_is_found_and_named(table):
    """One range blown up a hundredfold: that layer makes nearly all the noise, from its activations."""
    tensor = next(iter(table.histograms))
    blown = table.override({tensor: 100 * table.amax[tensor]})
    found = measured(blown, limit=64)
    worst = found.worst_first[0]
    assert worst.noise_share > 0.9
    assert worst.weights_db > worst.activations_db + 20
    assert "outliers" in [suspect.kind for suspect in worst.suspects]
    # Without it, the network is better than with it.
    assert worst.without.sqnr_db > found.quantized.sqnr_db + 10
    # The error enters there and is nowhere before.
    position = found.layers.index(worst)
    assert all(layer.cumulative_db < 25 for layer in found.layers[position:])
    assert all(layer.cumulative_db > 25 for layer in found.layers[:position])


def test_it_stops_when_certain(table):
    same = np.repeat(SPLIT.heldout_images[:1], 500, axis=0)
    found = measured(table, same, labels=None, batch_size=32)
    assert (found.samples, found.converged) == (64, True)
    assert all(layer.only.interval_db[1] - layer.only.sqnr_db < 1e-6 for layer in found.layers)
    few = measured(table, limit=64, tolerance_db=0.001)
    assert (few.samples, few.converged) == (64, False)


def test_the_plan_is_told_before_the_work(table):
    plans = []
    found = measured(table, limit=40, on_plan=plans.append)
    (plan,) = plans
    assert (plan.layers, plan.samples) == (len(found.layers), 40)
    assert 0 < plan.seconds_a_sample < 5


def test_an_interrupted_measurement_goes_on_with_the_same_result(table, tmp_path, monkeypatch):
    monkeypatch.setattr("trtint8.sensitivity.checkpoint._SECONDS", 0.0)
    whole = measured(table, limit=96, tolerance_db=0.0, batch_size=16)
    checkpoint = tmp_path / "c.json"

    def cut_off(count):
        for index in range(6):
            if index == count:
                raise KeyboardInterrupt
            yield {"images": SPLIT.heldout_images[16 * index : 16 * index + 16]}

    labels = SPLIT.heldout_labels[:96]
    options = {"labels": labels, "tolerance_db": 0.0, "checkpoint": str(checkpoint)}
    for count in (2, 4):
        with pytest.raises(KeyboardInterrupt):
            measured(table, cut_off(count), **options)
        assert json.loads(checkpoint.read_bytes())["state"]["samples"] == 16 * count
    assert measured(table, cut_off(None), **options) == whole
    assert not checkpoint.exists()


def test_a_checkpoint_of_something_else_is_refused(table, tmp_path, monkeypatch):
    monkeypatch.setattr("trtint8.sensitivity.checkpoint._SECONDS", 0.0)
    checkpoint = tmp_path / "c.json"

    def interrupted():
        yield {"images": SPLIT.heldout_images[:16]}
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measured(table, interrupted(), labels=None, checkpoint=checkpoint)
    kept = checkpoint.read_bytes()
    with pytest.raises(TableError, match=r"made with another table .* remove the checkpoint to begin anew"):
        measured(table.override({"images": 0.5}), interrupted(), labels=None, checkpoint=checkpoint)
    others = iter([{"images": SPLIT.heldout_images[1:17]}])
    with pytest.raises(CalibrationDataError, match="made with other samples, or in another order"):
        measured(table, others, labels=None, checkpoint=checkpoint)
    assert checkpoint.read_bytes() == kept
    checkpoint.write_text("no json")
    with pytest.raises(TableError, match=r"cannot read the checkpoint .*; remove it to begin anew"):
        measured(table, labels=None, checkpoint=checkpoint)


def test_a_result_survives_its_file(table, tmp_path):
    found = measured(table, limit=32)
    assert Sensitivity.load(found.save(tmp_path / "s.json")) == found
    exact = CalibrationTable({"x": 127.0})
    g = Shaped(quantized=False)
    weights = g.constant(np.eye(2, dtype=np.float32) * 127)
    model = g.model({"x": ["N", 2]}, g.op("MatMul", ["x", weights], "layer"))
    found = trtint8.measure_sensitivity(model, exact, np.ones((4, 2), np.float32), progress=False)
    assert found.quantized.sqnr_db == found.layers[0].weights_db == math.inf
    assert found.layers[0].noise_share == 0.0
    assert Sensitivity.load(found.save(tmp_path / "s.json")) == found


@pytest.mark.parametrize("content", [b"{}", b"[]", b"\xff", b'{"format": "trtint8-sensitivity"}'])
def test_a_file_that_is_no_result(tmp_path, content):
    (tmp_path / "s.json").write_bytes(content)
    with pytest.raises(TableError, match="is no result of 'trtint8 sensitivity'"):
        Sensitivity.load(tmp_path / "s.json")


def test_data_that_does_not_fit(table):
    with pytest.raises(CalibrationDataError, match="the data holds no samples"):
        measured(table, iter([]), labels=None)
    with pytest.raises(CalibrationDataError, match="images"):
        measured(table, {"pictures": SPLIT.heldout_images}, labels=None)


def test_the_verb(table, tmp_path, capsys):
    np.savez(tmp_path / "d.npz", **HELD_OUT)
    table.save(tmp_path / "t.json")
    arguments = ["sensitivity", str(DEMO_MODEL), str(tmp_path / "t.json"), str(tmp_path / "d.npz")]
    assert main([*arguments, "-o", str(tmp_path / "s.json"), "--limit", "64"]) == 0
    printed = capsys.readouterr()
    found = Sensitivity.load(tmp_path / "s.json")
    assert f"{len(found.layers)} layers, at most 64 samples: about" in printed.err
    assert f"64 samples: all layers in INT8 {found.quantized.sqnr_db:.1f} dB" in printed.out
    assert printed.out.index(found.worst_first[0].node) < printed.out.index(found.worst_first[1].node)
    assert not (tmp_path / "s.json.partial").exists()
    assert main([*arguments, "--limit", "64", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["samples"] == 64
    assert main(["sensitivity", "missing.onnx", *arguments[2:]]) == 2
    assert "there is no model 'missing.onnx'" in capsys.readouterr().err
