"""Equalization through bounds, such as those of a Relu6: dead channels, and margins."""

import numpy as np
import onnx
import pytest

import trtint8
from calibrators.errors import CalibrationDataError
from tests.trtint8.onnx_models import parsed
from tests.trtint8.tuning.networks import array, normal, prepared, run
from trtint8.equalization.equalize import equalize
from trtint8.equalization.factors import below_bounds
from trtint8.models.graph import set_constant_input
from trtint8.models.serialization import save_model

CHANNELS = 16
#: Channels that hardly move, and whose weights make up for it.
DEAD = (2, 7)


def relu6(peak=0.02, weight=504.0, low=0.0, high=6.0, between=None):
    """A convolution, a Clip and a depthwise convolution; two channels reach about ``peak``."""
    random = np.random.default_rng(3)
    first = 2 * random.standard_normal((CHANNELS, 3, 1, 1)).astype(np.float32)
    bias = random.standard_normal(CHANNELS).astype(np.float32)
    deep = 0.3 * random.standard_normal((CHANNELS, 1, 3, 3)).astype(np.float32)
    for channel in DEAD:
        first[channel] *= peak / np.abs(first[channel]).sum() / 3
        bias[channel] = 0
        deep[channel] *= weight / np.abs(deep[channel]).max()
    last = random.standard_normal((8, CHANNELS, 1, 1)).astype(np.float32)
    ends = {name: np.float32(end) for name, end in (("low", low), ("high", high)) if end is not None}
    bounds = ", ".join(name if name in ends else "" for name in ("low", "high"))
    body = f"""[first] f = Conv (x, w, b) [relu6] c = Clip (f, {bounds}) p = {between or "Identity"} (c)
        [deep] d = Conv <group = {CHANNELS}, pads = [1, 1, 1, 1]> (p, u) [mixed] y = Conv (d, v)"""
    return parsed("float[N, 3, 8, 8] x", "float[] y", body, w=first, b=bias, u=deep, v=last, **ends)


def sqnr_db(exact, other):
    noise = float(np.square(exact - other, dtype=np.float64).sum())
    return 10 * np.log10(float(np.square(exact, dtype=np.float64).sum()) / max(noise, 1e-30))


def factors_of(before, after):
    """By what the channels of the first convolution were divided."""
    weights = [array(one, "first", 1)[:, 0, 0, 0] for one in (before, after)]
    return weights[0] / weights[1]


SAMPLES, OTHERS = normal(64, 3, 8, 8), normal(256, 3, 8, 8, seed=1)


def scaled(**options):
    """The prepared model, and what equalization through its clips makes of it."""
    model = prepared(relu6(**options))
    return model, equalize(model, [{"x": SAMPLES}], through_clips=True)


@pytest.mark.parametrize(
    ("options", "between"),
    [
        ({}, None),
        ({"peak": 0.1, "weight": 100.0}, None),
        ({"peak": 0.002, "weight": 504.0}, None),
        ({"high": 1.0, "peak": 0.01}, None),
        ({"low": None}, None),
        ({"low": -6.0}, None),
        ({"low": -1.0, "high": 100.0}, None),
        ({"high": None}, None),
        ({}, "MaxPool <kernel_shape = [2, 2]>"),
        ({}, "AveragePool <kernel_shape = [2, 2]>"),
    ],
)
def test_channels_far_below_a_bound_are_scaled_and_the_function_stays(options, between):
    model, found = scaled(**options, between=between)
    factors = factors_of(model, found.model)
    bounded = options.get("low", 0) is not None and options.get("high", 6) is not None
    if bounded:
        assert found.headroom >= 4 and (factors <= 1.0001).all()
    assert max(factors[channel] for channel in DEAD) < 0.3 * np.median(factors)
    for samples in (SAMPLES, OTHERS):
        feed = {"x": samples}
        assert sqnr_db(run(model, feed)[0], run(found.model, feed)[0]) > 95


@pytest.mark.parametrize(
    "options",
    [
        {"peak": 20.0},  # reaches the bound
        {"peak": 6.0, "weight": 2.0},  # stays below it, but without a margin
        {"low": 0.001},  # the bounds are not around 0
        {"low": 0.0, "high": 0.0},
    ],
)
def test_without_a_margin_nothing_is_scaled(options):
    model, found = scaled(**options)
    assert found.headroom is None
    np.testing.assert_array_equal(array(found.model, "first", 1), array(model, "first", 1))


def test_nothing_passes_a_bound_where_that_is_not_asked_for():
    model = prepared(relu6())
    found = equalize(model, [{"x": SAMPLES}])
    assert "first" in found.skipped and found.headroom is None
    np.testing.assert_array_equal(array(found.model, "first", 1), array(model, "first", 1))


