"""The kernels that count: compiled and NumPy's, which give the same integers."""

import sys
import types

import numpy as np
import pytest
from hypothesis import given

import calibrators.histograms
from calibrators.histograms.binning import NUMPY, peak
from calibrators.histograms.histogram import kernel
from tests.calibrators.histograms.kernels import ARRAYS, by_numpy, observed

KERNELS = {found.name: found for found in (NUMPY, kernel())}


@pytest.mark.skipif(kernel() is NUMPY, reason="trtint8 was installed without a C compiler")
@given(ARRAYS, ARRAYS)
def test_both_kernels_count_the_same(first, second):
    assert observed(first, second) == by_numpy(lambda: observed(first, second))


@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_stops_at_the_block_with_a_value_that_is_in_no_bin(name):
    values = np.full(200_000, -0.75, np.float32)
    values[:3] = 0
    for bad in (1.0, np.inf, np.nan):
        values[150_000] = bad
        found = KERNELS[name].count(values, 0.25, 4)
        assert 65_536 < found.taken <= 150_000
        assert found.counts.tolist() == [3, 0, 0, found.taken - 3]
        assert (found.zeros, found.ends) == (3, (-0.75, 0.0))


def test_without_the_compiled_part_numpy_counts(monkeypatch):
    monkeypatch.delitem(sys.modules, "calibrators.histograms.compiled", raising=False)
    monkeypatch.setitem(sys.modules, "calibrators.histograms._counting", None)
    monkeypatch.delattr("calibrators.histograms._counting", raising=False)
    monkeypatch.delattr("calibrators.histograms.compiled", raising=False)
    assert kernel.__wrapped__() is NUMPY


def test_the_peak_is_the_largest_magnitude():
    assert peak(np.float32([-3.0, 2.0])) == 3.0
    assert peak(np.float32([0.0])) == 0.0
    assert peak(np.float32([1.0, -np.inf])) == np.inf
    assert np.isnan(peak(np.float32([1.0, np.nan])))


@pytest.mark.parametrize("name", KERNELS)
def test_more_bins_than_sixteen_bits_number(name):
    values = np.float32([0.0, 1.5, (1 << 17) - 1])
    found = KERNELS[name].count(values, 1.0, 1 << 17)
    assert (found.taken, found.zeros, found.ends) == (3, 1, (0.0, (1 << 17) - 1))
    assert (found.counts[0], found.counts[1], found.counts[-1], found.counts.sum()) == (1, 1, 1, 3)


@pytest.mark.parametrize("interface", [None, 1, 10**6])
def test_a_compiled_kernel_of_other_sources_is_not_called(interface, monkeypatch):
    other = types.ModuleType("_counting")
    if interface is not None:
        other.INTERFACE = interface
    monkeypatch.setattr(calibrators.histograms, "_counting", other, raising=False)
    monkeypatch.delattr(calibrators.histograms, "compiled", raising=False)
    monkeypatch.delitem(sys.modules, "calibrators.histograms.compiled", raising=False)
    assert kernel.__wrapped__() is NUMPY
