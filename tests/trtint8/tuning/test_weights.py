"""Constants of a graph, given new values."""

import numpy as np

from tests.trtint8.onnx_models import Shaped
from tests.trtint8.tuning.networks import array, prepared, run
from trtint8.tuning.weights import constant_input, set_constant_input

X = {"x": np.eye(2, dtype=np.float32)}


def network(shared):
    """Two products, of one constant or of a constant each."""
    g = Shaped(quantized=False)
    first = g.constant(np.full((2, 2), 1, np.float32))
    second = first if shared else g.constant(np.full((2, 2), 3, np.float32))
    x = g.op("MatMul", ["x", first], "first")
    return prepared(g.model({"x": ["N", 2]}, g.op("MatMul", [x, second], "second")))


def node(model, name):
    return next(found for found in model.graph if found.name == name)


def test_inputs_that_are_constant():
    model = network(shared=False)
    assert constant_input(node(model, "first"), 1).tolist() == [[1, 1], [1, 1]]
    assert constant_input(node(model, "first"), 0) is None
    assert constant_input(node(model, "first"), 2) is None


def test_a_constant_of_one_reader_keeps_its_name():
    model = network(shared=False)
    name = node(model, "first").inputs[1].name
    set_constant_input(node(model, "first"), 1, np.full((2, 2), 2, np.float32))
    assert node(model, "first").inputs[1].name == name
    assert run(model, X)[0].tolist() == [[12, 12], [12, 12]]


def test_other_readers_keep_the_old_constant():
    model = network(shared=True)
    set_constant_input(node(model, "second"), 1, np.full((2, 2), 5, np.float32))
    assert array(model, "first", 1).tolist() == [[1, 1], [1, 1]]
    assert array(model, "second", 1).tolist() == [[5, 5], [5, 5]]
    assert node(model, "second").inputs[1].name == "second_input_1"


def test_an_input_is_added():
    g = Shaped(quantized=False)
    model = prepared(
        g.model({"x": ["N", 2]}, g.op("Gemm", ["x", g.constant(np.eye(2, dtype=np.float32))], "g"))
    )
    set_constant_input(node(model, "g"), 2, np.array([10, 20], np.float32))
    assert run(model, X)[0].tolist() == [[11, 20], [10, 21]]
