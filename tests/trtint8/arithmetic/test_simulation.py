"""What each arithmetic computes: by hand, and against ONNX Runtime's Q/DQ pairs and integer operators."""

from dataclasses import replace

import numpy as np
import pytest

from calibrators.errors import ModelError, TableError, UnsupportedError
from calibrators.host.session import open_session
from tests.trtint8.arithmetic.simulated import (
    amax_of,
    output_of,
    outputs_of,
    simulated,
    table_of,
    values,
)
from tests.trtint8.onnx_models import Shaped, parsed
from trtint8 import quantize, validate
from trtint8.arithmetic.simulation import simulate
from trtint8.models.model import load_model, prepare
from trtint8.quantization.config import ARITHMETICS, NCNN, Rounding
from trtint8.quantization.config import quantize as quantize_values

NAMES = tuple(ARITHMETICS)


def convolution(weights, bias=None, shape=(1, 2, 1, 1), operator="Conv", behind=None, **attributes):
    """One convolution, with a function behind it."""
    g = Shaped()
    constants = [g.constant(np.asarray(one, np.float32)) for one in (weights, bias) if one is not None]
    out = g.op(operator, ["x", *constants], "conv", kernel_shape=np.shape(weights)[2:], **attributes)
    if behind is not None:
        out = g.op(behind, [out], "behind")
    return g.model({"x": list(shape)}, out)


def by_pairs(model, ranges, x):
    """What ONNX Runtime computes of the model with pairs."""
    pairs = quantize(model, table_of(ranges)).SerializeToString()
    return open_session(pairs, optimize=False).run(None, {"x": x})[0]


def in_powers(array, exponent):
    """Values that are whole numbers of steps of a power of two, the largest of them 127 in every row."""
    whole = np.random.default_rng(7).integers(-126, 127, np.shape(array))
    whole.reshape(len(whole), -1)[:, 0] = 127
    return (whole * 2.0**exponent).astype(np.float32)


@pytest.mark.parametrize(
    ("name", "integers", "weights", "sums"),
    [
        ("explicit", [2, -4], [127, 10], 214),
        ("implicit", [2, -4], [127, 11], 210),
        ("dla", [3, -4], [127, 11], 337),
        ("ncnn", [3, -4], [127, 11], 337),
    ],
)
def test_by_hand(name, integers, weights, sums):
    """Steps of 1: 2.5, -3.5 and the weight 10.5 are ties, which every backend rounds in its own way."""
    assert np.dot(integers, weights) == sums
    model = convolution([[[[127.0]], [[10.5]]]], [0.25])
    simulation = simulated(model, {"x": 127.0}, name)
    found, largest = outputs_of(simulation, {"x": np.float32([2.5, -3.5]).reshape(1, 2, 1, 1)})
    assert found["conv_out"].ravel().tolist() == [sums + 0.25]
    assert largest == {"conv": sums}


@pytest.mark.parametrize("rounding", list(Rounding))
def test_a_backend_more_is_a_row(rounding):
    """Whatever its rounding: what the network computes is what the configs say."""
    row = replace(
        NCNN, activations=replace(NCNN.activations, rounding=rounding, quant_min=-7, quant_max=7, bits=4)
    )
    halves = np.float32([-7.5, -2.5, -1.5, -0.5, -0.3, 0, np.nextafter(np.float32(0.5), 0), 0.5, 1.5, 2.3, 9])
    images = np.repeat(halves, 2).reshape(-1, 2, 1, 1)
    images[:, 1] = 0
    model = convolution([[[[127.0]], [[0.0]]]], None, ("N", 2, 1, 1))
    found, _ = outputs_of(simulate(prepare(load_model(model)), table_of({"x": 7.0}), row), {"x": images})
    wanted = quantize_values(halves, row.activations.with_scale(1.0)) * 127
    assert found["conv_out"].ravel().tolist() == wanted.tolist()


