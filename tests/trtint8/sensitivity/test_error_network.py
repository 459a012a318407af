"""What the error of every layer does to the outputs, in one run."""

import numpy as np
import pytest
from onnx import TensorProto, helper

from calibrators.data.inputs import InputSpec
from tests.trtint8.onnx_models import Shaped
from tests.trtint8.simulation.two_products import WEIGHTS, X, opened_products
from trtint8.models.model import load_model, prepare
from trtint8.quantization.placement import place
from trtint8.sensitivity.effects import ALL, ONLY, EffectMeter, variants_of
from trtint8.sensitivity.error_network import ErrorNetwork, deciding_operators
from trtint8.sensitivity.gradients.rule import NoGradientError
from trtint8.sensitivity.measure import Probe
from trtint8.simulation.networks import Form, Quantizer, find_layers
from trtint8.simulation.segments import cut, propagate

DIRECTIONS = np.array([[[1, -1], [1, 1]], [[0.5, 0], [-2, 3]]], np.float32)


def opened_network(opened):
    network = ErrorNetwork(opened.model, opened.quantizer)
    network.open(threads=1)
    return network


def errors_at_the_output():
    """What the errors of both layers become at the output, and the output in float."""
    opened = opened_products()
    tensors, found = {"x": X}, []
    for segment, rest in zip(opened.network.segments, (WEIGHTS, np.eye(2)), strict=True):
        error = segment.run_layer(Form.INT8, tensors) - segment.run_layer(Form.FLOAT, tensors)
        found.append(error @ rest)
        tensors |= segment.run(Form.FLOAT, tensors)
    return np.array(found), tensors["second_out"]


def test_products_are_those_of_directions_with_what_an_error_becomes():
    opened = opened_products()
    network = opened_network(opened)
    assert (network.directed, network.directions) == (("second_out",), 2)
    assert network.splits and network.has_margins
    assert network.samples_per_run > 1000 and network.fits_beside_others
    found = network.run({"x": X}, [{"second_out": direction} for direction in DIRECTIONS])
    errors, output = errors_at_the_output()
    wanted = np.einsum("dsc,lsc->dls", DIRECTIONS, errors)
    np.testing.assert_allclose(found.products, wanted, rtol=1e-4, atol=1e-7)
    np.testing.assert_allclose(found.reference["second_out"], output, rtol=1e-6)


def test_large_samples_get_one_direction_and_run_alone(monkeypatch):
    opened = opened_products()  # 16 bytes a sample
    monkeypatch.setattr("trtint8.sensitivity.error_network._WANTED", 16)
    fitting = opened_network(opened)
    assert (fitting.samples_per_run, fitting.fits_beside_others, fitting.directions) == (1, True, 2)
    monkeypatch.setattr("trtint8.sensitivity.error_network._WANTED", 15)
    large = opened_network(opened)
    assert (large.samples_per_run, large.fits_beside_others, large.directions) == (1, False, 1)
    found = large.run({"x": X}, [{"second_out": DIRECTIONS[0]}])
    errors, _ = errors_at_the_output()
    wanted = np.einsum("sc,lsc->ls", DIRECTIONS[0], errors)
    np.testing.assert_allclose(found.products[0], wanted, rtol=1e-4, atol=1e-7)


def test_the_margin_is_the_largest_score_less_the_second():
    opened = opened_products()
    network = opened_network(opened)
    scores = X @ WEIGHTS @ WEIGHTS
    largest = scores == scores.max(axis=1, keepdims=True)
    zeros = {"second_out": np.zeros_like(scores)}
    margin = {"second_out": np.where(largest, 1, -1).astype(np.float32)}
    by_hand = network.run({"x": X}, [margin, margin])
    asked = network.run({"x": X}, [zeros, zeros], np.array([True, False]))
    np.testing.assert_array_equal(asked.products[0, :, 0], by_hand.products[0, :, 0])
    np.testing.assert_array_equal(asked.products[0, :, 1], 0)
    np.testing.assert_array_equal(asked.products[1], 0)


@pytest.mark.parametrize(
    ("samples", "small", "large"), [(None, 2, 1), (32, 2, 1), (31, 2, 2), (16, 2, 2), (15, 4, 4), (1, 4, 4)]
)
def test_few_samples_have_more_directions(monkeypatch, samples, small, large):
    opened = opened_products()
    assert ErrorNetwork(opened.model, opened.quantizer, samples=samples).directions == small
    monkeypatch.setattr("trtint8.sensitivity.error_network._WANTED", 15)
    assert ErrorNetwork(opened.model, opened.quantizer, samples=samples).directions == large


