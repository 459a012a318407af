"""Channels in classes with one factor."""

import numpy as np

from trtint8.equalization.following.channel_classes import FIXED, ChannelClasses


def ids(*numbers):
    return np.array(numbers, np.int64)


def test_new_channels_have_factors_of_their_own():
    classes = ChannelClasses()
    np.testing.assert_array_equal(classes.add(2), [1, 2])
    np.testing.assert_array_equal(classes.add(1), [3])
    assert len(classes) == 4
    assert [classes.find(channel) for channel in range(4)] == [(0, 1), (1, 1), (2, 1), (3, 1)]


def test_ties_and_their_powers_follow_one_another():
    classes = ChannelClasses()
    a, b, c = classes.add(3)
    classes.tie(ids(a), ids(b), -1, "")
    classes.tie(ids(b), ids(c), -1, "")
    representatives, powers = classes.representatives()
    assert len(set(representatives[[a, b, c]])) == 1
    assert powers[a] == powers[c] == -powers[b]


def test_a_channel_that_would_be_its_own_reciprocal_is_fixed():
    classes = ChannelClasses()
    a, b = classes.add(2)
    classes.tie(ids(a), ids(b), 1, "")
    classes.tie(ids(a), ids(b), -1, "both")
    assert classes.are_fixed(ids(a, b)).all()
    assert classes.reason(int(a)) == classes.reason(int(b)) == "both"


def test_fixing_reaches_the_class_and_keeps_the_first_reason():
    classes = ChannelClasses()
    a, b, c = classes.add(3)
    classes.tie(ids(a), ids(b), -1, "")
    classes.fix(ids(a), "first")
    classes.fix(ids(b), "second")
    np.testing.assert_array_equal(classes.are_fixed(ids(FIXED, a, b, c)), [True, True, True, False])
    assert classes.reason(int(b)) == "first"
    assert classes.reason(int(c)) == ""


def test_a_tie_to_a_fixed_channel_fixes():
    classes = ChannelClasses()
    (a,) = classes.add(1)
    classes.tie(ids([a], [a]), ids(FIXED), 1, "reason")
    assert classes.find(int(a))[0] == FIXED and classes.reason(int(a)) == "reason"
