import dataclasses
import itertools
import math

import numpy as np
import pytest

from calibrators.errors import UnsupportedError
from trtint8.quantization.arithmetics import EXPLICIT
from trtint8.quantization.config import Policy, State, TensorQuantConfig

PER_TENSOR = TensorQuantConfig()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"bits": 1}, "bits is 1; give 2 to 32"),
        ({"bits": 33}, "bits is 33; give 2 to 32"),
        ({"quant_min": 127, "quant_max": 127}, "quant_min 127 is not below quant_max 127"),
        ({"quant_min": -129}, "-129 to 127 does not fit 8 bits"),
        ({"quant_min": -1, "quant_max": 255}, "-1 to 255 does not fit 8 bits"),
        ({"state": State.ACTIVATED}, "the state 'activated' needs a scale"),
        ({"scale": np.float32(0)}, "a scale is 0.0; scales are positive"),
        ({"scale": np.float32(math.nan)}, "a scale is nan"),
        ({"scale": np.float32(math.inf)}, "a scale is inf"),
        ({"scale": np.ones(3, np.float32)}, "the scale has 1 dimensions, and a policy for the whole tensor"),
        ({"policy": Policy(axis=0), "scale": np.float32(1)}, "per channel takes 1"),
        ({"policy": Policy(exponential=True), "scale": np.float32(0.3)}, "a scale is no power of two"),
        ({"scale": np.float32(1), "offset": np.float32(3)}, "a symmetric policy has no offset"),
    ],
)
def test_contradictions(fields, message):
    fields = {k: np.asarray(v) if k in ("scale", "offset") else v for k, v in fields.items()}
    with pytest.raises(UnsupportedError, match=message):
        TensorQuantConfig(**fields)


def test_a_power_of_two_has_no_offset():
    with pytest.raises(UnsupportedError, match="a power-of-two scale with an offset"):
        Policy(exponential=True, symmetric=False)


@pytest.mark.parametrize("offset", [256.0, -1.0, 1.5])
def test_offsets_are_integers_in_range(offset):
    uint8 = TensorQuantConfig(policy=Policy(symmetric=False), quant_min=0, quant_max=255)
    with pytest.raises(UnsupportedError, match="an offset is no integer from 0 to 255"):
        uint8.with_scale(0.1, np.asarray(offset, np.float32))


@pytest.mark.parametrize(
    ("bits", "least", "most"), [(2, -2, 1), (4, 0, 15), (16, -32768, 32767), (32, 0, 2**32 - 1)]
)
def test_other_widths(bits, least, most):
    TensorQuantConfig(bits=bits, quant_min=least, quant_max=most)


LEGAL = {
    ("initial", "activated"),
    ("initial", "overlapped"),
    ("initial", "deactivated"),
    ("initial", "float"),
    ("activated", "baked"),
    ("activated", "overlapped"),
    ("activated", "dequantized"),
    ("activated", "deactivated"),
    ("baked", "dequantized"),
    ("passive initial", "passive"),
    ("passive initial", "deactivated"),
    ("passive initial", "float"),
    ("passive", "passive baked"),
    ("passive", "dequantized"),
    ("passive", "deactivated"),
    ("passive baked", "dequantized"),
    ("dequantized", "activated"),
    ("dequantized", "baked"),
    ("dequantized", "passive"),
    ("dequantized", "passive baked"),
    ("dequantized", "deactivated"),
    ("deactivated", "activated"),
    ("deactivated", "passive"),
}


@pytest.mark.parametrize(("before", "after"), list(itertools.product(State, State)))
def test_only_legal_moves(before, after):
    config = TensorQuantConfig(state=before, scale=np.asarray(0.5, np.float32))
    if (before.value, after.value) in LEGAL:
        assert config.to(after).state is after
    else:
        with pytest.raises(
            UnsupportedError, match=f"in the state '{before.value}' cannot become '{after.value}'"
        ):
            config.to(after)


def test_the_same_config_along_another_axis():
    rows = dataclasses.replace(PER_TENSOR, policy=Policy(axis=0), quant_min=-127)
    assert rows.along(1) == dataclasses.replace(rows, policy=Policy(axis=1))
    assert rows.along(None).policy.axis is None


def test_a_scale_activates():
    assert PER_TENSOR.with_scale(0.5).state is State.ACTIVATED
    passive = TensorQuantConfig(state=State.PASSIVE_INITIAL)
    assert passive.with_scale(0.5).state is State.PASSIVE
    assert PER_TENSOR.with_scale(0.5).with_scale(0.25).scale == 0.25
    for state in (State.FLOAT, State.SHAPE_OR_INDEX, State.OVERLAPPED):
        with pytest.raises(UnsupportedError, match=f"in the state '{state.value}' takes no scale"):
            TensorQuantConfig(state=state).with_scale(0.5)


def test_scales_from_ranges():
    assert PER_TENSOR.scale_of(127.0) == 1
    power_of_two = TensorQuantConfig(policy=Policy(exponential=True))
    assert power_of_two.scale_of(127.0) == 1
    assert power_of_two.scale_of(128.0) == 2
    assert power_of_two.scale_of(0.3) == 2.0**-8
    per_channel = EXPLICIT.weights_along(0)
    assert per_channel.scale_of(np.array([127.0, 254.0])).tolist() == [1, 2]
