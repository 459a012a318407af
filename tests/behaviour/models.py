"""The networks that the net is made of: built by code, with the same weights and samples everywhere."""

import os
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


class Net:
    """Collects nodes, constants and inputs; methods that add a node return the name of its output."""

    def __init__(self, name):
        self.name = name
        self.random = np.random.default_rng(zlib.crc32(name.encode()))
        self.nodes, self.constants, self.inputs = [], [], []

    def input(self, name, *shape, dtype=TensorProto.FLOAT):
        self.inputs.append(helper.make_tensor_value_info(name, dtype, shape))
        return name

    def constant(self, name, value, dtype=np.float32):
        self.constants.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def ints(self, name, *values):
        return self.constant(name, values, np.int64)

    def weight(self, name, *shape, fan_in=None, gain=1.4, dtype=np.float32):
        """Random weights that keep the size of what passes through, each channel by another factor."""
        fan_in = int(np.prod(shape[1:])) if fan_in is None else fan_in
        values = self.random.standard_normal(shape) * gain / np.sqrt(max(fan_in, 1))
        return self.constant(name, values, dtype)

    def op(self, op_type, name, *inputs, outputs=1, domain="", **attributes):
        made = [f"{name}_out"] + [f"{name}_out{index}" for index in range(1, outputs)]
        self.nodes.append(
            helper.make_node(op_type, list(inputs), made, name=name, domain=domain, **attributes)
        )
        return made[0] if outputs == 1 else made

    def conv(self, name, x, channels, to, kernel=3, stride=1, groups=1, bias=True, rank=2, **attributes):
        weights = self.weight(f"{name}.weight", to, channels // groups, *[kernel] * rank)
        more = [self.weight(f"{name}.bias", to, fan_in=400)] if bias else []
        pads = [kernel // 2] * (2 * rank)
        return self.op(
            "Conv",
            name,
            x,
            weights,
            *more,
            kernel_shape=[kernel] * rank,
            pads=pads,
            strides=[stride] * rank,
            group=groups,
            **attributes,
        )

    def norm(self, name, x, channels, op_type="BatchNormalization"):
        scale = self.constant(f"{name}.scale", self.random.uniform(0.5, 1.5, channels))
        shift = self.constant(f"{name}.shift", self.random.uniform(-0.2, 0.2, channels))
        if op_type != "BatchNormalization":
            return self.op(op_type, name, x, scale, shift)
        mean = self.constant(f"{name}.mean", self.random.uniform(-0.2, 0.2, channels))
        variance = self.constant(f"{name}.variance", self.random.uniform(0.5, 1.5, channels))
        return self.op(op_type, name, x, scale, shift, mean, variance)

    def dense(self, name, x, width, to, op_type="Gemm"):
        if op_type == "Gemm":
            weights = self.weight(f"{name}.weight", to, width)
            return self.op("Gemm", name, x, weights, self.weight(f"{name}.bias", to, fan_in=400), transB=1)
        weights = self.weight(f"{name}.weight", width, to, fan_in=width)
        product = self.op("MatMul", name, x, weights)
        return self.op("Add", f"{name}_add", product, self.weight(f"{name}.bias", to, fan_in=400))

    def pair(self, x, name, scale, axis=None, dtype=np.int8, zero=0):
        """Q/DQ nodes around a tensor, as a tool for quantization-aware training writes them."""
        scale = np.asarray(scale, np.float32)
        scales = self.constant(f"{name}.scale", scale)
        zeros = self.constant(f"{name}.zero", np.full(scale.shape, zero, dtype), dtype)
        attributes = {} if axis is None else {"axis": axis}
        quantized = self.op("QuantizeLinear", f"{name}_q", x, scales, zeros, **attributes)
        return self.op("DequantizeLinear", f"{name}_dq", quantized, scales, zeros, **attributes)

    def model(self, *outputs, opset=17, dtype=TensorProto.FLOAT, dtypes=None, opsets=(), functions=()):
        """The model, whose outputs are as float as the inputs, or of ``dtypes``."""
        types = dtypes or [dtype] * len(outputs)
        graph = helper.make_graph(
            self.nodes,
            self.name,
            self.inputs,
            [helper.make_tensor_value_info(n, t, None) for n, t in zip(outputs, types, strict=True)],
            self.constants,
        )
        imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(*one) for one in opsets)]
        return helper.make_model(graph, opset_imports=imports, ir_version=8, functions=functions)


def three_nodes():
    n = Net("three_nodes")
    x = n.conv("first", n.input("images", "batch", 3, 12, 12), 3, 8)
    return n.model(n.conv("second", n.op("Relu", "relu", x), 8, 4))


def _block(n, name, x, channels, to, stride=1):
    y = n.op(
        "Relu",
        f"{name}_relu1",
        n.norm(f"{name}_bn1", n.conv(f"{name}_conv1", x, channels, to, 3, stride), to),
    )
    y = n.norm(f"{name}_bn2", n.conv(f"{name}_conv2", y, to, to), to)
    if channels != to or stride != 1:
        x = n.norm(f"{name}_bn3", n.conv(f"{name}_shortcut", x, channels, to, 1, stride, bias=False), to)
    return n.op("Relu", f"{name}_relu2", n.op("Add", f"{name}_add", y, x))


