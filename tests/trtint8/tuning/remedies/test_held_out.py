"""Biases and weights that are changed only where samples gain that they were not changed with."""

import json

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import trtint8
from calibrators.errors import CalibrationDataError
from tests.trtint8.simulation.opened import parsed
from tests.trtint8.tuning.networks import normal
from trtint8.cli.main import main
from trtint8.tuning.remedies.bias_correction import CORRECTION
from trtint8.tuning.remedies.rounding import ROUNDING

RANGES = {"x": 1.0, "relu": 4.0}

LAYERS = (
    "first = Gemm (x, v) relu = Relu (first) second = Gemm (relu, w) where float[32, 32] v, float[32, 8] w"
)


def network(text=LAYERS, output="float[] second", batch="N"):
    """By default two layers whose inputs are mostly above the range, so that INT8 shifts every output."""
    return parsed(f"float[{batch}, 32] x", text, output, scale=0.1)


def one_layer(kind="Gemm"):
    return network(f"layer = {kind} (x, w) where float[32, 8] w", "float[] layer")


def clipped(count, seed=0):
    """Samples that lie above the range of the network's input."""
    return {"x": np.abs(normal(count, 32, seed=seed)) + 1}


def table(ranges=RANGES):
    return trtint8.CalibrationTable(ranges)


def quantized(tmp_path, data, model=None, ranges=RANGES):
    return trtint8.write_quantized(model or network(), table(ranges), tmp_path / "q.onnx", rounding=data)


def levels(models, data, reference):
    """The SQNR of models on data, in decibels."""
    compared = (
        trtint8.validate(one, data, reference=reference, metrics=["sqnr"], progress=False) for one in models
    )
    return [accuracy.outputs[0].sqnr_db for accuracy in compared]


def constants(model):
    return [numpy_helper.to_array(one).tobytes() for one in model.graph.initializer]


def test_biases_that_gain_on_other_samples_are_corrected(tmp_path):
    data = clipped(64)
    files = quantized(tmp_path, data)
    assert CORRECTION in files.rounded.remedies
    assert 12 <= files.rounded.samples <= 48
    assert files.rounded.gain_db > files.rounded.error_db > 0

    models = trtint8.quantize(network(), table()), files.model
    before, after = levels(models, clipped(40, seed=9), network())
    assert after > before + 1


def mixed(count, seed=0):
    """Samples of two patterns, which INT8 represents, so that errors of weights make up for each other."""
    values = normal(count, 2, seed=seed) @ normal(2, 32, seed=99) / 4
    return {"x": np.round(127 * values).clip(-127, 127).astype(np.float32) / 127}


def test_weights_are_rounded_where_that_gains_more_than_biases_alone(tmp_path):
    model, ranges = one_layer(), {"x": 1.0}
    files = quantized(tmp_path, mixed(64), model, ranges)
    assert files.rounded.remedies == (ROUNDING, CORRECTION)
    models = trtint8.quantize(model, table(ranges)), files.model
    before, after = levels(models, mixed(40, seed=9), model)
    assert after > before + 3


def test_all_samples_judge_where_the_difference_is_not_clear(tmp_path):
    values = np.where(np.arange(64)[:, None] % 5 == 1, 4, 0.5) * mixed(64)["x"]
    assert quantized(tmp_path, {"x": values.astype(np.float32)}).rounded.samples == 48


def test_what_was_done_stands_in_the_model_and_its_table_and_reference_stay(tmp_path, recwarn):
    float_file = tmp_path / "net.onnx"
    onnx.save(network(), float_file)
    files = quantized(tmp_path, clipped(64), float_file)
    properties = {entry.key: entry.value for entry in onnx.load(files.model).metadata_props}
    assert properties["trtint8.changed_weights"] == ", ".join(files.rounded.remedies)
    assert files.float_model is None
    assert files.table is None
    trtint8.validate(files.model, clipped(8), reference=float_file, progress=False)
    assert not [one for one in recwarn if "was not made from" in str(one.message)]


def test_the_same_data_gives_the_same_model():
    one, other = (trtint8.quantize(network(), table(), rounding=clipped(64)) for _ in range(2))
    assert constants(one) == constants(other) != constants(trtint8.quantize(network(), table()))


@pytest.mark.parametrize(
    "data",
    [
        clipped(15),
        {"x": np.repeat(clipped(1)["x"], 64, axis=0)},
        "random:64",
        {"x": np.zeros((64, 32), np.float32)},
    ],
    ids=["few", "alike", "random", "zeros"],
)
def test_too_few_different_samples_change_nothing(tmp_path, data):
    files = quantized(tmp_path, data)
    assert files.rounded.remedies == ()
    assert files.rounded.reason
    assert files.rounded.gain_db is None
    assert constants(onnx.load(files.model)) == constants(trtint8.quantize(network(), table()))


