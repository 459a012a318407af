"""A calibration method for each tensor."""

import numpy as np
import pytest

from calibrators.histograms.histogram import Histogram
from calibrators.histograms.thresholds import METHODS
from calibrators.tables.choice import RangeChoice
from calibrators.tables.table import CalibrationTable, Provenance
from tests.trtint8.onnx_models import Shaped
from trtint8.models.model import load_model, prepare
from trtint8.quantization.placement import place
from trtint8.tuning.methods import MIXED, choose_methods, with_methods

RNG = np.random.default_rng(5)


def histogram_of(values):
    histogram = Histogram()
    histogram.observe(np.asarray(values, np.float32))
    return histogram


def two_layers():
    g = Shaped(quantized=False)
    first = g.op("Relu", [g.op("MatMul", ["x", g.weights(16, 16)], "first")], "relu")
    return g.model({"x": ["N", 16]}, g.op("MatMul", [first, g.weights(16, 4)], "second"))


def test_methods_apply_tensor_by_tensor():
    values = np.append(np.abs(RNG.standard_normal(10000)), 50.0)
    histograms = {name: histogram_of(values) for name in "abc"}
    table = CalibrationTable.from_histograms(histograms, "minmax", Provenance())
    table = table.override({"c": 7.0})
    mixed = with_methods(table, {"a": "minmax", "b": "percentile", "c": "mse"})
    assert mixed.amax == {"a": 50.0, "b": METHODS["percentile"](histograms["b"]), "c": 7.0}
    assert mixed.method == MIXED
    assert with_methods(table, {}) is table
    assert with_methods(table, {"a": "mse", "b": "mse"}).method == "mse"
    assert with_methods(table, {}) is table
    chosen = table.with_choice({"a": 3.0}, RangeChoice("wide", {"wide": 30.0}, {"wide": 4}))
    assert (chosen.method_of("a"), with_methods(chosen, {"a": "mse"}).method_of("a")) == ("wide", "mse")


def test_an_outlier_in_one_tensor_changes_the_method_of_that_one():
    """The calibration set had one wild sample: minmax is the worst choice for 'x', and harmless elsewhere."""
    prepared = prepare(load_model(two_layers()))
    placement = place(prepared.graph_model)
    clean = RNG.standard_normal((64, 16)).astype(np.float32)
    spread = histogram_of(np.append(RNG.standard_normal(100_000), 300.0))
    uniform = histogram_of(RNG.uniform(0, 1, 10000))
    table = CalibrationTable.from_histograms({"x": spread, "relu_out": uniform}, "minmax", Provenance())
    chosen = choose_methods(prepared.graph_model, placement, table, [{"x": clean}])
    assert set(chosen) == {"x", "relu_out"}
    assert chosen["x"] != "minmax"
    assert with_methods(table, chosen).amax["x"] < 10


def test_the_choice_is_the_least_error_of_the_layer():
    """Worked out with NumPy: the method whose range makes the product's error least."""
    prepared = prepare(load_model(two_layers()))
    placement = place(prepared.graph_model)
    feed = RNG.standard_normal((256, 16)).astype(np.float32)
    histogram = histogram_of(feed)
    table = CalibrationTable.from_histograms({"x": histogram}, "minmax", Provenance())
    table = table.override({"relu_out": 1.0})
    weights = prepared.graph_model.graph.initializers["constant0"].const_value.numpy()

    def error(method):
        scale = np.float32(METHODS[method](histogram) / 127)
        rounded = np.clip(np.rint(feed / scale), -128, 127) * scale
        return np.square((rounded - feed).astype(np.float64) @ weights).sum()

    chosen = choose_methods(prepared.graph_model, placement, table, [{"x": feed}])
    assert chosen == {"x": min(METHODS, key=error)}


def test_tensors_of_one_scale_choose_together():
    g = Shaped(quantized=False)
    left, right = (g.op("MatMul", ["x", g.weights(16, 16)], name) for name in ("left", "right"))
    joined = g.op("Concat", [left, right], "joined", axis=1)
    model = g.model({"x": ["N", 16]}, g.op("MatMul", [joined, g.weights(32, 4)], "last"))
    prepared = prepare(load_model(model))
    placement = place(prepared.graph_model)
    assert {"left_out", "right_out", "joined_out"} in map(set, placement.shared)
    values = RNG.standard_normal(10000)
    histograms = {name: histogram_of(values) for name in placement.tensors}
    histograms["left_out"] = histogram_of(np.append(values, 90.0))
    table = CalibrationTable.from_histograms(histograms, "minmax", Provenance())
    feed = RNG.standard_normal((32, 16)).astype(np.float32)
    chosen = choose_methods(prepared.graph_model, placement, table, [{"x": feed}])
    assert len({chosen[name] for name in ("left_out", "right_out", "joined_out")}) == 1


@pytest.mark.parametrize("names", [[], ["x"]])
def test_tensors_without_a_histogram_are_left_alone(names):
    prepared = prepare(load_model(two_layers()))
    histograms = {name: histogram_of([1.0, 2.0]) for name in names}
    table = CalibrationTable({"x": 1.0, "relu_out": 1.0}, "minmax", histograms=histograms)
    feed = {"x": RNG.standard_normal((8, 16)).astype(np.float32)}
    chosen = choose_methods(prepared.graph_model, place(prepared.graph_model), table, [feed])
    assert list(chosen) == names