def test_a_computed_bound_ends_the_way():
    body = "[first] f = Conv (x, w) c = Clip (f, , bound) [second] y = Conv (c, v)"
    weights = {"w": normal(8, 3, 1, 1), "v": normal(4, 8, 1, 1)}
    model = parsed("float[N, 3, 4, 4] x, float bound", "float[] y", body, **weights)
    feed = {"x": normal(8, 3, 4, 4), "bound": np.float32(6)}
    found = equalize(prepared(model), [feed], through_clips=True)
    assert "first" in found.skipped and found.forms == ()


def test_where_scaled_channels_are_cut_off():
    """Up to four times the largest values nothing changes, and far beyond it something does."""
    model, found = scaled()
    least = min(factors_of(model, found.model))
    assert found.headroom == pytest.approx(4.0, rel=0.01) and least < 0.1
    dead_only = SAMPLES.copy()
    for times, same in ((found.headroom * 0.99, True), (found.headroom * 3, False)):
        # Only the dead channels grow: a larger bias-free input of the first layer, with other channels off.
        nodes = [prepared_with_dead_only(one, times) for one in (model, found.model)]
        values = [run(one, {"x": dead_only})[0] for one in nodes]
        assert (sqnr_db(*values) > 95) == same


def prepared_with_dead_only(graph_model, times):
    copy = graph_model.clone()
    weights = np.zeros_like(array(copy, "first", 1))
    for channel in DEAD:
        weights[channel] = times * array(copy, "first", 1)[channel]
    node = next(node for node in copy.graph if node.name == "first")
    for index, values in ((1, weights), (2, np.zeros(CHANNELS, np.float32))):
        set_constant_input(node, index, values)
    return copy


def test_factors_stay_relative_to_channels_that_are_held():
    factors = np.array([8.0, 4.0, 0.08, 0.001, 0.5])
    least = np.array([2.0, 0.5, 0.02, 0.05, np.inf])
    alive = np.array([True, True, True, True, False])
    found = below_bounds(factors, least, alive)
    np.testing.assert_allclose(found, [1.0, 0.5, 0.02, 0.05, 1.0])
    np.testing.assert_allclose(below_bounds(factors, np.zeros(5), alive), factors)
    np.testing.assert_allclose(below_bounds(factors, np.full(5, np.inf), ~alive & alive), np.ones(5))


# Calibration says that the network as it is loses much in INT8.
@pytest.mark.filterwarnings("ignore:with every layer in INT8")
@pytest.mark.parametrize(("peak", "weight"), [(0.02, 504.0), (0.05, 200.0), (0.1, 100.0), (0.01, 1000.0)])
def test_dead_channels_lose_less_in_int8(peak, weight, tmp_path):
    model = relu6(peak, weight)
    scaled = equalize(prepared(model), [{"x": SAMPLES}], through_clips=True)
    onnx.save(model, tmp_path / "m.onnx")
    save_model(scaled.model, tmp_path / "scaled.onnx")
    found = {}
    for name in ("m", "scaled"):
        table = trtint8.calibrate(tmp_path / f"{name}.onnx", SAMPLES, tensors="placed", progress=False)
        quantized = trtint8.quantize(tmp_path / f"{name}.onnx", table)
        judged = trtint8.validate(quantized, OTHERS, reference=tmp_path / "m.onnx", progress=False)
        found[name] = judged.outputs[0].sqnr_db
    assert found["scaled"] > found["m"] + 6


@pytest.mark.filterwarnings("ignore:with every layer in INT8")
def test_tune_scales_them_where_asked():
    options = {"judge": OTHERS, "minimum": 25, "metric": "sqnr", "progress": False}
    plain = trtint8.tune(relu6(), SAMPLES, normal(64, 3, 8, 8, seed=2), **options)
    scaled = trtint8.tune(relu6(), SAMPLES, normal(64, 3, 8, 8, seed=2), equalize_clips=True, **options)
    assert any("through clips" in name for name in scaled.candidate.remedies)
    assert not any("through clips" in name for name in plain.candidate.remedies)
    assert scaled.float_cost < plain.float_cost


@pytest.mark.filterwarnings("ignore:with every layer in INT8")
def test_a_table_cannot_be_equalized():
    table = trtint8.calibrate(relu6(), SAMPLES, progress=False)
    with pytest.raises(CalibrationDataError, match="equalize_clips"):
        trtint8.tune(relu6(), table, OTHERS, equalize_clips=True, progress=False)
