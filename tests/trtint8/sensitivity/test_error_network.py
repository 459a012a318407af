"""What the error of every layer does to the outputs, in one run."""

import numpy as np
import pytest

from calibrators.data.inputs import InputSpec
from tests.trtint8.simulation.opened import WEIGHTS, X, opened, opened_products
from trtint8.sensitivity.effects import ALL, ONLY, EffectMeter, variants_of
from trtint8.sensitivity.error_network import ErrorNetwork, deciding_operators
from trtint8.sensitivity.gradients.rule import NoGradientError
from trtint8.sensitivity.measure import Probe
from trtint8.simulation.networks import Form
from trtint8.simulation.segments import propagate

DIRECTIONS = np.array([[[1, -1], [1, 1]], [[0.5, 0], [-2, 3]]], np.float32)


def error_network(found, **options):
    network = ErrorNetwork(found.model, found.quantizer, **options)
    network.open(threads=1)
    return network


def errors_at_the_output():
    """What the errors of both layers become at the output, and the output in float."""
    products = opened_products()
    tensors, found = {"x": X}, []
    for segment, rest in zip(products.network.segments, (WEIGHTS, np.eye(2)), strict=True):
        error = segment.run_layer(Form.INT8, tensors) - segment.run_layer(Form.FLOAT, tensors)
        found.append(error @ rest)
        tensors |= segment.run(Form.FLOAT, tensors)
    return np.array(found), tensors["second"]


def test_products_are_those_of_directions_with_what_an_error_becomes():
    network = error_network(opened_products())
    assert (network.directed, network.directions) == (("second",), 2)
    assert network.splits and network.has_margins
    assert network.samples_per_run > 1000 and network.fits_beside_others
    found = network.run({"x": X}, [{"second": direction} for direction in DIRECTIONS])
    errors, output = errors_at_the_output()
    wanted = np.einsum("dsc,lsc->dls", DIRECTIONS, errors)
    np.testing.assert_allclose(found.products, wanted, rtol=1e-4, atol=1e-7)
    np.testing.assert_allclose(found.reference["second"], output, rtol=1e-6)


def test_large_samples_get_one_direction_and_run_alone(monkeypatch):
    products = opened_products()  # 16 bytes a sample
    monkeypatch.setattr("trtint8.sensitivity.error_network._WANTED", 16)
    fitting = error_network(products)
    assert (fitting.samples_per_run, fitting.fits_beside_others, fitting.directions) == (1, True, 2)
    monkeypatch.setattr("trtint8.sensitivity.error_network._WANTED", 15)
    large = error_network(products)
    assert (large.samples_per_run, large.fits_beside_others, large.directions) == (1, False, 1)
    found = large.run({"x": X}, [{"second": DIRECTIONS[0]}])
    errors, _ = errors_at_the_output()
    wanted = np.einsum("sc,lsc->ls", DIRECTIONS[0], errors)
    np.testing.assert_allclose(found.products[0], wanted, rtol=1e-4, atol=1e-7)


def test_the_margin_is_the_largest_score_less_the_second():
    network = error_network(opened_products())
    scores = X @ WEIGHTS @ WEIGHTS
    largest = scores == scores.max(axis=1, keepdims=True)
    zeros = {"second": np.zeros_like(scores)}
    margin = {"second": np.where(largest, 1, -1).astype(np.float32)}
    by_hand = network.run({"x": X}, [margin, margin])
    asked = network.run({"x": X}, [zeros, zeros], np.array([True, False]))
    np.testing.assert_array_equal(asked.products[0, :, 0], by_hand.products[0, :, 0])
    np.testing.assert_array_equal(asked.products[0, :, 1], 0)
    np.testing.assert_array_equal(asked.products[1], 0)


@pytest.mark.parametrize(
    ("samples", "small", "large"), [(None, 2, 1), (32, 2, 1), (31, 2, 2), (16, 2, 2), (15, 4, 4), (1, 4, 4)]
)
def test_few_samples_have_more_directions(monkeypatch, samples, small, large):
    assert error_network(opened_products(), samples=samples).directions == small
    monkeypatch.setattr("trtint8.sensitivity.error_network._WANTED", 15)
    assert error_network(opened_products(), samples=samples).directions == large


@pytest.mark.parametrize(("samples", "order"), [("N", [1, 0, 2]), ("2", [0, 1, 2])])
def test_samples_that_cannot_be_told_apart_are_taken_together(samples, order):
    """A product whose output has its axes turned around, or whose samples are a fixed number."""
    text = f"first = MatMul (x, w) y = Transpose <perm = {order}> (first) where float[2, 2] w"
    network = error_network(opened(f"float[{samples}, 3, 2] x", text, ranges=1.0))
    assert not (network.splits or network.has_margins)
    x = np.linspace(-1, 1, 12, dtype=np.float32).reshape(2, 3, 2)
    ones = np.ones(np.array([2, 3, 2])[order], np.float32)
    found = network.run({"x": x}, [{"y": ones}, {"y": ones / 2}])
    assert found.products.shape == (2, 1, 1)
    np.testing.assert_allclose(found.products[1], found.products[0] / 2)


