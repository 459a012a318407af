"""Histograms of a tensor and of what a Relu makes of it, counted at once."""

import numpy as np
import pytest
from hypothesis import given

from calibrators.histograms import signed as module
from calibrators.histograms.binning import NUMPY
from calibrators.histograms.signed import SignedHistogram
from tests.calibrators.histograms.kernels import ARRAYS, observed, whole


def signed(*arrays, bins=64):
    found = SignedHistogram.of_bins(bins)
    for array in arrays:
        found.observe(array)
    return found


def rectified(values):
    return np.where(values < 0, np.float32(0), values)


@pytest.fixture(params=["fastest", "NumPy"], scope="module")
def either_kernel(request):
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "NumPy":
            patch.setattr(module, "kernel", lambda: NUMPY)
        yield


@given(ARRAYS, ARRAYS)
def test_both_histograms_are_those_of_two_looks(either_kernel, first, second):
    found = signed(first, second)
    assert found.magnitudes == observed(first, second)
    assert found.rectified == observed(rectified(first), rectified(second))


@pytest.mark.parametrize("size", [1, 511, 512, 513, 70_001])
@pytest.mark.parametrize("infinite", [0, 0.001])
def test_large_arrays_with_everything_in_them(either_kernel, size, infinite):
    random = np.random.default_rng(size)
    values = (random.standard_normal(size) * 10.0 ** random.uniform(-45, 37, size)).astype(np.float32)
    values[random.random(size) < 0.1] = 0
    values[random.random(size) < 0.1] = -0.0
    for odd in (np.nan, np.inf, -np.inf):
        values[random.random(size) < infinite] = odd
    found = signed(values[: size // 3], values[size // 3 :], bins=2048)
    assert found.magnitudes == whole(values)
    assert found.rectified == whole(rectified(values))


@pytest.mark.parametrize("values", [[], [0.0, -0.0], [2.0], [-2.0, -0.0], [3e38, -1e-45], [-3e38, 1e-45]])
def test_values_of_one_sign_and_of_very_different_sizes(either_kernel, values):
    array = np.array(values, np.float32)
    found = signed(array)
    assert (found.magnitudes, found.rectified) == (observed(array), observed(rectified(array)))
    assert found.upper.total == (array >= 0).sum() and found.lower.total == (array < 0).sum()


def test_each_side_has_bins_of_its_own_width():
    found = signed(np.array([0.5, -40.0], np.float32))
    assert (found.upper.bin_width, found.lower.bin_width) == (2.0**-6, 1.0)
    assert found.magnitudes.bin_width == 1.0 and found.rectified.bin_width == 2.0**-6