def test_qnnpack_by_hand():
    """The input, from -255 to 255, has steps of 2: 11.5 and 20.25 are read as 12 and 20.

    Behind the Relu steps are 1, and those of the output 2. The weights, from -100 to 155, have steps of 1.
    """
    g = Shaped()
    x = g.Relu("input", "x")
    weights, bias = g.constant(np.float32([[[[155]], [[-100]]]])), g.constant(np.float32([600]))
    y = g.Relu("y", g.Conv("conv", x, weights, bias, kernel_shape=[1, 1]))
    ranges = {"x": 255.0, "input_out": 255.0, "y_out": 510.0}
    found, largest = outputs_of(
        simulated(g.model({"x": [1, 2, 1, 1]}, y), ranges, "qnnpack"),
        {"x": np.float32([11.5, 20.25]).reshape(1, 2, 1, 1)},
    )
    assert largest == {"conv": 12 * 155 - 20 * 100 + 600}
    assert found["y_out"].ravel().tolist() == [2 * 230]


@pytest.mark.parametrize(("operator", "scale", "lowest"), [("Sigmoid", 1 / 256, 0), ("Tanh", 1 / 128, -1)])
def test_qnnpack_has_one_scale_for_what_ends_by_itself(operator, scale, lowest):
    """Also where it is an output of the model, whose largest value does not reach 1."""
    g = Shaped()
    y = g.Conv("conv", "x", g.constant(np.ones((1, 1, 1, 1), np.float32)), kernel_shape=[1, 1])
    model = g.model({"x": [3, 1, 1, 1]}, g.op(operator, [y], "y"))
    images = np.float32([-100, 0.0, 100]).reshape(3, 1, 1, 1)
    found = output_of(model, {"x": 100.0, y: 101.0, "y_out": 0.5}, "qnnpack", {"x": images})
    middle = 0.5 if operator == "Sigmoid" else 0
    assert found.ravel() == pytest.approx([lowest, middle, 1 - scale], abs=0.003)
    assert (found / scale == np.rint(found / scale)).all()


@pytest.mark.parametrize(("lowest", "highest"), [(-1.0, 2.0), (0.0, 6.0), (None, 3.0), (-2.0, None)])
def test_qnnpack_clips_in_integers(lowest, highest):
    """Also where the range of the output is wider."""
    g = Shaped()
    bias = g.constant(np.float32([-100, 100, 0.5]))
    y = g.Conv("conv", "x", g.constant(values((3, 2, 1, 1))), bias, kernel_shape=[1, 1])
    ends = ["" if end is None else g.constant(np.float32(end)) for end in (lowest, highest)]
    model = g.model({"x": [1, 2, 1, 1]}, g.Clip("clip", y, *ends))
    found = output_of(
        model, {"x": 3.0, "clip_out": 12.75}, "qnnpack", {"x": np.zeros((1, 2, 1, 1), np.float32)}
    )
    step = 0.05 if lowest == 0 else 0.1
    wanted = [-12.75 if lowest is None else lowest, 12.75 if highest is None else highest, 0.5]
    assert found.ravel() == pytest.approx(wanted, abs=step / 2 + 1e-5)


def test_a_bias_in_a_node_of_its_own_is_the_same():
    weights, bias, rows = values((32, 7)), values(7, 1), values((5, 32), 2)
    g, h = Shaped(), Shaped()
    gemm = g.Gemm("product", "x", g.constant(weights), g.constant(bias))
    product = h.op("MatMul", ["x", h.constant(weights)], "product")
    added = h.op("Add", [product, h.constant(bias)], "added")
    amax = amax_of(rows)
    one = output_of(g.model({"x": [5, 32]}, gemm), {"x": amax, gemm: 15.0}, "qnnpack", {"x": rows})
    two = output_of(h.model({"x": [5, 32]}, added), {"x": amax, added: 15.0}, "qnnpack", {"x": rows})
    assert np.array_equal(one, two)


