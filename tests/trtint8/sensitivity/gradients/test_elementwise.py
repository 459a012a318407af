"""Gradients of operators that compute every element by itself."""

import numpy as np
import pytest

from tests.trtint8.sensitivity.gradients.differences import (
    assert_gradients,
    network,
    of_one,
    run,
    with_gradients,
)
from trtint8.sensitivity.gradients.elementwise import ELEMENTWISE, NORMALIZATIONS, REDUCTIONS
from trtint8.sensitivity.gradients.rule import NoGradientError

RANDOM = np.random.default_rng(1)

#: Values at a distance from the places where the functions have a kink.
AWAY = (RANDOM.integers(-4, 4, (2, 3, 5)) + np.float32(0.5)).astype(np.float32) * np.float32(0.9)
POSITIVE = np.abs(AWAY) + np.float32(0.3)


CASES = {
    "Relu": of_one("Relu"),
    "LeakyRelu": of_one("LeakyRelu", alpha=0.3),
    "PRelu": of_one("PRelu", [[0.1], [0.2], [0.3]]),
    "Clip": of_one("Clip", -1.0, 2.0),
    "Sigmoid": of_one("Sigmoid"),
    "Tanh": of_one("Tanh"),
    "Erf": of_one("Erf"),
    "Exp": of_one("Exp"),
    "Neg": of_one("Neg"),
    "HardSigmoid": of_one("HardSigmoid", alpha=0.3),
    "HardSwish": of_one("HardSwish"),
    "Pow": of_one("Pow", 2.0),
    "Identity": of_one("Identity"),
    "Dropout": of_one("Dropout"),
    "Abs": of_one("Abs"),
    "Cast": of_one("Cast", to=1),
    "Cos": of_one("Cos"),
    "Elu": of_one("Elu", alpha=0.7),
    "Sin": of_one("Sin"),
    "Softplus": of_one("Softplus"),
    "Asinh": of_one("Asinh"),
    "Atan": of_one("Atan"),
    "Celu": of_one("Celu", alpha=0.7),
    "Cosh": of_one("Cosh"),
    "Selu": of_one("Selu"),
    "Sinh": of_one("Sinh"),
    "Softsign": of_one("Softsign"),
    "ThresholdedRelu": of_one("ThresholdedRelu", alpha=1.0),
}

#: Of operators that are new in opset 18 or 20.
LATER = {"Gelu": (20, {}), "Mish": (18, {})}


@pytest.mark.parametrize("kind", CASES)
def test_of_one_tensor(kind):
    nodes, constants = CASES[kind]
    assert_gradients(nodes, {"x": ["N", 3, 5]}, constants, feed={"x": AWAY}, step=1e-3)


@pytest.mark.parametrize("kind", LATER)
def test_of_one_tensor_in_later_opsets(kind):
    opset, attributes = LATER[kind]
    assert_gradients(
        [(kind, ["x"], "y", attributes)], {"x": ["N", 3, 5]}, opset=opset, feed={"x": AWAY}, step=1e-3
    )


@pytest.mark.parametrize(
    ("exponents", "shape"),
    [([2.0, 3.0, 2.0, 1.0, 2.5], ["N", 3, 5]), ([[[2.0, 3.0]]], ["N", 1]), ([[1.5], [2.0]], [1])],
)
def test_powers_with_several_exponents(exponents, shape):
    nodes, constants = of_one("Pow", exponents)
    size = [2 if one == "N" else one for one in shape]
    feed = {"x": np.linspace(0.5, 2, int(np.prod(size)), dtype=np.float32).reshape(size)}
    assert_gradients(nodes, {"x": shape}, constants, feed=feed, step=1e-3)


@pytest.mark.parametrize("kind", ["Log", "Reciprocal", "Sqrt"])
def test_of_positive_values(kind):
    assert_gradients([(kind, ["x"], "y", {})], {"x": ["N", 3, 5]}, feed={"x": POSITIVE}, step=1e-3)


@pytest.mark.parametrize("kind", ["Acos", "Asin", "Atanh", "Tan"])
def test_of_values_between_minus_one_and_one(kind):
    assert_gradients([(kind, ["x"], "y", {})], {"x": ["N", 3, 5]}, feed={"x": AWAY / 4}, step=1e-3)


def test_acosh_of_values_above_one():
    assert_gradients([("Acosh", ["x"], "y", {})], {"x": ["N", 3, 5]}, feed={"x": POSITIVE + 1}, step=1e-3)


