"""Where work runs."""

import pytest

from calibrators.errors import CalibrationDataError, UnsupportedError
from calibrators.ray.cluster import RayExecutor
from calibrators.run import ray_executor


def test_names_and_executors():
    assert ray_executor("local") is None
    assert ray_executor("ray") == RayExecutor()
    chosen = RayExecutor("somewhere:1", workers=2, num_gpus=0.5, shard_batches=3)
    assert ray_executor(chosen) is chosen
    with pytest.raises(
        UnsupportedError, match="the executor is 'dask'; give 'local', 'ray' or a RayExecutor"
    ):
        ray_executor("dask")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("workers", 0),
        ("shard_batches", -1),
        ("num_gpus", -0.5),
        ("num_gpus", 1.5),
        ("num_gpus", True),
        ("num_gpus", float("nan")),
        ("num_gpus", float("inf")),
    ],
)
def test_an_executor_that_makes_no_sense(name, value):
    with pytest.raises(CalibrationDataError, match=f"{name} is {value}"):
        RayExecutor(**{name: value})
