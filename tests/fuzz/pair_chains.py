"""Random quantized models: chains of pairs, movements, Clips and layers, with weights in many forms."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

#: Element type and zero point of a pair; those that TensorRT can have more often.
_KINDS: list[tuple[Any, int]] = [
    *[(np.int8, 0)] * 4,
    *[(np.uint8, 128)] * 2,
    (np.uint8, 0),
    (np.uint8, 100),
    (np.int8, -128),
    (np.int8, 20),
    (np.int16, 0),
    (ml_dtypes.int4, 0),
    (ml_dtypes.uint4, 8),
]

_WIDTH = 8


@dataclass(frozen=True, repr=False)
class Chain:
    """A quantized model and inputs for it.

    Attributes:
        model: The model, with one input ``x`` and one output ``y``.
        feeds: Inputs within the ranges of most pairs, and far outside of them.
    """

    model: onnx.ModelProto
    feeds: list[dict[str, NDArray[np.generic]]]

    def __repr__(self) -> str:
        return f"<Chain: {' '.join(node.op_type for node in self.model.graph.node)}>"


@dataclass
class _Builder:
    draw: st.DrawFn
    rng: np.random.Generator
    rank: int
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: dict[str, NDArray[Any]] = field(default_factory=dict)

    def op(self, operator: str, *inputs: str, name: str = "", **attributes: Any) -> str:
        name = name or f"{operator}{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, list(inputs), [f"{name}_out"], name=name, **attributes))
        return f"{name}_out"

    def constant(self, array: Any) -> str:
        """A constant: an initializer, or what a node makes of some."""
        array = np.asarray(array)
        name = f"constant{len(self.constants)}"
        known = array.dtype in (np.float32, np.int8, np.uint8)  # ONNX Runtime moves no integers of 4 bits
        form = self.draw(st.integers(0, 9)) if known else 9
        self.constants[name] = array
        if form == 0:
            return self.op("Identity", name)
        if form == 1:
            self.constants[name] = array.reshape(-1)
            return self.op("Reshape", name, self.raw(np.array(array.shape, np.int64)))
        if form == 2 and array.dtype == np.float32:
            self.constants[name] = array * np.float32(2)
            return self.op("Div", name, self.raw(np.float32(2)))
        return name

    def raw(self, array: Any) -> str:
        name = f"constant{len(self.constants)}"
        self.constants[name] = np.asarray(array)
        return name

    def choose(self, *choices: Any) -> Any:
        return self.draw(st.sampled_from(choices))

    def scale(self) -> np.float32:
        return np.float32(self.draw(st.sampled_from([0.004, 0.011, 0.02, 0.025, 0.04, 6 / 255, 0.07])))

    def pair(self, x: str, wide: bool = False) -> str:
        """A pair of any kind, perhaps with a Clip or a movement of its integers between both nodes.

        Args:
            x: What it reads.
            wide: Whether that is wider than the chain.
        """
        dtype, zero = self.choose(*_KINDS)
        scale, axis = self.scale() / np.float32(256 if dtype == np.int16 else 1), {}
        scales, zeros = np.asarray(scale), np.asarray(zero, dtype)
        if not wide and self.choose(*[False] * 9, True):
            count = _WIDTH if self.rank == 2 else 4
            scales = (scale * self.rng.uniform(0.5, 2, count)).astype(np.float32)
            zeros, axis = np.full(count, zero).astype(dtype), {"axis": 1}
        s, z = self.constant(scales), self.constant(zeros)
        q = self.op("QuantizeLinear", x, s, z, **axis)
        between = self.choose(*[None] * 5, "clip", "clip", "move")
        if between == "clip" and not axis and dtype in (np.int8, np.uint8):
            ends = np.iinfo(dtype)
            low, high = sorted(self.rng.integers(ends.min, ends.max + 1, 2).tolist())
            low, high = self.choose((low, high), (ends.min + 1, ends.max), (max(zero, ends.min), ends.max))
            q = self.op("Clip", q, self.constant(dtype(low)), self.constant(dtype(high)))
        elif between == "move" and not axis and not wide and dtype in (np.int8, np.uint8):
            q = self.moved(q)
        return self.op("DequantizeLinear", q, s, z, **axis)

    def moved(self, x: str) -> str:
        """A movement that keeps the shape."""
        form = self.choose("Reshape", "Identity", "Pad", "Split", "Tile", "image", "image")
        last = self.rank - 1
        if form == "Pad":
            pads = np.array([*[0] * last, 1, *[0] * self.rank])
            mode = self.choose("constant", "constant", "edge")
            return self.cut(self.op("Pad", x, self.raw(pads), mode=mode), 0)
        if form == "Split":
            name = f"Split{len(self.nodes)}"
            halves = [f"{name}_{half}" for half in "ab"]
            self.nodes.append(helper.make_node("Split", [x], halves, name=name, axis=1, num_outputs=2))
            return self.op("Concat", *reversed(halves), axis=1)
        if form == "Tile":
            return self.cut(self.op("Tile", x, self.raw(np.array([1] * last + [2]))), 3)
        if form == "image" and self.rank == 4:
            if self.choose(True, False):
                return self.op("MaxPool", x, kernel_shape=[3, 3], pads=[1] * 4)
            return self.op("Transpose", x, perm=[0, 1, 3, 2])
        return (
            self.op("Identity", x)
            if form == "Identity"
            else self.op("Reshape", x, self.raw([0] * last + [-1]))
        )

    def cut(self, x: str, start: int) -> str:
        """As much of the last axis of a larger tensor as the chain is wide."""
        ends = start, start + (_WIDTH if self.rank == 2 else 6), self.rank - 1
        return self.op("Slice", x, *(self.raw(np.array([end])) for end in ends))

    def elementwise(self, x: str) -> str:
        form = self.choose("Relu", "Relu", "Clip", "Tanh", "Sigmoid", "Add", "Mul", "moved")
        if form == "Clip":
            return self.op("Clip", x, self.raw(np.float32(-0.6)), self.raw(np.float32(1.3)))
        if form in ("Add", "Mul"):
            return self.op(form, x, self.raw(np.float32(self.choose(0.25, 1.5, -0.5))))
        return self.moved(x) if form == "moved" else self.op(form, x)

    def layer(self, x: str) -> str:
        if self.choose(*[True] * 5, False):
            x = self.pair(x)
        if self.rank == 2:
            operator, axis = self.choose(("MatMul", 1), ("Gemm", 1), ("Gemm", 0))
            weights = self.weights((_WIDTH, _WIDTH), axis)
            attributes = {"transB": 1} if axis == 0 else {}
            return self.op(operator, x, weights, **attributes)
        kernel = self.choose(1, 3)
        weights = self.weights((4, 4, kernel, kernel), 0)
        return self.op("Conv", x, weights, pads=[kernel // 2] * 4, kernel_shape=[kernel] * 2)

    def weights(self, shape: tuple[int, ...], axis: int) -> str:
        """Weights: stored as integers, float behind a pair, float on a grid, or float, perhaps moved."""
        form = self.choose("stored", "stored", "pair", "pair", "grid", "float")
        size = self.choose("tensor", "channel", "channel")
        kind = self.choose((np.int8, 0), (np.int8, 0), (np.uint8, 128), (np.int8, 5), (ml_dtypes.int4, 0))
        dtype, zero = kind if form in ("stored", "pair") else (np.int8, 0)
        ends = (-7, 7) if dtype == ml_dtypes.int4 else (-127, 127)
        along = self.choose(axis, axis, axis, 1 - axis) if form in ("stored", "pair") else axis
        count = () if size == "tensor" else (shape[along],)
        scale = self.rng.uniform(0.3, 1, count).astype(np.float32) / np.float32(ends[1])
        spread = (
            scale.reshape([-1 if index == along else 1 for index in range(len(shape))]) if count else scale
        )
        steps = self.rng.integers(ends[0], ends[1] + 1, shape)
        values = (steps * spread).astype(np.float32)
        if form == "float":
            return self.constant(self.rng.normal(size=shape).astype(np.float32))
        if form == "grid":
            return self.after(self.constant(values), shape)
        attributes = {"axis": along} if count else {}
        s, z = self.constant(scale), self.constant(np.full(count, zero).astype(dtype))
        if form == "stored":
            low, high = (-128, 127) if dtype == np.int8 else (0, 255) if dtype == np.uint8 else (-8, 7)
            q = self.constant(np.clip(steps + zero, low, high).astype(dtype))
        else:
            noise = self.rng.uniform(-0.4, 0.4, shape).astype(np.float32) * spread
            stretch = np.float32(self.choose(1, 1, 1.5))  # some weights lie outside of the pair
            q = self.op("QuantizeLinear", self.constant((values + noise) * stretch), s, z, **attributes)
            if dtype == np.int8 and self.choose(True, False):
                q = self.op("Clip", q, self.raw(np.int8(-127)), self.raw(np.int8(127)))
        return self.after(self.op("DequantizeLinear", q, s, z, **attributes), shape)

    def after(self, weights: str, shape: tuple[int, ...]) -> str:
        """Weights that are moved, or multiplied by constants."""
        form = self.choose(None, None, None, "Reshape", "Unsqueeze", "Gather", "Mul", "Transpose", "Identity")
        if form == "Reshape":
            flat = self.op("Reshape", weights, self.raw([-1]))
            return self.op("Reshape", flat, self.raw(np.array(shape)))
        if form == "Unsqueeze":
            wide = self.op("Unsqueeze", weights, self.raw([0]))
            return self.op("Squeeze", wide, self.raw([0]))
        if form == "Gather":
            return self.op("Gather", weights, self.raw(self.rng.permutation(shape[0])), axis=0)
        if form == "Mul":
            return self.op("Mul", weights, self.raw(np.float32(self.choose(0.5, 0.37, -1.5))))
        if form == "Transpose":
            perm = [1, 0, *range(2, len(shape))]
            return self.op("Transpose", self.op("Transpose", weights, perm=perm), perm=perm)
        return self.op("Identity", weights) if form == "Identity" else weights

    def step(self, x: str) -> str:
        form = self.choose(
            "pair", "pair", "pairs", "layer", "layer", "elementwise", "elementwise", "join", "residual"
        )
        if form == "pair":
            return self.pair(x)
        if form == "pairs":
            return self.pair(self.pair(x))
        if form == "layer":
            return self.layer(x)
        if form == "elementwise":
            return self.elementwise(x)
        if form == "residual":
            x = self.choose(x, self.pair(x))
            return self.op("Add", x, self.layer(x))
        return self.op("Add", self.pair(x), self.pair(x))

    def concat(self, x: str) -> str:
        """Two pairs side by side, perhaps one of a constant, and a layer that reads both."""
        other = self.elementwise(x)
        if self.choose(True, False, False):
            shape = (16, _WIDTH) if self.rank == 2 else (2, 4, 6, 6)
            other = self.raw(self.rng.normal(size=shape).astype(np.float32))
        joined = self.op("Concat", self.pair(x), self.pair(other), axis=1)
        if self.choose(True, False):
            joined = self.pair(joined, wide=True)
        if self.rank == 2:
            return self.op("MatMul", joined, self.weights((2 * _WIDTH, _WIDTH), 1))
        weights = self.weights((4, 8, 1, 1), 0)
        return self.op("Conv", joined, weights, kernel_shape=[1, 1])


@st.composite
def chains(draw: st.DrawFn) -> Chain:
    """A random chain and its inputs."""
    seed = draw(st.integers(0, 1 << 16))
    b = _Builder(draw, np.random.default_rng(seed), draw(st.sampled_from([2, 4])))
    x, shape = "x", (16, _WIDTH) if b.rank == 2 else (2, 4, 6, 6)
    integers = draw(st.integers(0, 9)) == 0
    if integers:
        x = b.op("DequantizeLinear", x, b.raw(b.scale()), b.raw(np.int8(0)))
    for _ in range(draw(st.integers(1, 4))):
        x = b.step(x)
    if draw(st.integers(0, 4)) == 0:
        x = b.concat(x)
    if draw(st.booleans()):
        x = b.pair(b.layer(x))
    b.nodes[-1].output[0] = "y"
    model = _model(b, shape, integers, draw(st.integers(0, 4)) == 0)
    rng = b.rng
    if integers:
        feeds = [{"x": rng.integers(-128, 128, shape).astype(np.int8)}]
    else:
        inside, outside = (rng.normal(size=shape).astype(np.float32) * np.float32(size) for size in (0.4, 6))
        feeds = [{"x": inside}, {"x": outside}]
    return Chain(model, feeds)


def _model(b: _Builder, shape: tuple[int, ...], integers: bool, in_function: bool) -> onnx.ModelProto:
    """The model, whose nodes may be those of a function of its own."""
    element = TensorProto.INT8 if integers else TensorProto.FLOAT
    inputs = [helper.make_tensor_value_info("x", element, ["N", *shape[1:]])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * b.rank)]
    stored = [numpy_helper.from_array(array, name) for name, array in b.constants.items()]
    opsets, functions, nodes = [helper.make_opsetid("", 21)], [], b.nodes
    if in_function:
        names = ["x", *b.constants]
        functions = [helper.make_function("own", "chain", names, ["y"], b.nodes, opsets)]
        opsets = [*opsets, helper.make_opsetid("own", 1)]
        nodes = [helper.make_node("chain", names, ["y"], name="call", domain="own")]
    graph = helper.make_graph(nodes, "chain", inputs, outputs, stored)
    return helper.make_model(graph, opset_imports=opsets, functions=functions, ir_version=10)
