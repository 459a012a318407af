"""Histograms of many tensors, counted by several threads."""

from concurrent.futures import ThreadPoolExecutor

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
        assert counted.first_with_nan() == "b"
        merged = counted.merged()
    for name, values in arrays.items():
        expected = whole(np.append(values, [100.0, np.nan, 5.0] if name == "b" else [100.0]))
        assert merged[name] == expected
    assert before["a"] == whole(np.array([100.0]))


@pytest.mark.parametrize("threads", [1, 3])
def test_what_a_relu_gives_is_counted_with_what_it_takes(threads):
    random = np.random.default_rng(2)
    arrays = [random.standard_normal(size).astype(np.float32) * 3 for size in (2_500_000, 9)]
    before = {name: whole(np.array([8.0, 0.0])) for name in ("x", "other", "y")}
    with ParallelHistograms(before, threads, {"y": "x"}) as counted:
        for array in arrays:
            counted.observe([("x", array), ("other", array)])
        merged = counted.merged()
        assert counted.merged() == merged and counted.first_with_nan() is None
        counted.observe([("x", np.array([np.nan, -np.nan, np.nan]))])
        assert counted.first_with_nan() == "x"
    values = np.concatenate([*arrays, np.array([8.0, 0.0], np.float32)])
    assert list(merged) == list(before)
    assert merged["x"] == merged["other"] == whole(values)
    assert merged["y"] == whole(np.maximum(values, 0))


def test_threads_that_count_by_themselves_leave_no_trace():
    random = np.random.default_rng(3)
    arrays = [random.standard_normal((50, 1000)).astype(np.float32) for _ in range(3)]
    before = {name: whole(np.array([8.0])) for name in ("x", "y")}
    with ParallelHistograms(before, 3, {"y": "x"}) as counted, ThreadPoolExecutor(3) as pool:
        work = [
            pool.submit(counted.observe_in_thread, number, [("x", array)])
            for number, array in enumerate(arrays)
        ]
        for done in work:
            done.result()
        merged = counted.merged()
        counted.observe_in_thread(2, [("x", np.array([np.nan, 1.0]))])
        assert counted.first_with_nan() == "x"
    values = np.append(np.concatenate(arrays), np.float32(8.0))
    assert merged == {"x": whole(values), "y": whole(np.maximum(values, 0))}
