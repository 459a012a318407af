"""Layers appended a second time, quantized."""

import numpy as np

from tests.trtint8.simulation.two_products import WEIGHTS, X, opened_products
from trtint8.models.graph_writer import GraphWriter
from trtint8.models.session import open_graph_model
from trtint8.simulation.layers import find_layers
from trtint8.simulation.quantized_layers import QuantizedLayers
from trtint8.simulation.segments import Form


def test_layers_are_those_of_their_segments():
    opened = opened_products()
    model = opened.model.clone()
    graph = model.graph
    layers = find_layers(graph, opened.quantizer.placement)
    quantized = QuantizedLayers(GraphWriter(graph, 17), opened.quantizer)
    forms = {
        Form.INT8: {},
        Form.WEIGHTS: {"activations": False},
        Form.ACTIVATIONS: {"weights": False},
    }
    for chosen in forms.values():
        for made in (quantized.append(layers[0], {}, **chosen), quantized.error(layers[0], **chosen)):
            made.dtype = graph.inputs[0].dtype
            graph.outputs.append(made)
    _, *found = open_graph_model(model).run({"x": X})
    segment = opened.network.segments[0]
    exact = segment.run_layer(Form.FLOAT, {"x": X})
    for form, output, error in zip(forms, found[::2], found[1::2], strict=True):
        wanted = segment.run_layer(form, {"x": X})
        np.testing.assert_array_equal(output, wanted)
        np.testing.assert_array_equal(error, wanted - exact)


def test_what_layers_have_in_common_is_appended_once():
    opened = opened_products()
    graph = opened.model.clone().graph
    (first, second) = find_layers(graph, opened.quantizer.placement)
    quantized = QuantizedLayers(GraphWriter(graph, 17), opened.quantizer)
    constants = len(graph.initializers)
    quantized.append(first, {})
    quantized.append(second, {second.node.inputs[0]: first.node.inputs[0]})
    quantized.error(first)
    assert [node.op_type for node in graph].count("QuantizeLinear") == 1
    # Rounded weights, which both layers read, one scale and its zero point; and the scale of the second.
    added = list(graph.initializers)[constants:]
    assert [graph.initializers[name].shape for name in added].count(WEIGHTS.shape) == 1
