"""How work on data is run."""

import pytest

from calibrators.errors import CalibrationDataError, UnsupportedError
from calibrators.ray.executor import RayExecutor
from calibrators.ray.run_options import RunOptions


def test_this_process_or_a_cluster():
    assert RunOptions().ray is None
    assert RunOptions(executor="ray").ray == RayExecutor()
    chosen = RayExecutor(workers=2)
    assert RunOptions(executor=chosen, threads=3).ray is chosen


def test_what_makes_no_sense_is_refused_at_once():
    with pytest.raises(CalibrationDataError, match="threads is 0; give a positive integer or leave it out"):
        RunOptions(threads=0)
    with pytest.raises(UnsupportedError, match="the executor is 'dask'"):
        RunOptions(executor="dask")