@pytest.mark.parametrize(
    "joined", ["[2] to = {-1, 2}", "[3] to = {3, -1, 2}"], ids=["tokens joined to samples", "samples second"]
)
def test_samples_that_a_layer_has_elsewhere_are_run_one_by_one(joined):
    """As of GPT-2's products, of windows, and of attention that has positions first."""
    text = (
        "joined = Reshape (x, to) first = MatMul (joined, w) y = Reshape (first, rows) where "
        f"float[2, 2] w = {{1.0, 0.1, 0.2, 0.5}}, int64{joined}, int64[2] rows = {{-1, 6}}"
    )
    network = error_network(opened("float[N, 3, 2] x", text, ranges={"joined": 1.0, "x": 1.0}))
    assert (network.splits, network.samples_per_run, network.directions) == (True, 1, 2)
    x = np.linspace(-0.9, 1, 12, dtype=np.float32).reshape(2, 3, 2)
    direction = np.array([[1, -1, 1, 1, -1, 1]], np.float32)
    for row in range(2):
        found = network.run({"x": x[row : row + 1]}, [{"y": direction}, {"y": -direction}])
        rounded = np.rint(x[row] * 127) / 127
        scales = np.abs(WEIGHTS).max(axis=0) / 127
        error = rounded @ (np.rint(WEIGHTS / scales) * scales) - x[row] @ WEIGHTS
        wanted = float((error.ravel() * direction[0]).sum())
        np.testing.assert_allclose(found.products[:, 0, 0], [wanted, -wanted], rtol=1e-4)


ROWS, PICKED = 6, 2
INPUTS = (InputSpec("x", np.dtype(np.float32), ("N", ROWS, 4)),)
DECISIONS_X = np.random.default_rng(3).standard_normal((64, ROWS, 4)).astype(np.float32)


def picking(heads=1):
    """Values of the rows with the largest scores; each of some heads picks by scores of its own."""
    nodes = " ".join(
        f"scores{head} = MatMul (x, w{head}) flat{head} = Squeeze (scores{head}, two) "
        f"largest{head}, places{head} = TopK <axis = 1> (flat{head}, k) "
        f"rows{head} = Unsqueeze (places{head}, two) wide{head} = Expand (rows{head}, to) "
        f"picked{head} = GatherElements <axis = 1> (values, wide{head})"
        for head in range(heads)
    )
    text = (
        f"values = MatMul (x, v) {nodes} y = Sum ({', '.join(f'picked{head}' for head in range(heads))}) "
        f"where float[4, 3] v, {', '.join(f'float[4, 1] w{head}' for head in range(heads))}, "
        f"int64[1] two = {{2}}, int64[1] k = {{{PICKED}}}, int64[3] to = {{1, 1, 3}}"
    )
    return opened(f"float[N, {ROWS}, 4] x", text, ranges=3.0)


def threshold(kept="values"):
    """Values that are kept where a score, which nothing else reads, is positive."""
    text = (
        "values = MatMul (x, v) scores = MatMul (x, w) positive = Greater (scores, zero) "
        f"kept = Cast <to = 1> (positive) y = Mul (values, {kept}) "
        "where float[4, 4] v, float[4, 4] w, float zero = {0}"
    )
    return opened(f"float[N, {ROWS}, 4] x", text, ranges=3.0)


@pytest.mark.parametrize(
    ("found", "operators"),
    [
        (picking(), {"scores0": {"TopK"}}),
        (threshold("kept"), {"scores": {"Greater"}}),
        (threshold("x"), {}),  # no output depends on it
    ],
)
def test_operators_that_decide(found, operators):
    layers = [layer for layer in found.layers if layer.name.startswith("scores")]
    assert deciding_operators(list(found.model.graph), found.model.graph.outputs, layers) == operators


def test_what_only_decides_what_is_picked_is_run_by_itself():
    model = picking()
    variants = variants_of(("values", "scores0"), predicted=True)
    meter = EffectMeter(variants, {"y": 1.0}, classes=False, labelled=False, predicted=True)
    probe = Probe(model.model, model.quantizer, inputs=INPUTS, effects=meter)
    effects = probe.run({"x": DECISIONS_X}, None, 0).effects
    found = propagate(model.network, {"x": DECISIONS_X}, lambda *_: None)

    def noise(outputs):
        return np.square(outputs["y"].astype(np.float64) - found.reference["y"]).sum()

    assert effects.noise((ONLY, "scores0")) == pytest.approx(noise(found.only["scores0"])) != 0
    assert effects.noise((ONLY, "values")) == pytest.approx(noise(found.only["values"]), rel=0.3)
    assert effects.noise(ALL) == pytest.approx(noise(found.quantized))
    assert effects.sums[:, 0].tolist() == [64, 64, 64]


PRODUCT = "first = MatMul (x, w) y = {} (first) where float[2, 2] w"


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        # What layers do to it would be left out.
        (
            opened(
                "float[N, 2] x",
                PRODUCT.format("Cast <to = 10>"),
                "float[N, 2] first, float16[N, 2] y",
                {"x": 1.0},
            ),
            "'y'",
        ),
        (
            opened("float[N, 2] x", PRODUCT.format("ArgMax <axis = 1>"), "int64[N, 1] y", {"x": 1.0}),
            "no output is of a floating-point type",
        ),
        (threshold("kept"), "'scores'"),
        (picking(5), "5 layers only decide which elements a TopK picks"),
    ],
)
def test_what_gradients_do_not_show(found, reason):
    with pytest.raises(NoGradientError, match=reason):
        ErrorNetwork(found.model, found.quantizer)


def test_few_layers_may_decide_what_is_picked():
    assert len(error_network(picking(4)).picking) == 4
