"""What each target does with ties, channels and ranges."""

import numpy as np
import pytest

from calibrators.errors import UnsupportedError
from trtint8.quantization.integer.arithmetic import quantize
from trtint8.quantization.targets import target_named


def test_ties_by_target():
    values = np.array([23.5, 24.5, -23.5], np.float32)
    wanted = {
        "tensorrt-gpu": [24, 24, -24],
        "tensorrt-gpu-implicit": [24, 24, -24],
        "dla": [24, 25, -24],
        "ncnn": [24, 25, -24],
    }
    for name, result in wanted.items():
        assert quantize(values, target_named(name).activations.with_scale(1.0)).tolist() == result


def test_implicit_weights_round_half_up_and_are_symmetric():
    config = target_named("tensorrt-gpu-implicit").weights_along(0).with_scale(np.ones(2, np.float32))
    weights = np.array([[23.5, -23.5], [24.5, -130]], np.float32)
    assert quantize(weights, config).tolist() == [[24, -23], [25, -127]]


def test_one_scale_where_the_target_has_no_channels():
    assert target_named("qnnpack").weights_along(0).policy.axis is None
    assert target_named("dla").weights_along(1).policy.axis == 1


def test_no_such_target():
    with pytest.raises(UnsupportedError, match="there is no target 'tpu'; use one of tensorrt-gpu, "):
        target_named("tpu")
