"""What TensorRT asks of Q/DQ pairs: a tiny graph per rule."""

import pytest

from tests.trtint8.interop.pairs_by_hand import Pairs, build_rule, concat_of, model_of, rules


def test_a_model_as_tensorrt_wants_it():
    g = Pairs()
    assert rules(model_of(g, g.conv(g.quantize("x")))) == []


@pytest.mark.parametrize(
    "rule",
    [
        *("zero-point", "type", "bias-int32", "activation-per-channel", "scalar-constant"),
        *("pair-before-activation", "one-sided", "weight-axis", "concat-scales"),
    ],
)
def test_each_rule_finds_its_case(rule):
    found = rules(model_of(*build_rule(rule)))
    assert set(found) == {rule}


def test_a_concat_of_one_scale_is_as_tensorrt_wants_it():
    assert rules(model_of(*concat_of(0.1, 0.1))) == []


def test_an_add_may_have_two_scales():
    g = Pairs()
    x = g.quantize("x")
    first = g.quantize(g.conv(x, name="a"), 0.1, name="a_part")
    second = g.quantize(g.conv(x, name="b"), 0.3, name="b_part")
    out = g.conv(g.quantize(g.op("Add", [first, second], "add"), 0.3, name="sum"), name="last")
    assert rules(model_of(g, out)) == []
