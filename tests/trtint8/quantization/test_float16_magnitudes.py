"""How large tensors become: seen, fixed by the graph, or bounded by it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import trtint8
from calibrators.tables.table import CalibrationTable
from tests.trtint8.onnx_models import Shaped, normal, prepared_graph
from tests.trtint8.quantization.float16.half_models import HALF, network, run, types, weights
from trtint8.models.model import load_model
from trtint8.quantization.float16_magnitudes import (
    Magnitudes,
    loses_little,
    round_scale,
    scale_fits,
    within_range,
)


def bound_of(*steps, shape=(4, 8), peaks=None):
    """The bound of a chain's output, and the largest magnitude of it for inputs of 3 and -3."""
    model = network(*steps, shape=shape)
    prepared = prepared_graph(model)
    name = model.graph.output[0].name
    found = Magnitudes.of(prepared, peaks or {"x": 3.0})
    x = np.random.default_rng(0).choice([-3.0, 3.0], shape).astype(np.float32)
    return found.bounds.get(name), float(np.abs(run(model, {"x": x})).max())


CONV = normal(6, 4, 3, 3, seed=2)
KERNEL = {"shape": (1, 4, 5, 5)}


@pytest.mark.parametrize(
    ("steps", "options"),
    [
        ([("MatMul", [weights(8, 8)], {})], {}),
        ([("Gemm", [weights(8, 8), np.full(8, 5, np.float32)], {"alpha": 2.0, "beta": 0.5})], {}),
        ([("Gemm", [weights(6, 8)], {"transB": 1})], {}),
        ([("Conv", [CONV, np.full(6, -4, np.float32)], {"pads": [1] * 4})], KERNEL),
        ([("Conv", [CONV[:, :2]], {"group": 2})], KERNEL),
        ([("ConvTranspose", [CONV[:4, :3], np.full(6, 2, np.float32)], {"group": 2})], KERNEL),
        ([("LeakyRelu", [], {"alpha": 2.0})], {}),
        ([("Elu", [], {"alpha": 7.0})], {}),
        ([("Selu", [], {})], {}),
        ([("Softplus", [], {})], {}),
        ([("Add", [np.full(8, 100, np.float32)], {})], {}),
        ([("Mul", [np.full(8, -20, np.float32)], {}), ("Relu", [], {})], {}),
        ([("Div", [np.full(8, 0.01, np.float32)], {})], {}),
        ([("PRelu", [np.full(8, 5, np.float32)], {})], {}),
        ([("Clip", [np.float32(5)], {})], {}),
        ([("Max", [np.float32(5)], {})], {}),
        ([("Atan", [], {})], {}),
        ([("LpNormalization", [], {})], {}),
        ([("GridSample", [np.full((1, 3, 3, 2), 0.3, np.float32)], {"mode": "bicubic"})], KERNEL),
        ([("Pad", [np.array([0, 1, 0, 1]), np.float32(9)], {})], {}),
        ([("LayerNormalization", [np.full(8, 3, np.float32), np.ones(8, np.float32)], {"axis": -1})], {}),
        ([("MatMul", [weights(8, 8)], {}), ("Softmax", [], {}), ("MatMul", [weights(8, 8)], {})], {}),
    ],
)
def test_no_value_is_beyond_its_bound(steps, options):
    bound, reached = bound_of(*steps, **options)
    assert bound is not None and reached <= bound * (1 + 1e-6)


def test_some_bounds():
    assert bound_of(("Sigmoid", [], {}))[0] == 1
    assert bound_of(("Clip", [np.float32(0), np.float32(6)], {}), peaks={"y": 1.0})[0] == 6
    assert bound_of(("Clip", [np.float32(0), np.float32(3e38)], {}))[0] == 3
    assert bound_of(("MatMul", [np.full((8, 2), 0.5, np.float32)], {}))[0] == 12
    assert bound_of(("Exp", [], {}))[0] is None
    assert bound_of(("Relu", [], {}), peaks={"y": 1.0})[0] is None


def test_what_was_seen_goes_before_what_is_bounded():
    found = Magnitudes.of(
        prepared_graph(network(("MatMul", [weights(8, 8)], {}), ("Relu", [], {}))),
        {"x": 1e9, "matmul0_out": 2.0},
    )
    assert found.seen["matmul0_out"] == 2 and found.bounds == {"relu1_out": 2.0}
    assert "relu1_out" in found and "nothing" not in found


def test_pairs_fix_what_is_behind_them():
    g = Shaped()
    y = g.MatMul("product", g.qdq("x"), g.qdq(g.constant(np.full((8, 8), 0.1, np.float32))))
    found = Magnitudes.of(load_model(g.model({"x": [2, 8]}, y)).graph_model, {})
    # 128 steps of 0.02, times eight weights of 0.1, each of which rounding may have moved by half a step.
    assert found.bounds["product_out"] == pytest.approx(2.56 * 8 * 0.11)


