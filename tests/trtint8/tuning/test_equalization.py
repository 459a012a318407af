"""Channels made alike, in networks that compute the same as before."""

import numpy as np
import onnx
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from calibrators.errors import ModelError
from tests.trtint8.onnx_models import Shaped
from tests.trtint8.tuning.networks import array, normal, prepared, run
from trtint8.tuning.equalization import equalizable, equalize, measure_channel_ranges


def two_gemms():
    g = Shaped(quantized=False)
    first = g.op(
        "Gemm",
        ["x", g.constant(np.float32([[1, 100]])), g.constant(np.float32([3, 10]))],
        "first",
    )
    second = g.op("Gemm", [g.op("Relu", [first], "relu"), g.constant(np.float32([[4], [1]]))], "second")
    return g.model({"x": ["N", 1]}, second)


def test_factors_by_hand():
    model = prepared(two_gemms())
    assert equalizable(model) == ("relu_out",)
    found = equalize(model, {"relu_out": np.float32([1, 100])})
    # sqrt(1 * 4) / 4 and sqrt(100 * 1) / 1
    np.testing.assert_allclose(found.factors["relu_out"], [0.5, 10])
    np.testing.assert_allclose(array(found.model, "first", 1), [[2, 10]])
    np.testing.assert_allclose(array(found.model, "first", 2), [6, 1])
    np.testing.assert_allclose(array(found.model, "second", 1), [[2], [10]])
    # The model that was given is as it was.
    np.testing.assert_array_equal(array(model, "first", 1), [[1, 100]])
    np.testing.assert_array_equal(array(model, "first", 2), [3, 10])


def test_channels_without_a_range_keep_theirs_and_factors_are_bounded():
    model = prepared(two_gemms())
    found = equalize(model, {"relu_out": np.float32([0, 1e9])})
    np.testing.assert_array_equal(found.factors["relu_out"], [1, 1000])
    found = equalize(model, {"relu_out": np.float32([1e-9, np.inf])})
    np.testing.assert_array_equal(found.factors["relu_out"], [1e-3, 1])


def test_channels_that_nothing_reads_keep_theirs():
    g = Shaped(quantized=False)
    first = g.op("MatMul", ["x", g.constant(np.float32([[1, 1]]))], "first")
    model = prepared(g.model({"x": [1, 1]}, g.op("MatMul", [first, g.constant(np.float32([[0], [4]]))], "b")))
    found = equalize(model, {"first_out": np.float32([7, 1])})
    np.testing.assert_array_equal(found.factors["first_out"], [1, 0.5])


def test_a_tensor_that_is_not_asked_for_is_left_alone():
    model = prepared(two_gemms())
    found = equalize(model, {})
    assert found.factors == {}
    np.testing.assert_array_equal(array(found.model, "first", 1), [[1, 100]])


def test_grouped_weights_by_hand():
    """Two groups of two channels each; the factor of an input channel reaches its own group only."""
    g = Shaped(quantized=False)
    first = g.op("Conv", ["x", g.constant(np.ones((4, 1, 1, 1), np.float32))], "first")
    weights = np.float32([[1, 4], [2, 3], [16, 9], [5, 25]]).reshape(4, 2, 1, 1)
    model = prepared(
        g.model({"x": [1, 1, 2, 2]}, g.op("Conv", [first, g.constant(weights)], "second", group=2))
    )
    found = equalize(model, {"first_out": np.float32([2, 4, 16, 100])})
    # The largest weights that read the channels are 2, 4, 16, 25.
    np.testing.assert_allclose(found.factors["first_out"], [1, 1, 1, 2])
    np.testing.assert_allclose(array(found.model, "first", 1).reshape(-1), [1, 1, 1, 0.5])
    expected = [[1, 4], [2, 3], [16, 18], [5, 50]]
    np.testing.assert_allclose(array(found.model, "second", 1).reshape(4, 2), expected)


def test_a_flatten_of_several_places():
    """Every place of a channel is an input of its own, and has the channel's factor."""
    g = Shaped(quantized=False)
    first = g.op("Conv", ["x", g.constant(np.ones((2, 1, 1, 1), np.float32))], "first")
    flat = g.op("Flatten", [first], "flat")
    weights = np.float32([[1], [2], [4], [4]])
    model = prepared(g.model({"x": [3, 1, 1, 2]}, g.op("Gemm", [flat, g.constant(weights)], "second")))
    assert equalizable(model) == ("first_out",)
    found = equalize(model, {"first_out": np.float32([32, 1])})
    np.testing.assert_allclose(found.factors["first_out"], [4, 0.5])
    np.testing.assert_allclose(array(found.model, "second", 1), [[4], [8], [2], [2]])


def test_ranges_are_the_largest_magnitudes_of_all_batches():
    model = prepared(two_gemms())
    feeds = [{"x": np.float32([[x]])} for x in (0.5, -4.0, 2.0)]
    found = measure_channel_ranges(model, ["relu_out"], feeds)
    np.testing.assert_allclose(found["relu_out"], [5, 210])
    assert [value.name for value in model.graph.outputs] == ["second_out"]