def test_ends_that_are_computed_are_in_float():
    g = Shaped()
    y = g.Conv("conv", "x", g.constant(values((3, 2, 1, 1))), kernel_shape=[1, 1])
    end = g.ReduceMax("end", "x", keepdims=0)
    model = g.model({"x": [1, 2, 1, 1]}, g.Clip("clip", y, "", end))
    ranges = {"x": 3.0, "clip_out": 4.0, "end_out": 3.0, "conv_out": 4.0}
    images = values((1, 2, 1, 1), 3)
    wanted = open_session(model.SerializeToString(), optimize=False).run(None, {"x": images})[0]
    assert np.abs(output_of(model, ranges, "qnnpack", {"x": images}) - wanted).max() < 0.1


def three_layers(images):
    """A convolution, a grouped one, a residual sum and a product, in powers of two, and its ranges."""
    g = Shaped()
    first = g.constant(in_powers(np.empty((8, 3, 3, 3)), -6))
    second = g.constant(in_powers(np.empty((8, 4, 3, 3)), -7))
    last = g.constant(in_powers(np.empty((5, 8)), -5))
    bias = g.constant(np.arange(8, dtype=np.float32))
    a = g.Relu("a", g.Conv("first", "x", first, bias, kernel_shape=[3, 3], pads=[1] * 4))
    b = g.Conv("second", a, second, kernel_shape=[3, 3], pads=[1] * 4, group=2)
    c = g.Relu("c", g.Add("sum", b, a))
    flat = g.Flatten("flat", g.MaxPool("pool", c, kernel_shape=[8, 8]))
    y = g.Gemm("last", flat, last, transB=1)
    ranges = {
        "x": 2.0,
        a: 64.0,
        b: 128.0,
        "sum_out": 128.0,
        c: 128.0,
        "pool_out": 128.0,
        flat: 128.0,
        y: 512.0,
    }
    return g.model({"x": ["N", 3, 8, 8]}, y), {name: amax * 127 / 128 for name, amax in ranges.items()}


def test_explicit_is_what_pairs_compute_bit_for_bit():
    """All steps are powers of two, so that ONNX Runtime's float32 is exact as well."""
    images = values((16, 3, 8, 8))
    model, ranges = three_layers(images)
    wanted = by_pairs(model, ranges, images)
    assert np.array_equal(output_of(model, ranges, "explicit", {"x": images}), wanted)


@pytest.mark.parametrize("seed", range(5))
def test_explicit_is_what_pairs_compute_for_any_scale(seed):
    """Sums of floats differ in their last bits, which a rounding behind them shows at ties alone."""
    weights, bias, images = values((6, 4, 3, 3), seed), values(6, seed + 1), values((4, 4, 9, 9), seed + 2)
    model = convolution(weights, bias, images.shape)
    ranges = {"x": amax_of(images) * 0.7}
    wanted = by_pairs(model, ranges, images)
    assert np.allclose(output_of(model, ranges, "explicit", {"x": images}), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("operator", "shape", "weights", "attributes"),
    [
        ("Conv", (2, 4, 9), (6, 4, 3), {}),
        ("Conv", (2, 4, 9, 7), (6, 4, 3, 2), {"strides": [2, 1], "auto_pad": "SAME_UPPER"}),
        (
            "Conv",
            (2, 4, 9, 7),
            (6, 4, 3, 2),
            {"dilations": [2, 1], "pads": [0, 1, 2, 0]},
        ),
        ("Conv", (2, 4, 5, 5, 5), (6, 4, 2, 2, 2), {}),
        ("Conv", (2, 6, 9, 9), (6, 1, 3, 3), {"group": 6}),
        ("ConvTranspose", (2, 4, 5, 5), (4, 6, 3, 3), {"strides": [2, 2], "output_padding": [1, 1]}),
    ],
)
def test_every_form_of_convolution(operator, shape, weights, attributes):
    kernel = in_powers(np.empty(weights), -7)
    if operator == "ConvTranspose":
        kernel[0] = 127 * 2.0**-7  # the largest of every output channel
    images, ranges = values(shape), {"x": 2 * 127 / 128}
    model = convolution(kernel, None, shape, operator, **attributes)
    wanted = by_pairs(model, ranges, images)
    assert np.array_equal(output_of(model, ranges, "explicit", {"x": images}), wanted)