def resnet():
    n = Net("resnet")
    x = n.input("images", "batch", 3, 16, 16)
    x = n.op("Relu", "stem_relu", n.norm("stem_bn", n.conv("stem", x, 3, 16), 16))
    x = n.op("MaxPool", "pool", x, kernel_shape=[2, 2], strides=[2, 2])
    for name, channels, to, stride in (("a", 16, 16, 1), ("b", 16, 24, 2), ("c", 24, 24, 1)):
        x = _block(n, name, x, channels, to, stride)
    x = n.op("Flatten", "flatten", n.op("GlobalAveragePool", "mean", x))
    return n.model(n.dense("fc", x, 24, 10))


def mobilenet():
    """Seventeen inverted residuals, as many as the real one has."""
    n = Net("mobilenet")
    low, high = n.constant("low", 0), n.constant("high", 6)
    clip = lambda name, x: n.op("Clip", name, x, low, high)  # noqa: E731
    x = clip("stem_clip", n.conv("stem", n.input("images", "batch", 3, 32, 32), 3, 16, 3, 2))
    channels = 16
    for index, (to, stride) in enumerate(
        ((16, 1), *[(24, 1)] * 2, *[(32, 1)] * 3, (48, 2), *[(48, 1)] * 6, *[(64, 1)] * 4)
    ):
        name = f"block{index}"
        wide = 4 * channels
        y = clip(f"{name}_clip1", n.conv(f"{name}_expand", x, channels, wide, 1))
        y = clip(f"{name}_clip2", n.conv(f"{name}_depthwise", y, wide, wide, 3, stride, groups=wide))
        y = n.conv(f"{name}_project", y, wide, to, 1)
        x = n.op("Add", f"{name}_add", x, y) if channels == to and stride == 1 else y
        channels = to
    x = n.op("ReduceMean", "mean", x, axes=[2, 3], keepdims=0)
    return n.model(n.dense("classifier", x, channels, 10))


def depthwise():
    """Channels of very different ranges, which equalization evens out."""
    n = Net("depthwise")
    x = n.op("Relu", "relu1", n.conv("expand", n.input("images", "batch", 4, 10, 10), 4, 16, 1))
    for constant in n.constants:
        if constant.name == "expand.weight":
            values = numpy_helper.to_array(constant) * np.geomspace(0.02, 3, 16).reshape(16, 1, 1, 1)
            constant.CopyFrom(numpy_helper.from_array(values.astype(np.float32), constant.name))
    x = n.op("Relu", "relu2", n.conv("depthwise", x, 16, 16, 3, groups=16))
    return n.model(n.conv("project", x, 16, 6, 1))


def squeeze_excite():
    n = Net("squeeze_excite")
    x = n.op("HardSwish", "swish", n.conv("conv", n.input("images", "batch", 3, 12, 12), 3, 12))
    gate = n.op("Relu", "relu", n.conv("reduce", n.op("GlobalAveragePool", "squeeze", x), 12, 4, 1))
    gate = n.op("HardSigmoid", "gate", n.conv("restore", gate, 4, 12, 1), alpha=1 / 6, beta=0.5)
    x = n.op("Mul", "excite", x, gate)
    x = n.op("Mul", "silu", x, n.op("Sigmoid", "sigmoid", x))
    return n.model(n.conv("head", x, 12, 5, 1))


def perceptron():
    n = Net("perceptron")
    x = n.op("LeakyRelu", "leaky", n.dense("first", n.input("x", "batch", 20), 20, 32), alpha=0.1)
    x = n.op("Gemm", "second", x, n.weight("second.weight", 32, 24, fan_in=32), alpha=0.5)
    x = n.dense("third", n.op("Tanh", "tanh", x), 24, 16, "MatMul")
    x = n.op("Elu", "elu", x)
    return n.model(n.op("Softmax", "softmax", n.dense("last", x, 16, 5), axis=-1))


def _attention(n, name, x, width, heads, mask=None):
    per_head = width // heads
    parts = []
    split = n.ints(f"{name}.split", 0, 0, heads, per_head)
    for part in "qkv":
        y = n.op(
            "Reshape", f"{name}_{part}_split", n.dense(f"{name}_{part}", x, width, width, "MatMul"), split
        )
        parts.append(
            n.op("Transpose", f"{name}_{part}_heads", y, perm=[0, 2, 3, 1] if part == "k" else [0, 2, 1, 3])
        )
    scores = n.op("MatMul", f"{name}_scores", parts[0], parts[1])
    scores = n.op("Div", f"{name}_scaled", scores, n.constant(f"{name}.root", np.sqrt(per_head)))
    if mask is not None:
        scores = n.op("Add", f"{name}_masked", scores, mask)
    y = n.op("MatMul", f"{name}_context", n.op("Softmax", f"{name}_softmax", scores, axis=-1), parts[2])
    y = n.op("Transpose", f"{name}_back", y, perm=[0, 2, 1, 3])
    y = n.op("Reshape", f"{name}_merge", y, n.ints(f"{name}.merge", 0, 0, width))
    return n.dense(f"{name}_out", y, width, width, "MatMul")


def _gelu(n, name, x):
    y = n.op("Erf", f"{name}_erf", n.op("Div", f"{name}_div", x, n.constant(f"{name}.root2", np.sqrt(2))))
    y = n.op("Mul", f"{name}_mul", x, n.op("Add", f"{name}_add", y, n.constant(f"{name}.one", 1)))
    return n.op("Mul", f"{name}_half", y, n.constant(f"{name}.half", 0.5))


