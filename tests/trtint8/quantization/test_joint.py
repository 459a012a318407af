"""Which tensors stand for which, by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrators.errors import UnsupportedError
from trtint8.quantization.config import State, TensorQuantConfig
from trtint8.quantization.joint import JointConfigs


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