@pytest.mark.parametrize(
    "attributes",
    [{}, {"transB": 1}, {"alpha": 0.5, "beta": 2.0, "transB": 1}, {"beta": 0.5}],
)
def test_every_form_of_gemm(attributes):
    g = Shaped()
    weights = in_powers(np.empty((5, 32)), -6)
    kernel = g.constant(weights if attributes.get("transB") else weights.T.copy())
    y = g.Gemm("gemm", "x", kernel, g.constant(np.arange(5, dtype=np.float32)), **attributes)
    model, ranges, rows = g.model({"x": [3, 32]}, y), {"x": 127 / 64}, values((3, 32))
    wanted = by_pairs(model, ranges, rows)
    assert np.array_equal(output_of(model, ranges, "explicit", {"x": rows}), wanted)


@pytest.mark.parametrize("inner", [32, 5000])
def test_two_activations_are_multiplied(inner):
    """Also where float32 could not hold the sums."""
    g = Shaped()
    y = g.MatMul("product", "x", g.Transpose("turned", "x", perm=[0, 2, 1]))
    rows, ranges = values((2, 16, inner), 3, 2.0), {"x": 127 / 64, "turned_out": 127 / 64}
    model = g.model({"x": [2, 16, inner]}, y)
    integers = np.clip(np.rint(rows * 64), -128, 127).astype(np.int64)
    wanted = (integers @ integers.swapaxes(1, 2)).astype(np.float32) / np.float32(64 * 64)
    found, sums = outputs_of(simulated(model, ranges, "explicit"), {"x": rows})
    assert np.array_equal(found[y], wanted)
    assert sums == {"product": np.abs(integers @ integers.swapaxes(1, 2)).max()}


@pytest.mark.parametrize("open_size", [False, True])
@pytest.mark.parametrize("inner", [32, 2000, 20_000])
def test_products_of_any_size_are_exact(inner, open_size):
    whole = np.random.default_rng(0).integers(90, 128, (inner, 16))
    whole[0], rows = 127, np.random.default_rng(1).integers(60, 127, (3, inner))
    g = Shaped()
    y = g.MatMul("product", "x", g.constant(whole.astype(np.float32)))
    model = g.model({"x": ["N", inner] if open_size else [3, inner]}, y)
    found, sums = outputs_of(simulated(model, {"x": 127.0}, "explicit"), {"x": rows.astype(np.float32)})
    assert sums == {"product": (rows @ whole).max()}
    assert np.array_equal(found[y], (rows @ whole).astype(np.float32))


@pytest.mark.parametrize("channels", [1000, 2000, 20_000, 60_000])
def test_sums_beyond_float32_are_exact(channels):
    """Up to 2^24 one convolution in float32 gives a sum; weights are taken apart for the larger ones."""
    whole = np.random.default_rng(0).integers(90, 128, (2, channels, 1, 1))
    whole[:, 0], images = 127, np.random.default_rng(1).integers(60, 127, (3, channels, 1, 1))
    model = convolution(whole, None, (3, channels, 1, 1))
    found, sums = outputs_of(simulated(model, {"x": 127.0}, "explicit"), {"x": images.astype(np.float32)})
    wanted = np.einsum("nchw,kchw->nk", images, whole)
    assert sums == {"conv": wanted.max()}
    assert np.array_equal(found["conv_out"].reshape(3, 2), wanted.astype(np.float32))