def _encoder(n, name, x, width, heads, mask=None):
    y = _attention(
        n, f"{name}_attention", n.norm(f"{name}_ln1", x, width, "LayerNormalization"), width, heads, mask
    )
    x = n.op("Add", f"{name}_add1", x, y)
    y = n.norm(f"{name}_ln2", x, width, "LayerNormalization")
    y = _gelu(n, f"{name}_gelu", n.dense(f"{name}_up", y, width, 2 * width, "MatMul"))
    return n.op("Add", f"{name}_add2", x, n.dense(f"{name}_down", y, 2 * width, width, "MatMul"))


def attention():
    n = Net("attention")
    return n.model(_attention(n, "self", n.input("tokens", "batch", 6, 16), 16, 2))


def vision_transformer():
    n = Net("vision_transformer")
    x = n.input("images", "batch", 3, 16, 16)
    patches = n.weight("patches.weight", 24, 3, 4, 4)
    x = n.op("Conv", "patches", x, patches, kernel_shape=[4, 4], strides=[4, 4])
    x = n.op("Reshape", "tokens", x, n.ints("tokens.shape", 0, 24, 16))
    x = n.op("Transpose", "rows", x, perm=[0, 2, 1])
    x = n.op("Add", "positions", x, n.weight("positions.weight", 1, 16, 24, fan_in=4))
    for index in range(2):
        x = _encoder(n, f"layer{index}", x, 24, 3)
    x = n.op("ReduceMean", "mean", n.norm("ln", x, 24, "LayerNormalization"), axes=[1], keepdims=0)
    return n.model(n.dense("head", x, 24, 10))


def tied_embeddings():
    """A language model: token numbers, a causal mask, and one matrix that embeds tokens and scores them."""
    n = Net("tied_embeddings")
    tokens = n.input("tokens", "batch", 8, dtype=TensorProto.INT64)
    embedding = n.weight("embedding", 40, 16, fan_in=16)
    x = n.op("Gather", "embed", embedding, tokens)
    mask = n.constant("mask", np.triu(np.full((8, 8), -1e4), 1))
    x = n.norm("ln", _encoder(n, "layer", x, 16, 2, mask), 16, "LayerNormalization")
    return n.model(n.op("MatMul", "scores", x, n.op("Transpose", "tied", embedding, perm=[1, 0])))


def detector():
    """Two heads over a small backbone, decoded to boxes and scores."""
    n = Net("detector")
    x = n.input("images", "batch", 3, 32, 32)
    silu = lambda name, x: n.op("Mul", f"{name}_silu", x, n.op("Sigmoid", f"{name}_sigmoid", x))  # noqa: E731
    x = silu("c1", n.conv("c1", x, 3, 8, 3, 2))
    fine = silu("c2", n.conv("c2", x, 8, 16, 3, 2))
    parts = n.op("Split", "split", fine, n.ints("split.sizes", 8, 8), axis=1, outputs=2)
    joined = n.op("Concat", "csp", parts[0], silu("c3", n.conv("c3", parts[1], 8, 8)), axis=1)
    coarse = silu("c4", n.conv("c4", joined, 16, 16, 3, 2))
    up = n.op("Resize", "up", coarse, "", n.constant("up.scales", [1, 1, 2, 2]), mode="nearest")
    fine = silu("c5", n.conv("c5", n.op("Concat", "neck", up, fine, axis=1), 32, 16, 1))
    heads = []
    for name, y, size in (("fine", fine, 8), ("coarse", coarse, 4)):
        y = n.conv(f"{name}_head", y, 16, 7, 1)
        heads.append(n.op("Reshape", f"{name}_flat", y, n.ints(f"{name}.shape", 0, 7, size * size)))
    y = n.op("Transpose", "rows", n.op("Concat", "heads", *heads, axis=2), perm=[0, 2, 1])
    centres, sizes, scores = n.op("Split", "parts", y, n.ints("parts.sizes", 2, 2, 3), axis=2, outputs=3)
    grid = n.constant("grid", n.random.integers(0, 8, (1, 80, 2)))
    centres = n.op(
        "Mul",
        "pixels",
        n.op("Add", "shifted", n.op("Sigmoid", "offset", centres), grid),
        n.constant("stride", 4),
    )
    sizes = n.op("Mul", "anchored", n.op("Exp", "exp", sizes), n.constant("anchors", 8))
    return n.model(n.op("Concat", "detections", centres, sizes, n.op("Sigmoid", "score", scores), axis=2))


def non_maximum_suppression():
    n = Net("non_maximum_suppression")
    x = n.op("Relu", "relu", n.conv("conv", n.input("images", 1, 3, 12, 12), 3, 8, 3, 2))
    boxes = n.op("Reshape", "boxes", n.conv("box", x, 8, 4, 1), n.ints("boxes.shape", 1, 36, 4))
    scores = n.op(
        "Reshape",
        "scores",
        n.op("Sigmoid", "score_sigmoid", n.conv("score", x, 8, 2, 1)),
        n.ints("scores.shape", 1, 2, 36),
    )
    limit = n.constant("limit", [3], np.int64)
    kept = n.op(
        "NonMaxSuppression", "nms", boxes, scores, limit, n.constant("iou", [0.5]), n.constant("least", [0.1])
    )
    return n.model(boxes, scores, kept, dtypes=[TensorProto.FLOAT, TensorProto.FLOAT, TensorProto.INT64])


