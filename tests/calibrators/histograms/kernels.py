"""Histograms of given values, counted by the compiled kernel or by NumPy's."""

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from calibrators.histograms import histogram as module
from calibrators.histograms.binning import NUMPY
from calibrators.histograms.histogram import Histogram

ARRAYS = hnp.arrays(np.float32, st.integers(0, 60), elements=st.floats(width=32))


def observed(*arrays):
    histogram = Histogram(np.zeros(64, np.int64))
    for array in arrays:
        histogram.observe(array)
    return histogram


def by_numpy(function):
    """What a function returns where histograms are counted by NumPy."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "kernel", lambda: NUMPY)
        return function()


def whole(values):
    histogram = Histogram()
    histogram.observe(values)
    return histogram
