"""Data in two halves."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrators.data.inputs import DataOptions, InputSpec
from calibrators.data.opening import open_batches
from calibrators.errors import CalibrationDataError
from trtint8.tuning.splitting import head, smaller_batch_size, split

SPEC = [InputSpec("x", np.dtype(np.float32), ("N", 2))]


def batches_of(count, size, labels=True):
    array = np.arange(count, dtype=np.float32)[:, None].repeat(2, axis=1)
    data = {"x": array, **({"labels": np.arange(count)} if labels else {})}
    return open_batches(data, SPEC, batch_size=size)


def seen(batches):
    return [int(value) for feed in batches for value in feed["x"][:, 0]]


@given(st.integers(2, 60), st.integers(1, 10))
def test_every_sample_is_in_one_half_with_its_label(count, size):
    if count <= size:
        return
    halves = split(batches_of(count, size))
    samples = [seen(half) for half in halves]
    assert sorted(samples[0] + samples[1]) == list(range(count))
    for half, ids in zip(halves, samples, strict=True):
        assert ids == half.labels.tolist()
        assert [half.name_of(row) for row in range(len(ids))] == [f"sample {number}" for number in ids]
        assert half.num_samples == len(ids) > 0
        assert seen(half) == ids  # again and again


def test_batches_take_turns():
    tuned_on, judged_on = split(batches_of(7, 2))
    assert (seen(tuned_on), seen(judged_on)) == ([0, 1, 4, 5], [2, 3, 6])


def test_feed_dicts_of_an_iterable_take_turns():
    feeds = [{"x": np.full((1, 2), index, np.float32)} for index in range(5)]
    tuned_on, judged_on = split(open_batches(feeds, SPEC))
    assert (seen(tuned_on), seen(judged_on)) == ([0, 2, 4], [1, 3])


@pytest.mark.parametrize("first_has", [True, False])
def test_labels_of_every_other_batch_are_refused(first_has):
    array = np.zeros((3, 2), np.float32)
    feeds = [
        {"x": array, "labels": np.arange(3)} if number % 2 != first_has else {"x": array}
        for number in range(4)
    ]
    for half in split(open_batches(feeds, SPEC)):
        with pytest.raises(CalibrationDataError, match=r"^the batch that begins with sample 3 has"):
            list(half.labelled())


def test_one_batch_cannot_be_split():
    with pytest.raises(CalibrationDataError, match="the data's 4 samples are one batch"):
        split(batches_of(4, 32))


def test_one_sample_cannot_be_split():
    message = "the data has a single sample, which cannot be both tuned on and judged by; give more samples"
    with pytest.raises(CalibrationDataError, match=message):
        split(batches_of(1, 32))


def test_labels_of_feeds_of_unknown_size_cannot_be_split():
    feeds = [{"x": np.zeros((3, 2), np.float32)}]
    with pytest.raises(CalibrationDataError, match="needs a batch_size"):
        split(open_batches(feeds, SPEC, labels=np.arange(3)))


@pytest.mark.parametrize(("samples", "taken"), [(1, 3), (3, 3), (4, 6), (100, 8)])
def test_the_head_is_whole_batches(samples, taken):
    assert seen(head(batches_of(8, 3), samples)) == list(range(taken))


def test_data_of_one_batch_gets_a_smaller_one_unless_it_was_asked_for():
    options = DataOptions()
    sizes = {count: smaller_batch_size(batches_of(count, 32), options) for count in (1, 2, 18, 31, 32, 33)}
    assert sizes == {1: None, 2: 1, 18: 9, 31: 16, 32: 16, 33: None}
    assert smaller_batch_size(batches_of(18, 32), DataOptions(batch_size=32)) is None