def _recurrent(name, op_type, gates):
    n = Net(name)
    x = n.op("Relu", "relu", n.conv("conv", n.input("frames", "batch", 6, 12), 6, 10, 3, rank=1))
    x = n.op("Transpose", "steps", x, perm=[2, 0, 1])
    weights = [n.weight("rnn.w", 2, gates * 8, 10, fan_in=40), n.weight("rnn.r", 2, gates * 8, 8, fan_in=40)]
    more = {"linear_before_reset": 1} if op_type == "GRU" else {}
    y = n.op(
        op_type,
        "rnn",
        x,
        *weights,
        n.weight("rnn.b", 2, 2 * gates * 8, fan_in=40),
        hidden_size=8,
        direction="bidirectional",
        **more,
    )
    y = n.op("Transpose", "samples", y, perm=[2, 0, 1, 3])
    y = n.op("Reshape", "rows", y, n.ints("rows.shape", 0, 12, 16))
    return n.model(n.dense("head", y, 16, 5, "MatMul"))


def lstm():
    return _recurrent("lstm", "LSTM", 4)


def gru():
    return _recurrent("gru", "GRU", 3)


def state_lstm():
    """One step of an LSTM, whose states are inputs and outputs."""
    n = Net("state_lstm")
    x = n.input("step", "batch", 6)
    hidden, cell = n.input("hidden", 1, "batch", 8), n.input("cell", 1, "batch", 8)
    x = n.op("Unsqueeze", "time", n.op("Relu", "relu", n.dense("embed", x, 6, 10)), n.ints("axis", 0))
    weights = [
        n.weight("rnn.w", 1, 32, 10, fan_in=40),
        n.weight("rnn.r", 1, 32, 8, fan_in=40),
        n.weight("rnn.b", 1, 64, fan_in=40),
    ]
    _, next_hidden, next_cell = n.op("LSTM", "rnn", x, *weights, "", hidden, cell, hidden_size=8, outputs=3)
    y = n.op("Squeeze", "row", next_hidden, "axis")
    return n.model(n.dense("head", y, 8, 4), next_hidden, next_cell)


def half():
    """All in FP16, as exporters write it."""
    n = Net("half")
    x = n.input("images", "batch", 3, 12, 12, dtype=TensorProto.FLOAT16)
    n.conv("first", x, 3, 8)
    n.conv("second", n.op("Relu", "relu", "first_out"), 8, 4)
    n.constants = [
        numpy_helper.from_array(numpy_helper.to_array(c).astype(np.float16), c.name) for c in n.constants
    ]
    return n.model("second_out", dtype=TensorProto.FLOAT16)


def qat():
    """Trained with Q/DQ pairs, all as TensorRT wants them."""
    n = Net("qat")
    x = n.pair(n.input("images", "batch", 3, 12, 12), "images_pair", 0.02)
    for index, (channels, to) in enumerate(((3, 8), (8, 8))):
        name = f"conv{index}"
        weights = n.pair(
            n.weight(f"{name}.weight", to, channels, 3, 3), f"{name}.pair", np.full(to, 0.01), axis=0
        )
        x = n.op("Conv", name, x, weights, kernel_shape=[3, 3], pads=[1] * 4)
        x = n.pair(n.op("Relu", f"{name}_relu", x), f"{name}_pair", 0.03)
    x = n.op("Flatten", "flatten", n.op("GlobalAveragePool", "mean", x))
    return n.model(n.dense("fc", x, 8, 4))


def qat_asymmetric():
    """As ONNX Runtime writes it: uint8 with zero points, weights with one scale, no pair around the Add."""
    n = Net("qat_asymmetric")
    x = n.pair(n.input("images", "batch", 3, 12, 12), "images_pair", 0.02, dtype=np.uint8, zero=114)
    weights = n.pair(n.weight("conv.weight", 8, 3, 3, 3), "conv.pair", 0.01)
    x = n.op("Relu", "relu", n.op("Conv", "conv", x, weights, kernel_shape=[3, 3], pads=[1] * 4))
    x = n.pair(x, "relu_pair", 0.02, dtype=np.uint8)
    weights = n.pair(n.weight("second.weight", 8, 8, 3, 3), "second.pair", 0.01)
    y = n.op("Conv", "second", x, weights, kernel_shape=[3, 3], pads=[1] * 4)
    y = n.op("Add", "add", n.pair(y, "second_pair", 0.04, dtype=np.uint8, zero=128), x)
    return n.model(y)


def qat_zero_weights():
    """Weights in int8 with a DequantizeLinear alone, an activation with a scale per channel."""
    n = Net("qat_int8_weights")
    x = n.pair(n.input("x", "batch", 12), "x_pair", np.linspace(0.01, 0.03, 12), axis=1)
    integers = n.constant("fc.weight", n.random.integers(-127, 128, (8, 12)), np.int8)
    scale, zero = n.constant("fc.scale", np.full(8, 0.01)), n.constant("fc.zero", np.zeros(8), np.int8)
    weights = n.op("DequantizeLinear", "fc.dq", integers, scale, zero, axis=0)
    return n.model(n.op("Gemm", "fc", x, weights, transB=1))


