"""Whole networks in INT8, alone and beside the float network."""

import numpy as np
import pytest

import trtint8
from calibrators.host.session import open_session
from tests.trtint8.onnx_models import parsed, tied
from tests.trtint8.simulation.opened import X, opened, opened_products
from tests.trtint8.tuning.networks import normal, prepared
from trtint8.models.serialization import fingerprint
from trtint8.models.session import open_graph_model
from trtint8.quantization.placement import place
from trtint8.simulation.networks import BesideFloat, Form, InnerReadError, Quantizer, quantized_network


@pytest.mark.parametrize("shape", [(16, 8), (8, 8)])
def test_the_quantized_network_is_the_quantized_model(shape):
    """With weights that are read along two axes."""
    model, feed = tied(*shape), {"x": normal(32, shape[0])}
    table = trtint8.calibrate(model, feed, progress=False)
    graph_model = prepared(model)
    before = fingerprint(graph_model)
    quantized = quantized_network(graph_model, Quantizer.of(place(graph_model), table.amax))
    assert fingerprint(graph_model) == before
    whole = open_session(trtint8.quantize(model, table).SerializeToString(), optimize=True)
    np.testing.assert_array_equal(open_graph_model(quantized).run(feed)[0], whole.run(None, feed)[0])


def test_errors_are_those_of_layers_run_by_themselves():
    products = opened_products()
    beside = BesideFloat(products.model, products.quantizer)
    forms = (Form.INT8, Form.WEIGHTS, Form.ACTIVATIONS)
    for form in forms:
        beside.give(beside.error(beside.layers[0], form))
    _, *found = open_graph_model(beside.model).run({"x": X})
    segment = products.network.segments[0]
    exact = segment.run_layer(Form.FLOAT, {"x": X})
    for form, error in zip(forms, found, strict=True):
        np.testing.assert_array_equal(error, segment.run_layer(form, {"x": X}) - exact)


def test_the_network_beside_the_float_network_is_the_quantized_one():
    products = opened_products()
    beside = BesideFloat(products.model, products.quantizer)
    in_int8 = beside.append_int8()
    assert {value.name for value in in_int8} == {"first", "second"}
    beside.give(in_int8[beside.layers[-1].node.outputs[0]])
    exact, rounded = open_graph_model(beside.model).run({"x": X})
    np.testing.assert_array_equal(exact, open_graph_model(products.model).run({"x": X})[0])
    quantized = open_graph_model(quantized_network(products.model, products.quantizer))
    np.testing.assert_array_equal(rounded, quantized.run({"x": X})[0])


#: How y follows from b and a mask of a, and in how many elements.
MASKS = {
    "cast": ("N, 8", "m = Cast <to = 1> (g) y = Mul (b, m)"),
    "turned": ("N, 8", "n = Not (g) m = Cast <to = 1> (n) y = Mul (b, m)"),
    "counted": ("N, 8", "i = Cast <to = 7> (g) m = Cast <to = 1> (i) y = Mul (b, m)"),
    "chosen": ("N, 8", "y = Where (g, b, t)"),
    "largest": ("N, 8", "i = ArgMax <axis = 1, keepdims = 0> (a) e = Gather (v, i) y = Add (b, e)"),
    "found": ("M", "f = Reshape (g, s) y = Compress (b, f)"),
    "sized": ("M", "f = Reshape (g, s) c = Compress (b, f) z = Shape (c) o = Expand (t, z) y = Sub (c, o)"),
}


@pytest.mark.parametrize("kind", MASKS)
def test_masks_and_places_are_those_of_int8(kind):
    shape, nodes = MASKS[kind]
    model = parsed(
        "float[N, 8] x", f"float[{shape}] y",
        f"a = MatMul (x, w) g = Greater (a, t) b = MatMul (x, v) {nodes}",
        w=normal(8, 8), v=normal(8, 8)[::-1].copy(), t=np.zeros((), np.float32), s=np.array([-1]),
    )  # fmt: skip
    feed = {"x": normal(64, 8)}
    graph_model = prepared(model)
    table = trtint8.calibrate(model, feed, method="minmax", progress=False)
    quantizer = Quantizer.of(place(graph_model), table.amax)
    beside = BesideFloat(graph_model, quantizer)
    beside.give(beside.append_int8()[beside.model.graph.outputs[0]])
    exact, rounded = open_graph_model(beside.model).run(feed)
    np.testing.assert_array_equal(exact, open_graph_model(graph_model).run(feed)[0])
    wanted = open_graph_model(quantized_network(graph_model, quantizer)).run(feed)[0]
    np.testing.assert_array_equal(rounded, wanted)
    assert beside.keeps_size(beside.model.graph.outputs[0]) == (shape != "M")


def test_what_a_graph_inside_a_node_reads_is_appended_no_second_time():
    text = (
        "layer = MatMul (x, w) y = If (condition) "
        "<then_branch = yes () => (float[N, 2] a) { a = Relu (layer) }, "
        "else_branch = no () => (float[N, 2] b) { b = Neg (layer) }> where float[2, 2] w"
    )
    model = opened("float[N, 2] x, bool condition", text, "float[N, 2] y")
    with pytest.raises(InnerReadError, match="'y'"):
        BesideFloat(model.model, model.quantizer).append_int8()