def q31(sums, ratio):
    """The C code of ``pytorch_qnnp_q31_requantize``, on Python's integers."""
    bits = int(np.float32(ratio).view(np.uint32))
    multiplier, shift = ((bits & 0x7FFFFF) | 0x800000) << 7, 126 - (bits >> 23)
    mask = (1 << shift) - 1
    found = []
    for one in sums:
        upper = (one * multiplier + 0x40000000) >> 31
        remainder = (upper & mask) - (one < 0)
        found.append((upper >> shift) + (remainder > mask >> 1))
    return np.array(found)


def asymmetric(lowest, highest):
    scale = np.float32((highest - lowest) / 255)
    return scale, int(np.rint(-lowest / scale))


def layer_of_qnnpack(seed, amax=1.0, out=4.0):
    weights, bias, images = values((6, 4, 3, 3), seed), values(6, seed + 1), values((2, 4, 8, 8), seed + 2)
    model = convolution(weights, bias, images.shape)
    ranges = {"x": amax_of(images) * amax, "conv_out": out}
    y = output_of(model, ranges, "qnnpack", {"x": images})
    (sx, zx), (sy, zy) = (asymmetric(-ranges[name], ranges[name]) for name in ("x", "conv_out"))
    sw, zw = asymmetric(float(weights.min()), float(weights.max()))
    integers = {
        "x": np.clip(np.rint(images / sx) + zx, 0, 255).astype(np.uint8),
        "w": np.clip(np.rint(weights / sw) + zw, 0, 255).astype(np.uint8),
        "bias": np.rint(bias / (sx * sw)).astype(np.int32),
    }
    return np.rint(y / sy).astype(int) + zy, integers, (sx, zx, sw, zw, sy, zy)


@pytest.mark.parametrize("seed", range(0, 30, 3))
def test_qnnpack_requantizes_as_its_sources_do(seed):
    found, integers, (sx, zx, sw, zw, sy, zy) = layer_of_qnnpack(seed, amax=0.5 + seed / 30, out=2.0 + seed)
    windows = np.lib.stride_tricks.sliding_window_view(integers["x"].astype(int) - zx, (3, 3), axis=(2, 3))
    sums = np.einsum("nchwij,kcij->nkhw", windows, integers["w"].astype(int) - zw)
    sums += integers["bias"].reshape(1, -1, 1, 1)
    wanted = q31([int(one) for one in sums.ravel()], np.float32(sx * sw) / sy).reshape(sums.shape)
    assert np.array_equal(found, np.clip(wanted + zy, 0, 255))


@pytest.mark.parametrize("seed", range(100, 110))
def test_qnnpack_is_qlinear_conv_to_one_step(seed):
    """ONNX Runtime multiplies by a float32 and rounds half to even: it differs beside ties alone.

    The multiplier's product is rounded to as many bits as the shift takes off, so a tie is as wide as half of
    the last of them.
    """
    found, integers, (sx, zx, sw, zw, sy, zy) = layer_of_qnnpack(seed)
    wanted = run_qlinear("QLinearConv", integers, (sx, zx, sw, zw, sy, zy))
    assert np.abs(found - wanted).max() <= 1
    windows = np.lib.stride_tricks.sliding_window_view(integers["x"].astype(int) - zx, (3, 3), axis=(2, 3))
    sums = np.einsum("nchwij,kcij->nkhw", windows, integers["w"].astype(int) - zw)
    ratio = float(sx) * float(sw) / float(sy)
    quotients = (sums + integers["bias"].reshape(1, -1, 1, 1)) * ratio
    to_tie = np.abs(np.abs(quotients - np.floor(quotients)) - 0.5)
    beside_a_tie = to_tie < np.ldexp(0.5, np.frexp(ratio)[1]) + 1e-6 * np.abs(quotients)
    assert np.array_equal(found[~beside_a_tie], wanted[~beside_a_tie])
    assert beside_a_tie.mean() < 0.05


