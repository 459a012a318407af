"""Networks equalized as a whole: they compute the same as before, and lose less in INT8."""

import dataclasses
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrators.data.inputs import DataOptions
from calibrators.errors import CalibrationDataError, TableError
from calibrators.run import RunOptions
from tests.trtint8.equalization.layers import even, only_one_layer, two_layers
from tests.trtint8.equalization.transformers import SIZE, Blocks, followed, samples, with_random_factors
from tests.trtint8.onnx_models import Shaped, parsed
from tests.trtint8.tuning.networks import array, normal, prepared, run
from trtint8.calibration import CalibrationOptions, calibrate_model
from trtint8.equalization.equalize import equalize, equalize_and_calibrate
from trtint8.equalization.forms import apply_factors, find_forms
from trtint8.models.model import load_model, prepare


def test_an_outlier_channel_is_divided_and_the_function_stays():
    model, feed = prepared(two_layers()), {"x": normal(64, 6)}
    found = equalize(model, [feed])
    (form,) = found.forms
    assert form.description == "'first' to 'second'"
    assert form.channels == 8 and 0.3 <= form.strength <= 0.8
    before, after = (array(one, "first", 1) for one in (model, found.model))
    factors = before[0] / after[0]
    np.testing.assert_allclose([form.smallest, form.largest], [factors.min(), factors.max()], rtol=1e-6)
    assert factors[3] > 20 * np.median(factors)
    np.testing.assert_allclose(
        array(found.model, "second", 1), array(model, "second", 1) * factors[:, None], rtol=1e-5
    )
    np.testing.assert_allclose(array(found.model, "first", 2), array(model, "first", 2) / factors, rtol=1e-5)
    np.testing.assert_allclose(run(found.model, feed)[0], run(model, feed)[0], rtol=1e-5, atol=1e-6)
    assert found.skipped == {"second": "'second_out' is an output of the model"}


@pytest.mark.parametrize("batches", [1, 4])
def test_channels_along_the_first_axis(batches):
    model = prepared(two_layers(turned=True))
    feeds = [{"x": rows} for rows in np.split(normal(64, 6), batches)]
    found = equalize(model, feeds)
    (form,) = found.forms
    assert form.channels == 8 and form.largest > 20 * form.smallest
    for feed in feeds:
        np.testing.assert_allclose(run(found.model, feed)[0], run(model, feed)[0], rtol=1e-5, atol=1e-5)


def test_even_channels_keep_their_values():
    model = prepared(even())
    found = equalize(model, [{"x": np.float32(np.random.default_rng(0).uniform(-1, 1, (64, 6)))}])
    assert found.forms == () and found.unchanged == ("'first' to 'second'",)
    np.testing.assert_array_equal(array(found.model, "first", 1), array(model, "first", 1))


def test_the_model_that_was_given_stays():
    model = prepared(two_layers())
    before = array(model, "first", 1).copy()
    equalize(model, [{"x": normal(8, 6)}])
    np.testing.assert_array_equal(array(model, "first", 1), before)


def test_without_samples_nothing_changes():
    found = equalize(prepared(two_layers()), [])
    assert found.forms == () and found.unchanged == ()


def test_a_network_without_channels_to_follow_names_the_reasons():
    found = equalize(prepared(only_one_layer()), [{"x": normal(8, 6)}])
    assert found.forms == () and found.skipped == {"only": "'only_out' is an output of the model"}


ACTIVATIONS = {"Relu": {}, "LeakyRelu": {"alpha": 0.2}, "PRelu": {}, "MaxPool": {}, "AveragePool": {}}