def large(factor):
    """Two layers, the first of which is followed by an addition that its table says nothing of."""
    g = Shaped(quantized=False)
    first = g.MatMul("first", "x", g.constant(np.full((8, 8), factor, np.float32)))
    added = g.Add("added", first, "x")
    normalized = g.Div("scaled", added, g.constant(np.float32(factor * 10)))
    return g.model({"x": [2, 8]}, g.MatMul("second", normalized, g.weights(8, 8)))


@pytest.mark.parametrize(("factor", "half"), [(0.5, True), (10000.0, False)])
def test_a_table_of_placed_tensors_gives_fp16_only_what_cannot_overflow(factor, half, recwarn):
    model, x = large(factor), np.random.default_rng(1).uniform(-1, 1, (4, 2, 8)).astype(np.float32)
    feeds = [{"x": one} for one in x]
    table = trtint8.calibrate(model, feeds, method="minmax", tensors="placed")
    assert "first_out" not in table.amax
    made = trtint8.quantize(model, table, float16=True, float32_io=True, target="tensorrt-11")
    assert (types(made)["first_out"] == HALF) is half
    assert len(recwarn) == (0 if half else 1)


def test_ranges_that_may_have_cut_values_off_tell_no_peak(recwarn):
    model, ranges = (
        large(10000.0),
        {"x": 1.0, "first_out": 9.0, "added_out": 9.0, "scaled_out": 1.0, "second_out": 9.0},
    )
    for method, half in (("minmax", True), ("entropy", False)):
        made = trtint8.quantize(model, CalibrationTable(ranges, method), float16=True, target="tensorrt-11")
        assert (types(made)["first_out"] == HALF) is half
        assert len(recwarn) == (0 if half else 1)


@given(st.floats(1e-30, 1e4))
def test_rounded_scales_are_fp16_numbers_and_never_smaller(scale):
    rounded = float(round_scale(np.float32(scale)))
    assert float(np.float16(rounded)) == rounded
    assert rounded >= np.float32(scale)
    # A step of FP16: relative above its smallest normal number, absolute below.
    assert rounded - np.float32(scale) <= max(scale * 2.0**-10, 2.0**-24)


@pytest.mark.parametrize(
    ("array", "inside"),
    [([], True), ([65504, -65504, np.inf, np.nan], True), ([0, -65505], False), ([[1e38]], False)],
)
def test_the_range_of_fp16(array, inside):
    assert within_range(np.array(array, np.float32)) is inside


@pytest.mark.parametrize(
    ("array", "little"),
    [
        (1e-3, True),
        (-1e-9, False),
        (np.full(8, 1e-9), False),
        (np.full(8, 1e-40), False),
        ([1e-3, 1e-9, 1e-40, 0], True),
        (np.zeros(8), True),
        ([], True),
        ([np.inf, -np.inf, np.nan, 1], True),
        ([np.inf, 1e-9], False),
        # Two steps of 2**-24, and a half of a step lost.
        (np.full(3, 2.5 * 2.0**-24), False),
        (np.full(3, 60.5 * 2.0**-24), True),
    ],
)
def test_what_an_array_loses_as_a_whole(array, little):
    assert loses_little(np.array(array, np.float32)) is little


def pair(scale):
    """A QuantizeLinear and its DequantizeLinear."""
    g = Shaped(quantized=False)
    scale, zero_point = g.constant(np.float32(scale)), g.constant(np.zeros(np.shape(scale), np.int8))
    quantized = g.QuantizeLinear("quantize", "x", scale, zero_point, axis=0)
    tensor = g.DequantizeLinear("dequantize", quantized, scale, zero_point, axis=0)
    return load_model(g.model({"x": [3, 2]}, tensor)).graph_model


@pytest.mark.parametrize(
    ("scale", "fits"),
    [
        (0.02, True),
        (6e-5, True),
        (150.5 * 2.0**-24, True),
        (8 * 2.0**-24, True),
        (30.5 * 2.0**-24, False),
        (8e-10, False),
        (65504, True),
        (1e5, False),
        # A channel that training has let die, one of zeros, and others.
        ([0.02, 1e-12, 1], True),
        ([1e-10, 2e-10, 1], False),
        ([1, 1, 1], True),
    ],
)
def test_scales_that_fit(scale, fits):
    assert [scale_fits(node) for node in pair(scale).graph] == [fits, fits]


def test_scales_that_are_computed_fit():
    g = Shaped(quantized=False)
    scale, zero_point = g.Abs("scale", "s"), g.constant(np.int8(0))
    tensor = g.QuantizeLinear("quantize", "x", scale, zero_point)
    model = g.model({"x": [3], "s": []}, g.DequantizeLinear("dequantize", tensor, scale, zero_point))
    assert scale_fits(load_model(model).graph_model.graph[1])
