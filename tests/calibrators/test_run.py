"""How work on data is run."""

import pytest

from calibrators.errors import CalibrationDataError, UnsupportedError
from calibrators.ray.cluster import RayExecutor
from calibrators.run import RunOptions


def test_this_process_or_a_cluster():
    assert RunOptions().is_local
    assert not RunOptions(executor="ray").is_local
    chosen = RunOptions(executor=RayExecutor(workers=2), threads=3)
    assert not chosen.is_local and chosen.worker_threads == 3
    assert RunOptions(executor="ray").worker_threads == 1


def test_what_makes_no_sense_is_refused_at_once():
    with pytest.raises(CalibrationDataError, match="threads is 0; give a positive integer or leave it out"):
        RunOptions(threads=0)
    with pytest.raises(UnsupportedError, match="the executor is 'dask'"):
        RunOptions(executor="dask")