@pytest.mark.parametrize("seed", range(200, 205))
def test_qnnpack_is_qlinear_matmul_to_one_step(seed):
    weights, rows = values((32, 7), seed), values((5, 32), seed + 1)
    g = Shaped()
    y = g.MatMul("product", "x", g.constant(weights))
    ranges = {"x": amax_of(rows), y: 15.0}
    found = output_of(g.model({"x": [5, 32]}, y), ranges, "qnnpack", {"x": rows})
    (sx, zx), (sy, zy) = asymmetric(-ranges["x"], ranges["x"]), asymmetric(-15.0, 15.0)
    sw, zw = asymmetric(float(weights.min()), float(weights.max()))
    integers = {
        "x": np.clip(np.rint(rows / sx) + zx, 0, 255).astype(np.uint8),
        "w": np.clip(np.rint(weights / sw) + zw, 0, 255).astype(np.uint8),
    }
    wanted = run_qlinear("QLinearMatMul", integers, (sx, zx, sw, zw, sy, zy))
    differences = np.abs(np.rint(found / sy).astype(int) + zy - wanted)
    assert differences.max() <= 1
    assert (differences > 0).mean() < 0.02


def run_qlinear(operator, integers, parameters):
    """An integer operator of ONNX Runtime on uint8."""
    scales = {
        name: np.float32(one) if number % 2 == 0 else np.uint8(one)
        for number, (name, one) in enumerate(
            zip(("sx", "zx", "sw", "zw", "sy", "zy"), parameters, strict=True)
        )
    }
    constants = {**scales, **{name: array for name, array in integers.items() if name != "x"}}
    body = f"y = {operator} (x, sx, zx, w, sw, zw, sy, zy{', bias' if 'bias' in integers else ''})"
    shape = ", ".join(map(str, integers["x"].shape))
    model = parsed(f"uint8[{shape}] x", "uint8[] y", body, **constants)
    session = open_session(model.SerializeToString(), optimize=True)
    return session.run(None, {"x": integers["x"]})[0].astype(int)


def test_an_accumulator_that_overflows_is_named():
    g = Shaped()
    count = 140_000  # 127 * 127 * 140,000 is above 2^31
    y = g.Gemm("wide", "x", g.constant(np.full((16, count), 127, np.float32)), transB=1)
    model, rows = g.model({"x": [1, count]}, y), np.full((1, count), 127, np.float32)
    with pytest.raises(ModelError, match="'wide' reaches 2258060000"):
        validate(model, rows, table=table_of({"x": 127.0}), arithmetic="explicit")


def test_more_products_than_can_be_followed_are_refused():
    channels = 200_000
    model = convolution(np.full((1, channels, 1, 1), 127.0), None, (1, channels, 1, 1))
    with pytest.raises(ModelError, match="'conv'"):
        simulated(model, {"x": 1.0}, "explicit")


def test_qnnpack_refuses_factors_of_one_and_more():
    model = convolution([[[[100.0]], [[-100.0]]]])
    with pytest.raises(ModelError, match=r"'conv'.*'qnnpack'"):
        simulated(model, {"x": 100.0, "conv_out": 1.0}, "qnnpack")


def test_nothing_in_integers():
    g = Shaped()
    model = g.model({"x": ["N", 16]}, g.Gemm("gemm", "x", g.weights(16, 16)))
    with pytest.raises(ModelError, match="'dla'"):
        simulated(model, {"x": 1.0, "gemm_out": 1.0}, "dla")


@pytest.mark.parametrize("name", NAMES)
def test_a_range_that_a_product_needs(name):
    with pytest.raises(TableError, match="'x'"):
        simulated(convolution(values((4, 2, 1, 1))), {"other": 1.0}, name)