def branches():
    """An If, whose branches read a tensor outside and hold layers themselves."""
    n = Net("branches")
    x = n.op("Relu", "relu", n.conv("conv", n.input("images", "batch", 3, 10, 10), 3, 6))
    mean = n.op("ReduceMean", "mean", x, keepdims=0)
    graphs = {}
    for name, kernel in (("then_branch", 3), ("else_branch", 1)):
        inner = Net(f"branches_{name}")
        y = inner.conv(f"{name}_conv", x, 6, 4, kernel)
        graphs[name] = helper.make_graph(
            inner.nodes,
            name,
            [],
            [helper.make_tensor_value_info(y, TensorProto.FLOAT, None)],
            inner.constants,
        )
    y = n.op("If", "choice", n.op("Greater", "bright", mean, n.constant("level", 0.4)), **graphs)
    return n.model(n.conv("last", y, 4, 4, 1))


def loop():
    """A Loop that refines a vector three times."""
    n = Net("loop")
    x = n.op("Relu", "relu", n.dense("first", n.input("x", "batch", 8), 8, 8))
    inner = Net("loop_body")
    for name, dtype in (("turn", TensorProto.INT64), ("go", TensorProto.BOOL), ("state", TensorProto.FLOAT)):
        inner.input(name, *([] if name != "state" else ["batch", 8]), dtype=dtype)
    y = inner.op("Tanh", "body_tanh", inner.dense("body", "state", 8, 8))
    go = inner.op("Identity", "body_go", "go")
    outputs = [
        helper.make_tensor_value_info(go, TensorProto.BOOL, []),
        helper.make_tensor_value_info(y, TensorProto.FLOAT, ["batch", 8]),
    ]
    body = helper.make_graph(inner.nodes, "body", inner.inputs, outputs, inner.constants)
    y = n.op("Loop", "loop", n.constant("turns", 3, np.int64), n.constant("always", True, bool), x, body=body)
    return n.model(n.dense("last", y, 8, 4))


def open_sizes():
    n = Net("open_sizes")
    x = n.input("images", "batch", 3, "height", "width")
    y = n.op("Relu", "relu", n.conv("first", x, 3, 8, 3, 2))
    up = n.op("Slice", "sizes", n.op("Shape", "shape", x), n.ints("from", 2), n.ints("to", 4))
    whole = n.op(
        "Concat",
        "whole",
        n.op("Slice", "front", n.op("Shape", "shape2", y), n.ints("zero", 0), n.ints("two", 2)),
        up,
        axis=0,
    )
    y = n.op("Resize", "resize", y, "", "", whole, mode="linear")
    return n.model(n.conv("second", y, 8, 2))


def several_inputs():
    n = Net("several_inputs")
    left, right = n.input("left", "batch", 3, 10, 10), n.input("right", "batch", 2, 10, 10)
    gain = n.input("gain", "batch", 1)
    x = n.op("Concat", "join", n.conv("left_conv", left, 3, 6), n.conv("right_conv", right, 2, 6), axis=1)
    gain = n.op(
        "Reshape",
        "gain_shape",
        n.op("Sigmoid", "gain_sigmoid", n.dense("gain_fc", gain, 1, 12)),
        n.ints("gain.shape", 0, 12, 1, 1),
    )
    x = n.op("Mul", "scaled", n.op("Relu", "relu", x), gain)
    return n.model(n.conv("out", x, 12, 4), n.op("Flatten", "flat", n.op("GlobalMaxPool", "top", x)))


def external_data():
    n = Net("external_data")
    x = n.op("Relu", "relu", n.dense("wide", n.input("x", "batch", 64), 64, 256))
    return n.model(n.dense("narrow", x, 256, 8))


def plugin():
    """A detection head of an operator that only a plugin of TensorRT knows."""
    n = Net("plugin")
    x = n.op("Relu", "relu", n.conv("conv", n.input("images", "batch", 3, 12, 12), 3, 8))
    boxes = n.op("Flatten", "boxes", n.conv("box", x, 8, 4, 1))
    scores = n.op("Sigmoid", "scores", n.op("Flatten", "flat", n.conv("score", x, 8, 2, 1)))
    kept = n.op("EfficientNMS_TRT", "nms", boxes, scores, domain="my.plugins", max_output_boxes=10)
    return n.model(kept, opsets=[("my.plugins", 1)])


def grouped():
    """Grouped convolutions with a channel shuffle between them."""
    n = Net("grouped")
    x = n.op("Relu", "relu1", n.conv("first", n.input("images", "batch", 4, 10, 10), 4, 12, 1, groups=2))
    x = n.op("Reshape", "split", x, n.ints("split.shape", 0, 2, 6, 10, 10))
    x = n.op(
        "Reshape",
        "merge",
        n.op("Transpose", "shuffle", x, perm=[0, 2, 1, 3, 4]),
        n.ints("merge.shape", 0, 12, 10, 10),
    )
    x = n.op("Relu", "relu2", n.conv("second", x, 12, 12, 3, groups=3))
    return n.model(n.conv("third", x, 12, 6, 1, groups=2))


