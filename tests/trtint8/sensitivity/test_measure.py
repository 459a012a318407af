"""A measurement from end to end: its figures, when it stops, and how it goes on after an interruption."""

import dataclasses

import numpy as np
import onnx
import pytest

import trtint8
from calibrators.errors import CalibrationDataError, TableError
from calibrators.tables.table import CalibrationTable, Provenance
from tests.trtint8.detectors import PICKED_FROM, images, suppressing_detector, unordered_detector
from tests.trtint8.onnx_models import Graph, Shaped
from tests.trtint8.sensitivity.measuring import SPLIT, measured
from trtint8.data import DEMO_MODEL
from trtint8.models.model import load_model


@pytest.mark.slow
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


@pytest.mark.parametrize(("tolerance", "shown"), [(0.01, 136), (0.0, 512)])
def test_how_many_samples_show_single_layers(table, monkeypatch, tolerance, shown):
    monkeypatch.setattr("trtint8.sensitivity.drawing._LEAST", 0)
    found = measured(table, limit=512, batch_size=64, tolerance_db=tolerance)
    assert (found.samples, found.shown) == (512, shown)


def test_a_fixed_batch_makes_no_difference(table):
    """Samples that are computed by themselves are told apart whatever number of them the model takes."""
    fixed = onnx.load(DEMO_MODEL)
    for value in (*fixed.graph.input, *fixed.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = 64
    own = dataclasses.replace(table.provenance, model=load_model(fixed).fingerprint)
    found, wanted = (
        trtint8.measure_sensitivity(
            model,
            dataclasses.replace(table, provenance=provenance),
            SPLIT.heldout_images[:128],
            batch_size=64,
            progress=False,
        )
        for model, provenance in ((fixed, own), (DEMO_MODEL, table.provenance))
    )
    assert [layer.only.sqnr_db for layer in found.layers] == pytest.approx(
        [layer.only.sqnr_db for layer in wanted.layers], abs=1e-3
    )


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


def test_a_softmax_before_a_layer_is_named_where_the_layer_makes_much_of_the_noise():
    g = Graph(quantized=False)
    loud, quiet = (
        g.op("MatMul", [g.op("Softmax", ["x"], f"{name}_softmax"), g.constant(weights)], name)
        for name, weights in (("loud", _weights(10.0)), ("quiet", _weights(0.1)))
    )
    model = g.model({"x": ["N", 8]}, g.op("Concat", [loud, quiet], "y", axis=1))
    data = np.random.default_rng(0).standard_normal((64, 8)).astype(np.float32)
    table = trtint8.calibrate(model, data, tensors="placed", progress=False)
    found = trtint8.measure_sensitivity(model, table, data, progress=False)
    kinds = {layer.node: [suspect.kind for suspect in layer.suspects] for layer in found.layers}
    assert kinds == {"loud": ["delicate-neighbour"], "quiet": []}


def _weights(scale):
    return (scale * np.random.default_rng(1).standard_normal((8, 8))).astype(np.float32)


@pytest.mark.slow
def test_it_stops_when_certain(table):
    same = np.repeat(SPLIT.heldout_images[:1], 500, axis=0)
    found = measured(table, same, labels=None, batch_size=32, tolerance_db=3.0)
    assert (found.samples, found.converged) == (64, True)
    half = [layer.only.interval_db[1] - layer.only.sqnr_db for layer in found.layers]
    # All samples are the same: what is left is what gradients, and random directions, are uncertain about.
    assert min(half) > 0.7 and max(half) < 3.0
    few = measured(table, limit=64, tolerance_db=0.001)
    assert (few.samples, few.converged) == (64, False)


def test_the_plan_is_told_before_the_work(table):
    plans = []
    found = measured(table, limit=40, on_plan=plans.append)
    (plan,) = plans
    assert (plan.layers, plan.samples) == (len(found.layers), 40)
    assert 0 < plan.seconds_per_sample < 5


def test_data_that_does_not_fit(table):
    with pytest.raises(CalibrationDataError, match="the data holds no samples"):
        measured(table, iter([]), labels=None)
    with pytest.raises(CalibrationDataError, match="images"):
        measured(table, {"pictures": SPLIT.heldout_images}, labels=None)


def test_a_table_of_another_model_is_not_called_stale(table):
    other = dataclasses.replace(
        table, amax={**table.amax, "strange": 1.0}, provenance=Provenance(model="another")
    )
    with pytest.raises(TableError, match=r"made for another model: 1 of its .*'strange' among them"):
        measured(other, SPLIT.heldout_images, labels=None)


def test_detections_are_measured_by_what_they_are_picked_from():
    """After non-maximum suppression, INT8 has another number of boxes."""
    picking, dense = suppressing_detector(), unordered_detector(batch=1)
    options = {"batch_size": 1, "progress": False}
    of_dense = trtint8.calibrate(dense, images(16, seed=1), **options)
    table = trtint8.calibrate(picking, images(16, seed=1), **options).override(dict(of_dense.amax))
    plans = []
    found = trtint8.measure_sensitivity(picking, table, images(12), on_plan=plans.append, **options)
    wanted = trtint8.measure_sensitivity(
        dense, trtint8.CalibrationTable(dict(of_dense.amax)), images(12), **options
    )
    assert [plan.picked_from for plan in plans] == [PICKED_FROM]
    assert [layer.node for layer in found.layers] == ["one_stem", "one_boxes", "one_classes"]
    assert found.samples == wanted.samples == 12
    for got, other in zip(found.layers, wanted.layers, strict=True):
        assert got.only.sqnr_db == pytest.approx(other.only.sqnr_db, abs=0.01)
        assert 20 < got.only.sqnr_db < 90


def test_an_output_that_is_a_constant_is_left_out():
    def model(output):
        graph = onnx.helper.make_graph(
            [onnx.helper.make_node("Gemm", ["x", "w"], ["h"]), onnx.helper.make_node("Relu", ["h"], ["y"])],
            "g",
            [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["N", 4])],
            [
                onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)
                for name, shape in (("y", ["N", 4]), ("w", [4, 4]))[:output]
            ],
            [onnx.numpy_helper.from_array(np.linspace(-1, 1, 16, dtype=np.float32).reshape(4, 4), "w")],
        )
        return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)

    rows = np.random.default_rng(0).standard_normal((16, 4)).astype(np.float32)
    table = CalibrationTable({"x": 3.0, "y": 4.0})
    found, wanted = (
        trtint8.measure_sensitivity(model(outputs), table, rows, progress=False) for outputs in (2, 1)
    )
    assert found.quantized == wanted.quantized
    assert [layer.only for layer in found.layers] == [layer.only for layer in wanted.layers]


@pytest.mark.parametrize("batch_size", [1, 4])
def test_samples_that_are_not_finite_are_named_by_their_file(tmp_path, batch_size):
    """Whether they are in the first batch or in a later one."""
    g = Shaped(quantized=False)
    model = g.model({"x": ["N", 4]}, g.op("MatMul", ["x", g.weights(4, 4)], "product"))
    rows = np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32)
    table = trtint8.calibrate(model, {"x": rows}, method="minmax", progress=False)
    rows[2] = np.inf
    for number, row in enumerate(rows):
        np.save(tmp_path / f"{number}.npy", row)
    with pytest.raises(
        CalibrationDataError, match=r"4 values that are NaN .* the first in '.*2\.npy'; remove"
    ):
        trtint8.measure_sensitivity(model, table, tmp_path, batch_size=batch_size, progress=False)
