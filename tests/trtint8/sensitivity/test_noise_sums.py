"""Levels and intervals from sums over samples."""

from __future__ import annotations

import math

import numpy as np
import pytest

from trtint8.sensitivity.drawing import Draw, draw
from trtint8.sensitivity.effects import EffectMeter
from trtint8.sensitivity.noise_sums import COLUMN, COLUMNS, DECIBELS, half_widths, limited
from trtint8.validation.significance import t95

LAYER = ("only", "a")


def _sums(**known):
    sums = np.zeros((1, COLUMNS))
    for name, value in known.items():
        sums[0, COLUMN[name]] = value
    return sums


def test_a_width_by_hand():
    """Noise powers 1 and 3 under signals of 4: of the logarithm of their mean the variance is 1/4."""
    sums = _sums(samples=2, shown=2, signal=8, signal2=32, noise=4, noise2=10, both=16)
    assert half_widths(sums)[0] == pytest.approx(t95(1) * DECIBELS * 0.5)


def test_a_width_of_drawn_samples_by_hand():
    """Powers 1 and 2 were drawn of four samples, each with a chance of a half: they count 2 and 4."""
    noise = np.array([[1.0, 2.0]])
    meter = EffectMeter([LAYER], {"y": 1.0}, classes=False, labelled=False)
    outputs = {"y": np.full((4, 1), 2.0)}
    meter.add_noise([LAYER], noise, outputs, Draw(np.array([1, 3]), np.array([0.5, 0.5])))
    known = dict(zip(COLUMN, meter.sums[0].tolist(), strict=True))
    assert known == {
        **dict.fromkeys(COLUMN, 0.0),
        **{"samples": 4, "shown": 2, "signal": 16, "signal2": 64, "noise": 6, "noise2": 10, "both": 24},
        **{"product": 16, "got2": 22, "missed": 1, "missed_noise": 3, "missed_noise2": 10},
    }
    # All four: (10/4 - 1.5^2) / 1.5^2 / 3; drawing: (10 - 2 * 3 * 3 + 9) * 2 / 6^2.
    variance = (2.5 / 2.25 - 1) / 3 + 2 / 36
    assert half_widths(meter.sums)[0] == pytest.approx(t95(1) * DECIBELS * math.sqrt(variance))


@pytest.mark.parametrize("share", [0.25, 0.5, 1.0])
def test_the_interval_of_drawn_samples_holds_the_truth_as_often_as_it_says(share):
    """Of a layer whose noise is about proportional to the whole network's."""
    random = np.random.default_rng(0)
    held, wide = 0, []
    for _ in range(300):
        whole = random.lognormal(0.0, 0.7, 256)
        layer = 0.01 * whole * random.lognormal(0.0, 0.7, 256)
        drawn = draw(whole, np.zeros(256, bool), share, random)
        meter = EffectMeter([LAYER], {"y": 1.0}, classes=False, labelled=False)
        meter.add_noise([LAYER], layer[None, drawn.rows], {"y": np.ones((256, 1))}, drawn)
        effect = meter.effect(LAYER)
        low, high = effect.interval_db
        held += low <= -10 * math.log10(0.01 * math.exp(0.49)) <= high
        wide.append(high - low)
    assert 0.91 < held / 300 < 0.99
    assert np.mean(wide) < 2 * 2.5


def test_without_noise_or_signal_there_is_no_width():
    assert half_widths(_sums(samples=2, signal=1)).tolist() == [0.0]
    assert half_widths(_sums(samples=2, noise=1)).tolist() == [0.0]
    assert half_widths(np.zeros((1, COLUMNS))).tolist() == [0.0]


def test_a_limit_beyond_all_numbers_limits_nothing():
    """As of the sums of a checkpoint that says so."""
    sums = np.zeros((1, COLUMNS))
    sums[0, COLUMN["signal"]], sums[0, COLUMN["noise"]] = 1e308, 3.0
    assert limited(sums, np.array([True]))[0, COLUMN["noise"]] == 3.0