def transposed():
    n = Net("transposed")
    x = n.op("Relu", "relu1", n.conv("down", n.input("images", "batch", 3, 12, 12), 3, 8, 3, 2))
    weights = n.weight("up.weight", 8, 6, 2, 2, fan_in=8)
    x = n.op(
        "Relu",
        "relu2",
        n.op(
            "ConvTranspose",
            "up",
            x,
            weights,
            n.weight("up.bias", 6, fan_in=400),
            kernel_shape=[2, 2],
            strides=[2, 2],
        ),
    )
    weights = n.weight("grouped.weight", 6, 2, 2, 2, fan_in=6)
    return n.model(n.op("ConvTranspose", "grouped", x, weights, kernel_shape=[2, 2], strides=[2, 2], group=2))


def grid_sample():
    """A spatial transformer: the network computes where to sample its features."""
    n = Net("grid_sample")
    x = n.input("images", "batch", 3, 12, 12)
    features = n.op("Relu", "relu", n.conv("features", x, 3, 8))
    grid = n.op("Tanh", "grid_tanh", n.conv("offsets", features, 8, 2, 3))
    grid = n.op("Transpose", "grid", grid, perm=[0, 2, 3, 1])
    y = n.op("GridSample", "sample", features, grid, align_corners=0, mode="bilinear")
    return n.model(n.conv("out", y, 8, 4))


def unet():
    n = Net("unet")
    x = n.op("Relu", "relu1", n.conv("enter", n.input("images", "batch", 1, 16, 16), 1, 8))
    y = n.op("AveragePool", "pool", x, kernel_shape=[2, 2], strides=[2, 2])
    y = n.op("Relu", "relu2", n.conv("middle", y, 8, 16))
    y = n.op(
        "Resize",
        "resize",
        y,
        "",
        n.constant("scales", [1, 1, 2, 2]),
        mode="linear",
        coordinate_transformation_mode="asymmetric",
    )
    y = n.op(
        "Pad",
        "pad",
        n.op("Concat", "skip", x, y, axis=1),
        n.ints("pads", 0, 0, 1, 1, 0, 0, 1, 1),
        n.constant("fill", 0),
    )
    weights = n.weight("join.weight", 8, 24, 3, 3)
    y = n.op("Relu", "relu3", n.op("Conv", "join", y, weights, kernel_shape=[3, 3]))
    return n.model(n.op("Sigmoid", "mask", n.conv("leave", y, 8, 2, 1)))


def contributed():
    """Opset 13 beside ONNX Runtime's own operators."""
    n = Net("contributed")
    x = n.dense("first", n.input("x", "batch", 16), 16, 24, "MatMul")
    x = n.op("Gelu", "gelu", x, domain="com.microsoft")
    x = n.op("FusedMatMul", "fused", x, n.weight("fused.weight", 12, 24), transB=1, domain="com.microsoft")
    return n.model(n.dense("last", x, 12, 4), opset=13, opsets=[("com.microsoft", 1)])


def old_opset():
    """Opset 9: bounds of Slice, Clip and Upsample are attributes or floats of their time."""
    n = Net("old_opset")
    x = n.op("Clip", "clip", n.conv("first", n.input("images", "batch", 3, 10, 10), 3, 8), min=0.0, max=6.0)
    x = n.op("Slice", "crop", x, starts=[1, 1], ends=[9, 9], axes=[2, 3])
    x = n.op("Upsample", "upsample", x, n.constant("scales", [1, 1, 2, 2]), mode="nearest")
    x = n.op("Dropout", "dropout", n.conv("second", x, 8, 4))
    return n.model(n.op("Squeeze", "squeeze", n.op("GlobalAveragePool", "mean", x), axes=[2, 3]), opset=9)


def new_opset():
    n = Net("new_opset")
    x = n.conv("first", n.input("images", "batch", 4, 8, 8), 4, 8)
    x = n.op(
        "Gelu",
        "gelu",
        n.op(
            "GroupNormalization",
            "norm",
            x,
            n.constant("g", np.linspace(0.5, 1.5, 8)),
            n.constant("b", np.zeros(8)),
            num_groups=2,
        ),
    )
    x = n.op(
        "ReduceMean",
        "mean",
        n.op("Mish", "mish", n.conv("second", x, 8, 6)),
        n.ints("axes", 2, 3),
        keepdims=0,
    )
    return n.model(n.dense("fc", x, 6, 3), opset=21)


def bytes_in():
    """Pixels as bytes, normalized within the network."""
    n = Net("bytes_in")
    x = n.op(
        "Cast", "cast", n.input("images", "batch", 10, 10, 3, dtype=TensorProto.UINT8), to=TensorProto.FLOAT
    )
    x = n.op(
        "Mul",
        "scale",
        n.op("Sub", "shift", x, n.constant("mean", [110, 115, 120])),
        n.constant("factor", [0.017, 0.018, 0.016]),
    )
    x = n.op("Relu", "relu", n.conv("conv", n.op("Transpose", "channels_first", x, perm=[0, 3, 1, 2]), 3, 8))
    x = n.op("ArgMax", "classes", n.conv("head", x, 8, 4, 1), axis=1)
    return n.model(x, dtype=TensorProto.INT64)


