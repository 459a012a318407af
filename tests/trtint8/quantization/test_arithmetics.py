"""What each backend does with ties and ranges."""

import numpy as np
import pytest

from calibrators.errors import UnsupportedError
from trtint8.quantization.arithmetics import ARITHMETICS, DLA, EXPLICIT, IMPLICIT, NCNN, arithmetic_named
from trtint8.quantization.integer.arithmetic import quantize


def test_ties():
    values = np.array([23.5, 24.5, -23.5], np.float32)
    to_even, away_from_zero = [24, 24, -24], [24, 25, -24]
    for arithmetic, result in (
        (EXPLICIT, to_even),
        (IMPLICIT, to_even),
        (DLA, away_from_zero),
        (NCNN, away_from_zero),
    ):
        assert quantize(values, arithmetic.activations.with_scale(1.0)).tolist() == result


def test_implicit_weights_round_half_up_and_are_symmetric():
    config = IMPLICIT.weights.along(0).with_scale(np.ones(2, np.float32))
    weights = np.array([[23.5, -23.5], [24.5, -130]], np.float32)
    assert quantize(weights, config).tolist() == [[24, -23], [25, -127]]


def test_every_arithmetic_has_a_name():
    assert [arithmetic_named(name).name for name in ARITHMETICS] == list(ARITHMETICS)
    with pytest.raises(UnsupportedError, match=r"'tflite'.*qnnpack"):
        arithmetic_named("tflite")
