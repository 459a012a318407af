from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrators.data.samples import SamplePeaks, UnusualSamples


def peaks_of(*peaks, first=0):
    return SamplePeaks.of(np.array(peaks, np.float64), first)


@pytest.mark.parametrize("factor", [1.0, 1e-30, 1e30])
def test_the_few_samples_that_reach_further_than_all_others(factor):
    found = peaks_of(*[factor * 1.1] * 30, factor * 50, *[factor] * 30, factor * 90).unusual()
    assert found is not None
    assert (found.count, found.samples, found.peak) == (2, (30, 61), factor * 90)
    assert factor * 1.1 <= found.usual <= factor * 1.1 * 2**0.25


@pytest.mark.parametrize(
    "peaks",
    [
        [1.0] * 60,
        [1.0] * 59 + [8.0],  # eight times as far, and no more
        [1.0] * 18 + [100.0],  # too few samples to tell
        [1.0] * 50 + [100.0] * 10,  # too many to be the exception
        [0.0] * 59 + [100.0],  # nothing to compare with
        list(np.geomspace(0.01, 100, 200)),  # loud and quiet sounds
    ],
)
def test_nothing_is_unusual(peaks):
    assert peaks_of(*peaks).unusual() is None


def test_five_of_many_are_named():
    assert peaks_of(*[1.0] * 200, *np.arange(20.0, 28.0)).unusual() == UnusualSamples(
        8, (203, 204, 205, 206, 207), 27.0, 2**0.25
    )


@given(
    st.lists(st.floats(0, 1e300) | st.sampled_from([1.0, 20.0]), min_size=1, max_size=40),
    st.integers(0, 40),
)
def test_parts_merge_to_the_whole(peaks, middle):
    first, second = peaks[:middle], peaks[middle:]
    whole = peaks_of(*peaks)
    assert peaks_of(*first).merge(peaks_of(*second, first=len(first))) == whole
    assert peaks_of(*first).merge(peaks_of(*second), len(first)) == whole
    assert sum(whole.counts.values()) == len(peaks) and len(whole.largest) == min(5, len(peaks))
