"""Tiny networks with the parts of transformers, and factors for their channels."""

import numpy as np
from onnx import helper

from tests.trtint8.onnx_models import Shaped
from tests.trtint8.tuning.networks import normal, prepared, run
from trtint8.equalization.following.constants import shapes_of_samples
from trtint8.equalization.following.follow import follow_channels
from trtint8.equalization.forms import apply_factors

#: The ways in which :class:`Blocks` normalizes.
NORMS = ("layer_norm", "layer_norm_by_parts", "rms_norm")

TOKENS, HEADS, WIDTH = 3, 2, 4
SIZE = HEADS * WIDTH


class Blocks(Shaped):
    """A graph with the parts of transformers; every method returns the name of the tensor that it made.

    Tensors are of shape (N, tokens, size).
    """

    def __init__(self, seed=0):
        super().__init__(quantized=False)
        self.random = np.random.default_rng(seed)

    def vector(self, *shape):
        return self.constant(self.random.uniform(0.5, 2, shape).astype(np.float32))

    def integers(self, *values):
        return self.constant(np.array(values, np.int64))

    def linear(self, x, before, after, name, bias=True):
        x = self.op("MatMul", [x, self.weights(before, after)], name)
        return self.op("Add", [self.weights(after), x], f"{name}_bias") if bias else x

    def layer_norm(self, x, name, size=SIZE):
        return self.op("LayerNormalization", [x, self.vector(size), self.vector(size)], name)

    def layer_norm_by_parts(self, x, name, size=SIZE):
        mean = self.op("ReduceMean", [x], f"{name}_mean", axes=[-1])
        centred = self.op("Sub", [x, mean], f"{name}_centred")
        squares = self.op("Mul", [centred, centred], f"{name}_squares")
        variance = self.op("ReduceMean", [squares], f"{name}_variance", axes=[-1])
        stable = self.op("Add", [variance, self.constant(np.float32(1e-5))], f"{name}_stable")
        x = self.op("Div", [centred, self.op("Sqrt", [stable], f"{name}_root")], f"{name}_normal")
        x = self.op("Mul", [x, self.vector(size)], f"{name}_gamma")
        return self.op("Add", [x, self.vector(size)], f"{name}_beta")

    def rms_norm(self, x, name, size=SIZE):
        squares = self.op("Mul", [x, x], f"{name}_squares")
        mean = self.op("ReduceMean", [squares], f"{name}_mean", axes=[-1])
        stable = self.op("Add", [mean, self.constant(np.float32(1e-5))], f"{name}_stable")
        one = self.constant(np.float32(1))
        x = self.op(
            "Mul",
            [x, self.op("Div", [one, self.op("Sqrt", [stable], f"{name}_r")], f"{name}_i")],
            f"{name}_n",
        )
        return self.op("Mul", [self.vector(size), x], f"{name}_gamma")

    def scaled(self, x, name):
        """A product with constants, which produces channels as a normalization does."""
        return self.op("Mul", [x, self.vector(SIZE)], name)

    def halves(self, x, name):
        """The first half of the channels, and the second."""
        names = [f"{name}_first_half", f"{name}_second_half"]
        self.nodes.append(helper.make_node("Split", [x], names, name=f"{name}_split", axis=-1))
        return names

    def slices(self, x, name):
        """Half of the channels from the end to the front, and half of them with some of the former."""
        return tuple(
            self.op("Slice", [x, *(self.integers(value) for value in (*ends, 2, step))], f"{name}_at_{step}")
            for *ends, step in ((SIZE, SIZE // 2 - 1, -1), (0, SIZE, 2))
        )

    def gathers(self, x, name):
        """Any half of the channels, twice."""
        return tuple(
            self.op("Gather", [x, self.integers(*self.random.permutation(SIZE)[: SIZE // 2])], part, axis=2)
            for part in (f"{name}_some", f"{name}_others")
        )

    def heads(self, x, heads, name, perm=(0, 2, 1, 3)):
        shape = self.integers(0, 0, heads, WIDTH)
        x = self.op("Reshape", [x, shape], f"{name}_split")
        return self.op("Transpose", [x], f"{name}_heads", perm=list(perm))

    def separate(self, x, name, kv_heads=HEADS):
        """Queries, keys and values of layers of their own."""
        return tuple(
            self.linear(x, SIZE, heads * WIDTH, f"{name}_{part}")
            for part, heads in (("q", HEADS), ("k", kv_heads), ("v", kv_heads))
        )

    def fused_split(self, x, name):
        x = self.linear(x, SIZE, 3 * SIZE, f"{name}_qkv")
        names = [f"{name}_{part}_out" for part in "qkv"]
        sizes = self.integers(SIZE, SIZE, SIZE)
        self.nodes.append(helper.make_node("Split", [x, sizes], names, name=f"{name}_split", axis=-1))
        return names

    def fused_slices(self, x, name):
        x = self.linear(x, SIZE, 3 * SIZE, f"{name}_qkv")
        return tuple(
            self.op(
                "Slice",
                [x, self.integers(at * SIZE), self.integers((at + 1) * SIZE), self.integers(-1)],
                f"{name}_{part}",
            )
            for at, part in enumerate("qkv")
        )

    def fused_gathers(self, x, name):
        x = self.linear(x, SIZE, 3 * SIZE, f"{name}_qkv")
        x = self.op("Reshape", [x, self.integers(0, 0, 3, SIZE)], f"{name}_three")
        return tuple(
            self.op("Gather", [x, self.constant(np.int64(at))], f"{name}_{part}", axis=2)
            for at, part in enumerate("qkv")
        )

    def attention(self, q, k, v, name, kv_heads=HEADS):
        q = self.heads(q, HEADS, f"{name}_q")
        k = self.heads(k, kv_heads, f"{name}_k", (0, 2, 3, 1))
        v = self.heads(v, kv_heads, f"{name}_v")
        if kv_heads < HEADS:
            k, v = self.repeated(k, f"{name}_k"), self.repeated(v, f"{name}_v")
        q = self.op("Mul", [q, self.constant(np.float32(WIDTH**-0.5))], f"{name}_scaled")
        p = self.op("Softmax", [self.op("MatMul", [q, k], f"{name}_scores")], f"{name}_softmax")
        x = self.op("MatMul", [p, v], f"{name}_mixed")
        x = self.op("Transpose", [x], f"{name}_tokens", perm=[0, 2, 1, 3])
        return self.op("Reshape", [x, self.integers(0, 0, SIZE)], f"{name}_joined")

    def rotated(self, x, name):
        """Rotary positions on (N, tokens, size): the first half of the channels is mixed with the second."""
        angles = self.random.uniform(0, 2 * np.pi, (1, TOKENS, SIZE // 2)).astype(np.float32)
        cos, sin = (self.constant(np.concatenate([of(angles)] * 2, axis=2)) for of in (np.cos, np.sin))
        parts = [
            self.op(
                "Slice",
                [x, self.integers(at), self.integers(at + SIZE // 2), self.integers(2)],
                f"{name}_part{at}",
            )
            for at in (0, SIZE // 2)
        ]
        negative = self.op("Neg", [parts[1]], f"{name}_negative")
        turned = self.op("Concat", [negative, parts[0]], f"{name}_turned", axis=2)
        products = [
            self.op("Mul", [values, factor], f"{name}_{part}")
            for values, factor, part in ((x, cos, "cos"), (turned, sin, "sin"))
        ]
        return self.op("Add", products, f"{name}_rotated")

    def gated(self, x, size, name, fused):
        """What a gated layer computes before its last product with weights."""
        if fused:
            x = self.linear(x, SIZE, 2 * size, f"{name}_both")
            gate, up = f"{name}_gate_out", f"{name}_up_out"
            sizes = self.integers(size, size)
            self.nodes.append(helper.make_node("Split", [x, sizes], [gate, up], name=f"{name}_split", axis=2))
        else:
            gate, up = (self.linear(x, SIZE, size, f"{name}_{part}") for part in ("gate", "up"))
        gate = self.op("Mul", [gate, self.op("Sigmoid", [gate], f"{name}_sigmoid")], f"{name}_silu")
        return self.op("Mul", [gate, up], f"{name}_gated")

    def repeated(self, x, name):
        """One head for all queries."""
        return self.op("Concat", [x] * HEADS, f"{name}_repeated", axis=1)

    def attending(self, kind, kv_heads=HEADS):
        """A network of one attention, whose queries, keys and values are made in one of the ways."""
        parts = self.separate("x", "a", kv_heads) if kind == "separate" else getattr(self, kind)("x", "a")
        x = self.attention(*parts, "a", kv_heads)
        return self.finish(self.linear(x, SIZE, SIZE, "projection"))

    def finish(self, output):
        return prepared(self.model({"x": ["N", TOKENS, SIZE]}, output))


def followed(model, feed):
    return follow_channels(model, shapes_of_samples(model, feed))


def with_random_factors(model, channels, seed):
    """The model with a random factor for every class of channels, and how many classes there are."""
    random = np.random.default_rng(seed)
    factors = 10 ** random.uniform(-2, 2, len(channels.representatives))
    factors[0] = 1
    copy = model.clone()
    apply_factors(copy, channels, factors)
    classes = np.unique(channels.representatives)
    return copy, len(classes[classes != 0])


def samples(count=2, seed=0):
    return {"x": normal(count, TOKENS, SIZE, seed=seed)}


def assert_same(model, other, feed):
    for before, after in zip(run(model, feed), run(other, feed), strict=True):
        np.testing.assert_allclose(after, before, rtol=1e-5, atol=1e-5 * np.abs(before).max())


def check(model, feed, classes):
    """Factors of 0.01 to 100 for all classes of channels leave the outputs as they are."""
    channels = followed(model, feed)
    other, count = with_random_factors(model, channels, 0)
    assert count == classes
    assert_same(model, other, feed)
    return channels