def other_model(shape, order):
    """A product whose output has its axes turned around."""
    g = Shaped(quantized=False)
    product = g.op("MatMul", ["x", g.constant(WEIGHTS)], "first")
    model = g.model({"x": shape}, g.op("Transpose", [product], "turned", perm=order))
    prepared = prepare(load_model(model)).graph_model
    return prepared, Quantizer.of(place(prepared), {"x": 1.0})


@pytest.mark.parametrize(("shape", "order"), [(["N", 3, 2], [1, 0, 2]), ([2, 3, 2], [0, 1, 2])])
def test_samples_that_cannot_be_told_apart_are_taken_together(shape, order):
    network = ErrorNetwork(*other_model(shape, order))
    network.open(threads=1)
    assert not (network.splits or network.has_margins)
    x = np.linspace(-1, 1, 12, dtype=np.float32).reshape(2, 3, 2)
    output = np.transpose(x @ WEIGHTS, order)
    ones, halves = np.ones_like(output), np.full_like(output, 0.5)
    found = network.run({"x": x}, [{"turned_out": ones}, {"turned_out": halves}])
    assert found.products.shape == (2, 1, 1)
    np.testing.assert_allclose(found.products[1], found.products[0] / 2)


@pytest.mark.parametrize("joined", [[-1, 2], [3, -1, 2]], ids=["tokens joined to samples", "samples second"])
def test_samples_that_a_layer_has_elsewhere_are_run_one_by_one(joined):
    """As of GPT-2's products, of windows, and of attention that has positions first."""
    g = Shaped(quantized=False)
    flat = g.op("Reshape", ["x", g.constant(np.array(joined, np.int64))], "joined")
    product = g.op("MatMul", [flat, g.constant(WEIGHTS)], "first")
    made = g.model({"x": ["N", 3, 2]}, g.op("Reshape", [product, g.constant(np.array([-1, 6]))], "apart"))
    prepared = prepare(load_model(made)).graph_model
    network = ErrorNetwork(prepared, Quantizer.of(place(prepared), {"joined_out": 1.0, "x": 1.0}))
    network.open(threads=1)
    assert (network.splits, network.samples_per_run, network.directions) == (True, 1, 2)
    x = np.linspace(-0.9, 1, 12, dtype=np.float32).reshape(2, 3, 2)
    direction = np.array([[1, -1, 1, 1, -1, 1]], np.float32)
    for row in range(2):
        feed = {"x": x[row : row + 1]}
        found = network.run(feed, [{"apart_out": direction}, {"apart_out": -direction}])
        rounded = np.rint(x[row] * 127) / 127
        scales = np.abs(WEIGHTS).max(axis=0) / 127
        error = rounded @ (np.rint(WEIGHTS / scales) * scales) - x[row] @ WEIGHTS
        wanted = float((error.ravel() * direction[0]).sum())
        np.testing.assert_allclose(found.products[:, 0, 0], [wanted, -wanted], rtol=1e-4)


def test_an_output_of_another_floating_point_type_is_refused():
    """What layers do to it would be left out."""
    g = Shaped(quantized=False)
    product = g.op("MatMul", ["x", g.constant(WEIGHTS)], "first")
    made = g.model({"x": ["N", 2]}, product)
    half = g.op("Cast", [product], "half", to=TensorProto.FLOAT16)
    made.graph.node.append(g.nodes[-1])
    made.graph.output.append(helper.make_tensor_value_info(half, TensorProto.FLOAT16, ["N", 2]))
    model = prepare(load_model(made)).graph_model
    with pytest.raises(NoGradientError, match="'half_out'"):
        ErrorNetwork(model, Quantizer.of(place(model), {"x": 1.0}))


def test_outputs_of_integers_alone_have_no_direction():
    g = Shaped(quantized=False)
    product = g.op("MatMul", ["x", g.constant(WEIGHTS)], "first")
    made = g.model({"x": ["N", 2]}, g.op("ArgMax", [product], "best", axis=1))
    made.graph.output[0].CopyFrom(helper.make_tensor_value_info("best_out", TensorProto.INT64, ["N", 1]))
    model = prepare(load_model(made)).graph_model
    with pytest.raises(NoGradientError, match="no output is of a floating-point type"):
        ErrorNetwork(model, Quantizer.of(place(model), {"x": 1.0}))


