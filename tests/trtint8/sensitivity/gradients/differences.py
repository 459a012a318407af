"""Gradients beside differences of the function itself."""

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper, numpy_helper

from calibrators.host.session import open_session
from trtint8.models.graph_writer import GraphWriter, Term
from trtint8.sensitivity.gradients.backward import append_gradients
from trtint8.sensitivity.gradients.rule import infer_shapes

OPSET = 17


def network(nodes, shapes, constants=None, opset=OPSET):
    """A model of nodes given as (operator, inputs, output, attributes), whose output is ``y``.

    Args:
        nodes: The nodes, in graph order; several outputs are separated by blanks.
        shapes: Name of the input to its shape; text is a symbol.
        constants: Name to array.
        opset: The version of the operators.
    """
    graph = helper.make_graph(
        [
            helper.make_node(kind, inputs, output.split(), output.split()[0], **more)
            for kind, inputs, output, more in nodes
        ],
        "g",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in (constants or {}).items()],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    return ir.from_proto(onnx.shape_inference.infer_shapes(proto))


def integers(**values):
    """Constants of int64 by name, as :func:`network` takes them."""
    return {name: np.array(value, np.int64) for name, value in values.items()}


def of_one(kind, *constants, **attributes):
    """A node that reads ``x`` and constants, and the constants by name, as :func:`network` takes them."""
    names = [f"c{index}" for index in range(len(constants))]
    return [(kind, ["x", *names], "y", attributes)], dict(zip(names, map(np.float32, constants), strict=True))


def with_gradients(model, tensors):
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


def assert_gradients(nodes, shapes, constants=None, opset=OPSET, feed=None, step=1e-2):
    """Compares v . (f(x + h d) - f(x - h d)) / 2h with the gradient of v . f times d, for every input."""
    random = np.random.default_rng(0)
    if feed is None:
        sizes = {
            name: [2 if isinstance(size, str) else size for size in shape] for name, shape in shapes.items()
        }
        feed = {name: random.standard_normal(size).astype(np.float32) for name, size in sizes.items()}
    plain = network(nodes, shapes, constants, opset)
    (output,) = run(plain, feed)
    direction = random.standard_normal(output.shape).astype(np.float32)
    made = with_gradients(network(nodes, shapes, constants, opset), list(shapes))
    same, *gradients = run(made, {**feed, "direction": direction})
    np.testing.assert_allclose(same, output, rtol=1e-5, atol=1e-6)
    for name, gradient in zip(shapes, gradients, strict=True):
        assert gradient.shape == feed[name].shape
        change = random.standard_normal(feed[name].shape).astype(np.float32)
        ahead, behind = (
            run(plain, {**feed, name: feed[name] + sign * np.float32(step) * change})[0] for sign in (1, -1)
        )
        wanted = float((direction * (ahead.astype(np.float64) - behind)).sum() / (2 * step))
        found = float((gradient.astype(np.float64) * change).sum())
        scale = float(np.linalg.norm(gradient) * np.linalg.norm(change)) + 1e-6
        assert abs(found - wanted) < 0.01 * scale, (name, found, wanted)