@st.composite
def networks(draw):
    """A chain of convolutions of all kinds and what may stand between them; and how many pairs it holds."""
    g = Shaped(quantized=False)
    g.random = np.random.default_rng(draw(st.integers(0, 1000)))

    def uneven(shape, axis):
        along = [1] * len(shape)
        along[axis] = -1
        weights = g.random.standard_normal(shape) * (10 ** g.random.uniform(-1, 1, shape[axis])).reshape(
            along
        )
        return g.constant(weights.astype(np.float32))

    x, channels = "x", 4
    layers = draw(st.integers(2, 4))
    for number in range(layers):
        kind = draw(st.sampled_from(["plain", "grouped", "depthwise", "up", "up_grouped"]))
        after = draw(st.sampled_from([2, 4, 6]))
        group = {"plain": 1, "up": 1, "grouped": 2, "up_grouped": 2, "depthwise": channels}[kind]
        after = 2 * channels if kind == "depthwise" else after
        bias = [g.weights(after)] if draw(st.booleans()) else []
        if kind.startswith("up"):
            weights = uneven((channels, after // group, 2, 2), 1)
            x = g.op("ConvTranspose", [x, weights, *bias], f"layer{number}", group=group)
        else:
            weights = uneven((after, channels // group, 3, 3), 0)
            x = g.op("Conv", [x, weights, *bias], f"layer{number}", group=group, pads=[1] * 4)
        channels = after
        for operator in draw(st.lists(st.sampled_from(sorted(ACTIVATIONS)), max_size=2, unique=True)):
            inputs = [x, g.weights(channels, 1, 1)] if operator == "PRelu" else [x]
            pools = {"kernel_shape": [2, 2]} if operator.endswith("Pool") else {}
            x = g.op(operator, inputs, f"{operator}{number}", **ACTIVATIONS[operator], **pools)
    if draw(st.booleans()):
        x = g.op("Flatten", [g.op("GlobalAveragePool", [x], "pool")], "flat")
        x = g.op("Dropout", [x], "dropout")
        x = g.op("Gemm", [x, g.weights(3, channels), g.weights(3)], "head", transB=1)
        x = g.op("MatMul", [g.op("Relu", [x], "relu"), g.weights(3, 5)], "last")
        layers += 2
    return g.model({"x": ["N", 4, 8, 8]}, x), layers - 1


@pytest.mark.slow
@given(networks())
def test_a_convolutional_network_stays_the_function_that_it_was(case):
    model, count = case
    model, feed = prepared(model), {"x": normal(3, 4, 8, 8)}
    found = equalize(model, [feed])
    assert len(found.forms) + len(found.unchanged) == count
    (before,), (after,) = run(model, feed), run(found.model, feed)
    np.testing.assert_allclose(after, before, rtol=1e-5, atol=1e-5 * np.abs(before).max())
    # And with any other factors.
    (other,) = run(with_random_factors(model, followed(model, feed), 0)[0], feed)
    np.testing.assert_allclose(other, before, rtol=1e-5, atol=1e-5 * np.abs(before).max())


@pytest.mark.slow
@given(st.integers(0, 1000), st.floats(30, 100), st.sampled_from(["norm", "v", "qk", "up"]))
def test_outliers_of_a_transformer_are_found_wherever_they_are(seed, times, place):
    g = Blocks(seed)
    normal_x = g.layer_norm("x", "norm")
    q, k, v = g.separate(normal_x, "a")
    x = g.op("Add", ["x", g.linear(g.attention(q, k, v, "a"), SIZE, SIZE, "projection")], "sum")
    x = g.op("Relu", [g.linear(x, SIZE, 12, "up")], "relu")
    model, feed = g.finish(g.linear(x, 12, SIZE, "down")), samples(256)
    nodes = {"norm": "norm", "v": "a_v", "qk": "a_q", "up": "up"}
    channels = followed(model, feed)
    factors = np.ones(len(channels.representatives))
    producer = next(one for one in channels.producers if one.node == nodes[place])
    chosen = producer.labels.reshape(-1)[seed % producer.labels.size]
    power = channels.powers[chosen]
    factors[channels.representatives[chosen]] = times ** -float(power)
    harmed = model.clone()
    apply_factors(harmed, channels, factors)
    found = equalize(harmed, [feed])
    assert any(form.description.startswith(f"'{nodes[place]}'") for form in found.forms)
    (before,), (after,) = run(model, feed), run(found.model, feed)
    np.testing.assert_allclose(after, before, rtol=1e-5, atol=1e-5 * np.abs(before).max())


FIRST, SECOND = "[first] f = Conv (x, w, b) ", " [second] y = Conv (m, u, c)"

#: Two layers, what stands between them, and the shape of the input where it is another.
ALONE = {
    **{name: f"{FIRST} m = {name} (f) {SECOND}" for name in ("Sigmoid", "Tanh", "HardSwish")},
    "clipped": f"{FIRST} m = Clip (f, , six) {SECOND}",
    "residual": FIRST + "[second] s = Conv (f, u, c) y = Add (s, f)",
    "an output": f"{FIRST} m = Identity (f) {SECOND}",
    "transposed": f"{FIRST} m = Transpose <perm = [0, 2, 1, 3]> (f) {SECOND}",
    "along another axis": FIRST + "[second] y = MatMul (f, v)",
    "as weights": FIRST + "m = Flatten (f) [second] y = Gemm (v, m)",
    "flattened elsewhere": FIRST + "m = Flatten <axis = 2> (f) [second] y = Gemm (m, t)",
    "turned": "[first] f = Gemm (x, v) [second] y = Gemm <transA = 1> (f, v)",
    "computed bias": "[first] m = Conv (x, w, bias)" + SECOND,
    "read indices": f"{FIRST} m, where = MaxPool <kernel_shape = [2, 2]> (f) {SECOND}",
}
SHAPES = {"as weights": (4, 4, 1, 1), "turned": (4, 4)}
OUTPUTS = {"an output": ", float[] f", "read indices": ", int64[] where"}


@pytest.mark.parametrize("name", [*ALONE, "of a form"])
def test_left_alone(name):
    """What stands between two layers that are not of a form, and what does where they are."""
    shape = SHAPES.get(name, (1, 4, 4, 4))
    feed = {"x": normal(*shape)} | ({"bias": normal(4)} if "bias" in name else {})
    inputs = ", ".join(f"float{list(array.shape)} {each}" for each, array in feed.items())
    weights = {each: normal(4, 4, 1, 1, seed=seed) for seed, each in enumerate("wu")}
    weights |= {"b": normal(4), "c": normal(4), "v": normal(4, 4), "t": normal(16, 2), "six": np.float32(6)}
    model = parsed(
        inputs,
        f"float[] y{OUTPUTS.get(name, '')}",
        ALONE.get(name, f"{FIRST} m = Relu (f) {SECOND}"),
        **weights,
    )
    assert len(find_forms(followed(prepared(model), feed))) == (name not in ALONE)


def test_weights_that_other_nodes_read_stay_theirs():
    """Both layers, and one that is in no form, share their weights and biases."""
    random = np.random.default_rng(0)
    weights, bias = (random.standard_normal(shape).astype(np.float32) for shape in ((4, 4, 1, 1), 4))
    weights[1] *= 50
    body = """[first] f = Conv (x, w, b) [second] s = Conv (f, w, b) [aside] a = Conv (x, w, b)
        y = Add (s, a)"""
    model = prepared(parsed("float[1, 4, 5, 5] x", "float[] y", body, w=weights, b=bias * np.float32(0.1)))
    feed = {"x": normal(1, 4, 5, 5)}
    found = equalize(model, [feed])
    assert [form.description for form in found.forms] == ["'first' to 'second'"]
    np.testing.assert_allclose(run(found.model, feed)[0], run(model, feed)[0], rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(array(found.model, "aside", 1), array(model, "aside", 1))


def siblings(count):
    """Normalizations of one tensor, each with two products behind it, which share their offsets."""
    random, weights = np.random.default_rng(0), {"o": np.zeros(8)}
    body = ""
    for n in range(count):
        uneven = random.normal(size=(8, 8)) / 3 * np.exp(random.normal(size=8))
        weights |= {f"g{n}": np.exp(2 * random.normal(size=8)), f"w{n}": uneven, f"v{n}": normal(8, 8) / 10}
        body += f"""[even{n}] e{n} = LayerNormalization (x, g{n}, o) [first{n}] f{n} = MatMul (e{n}, w{n})
            r{n} = Relu (f{n}) p{n} = Mul (r{n}, e{n}) [second{n}] s{n} = MatMul (p{n}, v{n}) """
    body += f"y = Concat <axis = 1> ({', '.join(f's{n}' for n in range(count))})"
    arrays = {name: array.astype(np.float32) for name, array in weights.items()}
    return prepared(parsed("float[N, 8] x", "float[] y", body, **arrays))


def calls_of(count):
    """How many calls it takes to equalize so many siblings, and how many forms there are."""
    model, calls = siblings(count), 0

    def note(_frame, event, _argument):
        nonlocal calls
        calls += event == "call"

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        found = equalize(model, [{"x": normal(32, 8)}])
    finally:
        sys.setprofile(before)
    return calls, len(found.forms)


def test_work_grows_with_the_number_of_siblings_and_not_with_its_square():
    calls_of(2)  # what is found once and kept
    (few, some), (many, more) = calls_of(10), calls_of(60)
    assert more > 4 * some > 0 and many < 1.5 * 6 * few


DATA = normal(200, 6)
EVEN = np.random.default_rng(0).uniform(-1, 1, (200, 6)).astype(np.float32)


def calibrated(model, method="minmax", data=DATA):
    model = prepare(load_model(model))
    table = calibrate_model(
        model, data, CalibrationOptions(method, "placed"), DataOptions(), RunOptions(progress=False)
    )
    return model, table


def equalized(model, table, data=DATA, **options):
    return equalize_and_calibrate(model, table, data, DataOptions(**options), progress=False)


def test_the_equalized_model_has_a_table_of_its_own():
    model, table = calibrated(two_layers())
    found = equalized(model, table)
    assert len(found.equalized.forms) == 1
    assert found.model.name == model.name and found.model.fingerprint != model.fingerprint
    assert found.table.provenance.model == found.model.fingerprint
    assert found.table.provenance.samples == 200
    assert found.table.method == "minmax"
    assert found.table.amax["x"] == table.amax["x"]
    assert found.table.amax["relu_out"] < table.amax["relu_out"] / 10


def test_data_options_reach_the_calibration():
    model, table = calibrated(two_layers(), "percentile")
    found = equalized(model, table, limit=50)
    assert found.table.provenance.samples == 50 and found.table.method == "percentile"


def test_a_model_that_gains_nothing_stays_as_it_is_with_its_table_and_a_warning():
    for made, data, words in (
        (only_one_layer(), DATA, r"nothing in 'model' can be equalized \('only_out' is an output"),
        (even(), EVEN, "even enough that equalization gains nothing; the model is quantized as it is"),
    ):
        model, table = calibrated(made, data=data)
        with pytest.warns(UserWarning, match=words):
            found = equalized(model, table, data)
        assert found.model is model and found.table is table and not found.equalized.forms


def test_tables_that_do_not_fit_are_refused():
    model, table = calibrated(two_layers())
    with pytest.raises(TableError, match=r"method.* 'by hand'"):
        equalized(model, dataclasses.replace(table, method="by hand"))
    with pytest.raises(TableError, match="the range of 'x' was set by hand"):
        equalized(model, table.override({"x": 3.0}))
    other, _ = calibrated(even())
    with pytest.raises(TableError):
        equalized(other, table)


def test_data_that_can_be_read_once_is_refused():
    model, table = calibrated(two_layers())
    with pytest.raises(CalibrationDataError, match="cannot be read again"):
        equalized(model, table, ({"x": DATA[at : at + 20]} for at in range(0, 200, 20)))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_values_without_meaning_are_refused(value, recwarn):
    model, table = calibrated(two_layers())
    data = DATA.copy()
    data[40, 2] = value
    words = "has 1 value that is NaN or infinite, the first in sample 40; remove such samples"
    with pytest.raises(CalibrationDataError, match=words):
        equalized(model, table, data)
    assert not recwarn.list
