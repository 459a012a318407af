"""Pads, against ONNX Runtime on whole numbers so small that float32 is exact."""

import numpy as np
import pytest
from onnx import helper

from calibrators.host.onnx_session import open_session
from trtint8.models.windows import Window, padding

RNG = np.random.default_rng(0)


def whole(*shape):
    return RNG.integers(-128, 128, shape).astype(np.float32)


def convolve(values, weights, **attributes):
    node = helper.make_node("Conv", ["x", "w"], ["y"], **attributes)
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info(n, 1, a.shape) for n, a in (("x", values), ("w", weights))],
        [helper.make_empty_tensor_value_info("y")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    session = open_session(model.SerializeToString(), optimize=False)
    return session.run(None, {"x": values, "w": weights})[0]


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER", "VALID"])
def test_automatic_pads(auto_pad):
    values, weights, strides = whole(1, 2, 7, 8), whole(3, 2, 4, 3), (2, 3)
    window = padding(auto_pad, (), values.shape[2:], weights.shape[2:], Window(strides, (1, 1), ()))
    got = convolve(values, weights, pads=window.pads, strides=strides)
    assert np.array_equal(got, convolve(values, weights, auto_pad=auto_pad, strides=strides))


def test_dilated_kernels_reach_further():
    window = padding("SAME_UPPER", (), [7], [4], Window((1,), (2,), ()))
    assert window == Window((1,), (2,), (3, 3))


def test_explicit_pads():
    window = Window((1,), (1,), ())
    assert padding("NOTSET", [1, 2], [8], [3], window).pads == (1, 2)
    assert padding("NOTSET", [], [8], [3], window).pads == (0, 0)
    assert padding("VALID", [1, 2], [8], [3], window).pads == (0, 0)
