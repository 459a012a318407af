"""What pairs compute, and what is read of them."""

import numpy as np
import onnx_ir as ir
import pytest

from calibrators.errors import ModelError
from tests.trtint8.interop.pairs_by_hand import model_of
from trtint8.interop.pairs import (
    dequantizer_behind,
    float_values,
    grid_of,
    quantized_type,
    weight_grid,
)
from trtint8.interop.pairs import parameters as grids_parameters


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        ("q = QuantizeLinear (x, s) d = DequantizeLinear (q, s)", ir.DataType.UINT8),
        ("q = QuantizeLinear <output_dtype = 3> (x, s) d = DequantizeLinear (q, s)", ir.DataType.INT8),
        ("d = Pair (x, s, z)", ir.DataType.UINT8),
        ("d = Pair (x, s)", ir.DataType.INT8),
    ],
)
def test_the_type_of_a_pair_is_that_of_its_zero_point_or_its_attribute(body, wanted):
    graph = model_of(body, opset=21, z=np.uint8(0)).graph_model.graph
    assert [quantized_type(node) for node in graph] == [wanted] * 2


def test_the_dequantizer_behind_transposes():
    body = """v = Stored (w, s) once = Transpose <perm = [1, 2, 0]> (v) back = Transpose (v)
        twice = Transpose <perm = [0, 2, 1]> (once) y = Concat <axis = 0> (v, twice, back)"""
    graph = model_of(body, "float[1] x", w=np.ones((2, 2, 2), np.int8)).graph_model.graph
    values = {value.name: value for node in graph for value in node.outputs}
    node, axes = dequantizer_behind(values["v"])
    assert (node.name, axes) == ("v", None)
    node, axes = dequantizer_behind(values["twice"])
    assert (node.name, axes) == ("v", (1, 0, 2))
    assert dequantizer_behind(values["back"]) is None
    assert dequantizer_behind(graph.inputs[0]) is None
    assert dequantizer_behind(None) is None


def quantizer(scale, zero=None, **attributes):
    values = [ir.Value(name="x")]
    for name, number in (("s", np.asarray(scale, np.float32)), ("z", zero)):
        if number is not None:
            tensor = ir.tensor(number, name=name)
            values.append(ir.Value(name=name, type=ir.TensorType(tensor.dtype), const_value=tensor))
    given = [ir.AttrInt64(name, value) for name, value in attributes.items()]
    return ir.Node("", "QuantizeLinear", values, given, name="q")


def values(array):
    return np.asarray(array).tolist()


@pytest.mark.parametrize(
    ("node", "low", "high", "fits", "amax"),
    [
        (quantizer(0.5, np.int8(0)), -128, 127, True, 63.5),
        (quantizer(0.5, np.uint8(128)), -128, 127, True, 63.5),
        (quantizer(0.5, np.uint8(0)), 0, 255, False, 127.5),
        (quantizer(0.5, np.int8(28)), -156, 99, False, 78),
        (quantizer(-0.5, np.int8(0)), -127, 128, False, 64),
        (quantizer(0.5, np.int16(0)), -32768, 32767, False, 16384),
        # Without a zero point the type is that of the attribute.
        (quantizer(0.5), 0, 255, False, 127.5),
        (quantizer(0.5, output_dtype=int(ir.DataType.INT8)), -128, 127, True, 63.5),
        (quantizer(0.5, output_dtype=int(ir.DataType.INT4)), -8, 7, True, 63.5),
        (quantizer(0.5, output_dtype=int(ir.DataType.UINT16)), 0, 65535, False, 32767.5),
    ],
)
def test_zero_points_and_types_are_ends(node, low, high, fits, amax):
    grid = grid_of(node)
    assert (values(grid.scale), values(grid.low), values(grid.high)) == ([0.5], [low], [high])
    assert grid.fits is fits and grid.amax == amax
    assert [values(end) for end in grid.ends] == [[low * 0.5], [high * 0.5]]


def test_channels_with_the_same_steps_are_one():
    same = grid_of(quantizer([0.5, 0.5], np.int8([0, 0])))
    assert values(same.scale) == [0.5] and same.fits
    other = grid_of(quantizer([0.5, 0.25], np.int8([0, 0])))
    assert not other.fits and values(other.ends[1]) == [63.5, 31.75] and other.amax == 64


def test_values_between_ends_need_fewer_steps():
    grid = grid_of(quantizer(0.5, np.uint8(0)))
    assert grid.within(0, 60).fits and not grid.within(0, 64).fits
    assert values(grid.within(0.3, 60.2).low) == [1] and values(grid.within(0.3, 60.2).high) == [120]


@pytest.mark.parametrize(
    ("node", "message"),
    [
        (quantizer(0.0, np.int8(0)), "a scale of node 'q' is 0"),
        (quantizer(np.nan, np.int8(0)), "a scale of node 'q' is nan"),
        (quantizer(0.1, np.float32(0)), "'q' quantizes to FLOAT, which is no integer type"),
        (quantizer(0.1, output_dtype=int(ir.DataType.FLOAT8E4M3FN)), "'q' quantizes to FLOAT8E4M3FN"),
        (quantizer([0.1, 0.1], np.int8([0, 0, 0])), "'q' has 2 scales in the tensor 's' and 3 zero points"),
        (quantizer([], np.int8([])), "'q' has 0 scales"),
    ],
)
def test_what_is_no_pair_is_refused(node, message):
    with pytest.raises(ModelError, match=message):
        grid_of(node)


