"""The arithmetic of factors, by hand."""

import numpy as np
import pytest

from tests.trtint8.equalization.choosing import begin
from tests.trtint8.equalization.transformers import SIZE, Blocks, samples
from tests.trtint8.onnx_models import parsed, tied
from tests.trtint8.tuning.networks import array, normal, prepared, run
from trtint8.equalization.factors import (
    choose_strength,
    match_shared_scales,
    migration_factors,
    product_error,
    product_factors,
    relative_error,
)
from trtint8.models.graph import constant_input
from trtint8.quantization.placement import place
from trtint8.simulation.networks import find_layers
from trtint8.simulation.segments import LayerAlone


def test_migration_by_hand():
    made, read = np.array([1.0, 100.0]), np.array([4.0, 1.0])
    # sqrt(1 * 4) / 4 and sqrt(100 * 1) / 1: both ranges become the same.
    np.testing.assert_allclose(migration_factors(made, read, 0.5), [0.5, 10])
    np.testing.assert_allclose(migration_factors(made, read, 1.0), [1, 100])
    np.testing.assert_allclose(migration_factors(made, read, 0.0), [0.25, 1])


def test_dead_channels_keep_their_values_and_factors_are_bounded():
    made = np.array([0, 1e9, 1e-9, np.inf, 1])
    read = np.array([1, 1, 1, 1, 0.0])
    np.testing.assert_allclose(migration_factors(made, read, 0.5), [1, 1000, 1e-3, 1, 1])


def test_factors_of_a_product_by_hand():
    first, second = np.array([100.0, 1.0, 0.0]), np.array([1.0, 1.0, 5.0])
    factors = product_factors(first, second, 0.5)
    np.testing.assert_allclose(factors, [10, 1, 1])
    # With a strength of 0 only the level changes: both sides reach sqrt(100 * 1).
    np.testing.assert_allclose(product_factors(first, second, 0.0), [10, 10, 1])
    np.testing.assert_array_equal(product_factors(np.zeros(2), np.ones(2), 0.5), [1, 1])


def test_error_of_a_product_by_hand():
    first, second = np.array([3.0, 1.0]), np.array([2.0, 5.0])
    powers = np.array([1.0, 2.0]), np.array([4.0, 6.0])
    assert product_error(first, second, *powers, one_scale=False) == pytest.approx(9 * 10 + 25 * 3)
    assert product_error(first, second, *powers, one_scale=True) == pytest.approx(25 * 13)


def scaled(g, *shape, axis, channel, times):
    weights = g.random.standard_normal(shape).astype(np.float32)
    index = [slice(None)] * len(shape)
    index[axis] = channel
    weights[tuple(index)] *= times
    return g.constant(weights)


def two_layers(times):
    g = Blocks()
    x = g.op("MatMul", ["x", scaled(g, SIZE, 12, axis=1, channel=5, times=times)], "up")
    x = g.op("Relu", [x], "relu")
    return g.finish(g.op("MatMul", [x, scaled(g, 12, SIZE, axis=0, channel=5, times=1 / times)], "down"))


def test_a_channel_that_is_50_times_larger_is_divided_by_about_as_much():
    choice, forms = begin(two_layers(50), samples(16))
    form = forms["'up' to 'down'"]
    strength = choose_strength(choice, form)
    assert strength is not None
    factors = choice.factors[form.representatives]
    assert 25 < factors[5] / np.median(factors) < 100


def test_a_layer_that_stays_in_float_is_no_reason_to_change_anything():
    choice, forms = begin(two_layers(50), samples(16))
    (form,) = forms.values()
    assert set(choice.layers) == {"up", "down"}
    choice.layers = {}
    assert choose_strength(choice, form) is None
    assert (choice.factors == 1).all()


def attention(times):
    """Queries of one channel are larger, and keys smaller, by the same factor."""
    g = Blocks()
    q = g.op("MatMul", ["x", scaled(g, SIZE, SIZE, axis=1, channel=3, times=times)], "q")
    k = g.op("MatMul", ["x", scaled(g, SIZE, SIZE, axis=1, channel=3, times=1 / times)], "k")
    v = g.linear("x", SIZE, SIZE, "v")
    return g.finish(g.linear(g.attention(q, k, v, "a"), SIZE, SIZE, "projection"))


def test_queries_and_keys_get_the_same_ranges():
    choice, forms = begin(attention(50), samples(16))
    form = forms["'q', 'k' within 'a_scores'"]
    strength = choose_strength(choice, form)
    assert strength is not None
    q, k = (choice.producers[name] for name in "qk")
    before = [choice.observed.peaks[one.tensor].reshape(-1) for one in (q, k)]
    after = [
        choice.observed.peaks[one.tensor].reshape(-1) / choice.factors_of(one.labels).reshape(-1)
        for one in (q, k)
    ]
    assert before[0][3] > 20 * before[1][3]
    assert 0.3 < after[0][3] / after[1][3] < 3
    np.testing.assert_allclose(after[0].max(), after[1].max(), rtol=1e-6)
    np.testing.assert_allclose(before[0] * before[1], after[0] * after[1], rtol=1e-6)


