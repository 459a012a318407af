"""Weights rounded so that outputs change least."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from onnx import helper

from calibrators.errors import CalibrationDataError
from calibrators.host.session import open_session
from tests.trtint8.simulation.opened import opened
from tests.trtint8.tuning.networks import (
    OPERATORS,
    array,
    differences,
    every_operator,
    normal,
    picking,
    prepared,
)
from trtint8.models.serialization import to_proto
from trtint8.quantization.config import TensorQuantConfig, quantize
from trtint8.quantization.placement import place
from trtint8.quantization.qdq import insert_qdq, weight_scale
from trtint8.simulation.networks import Form, Quantizer
from trtint8.tuning.remedies import rounding
from trtint8.tuning.remedies.rounding import RoundingGrid, adapt_rounding, descend


def column(*weights):
    """A MatMul with one output."""
    text = f"layer = MatMul (x, w) where float[{len(weights)}, 1] w = {{{', '.join(map(str, weights))}}}"
    return opened(f"float[N, {len(weights)}] x", text, "float[] layer").model


def adapted(model, feeds, **options):
    return adapt_rounding(model, place(model), feeds, **options)


def test_by_hand():
    """Steps of one. To nearest, the two small weights lose 0.8 where all inputs are 1; with one up, 0.2."""
    model = column(127, 0.4, 0.4)
    found = adapted(model, [{"x": np.ones((2, 3), np.float32)}])
    np.testing.assert_array_equal(array(found.model, "layer", 1), [[127], [1], [0]])
    np.testing.assert_array_equal(array(model, "layer", 1), np.float32([[127], [0.4], [0.4]]))
    # The output becomes larger by one than with weights rounded to nearest.
    np.testing.assert_allclose(found.shifts["layer"], [1], rtol=1e-5)


def test_inputs_that_differ_in_sign_need_no_flip():
    model = column(127, 0.4, 0.4)
    found = adapted(model, [{"x": np.float32([[1, 1, -1]])}])
    np.testing.assert_array_equal(array(found.model, "layer", 1), [[127], [0], [0]])
    np.testing.assert_array_equal(found.shifts["layer"], [0])


def objective(errors, hessian):
    return np.einsum("goi,gij,goj->go", errors, hessian, errors)


@st.composite
def problems(draw):
    groups, outputs, inputs = draw(st.integers(1, 3)), draw(st.integers(1, 4)), draw(st.integers(1, 150))
    random = np.random.default_rng(draw(st.integers(0, 10**6)))
    rows = random.standard_normal((groups, draw(st.integers(1, 200)), inputs)) + 0.5
    errors = random.uniform(-0.5, 0.5, (groups, outputs, inputs))
    steps = np.where(random.random(errors.shape) < 0.9, -np.sign(errors), 0)
    return errors, steps, rows.swapaxes(1, 2) @ rows / rows.shape[1]


@given(problems(), st.integers(1, 4))
def test_the_objective_never_grows(problem, passes):
    errors, steps, hessian = problem
    given = errors.copy()
    found, flipped = descend(errors, steps, hessian, passes)
    np.testing.assert_array_equal(errors, given)
    np.testing.assert_allclose(found, errors + np.where(flipped, steps, 0), atol=1e-12)
    assert not flipped[steps == 0].any()
    assert (objective(found, hessian) <= objective(errors, hessian) * (1 + 1e-9)).all()


@given(problems())
def test_in_the_end_no_flip_lowers_the_objective(problem):
    errors, steps, hessian = problem
    found, flipped = descend(errors, steps, hessian, 1000)
    least = objective(found, hessian)
    for column in range(errors.shape[2]):
        other = found.copy()
        other[:, :, column] += np.where(flipped, -steps, steps)[:, :, column]
        assert (objective(other, hessian) >= least * (1 - 1e-6) - 1e-9).all()


def slow_descent(errors, steps, hessian):
    """One pass over one output, flip by flip."""
    errors = errors.copy()
    for column, step in enumerate(steps):
        other = errors.copy()
        other[column] += step
        if step and other @ hessian @ other < errors @ hessian @ errors - 1e-9:
            errors = other
    return errors


def test_updating_many_gradients_together_gives_the_same_flips():
    random = np.random.default_rng(4)
    rows = random.standard_normal((300, 200)) + 0.5
    errors = random.uniform(-0.5, 0.5, (1, 3, 200))
    hessian = rows.T @ rows / 300
    found, _ = descend(errors, -np.sign(errors), hessian[None], 1)
    for output in range(3):
        slow = slow_descent(errors[0, output], -np.sign(errors[0, output]), hessian)
        np.testing.assert_allclose(found[0, output], slow, atol=1e-9)


def test_few_samples_do_not_mislead(monkeypatch):
    """With more inputs than samples, some errors that other data shows do not count in H alone."""
    random = np.random.default_rng(0)
    mixed = random.standard_normal((20, 200)) / 4

    def samples(count):
        noise = 0.5 * random.standard_normal((count, 200))
        return np.maximum(random.standard_normal((count, 20)) @ mixed + noise, 0).astype(np.float32)

    model = opened("float[N, 200] x", "layer = MatMul (x, w) where float[200, 64] w", "float[] layer").model
    few, others = samples(40), samples(5000)
    weights = array(model, "layer", 1)

    def error(changed):
        return float(((others @ (changed - weights)) ** 2).sum(axis=1).mean())

    scale = weight_scale(weights, 1)
    nearest = np.rint(weights / scale) * scale
    with_it = array(adapted(model, [{"x": few}]).model, "layer", 1)
    monkeypatch.setattr(rounding, "_SHRINKAGE", 0.0)
    without = array(adapted(model, [{"x": few}]).model, "layer", 1)
    assert error(with_it) < 0.9 * error(without)
    assert error(with_it) < 0.7 * error(nearest)


FEEDS = [{"x": normal(rows, 4, 9, 8, seed=rows)} for rows in (3, 2, 6)]


@pytest.fixture(scope="module")
def network():
    model = prepared(every_operator())
    return model, adapted(model, FEEDS)


@pytest.fixture
def everywhere(monkeypatch):
    """A model, and the same adapted to all places of its samples."""
    monkeypatch.setattr(rounding, "_PLACES", 10**6)
    model = prepared(every_operator())
    return model, adapted(model, FEEDS)


def test_the_error_of_the_output_becomes_less(everywhere):
    model, found = everywhere
    assert tuple(found.shifts) == OPERATORS
    before, after, again = (
        differences(model, other, Quantizer(place(model), {}), FEEDS, Form.FLOAT, form)
        for other, form in (
            (model, Form.WEIGHTS),
            (found.model, Form.FLOAT),
            (found.model, Form.WEIGHTS),
        )
    )
    for name in OPERATORS:
        before_it, after_it, again_it = (np.square(errors[name]).sum() for errors in (before, after, again))
        assert after_it == pytest.approx(again_it, rel=1e-2)
        assert after_it < before_it, name


def test_the_shift_is_that_of_the_mean_output(everywhere):
    model, found = everywhere
    shifts = differences(model, found.model, Quantizer(place(model), {}), FEEDS, Form.WEIGHTS, Form.FLOAT)
    for name in OPERATORS:
        np.testing.assert_allclose(found.shifts[name], shifts[name].mean(axis=0), rtol=1e-3, atol=1e-5)


def test_quantizing_gives_the_chosen_whole_numbers(network):
    model, found = network
    placement = place(model)
    assert place(found.model) == placement
    flipped = 0
    for edge in placement.weights:
        old, new = (array(one, edge.node, edge.index) for one in (model, found.model))
        scale = weight_scale(old, edge.axis)
        np.testing.assert_array_equal(weight_scale(new, edge.axis), scale)
        config = placement.configs[edge.tensor].with_scale(scale)
        moved = np.abs(quantize(new, config) - quantize(old, config))
        assert moved.max() <= 1
        flipped += (moved > 0).sum()
        assert np.abs(old - new).max() < scale.max() * 1.001
    assert flipped > 50


def test_the_qdq_model_computes_with_these_weights(network):
    """Dequantized, the weights of the Q/DQ model are those of the adapted one."""
    model, found = network
    placement = place(model)
    qdq = found.model.clone()
    insert_qdq(qdq, placement, dict.fromkeys(placement.tensors, 1.0))
    proto = to_proto(qdq)
    weights = {f"{e.tensor}_dequantized": array(found.model, e.node, e.index) for e in placement.weights}
    proto.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in weights)
    session = open_session(proto.SerializeToString(), optimize=False)
    for value, expected in zip(session.run(list(weights), FEEDS[0]), weights.values(), strict=True):
        np.testing.assert_allclose(value, expected, rtol=3e-7)


def assert_same_weights(one, other):
    for name in OPERATORS:
        np.testing.assert_array_equal(array(one.model, name, 1), array(other.model, name, 1))


def test_adapting_twice_changes_nothing(network):
    _, found = network
    again = adapted(found.model, FEEDS)
    assert_same_weights(again, found)


def test_deterministic_and_independent_of_batches(network):
    model, found = network
    values = np.concatenate([feed["x"] for feed in FEEDS])
    for feeds in (FEEDS, [{"x": values}], [{"x": row[None]} for row in values]):
        again = adapted(model, feeds)
        assert_same_weights(again, found)
        np.testing.assert_allclose(again.shifts["plain"], found.shifts["plain"], rtol=1e-4, atol=1e-6)


def test_the_seed_chooses_places(monkeypatch, network):
    model, _ = network
    monkeypatch.setattr(rounding, "_PLACES", 3)
    first, same, other = (adapted(model, FEEDS, seed=seed) for seed in (0, 0, 1))
    for name in OPERATORS:
        np.testing.assert_array_equal(first.shifts[name], same.shifts[name])
    assert (first.shifts["plain"] != other.shifts["plain"]).any()


def test_wide_layers_are_cut_into_blocks(monkeypatch):
    """Inputs of different blocks are taken as independent: 0.4 of each cannot make up for each other."""
    monkeypatch.setattr(rounding, "_LARGEST_BLOCK", 2)
    for weights, expected in (
        ([127, 0.4, 0.4, 0.4, 0.4, 0.4], [127, 0, 1, 0, 1, 0]),
        ([127, 0.4, 0.4, 0.4, 0.4], [127, 0, 1, 0, 0]),  # the last block has one input
    ):
        model = column(*weights)
        found = adapted(model, [{"x": np.ones((2, len(weights)), np.float32)}])
        np.testing.assert_array_equal(array(found.model, "layer", 1)[:, 0], expected)


def test_products_are_divided_without_a_change_of_what_is_flipped(monkeypatch, network):
    model, found = network
    monkeypatch.setattr(rounding, "_LARGEST_PRODUCT", 1)
    again = adapted(model, FEEDS)
    assert_same_weights(again, found)


def test_what_is_left_alone():
    """Weights that two nodes share, a product of activations, and layers that stay in float."""
    text = (
        "left = MatMul (x, shared) right = MatMul (x, shared) scores = MatMul (left, right) "
        "kept = MatMul (scores, v) last = MatMul (kept, w) where float[4, 4] shared, float[4, 4] v, float[4, "
        "4] w"
    )
    model = opened("float[N, 4, 4] x", text, "float[] last").model
    found = adapt_rounding(model, place(model, ["kept"]), [{"x": normal(6, 4, 4)}])
    assert set(found.shifts) == {"last"}
    for name in ("left", "kept"):
        np.testing.assert_array_equal(array(found.model, name, 1), array(model, name, 1))


def test_samples_of_which_a_layer_reads_nothing_do_not_count():
    model, some, none = prepared(picking()), np.abs(normal(8, 4)), -np.abs(normal(3, 4))
    alone, mixed, never = (
        array(adapted(model, [{"x": part} for part in parts]).model, "second", 1)
        for parts in ((some,), (some, none), (none,))
    )
    np.testing.assert_array_equal(mixed, alone)
    weights = array(model, "second", 1)
    scale = weight_scale(weights, 1)
    np.testing.assert_allclose(never, np.rint(weights / scale) * scale, rtol=1e-6)


def test_no_data():
    model = prepared(every_operator())
    with pytest.raises(CalibrationDataError, match="no samples"):
        adapted(model, [])


def config(axis):
    return TensorQuantConfig(axis)


def test_neighbours():
    weights = np.array([[127.0, 0.4, -0.4, 1.6, 3.0, 126.8, -126.8]], np.float32)
    grid = RoundingGrid.of(weights, 0, config(0))
    np.testing.assert_array_equal(grid.nearest, [[127, 0, 0, 2, 3, 127, -127]])
    # The largest stays; 3 is on the grid; what is near the largest may not get larger than it.
    np.testing.assert_array_equal(grid.other, [[0, 1, -1, -1, 0, -1, 1]])
    np.testing.assert_allclose(grid.errors, [[0, -0.4, 0.4, 0.4, 0, 0.2, -0.2]], atol=1e-5)
    np.testing.assert_array_equal(grid.steps, grid.other)
    flipped = np.array([[False, True, False, True, False, False, True]])
    np.testing.assert_array_equal(grid.rounded(flipped), [[127, 1, 0, 1, 3, 127, -126]])


def test_one_scale_for_all():
    weights = np.array([[254.0, 1.2], [0.0, 3.4]], np.float32)
    grid = RoundingGrid.of(weights, None, config(None))
    np.testing.assert_array_equal(grid.scale, np.full((2, 2), 2.0))
    np.testing.assert_array_equal(grid.nearest, [[127, 1], [0, 2]])
    np.testing.assert_array_equal(grid.other, [[0, -1], [0, -1]])


def test_weights_on_the_grid_are_not_rounded_again():
    weights = np.random.default_rng(0).standard_normal((4, 50)).astype(np.float32)
    rounded = RoundingGrid.of(weights, 0, config(0)).rounded(np.zeros((4, 50), bool))
    again = RoundingGrid.of(rounded, 0, config(0))
    assert not again.other.any()
    np.testing.assert_array_equal(again.rounded(np.ones((4, 50), bool)), rounded)


#: Large ones, ordinary ones, and such as have hardly a scale that is a normal float32.
finite = st.floats(-(2.0**100), 2.0**100, width=32) | st.floats(-1, 1, width=32)
finite |= st.floats(-(2.0**-118), 2.0**-118, width=32)


@given(arrays(np.float32, (3, 6), elements=finite), st.sampled_from([None, 0, 1]), arrays(bool, (3, 6)))
def test_quantization_gives_back_the_chosen_numbers_and_the_scale(weights, axis, flipped):
    grid = RoundingGrid.of(weights, axis, config(axis))
    rounded = grid.rounded(flipped)
    scale = weight_scale(rounded, axis)
    normal = weight_scale(weights, axis) > np.finfo(np.float32).tiny
    # Below that, weights may all become zeros, whose scale may be any.
    np.testing.assert_array_equal(scale[normal], weight_scale(weights, axis)[normal])
    whole = quantize(rounded, config(axis).with_scale(scale))
    np.testing.assert_array_equal(whole, grid.nearest + np.where(flipped, grid.other, 0))
