"""Histograms of many tensors, counted by several threads."""

import numpy as np
import pytest

from calibrators.histograms.counting import ParallelHistograms
from tests.calibrators.histograms.kernels import whole


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads_leave_no_trace(threads):
    random = np.random.default_rng(0)
    arrays = {name: random.standard_normal(size) for name, size in {"a": 3_000_000, "b": 7, "c": 0}.items()}
    before = {name: whole(np.array([100.0])) for name in arrays}
    with ParallelHistograms(before, threads) as counted:
        counted.observe(arrays.items())
        counted.observe([("b", np.array([np.nan, 5.0]))])
        assert counted.nans() == ("b", 1)
        merged = counted.merged()
    for name, values in arrays.items():
        expected = whole(np.append(values, [100.0, np.nan, 5.0] if name == "b" else [100.0]))
        assert merged[name] == expected
    assert before["a"] == whole(np.array([100.0]))