def test_differences_that_other_samples_do_not_have_are_no_reason_to_change_anything():
    """Channels that are alike, with rare large values: in few samples their peaks differ."""
    g = Blocks()
    gate = g.op("MatMul", ["x", g.constant(normal(SIZE, 256, seed=1))], "gate")
    gate = g.op("Mul", [gate, g.op("Mul", [gate, gate], "square")], "cube")
    up = g.op("MatMul", ["x", g.constant(normal(SIZE, 256, seed=2))], "up")
    model = g.finish(g.linear(g.op("Mul", [up, gate], "gated"), 256, SIZE, "down"))
    choice, forms = begin(model, samples(8), method="mse")
    assert choose_strength(choice, forms["'up' to 'down'"]) is None
    assert (choice.factors == 1).all()


def factor_choice_two_layers():
    g = Blocks()
    x = g.op("Relu", [g.linear("x", SIZE, 12, "up")], "relu")
    return g.finish(g.linear(x, 12, SIZE, "down"))


def test_it_begins_with_factors_of_1_and_the_ranges_of_readers():
    model, feed = factor_choice_two_layers(), samples()
    choice, forms = begin(model, feed)
    assert (choice.factors == 1).all()
    assert list(choice.observed.folds[0].found_with.values) == ["relu_out"]
    (read,) = run(model.clone(), feed)[:1]
    assert read.shape == (2, 3, SIZE)
    assert choice.observed.peaks["relu_out"].shape == (1, 1, 12)
    assert "down" in choice.layers and "relu" not in choice.layers
    assert list(forms) == ["'up' to 'down'"]


def test_weights_with_the_factors_so_far():
    model = factor_choice_two_layers()
    choice, forms = begin(model, samples())
    choice.factors[forms["'up' to 'down'"].representatives] = np.arange(1, 13)
    np.testing.assert_allclose(choice.weights_of("up"), array(model, "up", 1) / np.arange(1, 13), rtol=1e-6)
    np.testing.assert_allclose(
        choice.weights_of("down"), array(model, "down", 1) * np.arange(1, 13)[:, None], rtol=1e-6
    )
    reading = forms["'up' to 'down'"].readings[0]
    np.testing.assert_array_equal(choice.factors_of(reading.labels).reshape(-1), np.arange(1, 13))


def peak(choice, tensor):
    return (choice.observed.peaks[tensor] / choice.factors_of(choice.labels[tensor])).max()


@pytest.mark.parametrize("level", [0.01, 100.0])
def test_values_get_the_range_of_the_queries_and_keys_of_the_same_layer(level):
    choice, forms = begin(Blocks().attending("fused_slices"), samples())
    form = forms["'a_qkv' to 'projection'"]
    choice.factors[form.representatives] = level * np.linspace(1, 2, SIZE)
    match_shared_scales(choice, list(forms.values()))
    others = max(peak(choice, name) for name in ("a_scaled_out", "a_k_heads_out") if name in choice.labels)
    assert peak(choice, "a_v_heads_out") == pytest.approx(others)
    # The factors keep their proportions.
    np.testing.assert_allclose(
        choice.factors[form.representatives] / choice.factors[form.representatives][0],
        np.linspace(1, 2, SIZE),
    )


def test_channels_that_keep_their_values_and_scales_of_their_own_stay():
    choice, forms = begin(Blocks().attending("fused_slices"), samples())
    match_shared_scales(choice, list(forms.values()))
    assert (choice.factors == 1).all()
    choice, forms = begin(Blocks().attending("separate"), samples())
    form = forms["'a_v' to 'projection'"]
    choice.factors[form.representatives] = 3.0
    match_shared_scales(choice, list(forms.values()))
    assert (choice.factors[form.representatives] == 3).all()


def error(operator, weights, values, amax=127.0):
    """The relative error of a layer by itself, with its input and its weights quantized."""
    inputs = "relu_out, w" if operator == "MatMul" else "relu_out, w, b"
    body = f"relu_out = Relu (x) [layer] y = {operator} ({inputs})"
    constants = {"w": weights, "b": normal(2) * np.float32(0.1)}
    model = prepared(parsed(f"float[N, {values.shape[1]}] x", "float[] y", body, **constants))
    placement = place(model)
    (layer,) = find_layers(model.graph, placement)
    return relative_error(
        LayerAlone(model, layer, placement).run_int8(values, weights, amax), values @ weights
    )


def test_values_on_the_grid_have_no_error():
    weights = np.float32([[127, 3], [-5, 127], [8, 1]])
    assert error("MatMul", weights, np.float32([[127, 1, -2], [4, 5, 6]])) == 0


@pytest.mark.parametrize(("operator", "size"), [("Gemm", 1), ("MatMul", 1e-30), ("MatMul", 1e18)])
def test_the_error_by_hand(operator, size):
    """A scale of 1 for the input rounds 0.5 to 0: the output 63.5 is computed as 63 and 0.

    The squares of some outputs are no float32 numbers.
    """
    weights = np.float32([[size, 0], [0, size]])
    assert error(operator, weights, np.float32([[127, 0.5]])) == pytest.approx(0.25 / (127**2 + 0.25))


def test_weights_that_are_read_along_two_axes():
    model = prepared(tied())
    weights = constant_input(next(node for node in model.graph if node.name == "encoder"), 1)
    placement = place(model)
    for layer in find_layers(model.graph, placement):
        if layer.node.op_type == "Gemm":
            alone = LayerAlone(model, layer, placement)
            values = normal(16, 16 if layer.name == "encoder" else 8)
            computed = alone.run_int8(values, weights, float(np.abs(values).max()))
            assert 0 < relative_error(computed, alone.run(values, weights)) < 1e-3
