import dataclasses
import math

import numpy as np
import pytest

from calibrators.errors import UnsupportedError
from trtint8.quantization.config import State, TensorQuantConfig

PER_TENSOR = TensorQuantConfig()


@pytest.mark.parametrize(
    ("axis", "scale", "message"),
    [
        (None, 0, "a scale is 0.0; scales are positive"),
        (None, math.nan, "a scale is nan"),
        (None, math.inf, "a scale is inf"),
        (None, [1, 1, 1], "the scale has 1 dimensions, and a policy for the whole tensor"),
        (0, 1, "per channel takes 1"),
    ],
)
def test_scales_that_are_none(axis, scale, message):
    with pytest.raises(UnsupportedError, match=message):
        TensorQuantConfig(axis).with_scale(np.asarray(scale, np.float32))


def test_the_same_config_along_another_axis():
    rows = TensorQuantConfig(axis=0, quant_min=-127)
    assert rows.along(1) == TensorQuantConfig(axis=1, quant_min=-127)
    assert rows.along(None).axis is None


def test_a_scale_activates():
    assert PER_TENSOR.with_scale(0.5).state is State.ACTIVATED
    assert PER_TENSOR.with_scale(0.5).with_scale(0.25).scale == 0.25
    assert dataclasses.replace(PER_TENSOR, state=State.DEQUANTIZED).with_scale(0.5).state is State.ACTIVATED


@pytest.mark.parametrize("state", [State.FLOAT, State.SHAPE_OR_INDEX, State.OVERLAPPED])
def test_tensors_without_a_scale_of_their_own(state):
    with pytest.raises(UnsupportedError, match=f"in the state '{state.value}' takes no scale"):
        TensorQuantConfig(state=state).with_scale(0.5)


def test_overlapped():
    assert TensorQuantConfig(axis=1).overlapped() == TensorQuantConfig(axis=1, state=State.OVERLAPPED)


def test_a_symmetric_range():
    config = PER_TENSOR.with_range(-2.0, 1.0)
    assert (config.scale, config.offset) == (np.float32(2 / 127), 0)
    assert PER_TENSOR.with_range(0.0, 0.0).scale == 1


@pytest.mark.parametrize(
    ("lowest", "highest", "scale", "offset"),
    [(-1, 1.55, 0.01, 100), (0, 2.55, 0.01, 0), (1, 2.55, 0.01, 0), (-2.55, -1, 0.01, 255), (0, 0, 1, 0)],
)
def test_an_asymmetric_range(lowest, highest, scale, offset):
    config = TensorQuantConfig(quant_min=0, quant_max=255, symmetric=False).with_range(lowest, highest)
    assert config.scale == np.float32(scale)
    assert config.offset == offset


@pytest.mark.parametrize(("symmetric", "offset"), [(True, 1), (False, -1), (False, 256)])
def test_offsets_that_are_none(symmetric, offset):
    with pytest.raises(UnsupportedError, match=str(offset)):
        TensorQuantConfig(quant_min=0, quant_max=255, symmetric=symmetric, offset=offset).with_scale(0.5)