def local_response():
    """As AlexNet: LRN, a Slice in two halves, pooling and Flatten."""
    n = Net("local_response")
    x = n.op("Relu", "relu1", n.conv("conv1", n.input("images", "batch", 3, 14, 14), 3, 8))
    x = n.op("LRN", "lrn", x, size=5, alpha=0.2, beta=0.75, bias=1.0)
    x = n.op("MaxPool", "pool", x, kernel_shape=[2, 2], strides=[2, 2])
    halves = [
        n.op(
            "Slice",
            f"half{i}",
            x,
            n.ints(f"start{i}", 4 * i),
            n.ints(f"end{i}", 4 * i + 4),
            n.ints(f"axis{i}", 1),
        )
        for i in range(2)
    ]
    x = n.op("Concat", "join", *(n.conv(f"conv2{i}", half, 4, 4) for i, half in enumerate(halves)), axis=1)
    return n.model(n.dense("fc", n.op("Flatten", "flatten", x), 392, 5))


def super_resolution():
    n = Net("super_resolution")
    x = n.input("images", 1, 1, 12, 12)
    y = n.op(
        "PRelu",
        "prelu",
        n.conv("first", x, 1, 8),
        n.constant("slope", np.linspace(0, 0.4, 8).reshape(8, 1, 1)),
    )
    y = n.op("DepthToSpace", "shuffle", n.conv("second", y, 8, 4), blocksize=2)
    bigger = n.op("Resize", "bigger", x, "", n.constant("scales", [1, 1, 2, 2]), mode="nearest")
    return n.model(n.op("Add", "residual", y, bigger))


def normalizations():
    """Layer normalization written out, instance normalization, and a norm over channels."""
    n = Net("normalizations")
    x = n.norm(
        "instance", n.conv("conv", n.input("images", "batch", 3, 8, 8), 3, 8), 8, "InstanceNormalization"
    )
    x = n.op("Transpose", "last", n.op("Softplus", "softplus", x), perm=[0, 2, 3, 1])
    centred = n.op("Sub", "centre", x, n.op("ReduceMean", "mean", x, axes=[-1]))
    variance = n.op("ReduceMean", "variance", n.op("Pow", "square", centred, n.constant("two", 2)), axes=[-1])
    root = n.op("Sqrt", "root", n.op("Add", "safe", variance, n.constant("epsilon", 1e-5)))
    x = n.dense("fc", n.op("Div", "normal", centred, root), 8, 6, "MatMul")
    return n.model(n.op("LpNormalization", "unit", x, axis=-1, p=2))


def waveform():
    """Gated, dilated convolutions over time."""
    n = Net("waveform")
    x = n.conv("enter", n.input("wave", "batch", 1, 32), 1, 8, 1, rank=1)
    for index in range(2):
        gates = [
            n.op(
                op,
                f"{op.lower()}{index}",
                n.op(
                    "Conv",
                    f"{op.lower()}{index}_conv",
                    x,
                    n.weight(f"{op}{index}.weight", 8, 8, 3),
                    dilations=[2**index],
                    pads=[2**index] * 2,
                ),
            )
            for op in ("Tanh", "Sigmoid")
        ]
        x = n.op(
            "Add",
            f"add{index}",
            x,
            n.conv(f"mix{index}", n.op("Mul", f"gate{index}", *gates), 8, 8, 1, rank=1),
        )
    return n.model(n.conv("leave", x, 8, 2, 1, rank=1))


def volume():
    n = Net("volume")
    x = n.op("Relu", "relu", n.conv("first", n.input("volume", "batch", 1, 6, 6, 6), 1, 6, rank=3))
    x = n.conv(
        "second", n.op("AveragePool", "pool", x, kernel_shape=[2, 2, 2], strides=[2, 2, 2]), 6, 6, 1, rank=3
    )
    return n.model(n.dense("fc", n.op("Flatten", "flatten", x), 162, 3))


def functions():
    """A layer inside a function of the model's own."""
    n = Net("functions")
    x = n.conv("first", n.input("images", "batch", 3, 8, 8), 3, 6)
    x = n.op("ConvRelu", "called", x, n.weight("called.weight", 6, 6, 3, 3), domain="mine")
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["y"], name="inner_conv", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["y"], ["z"], name="inner_relu"),
    ]
    function = helper.make_function(
        "mine", "ConvRelu", ["x", "w"], ["z"], nodes, [helper.make_opsetid("", 17)]
    )
    return n.model(n.conv("last", x, 6, 2, 1), opsets=[("mine", 1)], functions=[function])


def einsum():
    n = Net("einsum")
    x = n.dense("first", n.input("x", "batch", 5, 8), 8, 8, "MatMul")
    y = n.op("Einsum", "scores", x, x, equation="bij,bkj->bik")
    y = n.op("Where", "masked", n.constant("keep", np.tri(5), bool), y, n.constant("away", -100.0))
    return n.model(n.op("MatMul", "mix", n.op("Softmax", "softmax", y, axis=-1), x))


