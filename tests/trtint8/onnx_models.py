"""Small ONNX models, built node by node, for tests that need a real one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import trtint8
from calibrators.data.inputs import InputSpec
from trtint8.models.model import load_model, prepare


class Graph:
    """Collects nodes and constants; every method returns the name of the tensor that it made.

    With ``quantized`` False, :meth:`qdq` adds nothing, so that one function describes a model and its
    float twin.
    """

    def __init__(self, quantized=True):
        self.quantized = quantized
        self.nodes, self.constants = [], []
        self.random = np.random.default_rng(0)

    def constant(self, array):
        name = f"constant{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def weights(self, *shape):
        return self.constant(self.random.standard_normal(shape).astype(np.float32) * 0.1)

    def op(self, op_type, inputs, name, **attributes):
        self.nodes.append(helper.make_node(op_type, inputs, [f"{name}_out"], name=name, **attributes))
        return f"{name}_out"

    def __getattr__(self, op_type):
        """The node of an operator: ``g.Relu("relu", x)`` is ``g.op("Relu", [x], "relu")``."""
        if not op_type[0].isupper():
            raise AttributeError(op_type)
        return lambda name, *inputs, **attributes: self.op(op_type, inputs, name, **attributes)

    def qdq(self, tensor, axis=None, channels=None, zero_point=0):
        if not self.quantized:
            return tensor
        shape = () if channels is None else (channels,)
        scale = self.constant(np.full(shape, 0.02, np.float32))
        zero = self.constant(np.full(shape, zero_point, np.int8))
        attributes = {} if axis is None else {"axis": axis}
        stem = f"{tensor}_{len(self.nodes)}"
        quantized = self.op("QuantizeLinear", [tensor, scale, zero], f"{stem}_q", **attributes)
        return self.op("DequantizeLinear", [quantized, scale, zero], f"{stem}_dq", **attributes)

    def model(self, inputs, output):
        graph = helper.make_graph(
            self.nodes,
            "graph",
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()],
            [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)],
            self.constants,
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def specs(model):
    """The inputs of ``model`` as the packages describe them."""
    return [
        InputSpec(
            value.name,
            np.dtype(np.float32),
            tuple(
                d.dim_param if d.HasField("dim_param") else d.dim_value
                for d in value.type.tensor_type.shape.dim
            ),
        )
        for value in model.graph.input
    ]


def conv_relu_conv(quantized=True, channels=16, names=("first", "second"), size=(16, 16)):
    """Conv, Relu, Conv on images of 3x16x16 or another size."""
    g = Graph(quantized)
    x = g.op(
        "Conv",
        [g.qdq("images"), g.qdq(g.weights(channels, 3, 3, 3), 0, channels), g.weights(channels)],
        names[0],
        pads=[1] * 4,
    )
    x = g.qdq(g.op("Relu", [x], "relu"))
    weights = g.qdq(g.weights(channels, channels, 3, 3), 0, channels)
    return g.model(
        {"images": ["N", 3, *size]}, g.op("Conv", [x, weights, g.weights(channels)], names[1], pads=[1] * 4)
    )


def conv_chain(length):
    """A Q/DQ network whose build takes long enough to be interrupted."""
    g = Graph()
    x = g.op("Conv", [g.qdq("images"), g.qdq(g.weights(64, 3, 3, 3), 0, 64)], "conv", pads=[1] * 4)
    for index in range(length):
        weights = g.qdq(g.weights(64, 64, 3, 3), 0, 64)
        x = g.op("Relu", [g.op("Conv", [g.qdq(x), weights], f"conv{index}", pads=[1] * 4)], f"relu{index}")
    return g.model({"images": ["N", 3, 32, 32]}, x)


def parsed(inputs, outputs, body, functions="", *, opset=17, ir_version=8, domains=(), **constants):
    """The model of nodes in ONNX's own text, such as ``[name] y = MatMul (x, w)``, with constants by name.

    Args:
        inputs: The inputs, such as ``float[N, 4] x``; ``float[] y`` has no shape.
        outputs: The outputs, written likewise.
        body: The nodes.
        functions: Functions of the model, in the same text.
        opset: The version of ONNX's operators.
        ir_version: The version of the format.
        domains: Other domains, each in version 1.
        constants: The model's weights.
    """
    head = f"<ir_version: {ir_version}, opset_import: {_imports(opset, domains)}>"
    model = onnx.parser.parse_model(f"{head} g ({inputs}) => ({outputs}) {{ {body} }} {functions}")
    model.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()
    )
    return model


def function(name, inputs, outputs, body, *, opset=17, domain="own", domains=()):
    """The text of a function for :func:`parsed`."""
    head = f'<domain: "{domain}", opset_import: {_imports(opset, domains)}>'
    return f"{head} {name} ({inputs}) => ({outputs}) {{ {body} }}"


def _imports(opset, domains):
    imports = [f'"": {opset}', *(f'"{name}": 1' for name in domains)]
    return f"[{', '.join(imports)}]"


def normal(*shape, seed=0):
    """Normal values in float32."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def prepared_graph(model):
    """The graph of a model that is prepared for quantization."""
    return prepare(load_model(model)).graph_model


def constants_of(model):
    """The initializers of a model by name."""
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


def sqnr_in_int8(source, data, **options):
    """How well the first output of a model survives calibration and quantization, in decibels."""
    table = trtint8.calibrate(source, data, method="minmax", progress=False)
    quantized = trtint8.quantize(source, table, progress=False, **options)
    return trtint8.validate(quantized, data, reference=source, progress=False).outputs[0].sqnr_db


def save_external(model, folder: Path):
    """Writes ``model.onnx`` with its weights in ``weights.bin`` beside it."""
    path = folder / "model.onnx"
    onnx.save(model, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    return path


class Shaped(Graph):
    """A graph whose output has the inferred shape, which the checker wants."""

    def model(self, inputs, output):
        return onnx.shape_inference.infer_shapes(super().model(inputs, output))


def tied(rows=16, columns=8):
    """An encoder and a decoder that read the same weights, whose rows differ in size, along two axes."""
    g = Shaped(quantized=False)
    weights = g.constant(
        g.random.standard_normal((rows, columns)).astype(np.float32)
        * np.geomspace(0.1, 1, rows, dtype=np.float32)[:, None]
    )
    encoded = g.op("Relu", [g.op("Gemm", ["x", weights], "encoder")], "relu")
    return g.model({"x": ["N", rows]}, g.op("Gemm", [encoded, weights], "decoder", transB=1))


def outlier_stream(shape):
    """A residual stream with one channel beyond FP16, which no pair reads, and its samples of a shape."""
    random, channels = np.random.default_rng(0), shape[-1]
    g = Shaped(quantized=False)
    weights = (random.normal(size=(channels, channels)) / channels**0.5).astype(np.float32)
    weights[:, 7] *= 4e4
    stream = g.op("Add", [g.op("MatMul", ["x", g.constant(weights)], "wide"), "x"], "stream")
    ones, zeros = (g.constant(np.full(channels, value, np.float32)) for value in (1, 0))
    even = g.op("LayerNormalization", [stream, ones, zeros], "even", axis=-1)
    last = g.op("MatMul", [even, g.weights(channels, channels)], "last")
    return g.model({"x": ["n", *shape[1:]]}, last), {"x": random.normal(size=shape).astype(np.float32)}
