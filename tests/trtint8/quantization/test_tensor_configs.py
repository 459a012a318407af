"""The config of every tensor, as a placement decides it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_equal

from calibrators.errors import UnsupportedError
from calibrators.tables.table import CalibrationTable
from tests.trtint8.onnx_models import Shaped, prepared_graph
from trtint8.models.model import load_model, prepare
from trtint8.quantization.config import DLA, State, TensorQuantConfig
from trtint8.quantization.placement import place
from trtint8.quantization.quantize import QuantizeOptions, quantized_model
from trtint8.quantization.targets import target_named
from trtint8.quantization.tensor_configs import JointConfigs, ppq_document


def configs_of(model, **options):
    return place(prepared_graph(model), **options).configs


def conv(g, source, name, channels=4):
    return g.Conv(name, source, g.weights(4, channels, 3, 3), g.weights(4), pads=[1] * 4)


def test_a_convolution_and_its_relu():
    g = Shaped()
    first = conv(g, "x", "first")
    relu = g.Relu("relu", first)
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
    trunk = g.Relu("trunk", conv(g, "x", "a"))
    inner = g.Relu("inner", conv(g, trunk, "b"))
    branch = conv(g, inner, "c")
    added = g.Add("add", branch, trunk)
    out = g.Relu("out", added)
    configs = configs_of(g.model({"x": ["N", 4, 8, 8]}, conv(g, out, "d")))
    assert configs.dominator(branch) == configs.dominator(added) == out
    assert configs[branch].state is configs[added].state is State.OVERLAPPED
    assert configs[trunk].state is State.INITIAL
    assert configs.dominator(trunk) == trunk


def test_a_tensor_that_others_read_is_not_fused_away():
    g = Shaped()
    first = conv(g, "x", "first")
    relu = g.Relu("relu", first)
    both = g.Mul("mul", conv(g, relu, "second"), first)
    configs = configs_of(g.model({"x": ["N", 4, 8, 8]}, both))
    assert configs[first].state is State.FLOAT


def test_shapes_are_not_quantized():
    g = Shaped()
    flat = g.Reshape("reshape", "x", g.Shape("shape", "x"))
    configs = configs_of(g.model({"x": ["N", 4, 8, 8]}, conv(g, flat, "only")))
    assert configs["shape_out"].state is State.SHAPE_OR_INDEX


def test_the_target_decides_the_configs():
    g = Shaped()
    model = g.model({"x": ["N", 4, 8, 8]}, conv(g, "x", "only"))
    configs = configs_of(model, target=target_named("dla"))
    assert configs["x"] == DLA.activations
    assert_equal({configs[name].quant_min for name in configs if configs[name].axis == 0}, {-127})


def test_what_is_kept_in_float_is_dequantized():
    """The second convolution's input would have a pair; the first's has one, and stays as it is."""
    g = Shaped()
    relu = g.Relu("relu", conv(g, "x", "first"))
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


def scaled_block(**options):
    """A convolution with a Relu before another one, quantized by a table; and its configs."""
    g = Shaped()
    relu = g.Relu("relu", conv(g, "x", "first"))
    model = g.model({"x": ["N", 4, 8, 8]}, conv(g, relu, "second"))
    prepared = prepare(load_model(model))
    table = CalibrationTable({"x": 127.0}, "mse").override({relu: 12.7})
    return quantized_model(prepared, table, QuantizeOptions(**options))


def test_scales_of_pairs_are_those_of_the_configs():
    found = scaled_block()
    configs = found.configs
    assert (configs["x"].state, float(configs["x"].scale), configs["x"].observer) == (
        State.ACTIVATED,
        1.0,
        "mse",
    )
    assert configs["first_out"].state is State.OVERLAPPED
    assert configs.effective("first_out") == configs["relu_out"]
    assert configs["relu_out"].observer == "by hand"
    weights = [edge.tensor for edge in found.placement.weights]
    assert [configs[name].scale.shape for name in weights] == [(4,), (4,)]
    assert configs["second_out"].state is State.FLOAT


def test_the_forms_of_ppq():
    found = scaled_block()
    weights = {edge.tensor for edge in found.placement.weights}
    document = ppq_document(found.configs, weights)
    assert document["act_quant_info"] == pytest.approx({"x": 127.0, "first_out": 12.7, "relu_out": 12.7})
    every = document["quant_info"]
    assert set(every) == {"x", "first_out", "relu_out"} | weights
    assert every["first_out"]["dominator"] == every["relu_out"]["hash"] == every["relu_out"]["dominator"]
    assert every["first_out"]["state"] == "overlapped"
    assert [every["x"][key] for key in ("bit_width", "sym", "scale", "zero_point", "q_min", "q_max")] == [
        8,
        True,
        1.0,
        0,
        -128,
        127,
    ]
    assert (every["x"]["tensor_min"], every["x"]["tensor_max"]) == (-128.0, 127.0)
    one = every[weights.pop()]
    assert one["per_channel"] and len(one["scale"]) == len(one["zero_point"]) == len(one["tensor_max"]) == 4


def test_asymmetric_configs_are_in_the_second_form_alone():
    uint8 = TensorQuantConfig(quant_min=0, quant_max=255, symmetric=False).with_range(-1.0, 3.0)
    configs = JointConfigs()
    configs.add("x", uint8)
    document = ppq_document(configs, ())
    assert document["act_quant_info"] == {}
    assert document["quant_info"]["x"]["zero_point"] == 64
    assert document["quant_info"]["x"]["tensor_max"] == pytest.approx(3.0, abs=0.01)


def test_what_would_be_slower_is_deactivated():
    assert {one.value for one in State} >= {"deactivated"}
    g = Shaped()
    relu = g.Relu("relu", conv(g, "x", "first"))
    model = prepared_graph(g.model({"x": [1, 4, 8, 8]}, conv(g, relu, "second")))
    placement = place(model, target=target_named("rtx"), float16=True)
    assert set(placement.slower) <= {"first", "second"}
    states = {placement.configs[name].state for name in ("x", "relu_out")}
    assert (State.DEACTIVATED in states) == bool(placement.slower)
