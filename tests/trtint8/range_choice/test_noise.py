"""The noise of outputs, in decibels."""

import numpy as np
import pytest

from trtint8.range_choice.noise import is_clearly_better, mean_level, noise_levels

ONES = np.ones((2, 4), np.float32)
#: One row with a hundredth of the signal's energy as noise, one with as much noise as signal.
NOISY = np.float32([[1.1, 0.9, 1.1, 0.9], [2, 0, 2, 0]])
BAD = np.float32([[1.1, 0.9, 1.1, np.nan], [2, 0, np.inf, 0]])


@pytest.mark.parametrize(
    ("wanted", "got", "levels"),
    [
        ([ONES], [NOISY], [-20, 0]),
        ([10 * ONES], [10 * NOISY], [-20, 0]),
        ([ONES.astype(np.float16)], [NOISY.astype(np.float16)], [-20, 0]),
        ([ONES, ONES], [NOISY, NOISY[::-1]], [-10, -10]),
        ([ONES], [ONES], [-140, -140]),
        ([ONES], [ONES + np.float32([[0], [10]])], [-140, 20]),
    ],
    ids=["known", "scaled", "float16", "mean of two outputs", "no error", "noise above signal"],
)
def test_levels_of_every_row(wanted, got, levels):
    assert noise_levels(wanted, got, 2) == pytest.approx(levels, abs=0.02)


def test_several_axes_belong_to_a_row():
    shape = (2, 2, 2)
    assert noise_levels([ONES.reshape(shape)], [NOISY.reshape(shape)], 2) == pytest.approx([-20, 0], abs=1e-4)


def test_one_row_takes_outputs_as_a_whole():
    # Noise of 0.04 and of 4, of a signal of 8.
    assert noise_levels([ONES], [NOISY], 1) == pytest.approx([10 * np.log10(4.04 / 8)], abs=1e-5)
    assert noise_levels([np.float32(2)], [np.float32(1)], 1) == pytest.approx([10 * np.log10(1 / 4)])


@pytest.mark.parametrize("other", [ONES.astype(np.int64), 0 * ONES, np.full_like(ONES, np.nan)])
def test_outputs_without_a_signal_are_left_out(other):
    assert noise_levels([ONES, other], [NOISY, ONES], 2) == pytest.approx([-20, 0], abs=1e-4)
    assert noise_levels([other], [ONES], 2).tolist() == [-140, -140]


def test_outputs_that_are_not_finite_or_have_another_shape_have_nothing_right():
    assert noise_levels([ONES], [BAD], 2).tolist() == [0, 0]
    assert noise_levels([ONES, ONES], [BAD, ONES], 2).tolist() == [-70, -70]
    assert noise_levels([ONES], [ONES[:1]], 1).tolist() == [0]
    assert noise_levels([np.zeros((0, 4), np.float32)], [ONES], 1).tolist() == [0]


def test_outputs_that_are_empty_are_left_out():
    empty = np.zeros((0, 4), np.float32)
    assert noise_levels([empty], [empty], 1).tolist() == [-140]


@pytest.mark.parametrize(
    ("levels", "mean"),
    [
        ([-30.0], -30.0),
        ([-20.0, -20.0, -20.0], -20.0),
        # Powers 1 and 1e-6, of which the sixth roots are 1 and 0.1.
        ([0.0, -60.0], 60 * np.log10(0.55)),
    ],
)
def test_the_mean_of_levels(levels, mean):
    assert mean_level(levels) == pytest.approx(mean)


def test_a_ruined_sample_is_not_made_up_for_by_one_that_becomes_still_better():
    assert mean_level([-6.0, -40.0]) > mean_level([-19.0, -19.0])
    assert np.mean([-6.0, -40.0]) < np.mean([-19.0, -19.0])
    # Nor does a single sample decide alone.
    assert mean_level([*[-20.0] * 6, -3.5]) < mean_level([*[-13.0] * 6, -11.0])


def test_better_by_more_than_chance():
    usual = [-30.0, -32.0, -28.0, -31.0]
    assert is_clearly_better([level - 1 for level in usual], usual, 0.0, 1.5)
    assert not is_clearly_better([-35.0, -27.0, -33.0, -28.0], usual, 0.0, 1.5)
    assert not is_clearly_better([level - 1 for level in usual], usual, -1.1, 1.5)
    assert is_clearly_better([level + 1 for level in usual], usual, 1.1, 1.5)
    assert is_clearly_better([-31.0], [-30.0], 0.0, 1.5) and not is_clearly_better([-30.0], [-30.0], 0.0, 1.5)
    # The difference is 1 in the mean and 0.58 in its standard error.
    assert is_clearly_better([-31.0, -33.0, -31.0], [-30.0, -31.0, -31.0], 0.0, 1.5)
    assert not is_clearly_better([-31.0, -33.0, -31.0], [-30.0, -31.0, -31.0], 0.0, 2.0)