@pytest.mark.parametrize(
    ("kind", "constants", "attributes"),
    [("Sqrt", [], {}), ("Log", [], {}), ("Pow", [0.5], {}), ("Pow", [0.0], {})],
)
def test_slopes_at_zero_are_finite(kind, constants, attributes):
    """So that what comes before may make nothing of them: the root of a square, as of a spectrogram."""
    nodes, values = of_one(kind, *constants, **attributes)
    (_, names, output, _), values = nodes[0], {name: np.float32(value) for name, value in values.items()}
    nodes = [("Mul", ["x", "x"], "square", {}), (kind, ["square", *names[1:]], output, attributes)]
    model = with_gradients(network(nodes, {"x": [1, 2]}, values), ["x"])
    feed = {"x": np.array([[0, 2]], np.float32), "direction": np.ones((1, 2), np.float32)}
    slope = {"Sqrt": 1.0, "Log": 1.0, "Pow": 2 * constants[0] if constants else 0}[kind]
    np.testing.assert_allclose(run(model, feed)[1], [[0, slope]])


@pytest.mark.parametrize("kind", ["Max", "Min"])
@pytest.mark.parametrize("second", [["N", 3, 5], [3, 1], [5]])
def test_the_larger_or_the_smaller_of_two_that_differ(kind, second):
    size = [2 if size == "N" else size for size in second]
    feed = {"x": AWAY, "z": np.resize(AWAY.ravel()[::-1], size) + np.float32(0.2)}
    shapes = {"x": ["N", 3, 5], "z": second}
    assert_gradients([(kind, ["x", "z"], "y", {})], shapes, feed=feed, step=1e-3)


def test_the_larger_of_a_tensor_and_itself_is_refused():
    """It would get the gradient twice."""
    with pytest.raises(NoGradientError, match="Max 'y': it reads a tensor twice"):
        assert_gradients([("Max", ["x", "x"], "y", {})], {"x": ["N", 3, 5]}, feed={"x": AWAY})


def test_a_clip_without_bounds_passes_everything_on():
    assert_gradients([("Clip", ["x"], "y", {})], {"x": ["N", 3, 5]}, feed={"x": AWAY})


@pytest.mark.parametrize("kind", ["Add", "Sub", "Mul", "Div", "Sum", "Mean"])
@pytest.mark.parametrize("second", [["N", 3, 5], [3, 1], [5]])
def test_of_two_tensors_one_of_which_may_be_broadcast(kind, second):
    feed = {"x": AWAY, "z": np.resize(POSITIVE, [2 if size == "N" else size for size in second])}
    shapes = {"x": ["N", 3, 5], "z": second}
    assert_gradients([(kind, ["x", "z"], "y", {})], shapes, feed=feed, step=1e-3)
    constant = {"c": feed["z"][:1] if second[0] == "N" else feed["z"]}
    assert_gradients([(kind, ["x", "c"], "y", {})], {"x": ["N", 3, 5]}, constant, feed={"x": AWAY})


def test_where():
    nodes = [("Greater", ["z", "zero"], "chosen", {}), ("Where", ["chosen", "x", "w"], "y", {})]
    shapes = {"x": ["N", 3, 5], "w": ["N", 3, 5]}
    constants = {"zero": np.float32(0), "z": AWAY[:1]}
    assert_gradients(nodes, shapes, constants, feed={"x": AWAY, "w": POSITIVE})


def test_every_rule_is_tested():
    others = {"Sqrt", "Log", "Reciprocal", "Add", "Sub", "Mul", "Div", "Max", "Min", "Where", "Sum", "Mean"}
    bounded = {"Acos", "Acosh", "Asin", "Atanh", "Tan"}
    assert {*CASES, *LATER, *others, *bounded} == set(ELEMENTWISE)


X = {"x": ["N", 4, 6]}
AXES = {"axes": np.array([2], np.int64)}

REDUCTIONS_CASES = {
    "ReduceL1": ([("ReduceL1", ["x"], "y", {"axes": [2]})], {}),
    "ReduceL2": ([("ReduceL2", ["x"], "y", {"axes": [-1], "keepdims": 0})], {}),
    "ReduceLogSumExp": ([("ReduceLogSumExp", ["x"], "y", {"axes": [1, 2]})], {}),
    "ReduceMean": ([("ReduceMean", ["x"], "y", {"axes": [1, -1], "keepdims": 0})], {}),
    "ReduceMax": ([("ReduceMax", ["x"], "y", {"axes": [-1]})], {}),
    "ReduceMin": ([("ReduceMin", ["x"], "y", {"axes": [1, 2], "keepdims": 0})], {}),
    "ReduceSum": ([("ReduceSum", ["x", "axes"], "y", {})], AXES),
    "ReduceSumSquare": ([("ReduceSumSquare", ["x"], "y", {"axes": [1]})], {}),
}


@pytest.mark.parametrize("kind", REDUCTIONS_CASES)
def test_gradient(kind):
    nodes, constants = REDUCTIONS_CASES[kind]
    assert_gradients(nodes, X, constants, step=1e-3)


def test_axes_are_an_input_in_later_opsets():
    assert_gradients([("ReduceL2", ["x", "axes"], "y", {})], X, AXES, opset=18, step=1e-3)