def test_ranges_of_sequences_are_those_of_the_last_axis():
    g = Shaped(quantized=False)
    first = g.op("MatMul", ["x", g.constant(np.float32([[1, -3]]))], "first")
    model = prepared(g.model({"x": [1, 4, 1]}, g.op("MatMul", [first, g.weights(2, 2)], "second")))
    feed = {"x": np.float32([1, 2, -5, 0]).reshape(1, 4, 1)}
    np.testing.assert_allclose(measure_channel_ranges(model, ["first_out"], [feed])["first_out"], [5, 15])


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
@settings(max_examples=60)
@given(networks())
def test_the_function_stays_and_both_sides_get_one_range(case):
    model, count = case
    model = prepared(model)
    feed = {"x": normal(3, 4, 8, 8)}
    tensors = equalizable(model)
    assert len(tensors) == count
    ranges = measure_channel_ranges(model, tensors, [feed])
    found = equalize(model, ranges)
    assert list(found.factors) == list(tensors)
    (before,), (after,) = run(model, feed), run(found.model, feed)
    np.testing.assert_allclose(after, before, rtol=1e-4, atol=1e-4 * np.abs(before).max())
    # The equilibrium: measured again, there is nothing left to do.
    again = measure_channel_ranges(found.model, tensors, [feed])
    for name in tensors:
        np.testing.assert_allclose(again[name] * found.factors[name], ranges[name], rtol=1e-3)
    # Unless a factor was as large as it may be.
    assume(all(((factors > 1e-3) & (factors < 1e3)).all() for factors in found.factors.values()))
    for factors in equalize(found.model, again).factors.values():
        np.testing.assert_allclose(factors, 1, rtol=1e-2)


def conv(g, source, name):
    return g.op("Conv", [source, g.weights(4, 4, 1, 1), g.weights(4)], name)


def ends(make, size=(1, 4, 4, 4)):
    """A network with ``make`` between two convolutions."""
    g = Shaped(quantized=False)
    return g.model({"x": list(size)}, make(g, conv(g, "x", "first")))


def not_homogeneous(operator):
    return lambda: ends(lambda g, x: conv(g, g.op(operator, [x], "between"), "second"))


def clipped():
    return ends(lambda g, x: conv(g, g.op("Clip", [x, "", g.constant(np.float32(6))], "between"), "second"))


def residual():
    return ends(lambda g, x: g.op("Add", [conv(g, x, "second"), x], "add"))


def first_is_an_output():
    model = ends(lambda g, x: conv(g, x, "second"))
    model.graph.output.append(helper.make_tensor_value_info("first_out", TensorProto.FLOAT, [1, 4, 4, 4]))
    return model


def transposed():
    return ends(lambda g, x: conv(g, g.op("Transpose", [x], "between", perm=[0, 2, 1, 3]), "second"))


def along_another_axis():
    return ends(lambda g, x: g.op("MatMul", [x, g.weights(4, 4)], "second"))


def as_weights():
    return ends(
        lambda g, x: g.op("Gemm", [g.weights(4, 4), g.op("Flatten", [x], "flat")], "second"), (4, 4, 1, 1)
    )


def flattened_elsewhere():
    return ends(lambda g, x: g.op("Gemm", [g.op("Flatten", [x], "flat", axis=2), g.weights(16, 2)], "second"))


def reads_turned():
    g = Shaped(quantized=False)
    first = g.op("Gemm", ["x", g.weights(4, 4)], "first")
    return g.model({"x": [4, 4]}, g.op("Gemm", [first, g.weights(4, 4)], "second", transA=1))


def computed_bias():
    g = Shaped(quantized=False)
    first = g.op("Conv", ["x", g.weights(4, 4, 1, 1), "bias"], "first")
    return g.model({"x": [1, 4, 4, 4], "bias": [4]}, conv(g, first, "second"))


def indices_that_are_read():
    g = Shaped(quantized=False)
    first = conv(g, "x", "first")
    g.nodes.append(
        helper.make_node("MaxPool", [first], ["pooled", "where"], name="pool", kernel_shape=[2, 2])
    )
    model = g.model({"x": [1, 4, 4, 4]}, conv(g, "pooled", "second"))
    model.graph.output.append(helper.make_tensor_value_info("where", TensorProto.INT64, [1, 4, 3, 3]))
    return model


ALONE = [
    *map(not_homogeneous, ("Sigmoid", "Tanh", "HardSwish")),
    *(clipped, residual, first_is_an_output, transposed, along_another_axis, as_weights),
    *(flattened_elsewhere, reads_turned, computed_bias, indices_that_are_read),
]


@pytest.mark.parametrize("make", ALONE)
def test_left_alone(make):
    model = make()
    onnx.checker.check_model(model)
    assert equalizable(prepared(model)) == ()


def test_weights_that_other_nodes_read_stay_theirs():
    """Both layers, and one that is in no pair, share their weights and biases."""
    g = Shaped(quantized=False)
    shared = [g.weights(4, 4, 1, 1), g.weights(4)]
    second = g.op("Conv", [g.op("Conv", ["x", *shared], "first"), *shared], "second")
    aside = g.op("Conv", ["x", *shared], "aside")
    model = prepared(g.model({"x": [1, 4, 5, 5]}, g.op("Add", [second, aside], "add")))
    feed = {"x": normal(1, 4, 5, 5)}
    ranges = measure_channel_ranges(model, equalizable(model), [feed])
    assert list(ranges) == ["first_out"]
    found = equalize(model, ranges)
    assert (np.abs(found.factors["first_out"] - 1) > 0.1).any()
    np.testing.assert_allclose(run(found.model, feed)[0], run(model, feed)[0], rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(array(found.model, "aside", 1), array(model, "aside", 1))


def test_unknown_tensors_and_wrong_sizes_are_refused():
    model = prepared(two_gemms())
    with pytest.raises(ModelError, match=r"'first_out' cannot be equalized.*'relu_out' does"):
        equalize(model, {"first_out": np.float32([1, 1])})
    with pytest.raises(ModelError, match=r"'nothing' cannot be equalized"):
        measure_channel_ranges(model, ["nothing"], [])
    with pytest.raises(ModelError, match=r"shape \(3,\), but it has 2 channels"):
        equalize(model, {"relu_out": np.float32([1, 1, 1])})
