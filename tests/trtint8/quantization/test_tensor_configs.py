"""The config of every tensor, as a placement decides it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrators.errors import UnsupportedError
from tests.trtint8.onnx_models import Shaped
from trtint8.models.model import load_model, prepare
from trtint8.quantization.config import DLA, State, TensorQuantConfig
from trtint8.quantization.placement import place
from trtint8.quantization.targets import target_named
from trtint8.quantization.tensor_configs import JointConfigs


def configs_of(model, **options):
    return place(prepare(load_model(model)).graph_model, **options).configs


def conv(g, source, name, channels=4):
    return g.op("Conv", [source, g.weights(4, channels, 3, 3), g.weights(4)], name, pads=[1] * 4)


def test_a_convolution_and_its_relu():
    g = Shaped()
    first = conv(g, "x", "first")
    relu = g.op("Relu", [first], "relu")
    configs = configs_of(g.model({"x": ["N", 4, 8, 8]}, conv(g, relu, "second")))
    assert configs["x"].state is State.INITIAL
    assert configs[relu].state is State.INITIAL
    assert (configs[first].state, configs.dominator(first)) == (State.OVERLAPPED, relu)
    weights = [name for name in configs if configs[name].axis == 0]
    assert len(weights) == 2
    assert all(configs[name].state is State.INITIAL for name in weights)


def test_an_output_that_nothing_quantizes_is_float():
    g = Shaped()
    last = conv(g, "x", "only")
    assert configs_of(g.model({"x": ["N", 4, 8, 8]}, last))[last].state is State.FLOAT


def test_a_residual_block():
    g = Shaped()
    trunk = g.op("Relu", [conv(g, "x", "a")], "trunk")
    inner = g.op("Relu", [conv(g, trunk, "b")], "inner")
    branch = conv(g, inner, "c")
    added = g.op("Add", [branch, trunk], "add")
    out = g.op("Relu", [added], "out")
    configs = configs_of(g.model({"x": ["N", 4, 8, 8]}, conv(g, out, "d")))
    assert configs.dominator(branch) == configs.dominator(added) == out
    assert configs[branch].state is configs[added].state is State.OVERLAPPED
    assert configs[trunk].state is State.INITIAL
    assert configs.dominator(trunk) == trunk


def test_a_tensor_that_others_read_is_not_fused_away():
    g = Shaped()
    first = conv(g, "x", "first")
    relu = g.op("Relu", [first], "relu")
    both = g.op("Mul", [conv(g, relu, "second"), first], "mul")
    configs = configs_of(g.model({"x": ["N", 4, 8, 8]}, both))
    assert configs[first].state is State.FLOAT


def test_shapes_are_not_quantized():
    g = Shaped()
    flat = g.op("Reshape", ["x", g.op("Shape", ["x"], "shape")], "reshape")
    configs = configs_of(g.model({"x": ["N", 4, 8, 8]}, conv(g, flat, "only")))
    assert configs["shape_out"].state is State.SHAPE_OR_INDEX


def test_the_target_decides_the_configs():
    g = Shaped()
    model = g.model({"x": ["N", 4, 8, 8]}, conv(g, "x", "only"))
    configs = configs_of(model, target=target_named("dla"))
    assert configs["x"] == DLA.activations
    np.testing.assert_equal({configs[name].quant_min for name in configs if configs[name].axis == 0}, {-127})


def test_what_is_kept_in_float_is_dequantized():
    """The second convolution's input would have a pair; the first's has one, and stays as it is."""
    g = Shaped()
    relu = g.op("Relu", [conv(g, "x", "first")], "relu")
    configs = configs_of(g.model({"x": ["N", 4, 8, 8]}, conv(g, relu, "second")), keep_float=["second"])
    weights = [name for name in configs if configs[name].axis == 0]
    assert (configs["x"].state, configs[relu].state) == (State.INITIAL, State.DEQUANTIZED)
    assert len(weights) == 1


def joined(*pairs, tensors="abcdef"):
    configs = JointConfigs()
    for tensor in tensors:
        configs.add(tensor, TensorQuantConfig())
    for tensor, dominator in pairs:
        configs.join(tensor, dominator)
    return configs


def test_the_dominator_of_the_dominator():
    configs = joined("ab", "bc", "de")
    assert {tensor: configs.dominator(tensor) for tensor in "abcdef"} == dict(
        zip("abcdef", "ccceef", strict=True)
    )
    assert {tensor for tensor in "abcdef" if configs[tensor].state is State.OVERLAPPED} == set("abd")


def test_joining_twice_and_in_circles_changes_nothing():
    assert joined("ab", "ab", "ba") == joined("ab")


def test_configs_that_come_later_are_overlapped_too():
    configs = JointConfigs()
    configs.join("a", "b")
    configs.add("a", TensorQuantConfig())
    configs.add("b", TensorQuantConfig())
    assert (configs["a"].state, configs["b"].state) == (State.OVERLAPPED, State.INITIAL)


def test_groups_name_only_who_was_asked_for():
    configs = joined("ab", "bc", "de")
    assert configs.groups("acde") == (("a", "c"), ("d", "e"))
    assert configs.groups("af") == ()


def test_the_widest_range_of_a_group_counts():
    activated = joined("ab", "bc").activated({"a": 127.0, "c": 254.0, "d": 12.7})
    assert {tensor: float(config.scale) for tensor, config in activated.items()} == pytest.approx(
        {"a": 2.0, "c": 2.0, "d": 0.1}
    )
    assert all(config.state is State.ACTIVATED for config in activated.values())


def test_a_range_of_zero_is_no_range():
    with pytest.raises(UnsupportedError, match=r"a scale is 0\.0"):
        joined().activated({"a": 0.0})


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.sampled_from("abcdef")), max_size=12))
def test_groups_are_an_equivalence(pairs):
    configs = joined(*pairs)
    # Against a plain closure of the relation.
    groups = {tensor: {tensor} for tensor in "abcdef"}
    for first, second in pairs:
        merged = groups[first] | groups[second]
        for tensor in merged:
            groups[tensor] = merged
    for first in "abcdef":
        assert configs.dominator(first) in groups[first]
        for second in "abcdef":
            assert (configs.dominator(first) == configs.dominator(second)) == (second in groups[first])
    dominators = {configs.dominator(tensor) for tensor in "abcdef"}
    assert {tensor for tensor in "abcdef" if configs[tensor].state is State.INITIAL} == dominators
