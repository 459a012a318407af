import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from calibrators.tables.scales import scale_of


def test_by_hand():
    scale = scale_of(2.54)
    assert scale == np.float32(0.02) and scale.dtype == np.float32


@given(st.floats(2.0**-120, 2.0**120, width=32))
def test_the_range_of_a_scale_has_this_scale(scale):
    assert float(scale_of(scale * 127)) == scale
