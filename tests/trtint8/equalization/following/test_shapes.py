"""Shapes and integers of one feed."""

import numpy as np
import onnx_ir as ir
import pytest

from calibrators.errors import CalibrationDataError
from tests.trtint8.onnx_models import Shaped
from tests.trtint8.tuning.networks import normal, prepared
from trtint8.equalization.following import shapes
from trtint8.equalization.following.shapes import measure_shapes


def reshaped():
    g = Shaped(quantized=False)
    first = g.op("Gather", [g.op("Shape", ["x"], "shape"), g.constant(np.int64([0]))], "rows")
    shape = g.op("Concat", [first, g.constant(np.int64([-1]))], "target", axis=0)
    x = g.op("Reshape", ["x", shape], "flat")
    where = g.op("ArgMax", ["x"], "where", axis=1)
    g.op("Cast", [where], "cast", to=1)
    return prepared(g.model({"x": ["N", 2, 3]}, g.op("MatMul", [x, g.weights(6, 4)], "layer")))


def test_shapes_of_tensors_and_integers_computed_from_shapes():
    found = measure_shapes(reshaped(), {"x": normal(2, 2, 3)})
    assert found.shapes["x"] == (2, 2, 3)
    assert found.shapes["flat_out"] == (2, 6) and found.shapes["layer_out"] == (2, 4)
    np.testing.assert_array_equal(found.integers["target_out"], [2, -1])
    assert "where_out" not in found.integers


def test_a_feed_that_does_not_fit_is_refused():
    with pytest.raises(CalibrationDataError, match="the model fails on a batch"):
        measure_shapes(reshaped(), {"x": normal(5, 7, 3)})


def test_two_samples_are_enough_where_the_model_takes_any_number():
    assert measure_shapes(reshaped(), {"x": normal(5, 2, 3)}).shapes["layer_out"] == (2, 4)
    g = Shaped(quantized=False)
    fixed = prepared(g.model({"x": [4, 3]}, g.op("MatMul", ["x", g.weights(3, 2)], "layer")))
    assert measure_shapes(fixed, {"x": normal(4, 3)}).shapes["layer_out"] == (4, 2)


def test_a_model_that_says_any_number_and_computes_with_one_only():
    g = Shaped(quantized=False)
    x = g.op("Reshape", ["x", g.constant(np.int64([5, 6]))], "flat")
    model = prepared(g.model({"x": ["N", 2, 3]}, g.op("MatMul", [x, g.weights(6, 4)], "layer")))
    assert measure_shapes(model, {"x": normal(5, 2, 3)}).shapes["layer_out"] == (5, 4)


def test_nothing_is_run_where_all_shapes_are_known(monkeypatch):
    g = Shaped(quantized=False)
    model = prepared(
        g.model({"x": ["N", 3]}, g.op("Relu", [g.op("MatMul", ["x", g.weights(3, 5)], "layer")], "y"))
    )
    wanted = measure_shapes(model, {"x": normal(4, 3)})
    monkeypatch.setattr(shapes, "open_graph_model", None)
    found = measure_shapes(model, {"x": normal(4, 3)})
    assert found == wanted
    assert found.shapes == {"x": (2, 3), "layer_out": (2, 5), "y_out": (2, 5)} and not found.integers


def test_graphs_inside_a_node_may_read_any_value():
    inner = ir.Graph([], [], nodes=[], name="inner")
    for attribute in (ir.AttrGraph("branch", inner), ir.AttrGraphs("branches", [inner])):
        node = ir.Node("own", "Switch", [], [attribute], outputs=[ir.Value(name="y")])
        assert not shapes._computed_from_shapes(ir.Graph([], node.outputs, nodes=[node], name="graph"))
