"""Whole networks in INT8, alone and beside the float network."""

import numpy as np
import pytest
from onnx import TensorProto, helper

import trtint8
from calibrators.host.session import open_session
from tests.trtint8.onnx_models import Shaped, tied
from tests.trtint8.simulation.two_products import X, opened_products
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
    opened = opened_products()
    beside = BesideFloat(opened.model, opened.quantizer)
    forms = (Form.INT8, Form.WEIGHTS, Form.ACTIVATIONS)
    for form in forms:
        beside.give(beside.error(beside.layers[0], form))
    _, *found = open_graph_model(beside.model).run({"x": X})
    segment = opened.network.segments[0]
    exact = segment.run_layer(Form.FLOAT, {"x": X})
    for form, error in zip(forms, found, strict=True):
        np.testing.assert_array_equal(error, segment.run_layer(form, {"x": X}) - exact)


def test_the_network_beside_the_float_network_is_the_quantized_one():
    opened = opened_products()
    beside = BesideFloat(opened.model, opened.quantizer)
    in_int8 = beside.append_int8()
    assert {value.name for value in in_int8} == {"first_out", "second_out"}
    beside.give(in_int8[beside.layers[-1].node.outputs[0]])
    exact, rounded = open_graph_model(beside.model).run({"x": X})
    np.testing.assert_array_equal(exact, open_graph_model(opened.model).run({"x": X})[0])
    quantized = open_graph_model(quantized_network(opened.model, opened.quantizer))
    np.testing.assert_array_equal(rounded, quantized.run({"x": X})[0])


def test_what_a_graph_inside_a_node_reads_is_appended_no_second_time():
    g = Shaped(quantized=False)
    layer = g.op("MatMul", ["x", g.weights(2, 2)], "layer")
    branches = [
        helper.make_graph(
            [helper.make_node(kind, [layer], [f"{kind}_out"])],
            kind,
            [],
            [helper.make_tensor_value_info(f"{kind}_out", TensorProto.FLOAT, None)],
        )
        for kind in ("Relu", "Neg")
    ]
    made = g.op("If", ["condition"], "branch", then_branch=branches[0], else_branch=branches[1])
    proto = g.model({"x": ["N", 2], "condition": []}, made)
    proto.graph.input[1].type.tensor_type.elem_type = TensorProto.BOOL
    model = prepared(proto)
    with pytest.raises(InnerReadError, match="'branch'"):
        BesideFloat(model, Quantizer.of(place(model), {"x": 1.0})).append_int8()
