import itertools
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrators.errors import CalibrationDataError
from calibrators.tensorrt.last_batch import uniform


def feeds(*sizes):
    start = np.cumsum([0, *sizes])
    return [{"x": np.arange(a, b, dtype=np.float32).reshape(-1, 1)} for a, b in itertools.pairwise(start)]


@given(st.integers(1, 6), st.integers(0, 5), st.integers(0, 5), st.sampled_from(["drop", "pad"]))
def test_batches_have_one_shape_and_samples_keep_their_order(size, full, rest, last_batch):
    rest = min(rest, size - 1)
    given_feeds = feeds(*[size] * (full + 1), *([rest] if rest else []))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        got = list(uniform(given_feeds, last_batch))
    assert len(caught) == bool(rest)
    padded = rest and last_batch == "pad"
    assert [feed["x"].shape for feed in got] == [(size, 1)] * (full + 1 + bool(padded))
    flat = np.concatenate([feed["x"].ravel() for feed in got])
    known = (full + 1) * size + (rest if padded else 0)
    assert np.array_equal(flat[:known], np.arange(known))


def test_repeated_samples_are_those_of_the_last_batch():
    with pytest.warns(
        UserWarning, match="repeated the last 2 samples to fill a batch of 5: what is repeated"
    ):
        (_, padded) = uniform(feeds(5, 2), "pad")
    assert padded["x"].ravel().tolist() == [5, 6, 5, 6, 5]


def test_refused():
    with pytest.raises(CalibrationDataError, match="the last batch has 2 of 5 samples"):
        list(uniform(feeds(5, 2), "refuse"))


@pytest.mark.parametrize("sizes", [(5, 2, 5), (5, 2, 2), (2, 5)])
def test_only_the_last_may_be_smaller(sizes):
    with pytest.raises(CalibrationDataError, match=r"batch 1 has 'x' \dx1 but the first one 'x' \dx1"):
        list(uniform(feeds(*sizes)))


def test_arrays_become_contiguous_and_scalars_stay_scalars():
    turned = np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3))
    (got,) = uniform([{"x": turned, "flag": np.array(3)}])
    assert got["x"].flags.c_contiguous
    assert got["flag"].shape == ()
    assert np.array_equal(got["x"], turned)


def test_nothing_gives_nothing():
    assert list(uniform([])) == []
