"""Attention in the forms in which exporters write it."""

from __future__ import annotations

import numpy as np

from tests.trtint8.onnx_models import Shaped


class AttentionGraph(Shaped):
    """A graph with attention on ``x`` of shape (N, length, heads * head).

    Args:
        length: The number of queries, and of keys where ``keys`` is not given; a name where it is not fixed.
        head: Channels per head.
        heads: The number of heads.
        keys: The number of keys; they are made of a second input, ``y``.
    """

    def __init__(self, length=8, head=16, heads=2, keys=None):
        super().__init__()
        self.length, self.head, self.heads, self.keys = length, head, heads, keys or length
        self.inputs = {"x": ["N", length, heads * head]}
        if keys:
            self.inputs["y"] = ["N", keys, heads * head]

    @property
    def width(self):
        return self.heads * self.head

    def split(self, source, name, perm=(0, 2, 1, 3), heads=None):
        """A linear layer, cut into heads."""
        heads = heads or self.heads
        linear = self.MatMul(f"{name}_linear", source, self.weights(self.width, heads * self.head))
        cut = self.Reshape(f"{name}_cut", linear, self.constant(np.array([0, 0, heads, self.head])))
        return self.Transpose(f"{name}_heads", cut, perm=list(perm))

    def queries(self):
        return self.split("x", "q")

    def transposed_keys(self):
        return self.split("y" if "y" in self.inputs else "x", "k", (0, 2, 3, 1))

    def values(self):
        return self.split("y" if "y" in self.inputs else "x", "v")

    def scale(self, value, name, operator="Mul"):
        return self.op(operator, [value, self.constant(np.float32(2))], name)

    def scores(self, queries=None, keys=None):
        return self.MatMul("scores", queries or self.queries(), keys or self.transposed_keys())

    def softmax(self, scores):
        return self.Softmax("softmax", scores, axis=-1)

    def context(self, softmax, values=None):
        return self.MatMul("context", softmax, values or self.values())

    def joined(self, context):
        """The heads, side by side again."""
        turned = self.Transpose("turn", context, perm=[0, 2, 1, 3])
        return self.Reshape("join", turned, self.constant(np.array([0, 0, self.width])))

    def out(self, context):
        return self.MatMul("out_linear", self.joined(context), self.weights(self.width, 32))

    def finish(self, context):
        """The model, with a linear layer behind the attention."""
        return self.model(self.inputs, self.out(context))


def plain(**sizes):
    g = AttentionGraph(**sizes)
    return g.finish(g.context(g.softmax(g.scores())))


def scaled_after():
    g = AttentionGraph()
    return g.finish(g.context(g.softmax(g.scale(g.scores(), "scale", "Div"))))


def scaled_before():
    """As PyTorch writes it: the root of the scale on both sides."""
    g = AttentionGraph()
    queries, keys = g.scale(g.queries(), "scale_q"), g.scale(g.transposed_keys(), "scale_k")
    return g.finish(g.context(g.softmax(g.scores(queries, keys))))


def added_mask():
    g = AttentionGraph()
    g.inputs["mask"] = ["N", 1, 1, g.length]
    return g.finish(g.context(g.softmax(g.Add("mask_add", "mask", g.scores()))))


def constant_mask():
    g = AttentionGraph()
    mask = g.constant(np.triu(np.full((g.length, g.length), -1e4, np.float32), 1))
    return g.finish(g.context(g.softmax(g.Add("mask_add", g.scores(), mask))))


def chosen_mask():
    """A boolean mask, which a Where applies."""
    g = AttentionGraph()
    mask = g.constant(np.tril(np.ones((g.length, g.length), bool)))
    low = g.constant(np.float32(-1e4))
    return g.finish(g.context(g.softmax(g.Where("mask_where", mask, g.scores(), low))))


def windows():
    """As Swin writes it: a bias, and a mask per window, for which the scores get a dimension more."""
    g = AttentionGraph()
    g.inputs = {"x": [4, g.length, g.width]}
    biased = g.Add("bias_add", g.scores(), g.weights(1, g.heads, g.length, g.length))
    more = g.constant(np.array([1, 4, g.heads, g.length, g.length]))
    mask = g.weights(1, 4, 1, g.length, g.length)
    masked = g.Add("mask", g.Reshape("more", biased, more), mask)
    less = g.constant(np.array([-1, g.heads, g.length, g.length]))
    return g.finish(g.context(g.softmax(g.Reshape("less", masked, less))))


def grouped_heads():
    """One head of keys and values for all heads of queries: repeated by an Expand."""
    g = AttentionGraph()

    def repeated(source, name):
        one = g.split("x", source, heads=1)
        size = g.constant(np.array([1, g.heads, g.length, g.head]))
        return g.Expand(name, one, size)

    keys = g.Transpose("turn_k", repeated("k", "repeat_k"), perm=[0, 1, 3, 2])
    return g.finish(g.context(g.softmax(g.scores(keys=keys)), repeated("v", "repeat_v")))


def guarded(choose=None):
    """As PyTorch 2.13 writes it for masks that may hide everything: NaN becomes zero."""
    g = AttentionGraph()
    g.inputs["mask"] = ["N", 1, 1, g.length]
    mask = choose(g) if choose else "mask"
    softmax = g.softmax(g.Add("mask_add", g.scores(), mask))
    where = g.Where("where", g.IsNaN("nan", softmax), g.constant(np.float32(0)), softmax)
    return g.finish(g.context(where))


def hidden_by_the_lowest_number():
    """As the exporter ``dynamo`` writes a boolean mask."""
    return guarded(lambda g: boolean_mask(g, np.finfo(np.float32).min))


def hidden_by_infinity():
    """As the exporter ``script`` writes a boolean mask."""
    return guarded(lambda g: boolean_mask(g, -np.inf))


def boolean_mask(g, low):
    """What is added to scores: zero where the input ``mask`` is not zero, and ``low`` elsewhere."""
    seen = g.Cast("seen", "mask", to=9)
    return g.Where("chosen", seen, g.constant(np.float32(0)), g.constant(np.float32(low)))


def at_the_end():
    """Nothing behind the attention is quantized."""
    g = AttentionGraph()
    return g.model(g.inputs, g.Relu("relu", g.joined(g.context(g.softmax(g.scores())))))


def as_output():
    """The attention's output is the model's."""
    g = AttentionGraph()
    return g.model(g.inputs, g.context(g.softmax(g.scores())))


def returned_softmax():
    """The softmax is read by others too, so nothing is fused."""
    g = AttentionGraph()
    softmax = g.softmax(g.scores())
    out = g.out(g.context(softmax))
    mean = g.ReduceMean("mean", softmax, axes=[0, 1, 2, 3], keepdims=0)
    return g.model(g.inputs, g.Add("add", out, mean))


#: Name of a form to the function that makes a model of it.
FORMS = {
    form.__name__: form
    for form in (
        plain,
        scaled_after,
        scaled_before,
        added_mask,
        constant_mask,
        chosen_mask,
        windows,
        grouped_heads,
        guarded,
        hidden_by_the_lowest_number,
        hidden_by_infinity,
        at_the_end,
        as_output,
        returned_softmax,
    )
}
