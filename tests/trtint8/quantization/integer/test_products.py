"""Sums of products, against ONNX Runtime on numbers so small that float32 is exact."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

from calibrators.host.onnx_session import open_session
from tests.trtint8.onnx_models import Shaped
from tests.trtint8.quantization.integer.exact_models import pair
from trtint8.quantization.integer.inference import run_integer
from trtint8.quantization.integer.products import Window, convolve, convolve_transposed

RNG = np.random.default_rng(0)


def whole(*shape):
    return RNG.integers(-128, 128, shape)


def onnx_conv(operator, values, weights, **attributes):
    node = helper.make_node(operator, ["x", "w"], ["y"], **attributes)
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info(n, 1, a.shape) for n, a in (("x", values), ("w", weights))],
        [helper.make_empty_tensor_value_info("y")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    session = open_session(model.SerializeToString(), optimize=False)
    feeds = {"x": values.astype(np.float32), "w": weights.astype(np.float32)}
    return session.run(None, feeds)[0]


geometry = st.tuples(
    st.integers(1, 3), st.integers(1, 3), st.integers(1, 2), st.integers(0, 2), st.integers(0, 2)
)


@settings(max_examples=40)
@given(
    st.lists(geometry, min_size=1, max_size=2), st.sampled_from([(1, 4, 6), (2, 4, 6), (4, 4, 8), (4, 4, 4)])
)
def test_convolutions_are_exact(axes, channels):
    groups, inputs, outputs = channels
    kernel, strides, dilations, before, after = zip(*axes, strict=True)
    values, weights = whole(2, inputs, *[9] * len(axes)), whole(outputs, inputs // groups, *kernel)
    window = Window(strides, dilations, (*before, *after))
    wanted = onnx_conv(
        "Conv", values, weights, strides=strides, dilations=dilations, pads=window.pads, group=groups
    )
    # Sums stay below 2^24, so ONNX Runtime's float32 is exact as well.
    assert np.array_equal(convolve(values, weights, window, groups), wanted)


@settings(max_examples=40)
@given(st.lists(geometry, min_size=1, max_size=2), st.sampled_from([(1, 4, 6), (2, 4, 6)]), st.booleans())
def test_transposed_convolutions_are_exact(axes, channels, more):
    groups, inputs, outputs = channels
    kernel, strides, dilations, before, after = zip(*axes, strict=True)
    extent = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    before = tuple(min(b, e - 1) for b, e in zip(before, extent, strict=True))
    after = tuple(min(a, e - 1) for a, e in zip(after, extent, strict=True))
    output_padding = tuple(int(more and s > 1) for s in strides)
    values, weights = whole(2, inputs, *[5] * len(axes)), whole(inputs, outputs // groups, *kernel)
    window = Window(strides, dilations, (*before, *after))
    wanted = onnx_conv(
        "ConvTranspose",
        values,
        weights,
        strides=strides,
        dilations=dilations,
        pads=window.pads,
        group=groups,
        output_padding=output_padding,
    )
    assert np.array_equal(convolve_transposed(values, weights, window, groups, output_padding), wanted)


def test_a_convolution_by_hand():
    values = np.array([[[1, 2, 3, -4]]])
    weights = np.array([[[1, 10]]])
    assert convolve(values, weights, Window((1,), (1,), (0, 0)), 1).tolist() == [[[21, 32, -37]]]
    assert convolve(values, weights, Window((2,), (1,), (1, 0)), 1).tolist() == [[[10, 32]]]
    assert convolve(values, weights, Window((1,), (2,), (0, 0)), 1).tolist() == [[[31, -38]]]


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER", "VALID"])
def test_automatic_pads(auto_pad):
    values, weights = whole(1, 2, 7, 8), whole(3, 2, 4, 3)
    wanted = onnx_conv("Conv", values, weights, auto_pad=auto_pad, strides=[2, 3])
    g = Shaped()
    weight = g.constant(weights.astype(np.float32))
    conv = g.op("Conv", [pair(g, "x", 1.0), pair(g, weight, 1.0)], "conv", auto_pad=auto_pad, strides=[2, 3])
    run = run_integer(g.model({"x": [1, 2, 7, 8]}, conv), {"x": values.astype(np.float32)})
    assert np.array_equal(run.outputs["conv_out"], wanted)