def test_scales_and_zero_points_are_flat():
    scale, point = grids_parameters(quantizer([[0.5], [-0.25]], np.int8(3)))
    assert (values(scale), values(point)) == ([0.5, -0.25], [3])


STEPS = np.random.default_rng(0).integers(-127, 128, (6, 40))


def test_weights_keep_the_scales_that_they_are_given():
    many = np.linspace(0.1, 0.2, 6, dtype=np.float32)
    weights = STEPS * many[:, None]
    assert values(weight_grid(weights, 0, [many])) == values(many)
    assert values(weight_grid(weights.T, 1, [np.float32([3]), many])) == values(many)
    assert values(weight_grid(np.float32(0.25) * STEPS, 0, [np.float32([0.25])])) == [0.25] * 6
    assert values(weight_grid(np.float32(0.25) * STEPS, None, [np.float32([0.25])])) == 0.25
    # Those of a pair with negative scales count up where it counts down.
    assert values(weight_grid(-weights, 0, [-many])) == values(many)


def test_steps_are_found_where_no_scale_is_given():
    many = np.linspace(0.1, 0.2, 6, dtype=np.float32)
    found = weight_grid((STEPS * many[:, None]).astype(np.float32), 0)
    np.testing.assert_allclose(found, many, rtol=1e-6)
    found = weight_grid((2 * STEPS[:, :20] // 2 * np.float32(0.3)).astype(np.float32), 1)
    np.testing.assert_allclose(found, np.full(20, 0.3), rtol=1e-6)


def test_of_zeros_any_scale_is_right():
    weights = np.float32([[0, 0], [1, 2]])
    found = weight_grid(weights, 0, [np.float32([0, 1])])
    assert values(found) == [1, 1]
    assert values(weight_grid(np.zeros((2, 2), np.float32), 0)) == [1, 1]


@pytest.mark.parametrize(
    "weights",
    [
        np.random.default_rng(0).normal(size=(6, 40)).astype(np.float32),
        np.float32(0.1) * (STEPS + 128),  # 255 steps above 0
        np.full((2, 4), np.nan, np.float32),
        np.zeros((0, 4), np.float32),
    ],
)
def test_other_weights_lie_on_no_steps(weights):
    assert weight_grid(weights, 0) is None
    assert weight_grid(weights, 0, [np.float32([0.1])]) is None


def test_steps_along_another_axis_are_none():
    weights = (STEPS * np.linspace(0.1, 0.2, 6)[:, None]).astype(np.float32)
    assert weight_grid(weights, 1) is None and weight_grid(weights, None) is None


def dequantize(whole, scales, **attributes):
    values = [
        ir.Value(name=name, const_value=ir.tensor(np.asarray(array), name=name))
        for name, array in (("w", whole), ("s", np.float32(scales)))
    ]
    given = [ir.AttrInt64(name, value) for name, value in attributes.items()]
    return ir.Node("", "DequantizeLinear", values, given, name="d")


def values_of(whole, scales, zeros=(0,), **attributes):
    flat = np.float32(scales).reshape(-1)
    return float_values(dequantize(whole, scales, **attributes), whole, flat, np.asarray(zeros))


def test_one_scale_and_one_per_channel():
    whole = np.array([[1, 2], [3, 4]], np.int8)
    assert values_of(whole, 0.5).tolist() == [[0.5, 1.0], [1.5, 2.0]]
    assert values_of(whole, [1, 10]).tolist() == [[1, 20], [3, 40]]
    assert values_of(whole, [1, 10], zeros=[1, 2], axis=0).tolist() == [[0, 1], [10, 20]]


def test_one_scale_per_block():
    whole = np.ones((5, 2), np.int8)
    scales = [[1, 2], [3, 4], [5, 6]]
    wanted = [[1, 2], [1, 2], [3, 4], [3, 4], [5, 6]]
    assert values_of(whole, scales, axis=0, block_size=2).tolist() == wanted
    assert values_of(whole, scales, axis=-2, block_size=2).tolist() == wanted
    less = values_of(whole, scales, zeros=[1, 0, 1, 0, 0, 0], axis=0, block_size=2)
    assert less.tolist() == [[0, 2], [0, 2], [0, 4], [0, 4], [5, 6]]


def test_scales_that_do_not_fit_the_blocks():
    with pytest.raises(ModelError, match=r"'w' of shape \[8, 2\] in blocks of 4 along axis 0 needs \[2, 2\]"):
        values_of(np.ones((8, 2), np.int8), np.ones((4, 2)), axis=0, block_size=4)


@pytest.mark.parametrize("axis", [9, -9, 1])
def test_scales_that_do_not_fit_the_axis(axis):
    with pytest.raises(ModelError, match=rf"4 scales along axis {axis}, .* tensor 'w' of shape \[4, 3\]"):
        values_of(np.ones((4, 3), np.int8), np.ones(4), axis=axis)
