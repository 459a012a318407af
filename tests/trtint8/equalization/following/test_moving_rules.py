"""Operators that move, pool, reduce or pass elements on."""

import numpy as np
import pytest

from tests.trtint8.equalization.transformers import (
    SIZE,
    Blocks,
    check,
    samples,
)
from tests.trtint8.onnx_models import Shaped
from tests.trtint8.tuning.networks import normal, prepared
from trtint8.equalization.following import moving_rules


@pytest.mark.parametrize("activation", ["Relu", "LeakyRelu", "PRelu", "Identity"])
def test_a_homogeneous_activation_between_two_layers(activation):
    g = Blocks()
    x = g.linear("x", SIZE, 12, "up")
    x = g.op(activation, [x, g.vector(12)] if activation == "PRelu" else [x], "act")
    check(g.finish(g.linear(x, 12, SIZE, "down")), samples(), 12)


def conv_net(between, channels, size=4):
    """A convolution, what ``between`` makes of its output of (N, 6, 4, 4), and a layer."""
    g = Shaped(quantized=False)
    x = g.op("Conv", ["x", g.weights(6, 3, 3, 3), g.weights(6)], "conv", pads=[1] * 4)
    x = g.op("MatMul", [between(g, x), g.weights(channels, 5)], "layer")
    return prepared(g.model({"x": ["N", 3, size, size]}, x))


def ints(g, *values):
    return g.constant(np.array(values, np.int64))


def some(g):
    return g.constant(np.array([True, False, True]))


THROUGH = {
    "tokens": (
        lambda g, x: g.op(
            "Transpose", [g.op("Reshape", [x, ints(g, 0, 6, 16)], "reshape")], "turn", perm=[0, 2, 1]
        ),
        6,
    ),
    "flatten": (lambda g, x: g.op("Flatten", [x], "flatten"), 96),
    "pooled": (
        lambda g, x: g.op("Squeeze", [g.op("GlobalAveragePool", [x], "pool"), ints(g, 2, 3)], "squeeze"),
        6,
    ),
    "mean": (lambda g, x: g.op("ReduceMean", [x], "mean", axes=[2, 3], keepdims=0), 6),
    "padded": (
        lambda g, x: g.op("Flatten", [g.op("Pad", [x, ints(g, 0, 0, 1, 0, 0, 0, 0, 0)], "pad")], "flatten"),
        120,
    ),
    "turned round": (
        lambda g, x: g.op(
            "Flatten",
            [g.op("ReverseSequence", [x, ints(g, 6, 6)], "turn", batch_axis=0, time_axis=1)],
            "flatten",
        ),
        96,
    ),
    "some": (
        lambda g, x: g.op("Flatten", [g.op("Compress", [x, some(g)], "some", axis=2)], "flatten"),
        48,
    ),
    "looked up": (
        lambda g, x: g.op(
            "Flatten",
            [g.op("GridSample", [x, g.constant(normal(2, 3, 3, 2))], "sample")],
            "flatten",
        ),
        54,
    ),
    "to depth": (
        lambda g, x: g.op("Flatten", [g.op("SpaceToDepth", [x], "depth", blocksize=2)], "flatten"),
        96,
    ),
}


@pytest.mark.parametrize("way", THROUGH)
def test_a_convolution_and_a_layer_behind_moves(way):
    between, channels = THROUGH[way]
    check(conv_net(between, channels), {"x": normal(2, 3, 4, 4)}, 6)


def test_a_move_that_mixes_channels_leaves_them_alone():
    between = lambda g, x: g.op("Reshape", [x, ints(g, 0, 16, 6)], "reshape")  # noqa: E731
    channels = check(conv_net(between, 6), {"x": normal(2, 3, 4, 4)}, 0)
    assert channels.skipped["conv"] == "'layer' sums over another axis than that of the channels"


def test_indices_that_depend_on_the_data_leave_channels_alone():
    g = Blocks()
    up = g.linear("x", SIZE, 12, "up")
    where = g.op("ArgMax", ["x"], "where", axis=2, keepdims=0)
    where = g.op(
        "Slice", [g.op("Reshape", [where, g.integers(-1)], "flat"), g.integers(0), g.integers(6)], "six"
    )
    x = g.op("Gather", [up, where], "gather", axis=2)
    channels = check(g.finish(g.linear(x, 6, SIZE, "down")), samples(), 0)
    assert channels.skipped["up"] == "where 'gather' (Gather) moves them is not constant"


ALONG = {
    "joined": (lambda g, x: g.op("Concat", [x, x], "joined", axis=1), (1, 6, 1, 1), 12),
    "stacked": (lambda g, x: g.op("Concat", [x, x], "stacked", axis=2), (1, 6, 4, 1), 6),
    "taken": (lambda g, x: g.op("Gather", [x, ints(g, 5, 0, 2)], "taken", axis=1), (1, 6, 1, 1), 3),
}


@pytest.mark.parametrize("way", ALONG)
def test_labels_stay_compact_along_axes_that_are_left_alone(way, monkeypatch):
    between, shape, channels = ALONG[way]
    seen, moved = [], moving_rules.moved

    def noted(node, opset, labels, others):
        seen.append({one.shape for one in labels.values()})
        return moved(node, opset, labels, others)

    def pooled(g, x):
        return g.op("Flatten", [g.op("GlobalAveragePool", [between(g, x)], "pool")], "flatten")

    monkeypatch.setattr(moving_rules, "moved", noted)
    check(conv_net(pooled, channels), {"x": normal(2, 3, 4, 4)}, 6)
    assert seen[0] == {shape}
