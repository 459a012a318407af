"""Models from ONNX's own text that are ready to be run layer by layer."""

from types import SimpleNamespace

import numpy as np
import onnx

from trtint8.models.model import load_model, prepare
from trtint8.quantization.placement import place
from trtint8.simulation.networks import Quantizer, find_layers
from trtint8.simulation.segments import cut

X = np.array([[1.0, 0.3], [-0.2, 0.7]], np.float32)
WEIGHTS = np.array([[1.0, 0.1], [0.2, 0.5]], np.float32)


def parsed(inputs, text, outputs="float[] y", opset=17, scale=1.0):
    """A model in ONNX's own text, whose nodes are called like their first outputs.

    Args:
        inputs: The inputs, such as ``float[N, 4] x``.
        text: The nodes, and behind ``where`` the constants: ``y = Add (x, c) where float[2] c = {1, 2}``.
            Constants without values have random ones.
        outputs: The outputs; ``float[]`` is of any shape.
        opset: The version of the operators.
        scale: The mean magnitude, about, of random constants.
    """
    body, _, constants = text.partition(" where ")
    head = f'<ir_version: 8, opset_import: ["": {opset}]> g ({inputs}) => ({outputs}) <{constants}>'
    model = onnx.parser.parse_model(f"{head} {{ {body} }}")
    for node in model.graph.node:
        node.name = node.output[0]
    random = np.random.default_rng(2)
    while model.graph.value_info:
        constant = model.graph.value_info.pop(0)
        sizes = [size.dim_value for size in constant.type.tensor_type.shape.dim]
        drawn = (scale * random.standard_normal(sizes)).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(drawn, constant.name))
    # An output without a shape gets the inferred one, which the checker wants.
    return onnx.shape_inference.infer_shapes(model) if "[]" in outputs else model


def opened(inputs, text, outputs="float[] y", ranges=4.0):
    """A prepared model, its quantizer, and the model cut at its layers.

    Args:
        inputs: As for :func:`parsed`, or a model.
        text: As for :func:`parsed`; None for a model.
        outputs: As for :func:`parsed`.
        ranges: The ranges by name, or one of all tensors.
    """
    model = prepare(load_model(inputs if text is None else parsed(inputs, text, outputs)))
    graph_model, placement = model.graph_model, place(model.graph_model)
    amax = ranges if isinstance(ranges, dict) else dict.fromkeys(placement.tensors, ranges)
    quantizer = Quantizer.of(placement, amax)
    return SimpleNamespace(
        prepared=model,
        model=graph_model,
        amax=amax,
        quantizer=quantizer,
        layers=find_layers(graph_model.graph, placement),
        network=cut(graph_model, quantizer),
    )


def opened_products():
    """Two products of the same weights."""
    text = "first = MatMul (x, w) second = MatMul (first, w) where float[2, 2] w = {1.0, 0.1, 0.2, 0.5}"
    return opened("float[N, 2] x", text, "float[] second", {"x": 1.0, "first": 1.5})
