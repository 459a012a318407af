"""Gradients beside differences of the function itself."""

import numpy as np
import onnx_ir as ir

from calibrators.host.session import open_session
from tests.trtint8.simulation.opened import parsed
from trtint8.models.graph_writer import GraphWriter, Term
from trtint8.sensitivity.gradients.backward import append_gradients
from trtint8.sensitivity.gradients.rule import infer_shapes

#: How far single differences are taken.
STEP = 1e-3


def network(inputs, text, opset=17):
    """A model whose output is ``y``; see :func:`parsed`."""
    return ir.from_proto(parsed(inputs, text, opset=opset))


def with_gradients(model, *tensors):
    """The model with an input ``direction`` and the gradients of chosen tensors as further outputs."""
    infer_shapes(model)
    graph = model.graph
    values = {
        value.name: value for value in (*graph.inputs, *(out for node in graph for out in node.outputs))
    }
    nodes, (output,) = list(graph), graph.outputs
    direction = ir.Value(name="direction", type=ir.TensorType(ir.DataType.FLOAT))
    graph.inputs.append(direction)
    writer = GraphWriter(graph)
    gradients = append_gradients(
        writer, nodes, {output: Term(writer, direction)}, [values[name] for name in tensors]
    )
    for name in tensors:
        gradient = gradients[values[name]].value
        gradient.dtype = ir.DataType.FLOAT
        graph.outputs.append(gradient)
    return model


def run(model, feed):
    return open_session(ir.to_proto(model).SerializeToString(), optimize=True, threads=1).run(None, feed)


def assert_gradients(inputs, text, opset=17, **values):
    """Compares v . (f(x + h d) - f(x - h d)) / 2h with the gradient of v . f times d, for every input.

    Args:
        inputs: As for :func:`parsed`; sizes that are open become two.
        text: As for :func:`parsed`.
        opset: The version of the operators.
        values: Values of inputs, over and over; of others they are random.
    """
    random, plain, feed = np.random.default_rng(0), network(inputs, text, opset), {}
    for value in parsed(inputs, text, opset=opset).graph.input:
        sizes = [size.dim_value or 2 for size in value.type.tensor_type.shape.dim]
        given = values.get(value.name)
        drawn = random.standard_normal(sizes) if given is None else np.resize(given, sizes)
        feed[value.name] = drawn.astype(np.float32)
    (output,) = run(plain, feed)
    direction = random.standard_normal(output.shape).astype(np.float32)
    made = with_gradients(network(inputs, text, opset), *feed)
    same, *gradients = run(made, {**feed, "direction": direction})
    np.testing.assert_allclose(same, output, rtol=1e-5, atol=1e-6)
    for name, gradient in zip(feed, gradients, strict=True):
        assert gradient.shape == feed[name].shape
        change = random.standard_normal(feed[name].shape).astype(np.float32)
        ahead, behind = (
            run(plain, {**feed, name: feed[name] + sign * np.float32(STEP) * change})[0] for sign in (1, -1)
        )
        wanted = float((direction * (ahead.astype(np.float64) - behind)).sum() / (2 * STEP))
        found = float((gradient.astype(np.float64) * change).sum())
        scale = float(np.linalg.norm(gradient) * np.linalg.norm(change)) + 1e-6
        assert abs(found - wanted) < 0.01 * scale, (name, found, wanted)