def test_samples_are_taken_from_all_of_the_data(tmp_path):
    """Of 500 samples 256 are read, and only the last 200 differ from each other."""
    alike = np.repeat(clipped(1)["x"], 300, axis=0)
    files = quantized(tmp_path, {"x": np.concatenate([alike, clipped(200)["x"]])})
    assert CORRECTION in files.rounded.remedies


@pytest.mark.parametrize(("batch", "together"), [("N", 1), (1, 1), (8, 8)])
def test_as_many_samples_are_read_whatever_the_batch_of_the_model(tmp_path, batch, together):
    """Of 512 samples 256 are read; the others would be refused."""
    data = clipped(512)
    data["x"][np.arange(512) // together % 2 == 1] = np.nan
    assert CORRECTION in quantized(tmp_path, data, network(batch=batch)).rounded.remedies
    data["x"][0] = np.nan
    with pytest.raises(CalibrationDataError, match="NaN"):
        quantized(tmp_path, data, network(batch=batch))


@pytest.mark.parametrize(("node", "remedies"), [("MatMul", (ROUNDING,)), ("Gemm", (ROUNDING, CORRECTION))])
def test_only_what_was_done_is_named(tmp_path, node, remedies):
    """A MatMul has no bias to correct."""
    files = quantized(tmp_path, mixed(64), one_layer(node), {"x": 1.0})
    assert files.rounded.remedies == remedies


def test_a_network_with_nothing_to_change_stays_as_it_is(tmp_path):
    text = "left = MatMul (x, w) right = MatMul (x, w) y = Mul (left, right) where float[32, 32] w"
    files = quantized(tmp_path, mixed(64), network(text, "float[] y"), {"x": 1.0})
    assert (files.rounded.remedies, files.rounded.gain_db) == ((), None)


def test_samples_for_which_outputs_stay_as_good_change_nothing(tmp_path):
    inside = {"x": np.round(normal(64, 32) * 20).clip(-127, 127).astype(np.float32) / 127}
    model = one_layer()
    (weights,) = model.graph.initializer  # on the grid, so that INT8 costs nothing
    weights.CopyFrom(numpy_helper.from_array(np.eye(32, 8, dtype=np.float32), "w"))
    files = quantized(tmp_path, inside, model, {"x": 1.0})
    assert files.rounded.remedies == ()
    assert files.rounded.samples == 12  # a difference of nothing is known at once


def test_a_network_that_picks_is_judged_by_what_it_picks_from(tmp_path):
    text = LAYERS.replace("where", "best = ArgMax <axis = 1> (second) where")
    files = quantized(tmp_path, clipped(64), network(text, "int64[N, 1] best"))
    assert CORRECTION in files.rounded.remedies
    assert files.rounded.gain_db > 1


def test_samples_with_outputs_that_are_not_finite_change_nothing(tmp_path):
    model = network()
    (weights,) = [one for one in model.graph.initializer if one.name == "w"]
    weights.CopyFrom(numpy_helper.from_array(np.full((32, 8), 3e38, np.float32), "w"))
    files = quantized(tmp_path, clipped(64), model)
    assert files.rounded.remedies == ()


def test_data_that_does_not_fit_is_refused(tmp_path):
    with pytest.raises(CalibrationDataError, match="x"):
        quantized(tmp_path, {"x": normal(64, 5)})
    assert not (tmp_path / "q.onnx").exists()


def test_a_sample_that_is_no_number_is_named(tmp_path):
    """Of 500 samples 256 are read, nearly every other one."""
    data = clipped(500)
    data["x"][490:492, 3] = np.nan
    with pytest.raises(CalibrationDataError, match=r"'x'.* NaN .*sample 49[01]"):
        quantized(tmp_path, data)


def test_the_command_line_says_what_was_done(tmp_path, capsys):
    onnx.save(network(), tmp_path / "net.onnx")
    table().save(tmp_path / "table.json")
    np.savez(tmp_path / "data.npz", **clipped(64))
    names = [str(tmp_path / name) for name in ("net.onnx", "table.json", "q.onnx", "data.npz")]
    main(["quantize", *names[:2], "-o", names[2], "--round", names[3], "--json"])
    found = json.loads(capsys.readouterr().out)["rounding"]
    assert CORRECTION in found["remedies"]
    assert found["samples"] >= 12
    main(["quantize", *names[:2], "-o", names[2], "--round", names[3]])
    assert CORRECTION in capsys.readouterr().out