@pytest.mark.parametrize("kind", ["ReduceMean", "ReduceL2", "ReduceMax"])
def test_a_reduction_over_no_axis_is_refused(kind):
    nodes = [(kind, ["x"], "y", {"noop_with_empty_axes": 1})]
    with pytest.raises(NoGradientError, match="it reduces no axis"):
        with_gradients(network(nodes, X, opset=18), ["x"])  # some ONNX Runtimes cannot run it
    nodes = [(kind, ["x"], "y", {"noop_with_empty_axes": 0})]
    assert_gradients(nodes, {"x": [2, 4, 6]}, opset=18, step=1e-3)


def test_axes_that_are_computed_are_refused():
    nodes = [("Shape", ["x"], "shape", {"start": 1, "end": 2}), ("Sub", ["shape", "three"], "axes", {})]
    nodes.append(("ReduceMean", ["x", "axes"], "y", {}))
    with pytest.raises(NoGradientError, match="its input 1 is computed"):
        assert_gradients(nodes, X, {"three": np.array([3], np.int64)}, opset=18)


def test_a_norm_of_zero_has_the_gradient_zero():
    model = with_gradients(network([("ReduceL2", ["x"], "y", {"axes": [2]})], X), ["x"])
    feed = {"x": np.zeros((1, 4, 6), np.float32), "direction": np.ones((1, 4, 1), np.float32)}
    _, gradient = run(model, feed)
    assert not gradient.any()


def test_reductions_every_rule_is_tested():
    assert set(REDUCTIONS_CASES) == set(REDUCTIONS)


NORMALIZATIONS_X = {"x": ["N", 3, 5]}
GROUPS = {"x": ["N", 6, 2, 3]}


NORMALIZATIONS_CASES = {
    "Softmax": of_one("Softmax", axis=1),
    "LayerNormalization": of_one("LayerNormalization", [1, 2, 3, 4, 5], [0, 1, 0, 1, 0], axis=-1),
    "BatchNormalization": of_one("BatchNormalization", [1, 2, 3], [0, 1, 2], [0.5, 0, 1], [1, 2, 3]),
    "InstanceNormalization": of_one("InstanceNormalization", [1, 2, 3], [0, 1, 2], epsilon=0.1),
    "LogSoftmax": of_one("LogSoftmax", axis=1),
    "LpNormalization": of_one("LpNormalization", axis=1),
}

#: Of operators that take images alone, or are new in opset 18, 21 or 23.
OTHERS = [
    (17, GROUPS, of_one("LRN", size=3, alpha=2.0, beta=0.6, bias=0.7)),
    (17, GROUPS, of_one("LRN", size=5, alpha=3.0)),
    (18, GROUPS, of_one("GroupNormalization", [1, 2], [0, 1], num_groups=2)),
    (21, GROUPS, of_one("GroupNormalization", range(1, 7), range(6), num_groups=3, epsilon=0.1)),
    (23, NORMALIZATIONS_X, of_one("RMSNormalization", [1, 2, 3, 4, 5], epsilon=0.1)),
    (23, NORMALIZATIONS_X, of_one("RMSNormalization", np.arange(1, 16).reshape(3, 5), axis=1)),
]


@pytest.mark.parametrize("kind", NORMALIZATIONS_CASES)
def test_normalizations_of_one_tensor(kind):
    nodes, constants = NORMALIZATIONS_CASES[kind]
    assert_gradients(nodes, NORMALIZATIONS_X, constants, step=1e-3)


@pytest.mark.parametrize(("opset", "shapes", "case"), OTHERS)
def test_of_one_tensor_of_other_operators(opset, shapes, case):
    nodes, constants = case
    assert_gradients(nodes, shapes, constants, opset=opset, step=1e-3)


def test_values_of_length_zero_have_no_infinite_gradient():
    model = with_gradients(network([("LpNormalization", ["x"], "y", {})], NORMALIZATIONS_X), ["x"])
    feed = {"x": np.zeros((1, 3, 5), np.float32), "direction": np.ones((1, 3, 5), np.float32)}
    _, gradient = run(model, feed)
    assert np.isfinite(gradient).all()


def test_a_window_without_a_middle_has_no_gradient():
    nodes, constants = of_one("LRN", size=2)
    with pytest.raises(NoGradientError, match="its window has no channel in the middle"):
        with_gradients(network(nodes, GROUPS, constants), ["x"])


def test_another_norm_has_no_gradient():
    nodes, constants = of_one("LpNormalization", p=1)
    with pytest.raises(NoGradientError, match="'y': it divides by another norm than the Euclidean one"):
        assert_gradients(nodes, NORMALIZATIONS_X, constants)


def test_normalizations_every_rule_is_tested():
    assert {*NORMALIZATIONS_CASES, *(nodes[0][0] for _, _, (nodes, _) in OTHERS)} == set(NORMALIZATIONS)