@pytest.mark.parametrize("name", NAMES)
def test_ranges_of_zero_and_dead_channels(name):
    weights = values((4, 2, 1, 1))
    weights[1] = 0
    model, zeros = convolution(weights, [1.0, 2.0, 3.0, 4.0]), np.zeros((1, 2, 1, 1), np.float32)
    ranges = {"x": 0.0, "conv_out": 4.0}
    if name == "explicit":
        with pytest.warns(UserWarning, match="'x'"):
            found = output_of(model, ranges, name, {"x": zeros})
    else:
        found = output_of(model, ranges, name, {"x": zeros})
    assert np.abs(found.ravel() - [1, 2, 3, 4]).max() <= 4 / 127


@pytest.mark.parametrize("name", NAMES)
def test_validate_gives_sums_and_outputs(name):
    images = values((16, 3, 8, 8))
    model, ranges = three_layers(images)
    if name == "qnnpack":
        ranges = {key: 1e3 if key == "last_out" else value for key, value in ranges.items()}
    found = validate(model, images, table=table_of(ranges), arithmetic=name, batch_size=5)
    layers = {"first", "second"} | ({"last"} if name != "dla" else set())
    assert set(found.in_integers.largest_sums) == layers
    assert found.in_integers.arithmetic == name
    assert 0 < max(found.in_integers.largest_sums.values()) < found.in_integers.accumulator
    assert found.outputs[0].sqnr_db > 15
    assert found.samples == 16


def test_the_largest_sum_is_that_of_all_batches():
    model, table = convolution([[[[127.0]], [[0.0]]]], shape=("N", 2, 1, 1)), table_of({"x": 127.0})
    images = np.float32([[3, 0], [100, 0], [5, 0]]).reshape(3, 2, 1, 1)
    found = validate(model, images, table=table, arithmetic="ncnn", batch_size=1)
    assert found.in_integers.largest_sums == {"conv": 12_700}
    assert found.in_integers.in_float == {}


def test_what_does_not_go_together(tmp_path):
    model, table, images = (
        convolution(values((4, 2, 1, 1))),
        table_of({"x": 1.0}),
        values((1, 2, 1, 1)),
    )
    with pytest.raises(ModelError, match="reference"):
        validate(model, images)
    with pytest.raises(TableError, match="arithmetic"):
        validate(model, images, reference=model, table=table)
    with pytest.raises(TableError, match="table"):
        validate(model, images, arithmetic="ncnn")
    with pytest.raises(UnsupportedError, match=r"'none'.*qnnpack"):
        validate(model, images, table=table, arithmetic="none")
    with pytest.raises(TableError, match="table"):
        validate(quantize(model, table), images, table=table, arithmetic="dla")
    engine = tmp_path / "some.engine"
    engine.touch()
    with pytest.raises(ModelError, match="engine"):
        validate(engine, images, reference=model, table=table, arithmetic="dla")


@pytest.mark.filterwarnings("ignore:FP32.s output .* not numbers")
@pytest.mark.parametrize("name", NAMES)
def test_values_that_are_no_numbers(name):
    """A root of what is negative on some samples only, in front of a layer."""
    g = Shaped()
    root = g.Sqrt("root", "x")
    weights = g.constant(np.full((1, 2, 1, 1), 0.5, np.float32))
    model = g.model({"x": ["N", 2, 1, 1]}, g.Conv("conv", root, weights, kernel_shape=[1, 1]))
    images = np.float32([[4, 4], [-1, 4], [4, 9]]).reshape(3, 2, 1, 1)
    table = table_of({"x": 9.0, root: 3.0, "conv_out": 3.0})
    found = validate(model, images, table=table, arithmetic=name, metrics="cosine", batch_size=1)
    assert found.in_integers.largest_sums["conv"] > 0


@pytest.mark.parametrize("name", NAMES)
def test_weights_that_are_no_numbers(name):
    weights = values((4, 2, 1, 1))
    weights[0, 0] = np.nan
    with pytest.raises(ModelError, match="'conv'"):
        simulated(convolution(weights), {"x": 1.0, "conv_out": 1.0}, name)