@dataclass(frozen=True)
class Case:
    """A network, and the samples that it is calibrated with.

    Attributes:
        model: Makes the network.
        shapes: Input to the shape of its samples, without the number of samples.
        kinds: ``quantized`` has pairs already; ``equalize`` and ``sensitivity`` are also done, and ``auto``
            where one rule is clearly the best; with ``ties``, entropy and squared error have minima that are
            equal but for rounding.
        count: How many samples.
        cut_at: The tensors at which a part is cut off that only TensorRT can run.
    """

    model: Callable[[], onnx.ModelProto]
    shapes: dict[str, tuple[int, ...]]
    kinds: frozenset[str] = frozenset()
    count: int = 12
    cut_at: tuple[str, ...] = ()

    @property
    def name(self):
        return self.model.__name__

    def network(self):
        return self.model()

    def samples(self, seed=0):
        """Input to its samples, or a list of samples where their sizes differ."""
        random = np.random.default_rng([zlib.crc32(self.name.encode()), seed])
        if self.name == "open_sizes":
            sizes = [(10, 12), (10, 12), (14, 8), (12, 12)]
            return [{"images": random.standard_normal((1, 3, *size)).astype(np.float32)} for size in sizes]
        if self.name == "state_lstm":
            feeds = {"step": (1, 6), "hidden": (1, 1, 8), "cell": (1, 1, 8)}
            return [
                {name: random.standard_normal(shape).astype(np.float32) for name, shape in feeds.items()}
                for _ in range(self.count)
            ]
        return {name: self._values(random, name, shape) for name, shape in self.shapes.items()}

    def _values(self, random, name, shape):
        shape = (self.count, *shape)
        if name == "tokens" and self.name == "tied_embeddings":
            return random.integers(0, 40, shape)
        if self.name == "bytes_in":
            return random.integers(0, 256, shape, np.uint8)
        values = random.standard_normal(shape)
        return values.astype(np.float16 if self.name == "half" else np.float32)


#: A folder with trained networks and images of CIFAR-10, which the project does not contain, as in tests/gpu:
#: ``resnet20.onnx`` (input ``input``, N x 3 x 32 x 32), ``calibration.npz`` and ``heldout.npz``.
CIFAR10 = os.environ.get("TRTINT8_CIFAR10")


@dataclass(frozen=True)
class TrainedCase(Case):
    """A trained network of CIFAR-10, by the name of its file."""

    @property
    def name(self):
        return f"cifar10_{self.model}"

    def network(self):
        return onnx.load(Path(CIFAR10, f"{self.model}.onnx"))

    def samples(self, seed=0):
        name = "heldout.npz" if seed else "calibration.npz"
        images = np.load(Path(CIFAR10, name))["images"][: self.count].astype(np.float32) / 255
        mean, std = np.float32([0.485, 0.456, 0.406]), np.float32([0.229, 0.224, 0.225])
        return {"input": np.ascontiguousarray(((images - mean) / std).transpose(0, 3, 1, 2))}


def _case(model, kinds="", count=12, cut_at=(), **shapes):
    return Case(model, shapes, frozenset(kinds.split()), count, cut_at)


CASES = {
    case.name: case
    for case in (
        _case(three_nodes, "equalize sensitivity", images=(3, 12, 12)),
        _case(resnet, "equalize sensitivity auto ties", images=(3, 16, 16)),
        _case(mobilenet, "ties", images=(3, 32, 32)),
        _case(depthwise, "equalize sensitivity auto", images=(4, 10, 10)),
        _case(squeeze_excite, "auto", images=(3, 12, 12)),
        _case(perceptron, "equalize sensitivity", x=(20,)),
        _case(attention, "sensitivity auto", tokens=(6, 16)),
        _case(vision_transformer, "ties", images=(3, 16, 16)),
        _case(tied_embeddings, "sensitivity ties", tokens=(8,)),
        _case(detector, "", images=(3, 32, 32), count=6),
        _case(non_maximum_suppression, "", images=(3, 12, 12)),
        _case(lstm, "sensitivity auto", frames=(6, 12)),
        _case(gru, "", frames=(6, 12)),
        _case(state_lstm, "", step=(6,), hidden=(8,), cell=(8,)),
        _case(half, "auto", images=(3, 12, 12)),
        _case(qat, "quantized", images=(3, 12, 12)),
        _case(qat_asymmetric, "quantized", images=(3, 12, 12)),
        _case(qat_zero_weights, "quantized", x=(12,)),
        _case(branches, "auto", images=(3, 10, 10)),
        _case(loop, "auto", x=(8,)),
        _case(open_sizes, "", images=()),
        _case(several_inputs, "equalize ties", left=(3, 10, 10), right=(2, 10, 10), gain=(1,)),
        _case(external_data, "auto", x=(64,)),
        _case(plugin, "", images=(3, 12, 12), cut_at=("boxes_out", "scores_out")),
        _case(grouped, "equalize", images=(4, 10, 10)),
        _case(transposed, "auto", images=(3, 12, 12)),
        _case(grid_sample, "", images=(3, 12, 12)),
        _case(unet, "", images=(1, 16, 16)),
        _case(contributed, "auto", x=(16,)),
        _case(old_opset, "auto", images=(3, 10, 10)),
        _case(new_opset, "", images=(4, 8, 8)),
        _case(bytes_in, "", images=(10, 10, 3)),
        _case(local_response, "", images=(3, 14, 14)),
        _case(super_resolution, "", images=(1, 12, 12)),
        _case(normalizations, "", images=(3, 8, 8)),
        _case(waveform, "", wave=(1, 32)),
        _case(volume, "", volume=(1, 6, 6, 6)),
        _case(functions, "", images=(3, 8, 8)),
        _case(einsum, "", x=(5, 8)),
    )
}

#: Networks that are looked at where the folder is there.
TRAINED = {
    case.name: case
    for case in (TrainedCase(name, {}, frozenset(["ties"])) for name in ("resnet20", "resnet56"))
}
