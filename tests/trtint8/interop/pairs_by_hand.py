"""Q/DQ models in ONNX's own text, with any parameters."""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.trtint8.onnx_models import parsed
from trtint8.interop.lint import lint
from trtint8.models.model import load_model

ZERO = np.int8(0)

#: The weights of a convolution that reads ``d``, and the convolution; with the pair of its input.
LAYER = " v = Stored (w, s) conv = Conv <kernel_shape = [1, 1]> (d, v)"
CONV = f"d = Pair (x, s) {LAYER}"


def proto_of(body, inputs="float[N, 4, 8, 8] x", outputs=(), *, opset=17, **constants):
    """The model of nodes in ONNX's own text, each of which has the name of its first output.

    ``d = Pair (x, s)`` is a QuantizeLinear ``d_q`` and a DequantizeLinear ``d``, and ``v = Stored (w, s)`` a
    DequantizeLinear of stored integers. Where they name no zero points, these are the constants ``d_z`` and
    ``v_z``, of the shape of the scale; if not given, they are 0, of int8, or of the type of what is stored.

    Args:
        body: The nodes, of which the last one makes the output.
        inputs: The inputs.
        outputs: Further outputs.
        opset: The version of ONNX's operators.
        constants: Other constants than a scale ``s`` and weights ``w``; numbers of Python become float32.
    """
    arrays = {"s": np.float32(0.1), "w": np.ones((4, 4, 1, 1), np.int8)}
    for name, value in constants.items():
        arrays[name] = np.asarray(value, np.float32 if isinstance(value, float | list) else None)
    model = parsed(inputs, "", body, opset=opset, ir_version=10 if opset > 17 else 8)
    nodes = []
    for node in model.graph.node:
        node.name = node.output[0]
        if node.op_type in ("Pair", "Stored"):
            source, scale, *zero = node.input
            if not zero:
                zero = [f"{node.name}_z"]
                kind = arrays[source].dtype if node.op_type == "Stored" else np.int8
                value = np.asarray(arrays.get(zero[0], np.zeros((), kind)))
                arrays[zero[0]] = np.full(arrays[scale].shape, value, value.dtype)
            if node.op_type == "Pair":
                source = f"{node.name}_q_out"
                made = helper.make_node("QuantizeLinear", [node.input[0], scale, *zero], [source])
                made.name = f"{node.name}_q"
                made.attribute.extend(node.attribute)
                nodes.append(made)
            node.op_type = "DequantizeLinear"
            node.input[:] = [source, scale, *zero]
        nodes.append(node)
    read = {name for node in nodes for name in node.input}
    graph = helper.make_graph(
        nodes,
        "graph",
        model.graph.input,
        [
            helper.make_tensor_value_info(one, TensorProto.FLOAT, None)
            for one in (nodes[-1].output[0], *outputs)
        ],
        [numpy_helper.from_array(array, name) for name, array in arrays.items() if name in read],
    )
    model.graph.CopyFrom(graph)
    return onnx.shape_inference.infer_shapes(model)


def model_of(body, *arguments, **options):
    """The checked model of :func:`proto_of`."""
    return load_model(proto_of(body, *arguments, **options))


def concat_of(first, second):
    """Two convolutions' outputs, quantized with these scales and concatenated."""
    body = """d = Pair (x, s)
        a_w = Stored (w, s) a = Conv <kernel_shape = [1, 1]> (d, a_w) a_part = Pair (a, first)
        b_w = Stored (w, s) b = Conv <kernel_shape = [1, 1]> (d, b_w) b_part = Pair (b, second)
        concat = Concat <axis = 1> (a_part, b_part) joined = Pair (concat, widest)
        wide = Stored (w8, s) last = Conv <kernel_shape = [1, 1]> (joined, wide)"""
    scales = {"first": first, "second": second, "widest": max(first, second)}
    return model_of(body, w8=np.ones((4, 8, 1, 1), np.int8), **scales)


def rules(model):
    return [finding.rule for finding in lint(model)]