ROWS, PICKED = 6, 2
INPUTS = (InputSpec("x", np.dtype(np.float32), ("N", ROWS, 4)),)
DECISIONS_X = np.random.default_rng(3).standard_normal((64, ROWS, 4)).astype(np.float32)


def picking(heads=1):
    """Values of the rows with the largest scores; each of ``heads`` picks by scores of its own."""
    g = Shaped(quantized=False)
    values = g.op("MatMul", ["x", g.constant(g.random.standard_normal((4, 3)).astype(np.float32))], "values")
    parts = []
    for head in range(heads):
        weights = g.constant(g.random.standard_normal((4, 1)).astype(np.float32))
        scores = g.op("MatMul", ["x", weights], f"scores{head}")
        flat = g.op("Squeeze", [scores, g.constant(np.int64([2]))], f"flat{head}")
        g.op("TopK", [flat, g.constant(np.int64([PICKED]))], f"largest{head}", axis=1)
        g.nodes[-1].output.append(f"places{head}")
        rows = g.op("Unsqueeze", [f"places{head}", g.constant(np.int64([2]))], f"rows{head}")
        wide = g.op("Expand", [rows, g.constant(np.int64([1, 1, 3]))], f"wide{head}")
        parts.append(g.op("GatherElements", [values, wide], f"picked{head}", axis=1))
    output = parts[0] if heads == 1 else g.op("Sum", parts, "all")
    return g.model({"x": ["N", ROWS, 4]}, output)


def threshold():
    """Values that are kept where a score, which nothing else reads, is positive."""
    g = Shaped(quantized=False)
    values, scores = (
        g.op("MatMul", ["x", g.constant(g.random.standard_normal((4, 4)).astype(np.float32))], name)
        for name in ("values", "scores")
    )
    positive = g.op("Greater", [scores, g.constant(np.float32(0))], "positive")
    kept = g.op("Cast", [positive], "kept", to=TensorProto.FLOAT)
    return g.model({"x": ["N", ROWS, 4]}, g.op("Mul", [values, kept], "masked"))


def opened(model):
    graph_model = prepare(load_model(model)).graph_model
    placement = place(graph_model)
    return graph_model, Quantizer.of(placement, dict.fromkeys(placement.tensors, 3.0))


def deciding(model):
    graph_model, quantizer = opened(model)
    graph = graph_model.graph
    layers = [layer for layer in find_layers(graph, quantizer.placement) if layer.name != "values"]
    return deciding_operators(list(graph), graph.outputs, layers)


def test_operators_that_decide():
    assert deciding(picking()) == {"scores0": {"TopK"}}
    assert deciding(threshold()) == {"scores": {"Greater"}}


def test_what_no_output_depends_on_decides_nothing():
    model = threshold()
    model.graph.node[-1].input[1] = "x"
    assert deciding(model) == {}


def test_what_only_decides_what_is_picked_is_run_by_itself():
    graph_model, quantizer = opened(picking())
    layers = ("values", "scores0")
    variants, scales = variants_of(layers, predicted=True), {"picked0_out": 1.0}
    meter = EffectMeter(variants, scales, classes=False, labelled=False, predicted=True)
    effects = (
        Probe(graph_model, quantizer, inputs=INPUTS, effects=meter).run({"x": DECISIONS_X}, None, 0).effects
    )
    found = propagate(cut(graph_model, quantizer), {"x": DECISIONS_X}, lambda *_: None)

    def noise(outputs):
        error = outputs["picked0_out"].astype(np.float64) - found.reference["picked0_out"]
        return np.square(error).sum()

    assert effects.noise((ONLY, "scores0")) == pytest.approx(noise(found.only["scores0"])) != 0
    assert effects.noise((ONLY, "values")) == pytest.approx(noise(found.only["values"]), rel=0.3)
    assert effects.noise(ALL) == pytest.approx(noise(found.quantized))
    assert effects.sums[:, 0].tolist() == [64, 64, 64]


def test_gradients_do_not_show_what_a_threshold_decides():
    with pytest.raises(NoGradientError, match="'scores'"):
        ErrorNetwork(*opened(threshold()))


def test_many_layers_that_decide_what_is_picked():
    assert len(ErrorNetwork(*opened(picking(4))).picking) == 4
    with pytest.raises(NoGradientError, match="5 layers only decide which elements a TopK picks"):
        ErrorNetwork(*opened(picking(5)))
