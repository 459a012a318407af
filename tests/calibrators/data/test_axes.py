"""Inputs whose samples lie along another axis, and inputs that are one number."""

import pickle

import numpy as np
import pytest

from calibrators.data.feeds import BatchAxes, batch_rows, count_samples, needs_single_feeds, one_sample
from calibrators.data.opening import open_batches
from calibrators.errors import CalibrationDataError
from tests.calibrators.specs import floats, integers

#: A voice activity detector: chunks of sound, a state along axis 1, and the sample rate.
INPUTS = (
    floats("input", "batch", 4),
    floats("state", 2, "batch", 3),
    integers("rate"),
)
SOUND = np.arange(20, dtype=np.float32).reshape(5, 4)
STATE = np.arange(30, dtype=np.float32).reshape(2, 5, 3)
ARRAYS = {"input": SOUND, "state": STATE, "rate": np.array(16000)}


def check(batches, order=range(5), labels=None):
    found = list(batches.labelled())
    assert len(found) == len(order)
    for one, index in zip(found, order, strict=True):
        assert one.feed["input"].tolist() == [SOUND[index].tolist()]
        assert one.feed["state"].tolist() == STATE[:, [index]].tolist()
        assert one.feed["rate"].shape == ()
        assert one.feed["rate"] == 16000
        assert all(array.flags.c_contiguous for array in one.feed.values())
        if labels is not None:
            assert one.labels[0] == labels[index]


@pytest.fixture(params=["dict", "file"])
def data(request, tmp_path):
    if request.param == "dict":
        return lambda arrays: arrays

    def write(arrays):
        np.savez(tmp_path / "d.npz", **arrays)
        return tmp_path / "d.npz"

    return write


@pytest.mark.parametrize("axis", [1, np.int64(1)])
def test_each_sample_is_a_feed(data, axis):
    batches = open_batches(BatchAxes(data(ARRAYS), {"state": axis}), INPUTS)
    assert (batches.num_samples, batches.batch_size) == (5, 1)
    check(batches)
    check(batches)


def test_labels_limit_and_order(data):
    source = BatchAxes(data({**ARRAYS, "labels": np.array([4, 3, 2, 1, 0])}), {"state": 1})
    check(open_batches(source, INPUTS), labels=[4, 3, 2, 1, 0])
    order = np.random.default_rng(0).permutation(5)[:3]
    check(open_batches(source, INPUTS, shuffle=True, limit=3), order, [4, 3, 2, 1, 0])
    # Fewer than the first dimension of the state, which is no batch.
    check(open_batches(source, INPUTS, limit=1), [0])


def test_one_number_needs_no_axis(data):
    inputs = (INPUTS[0], INPUTS[2])
    batches = open_batches(data({"input": SOUND, "rate": np.array(8000)}), inputs)
    assert [(feed["input"].shape, int(feed["rate"])) for feed in batches] == [((1, 4), 8000)] * 5
    # Recorded for each sample, it is an array like the others.
    with pytest.raises(CalibrationDataError, match=r"numbers of samples .*: 'input' 5, 'state' 2; give"):
        open_batches(data(ARRAYS), INPUTS)


def test_what_is_one_sample():
    assert needs_single_feeds({"x": SOUND, "rate": np.array(1)}, {})
    assert needs_single_feeds({"x": SOUND}, {"x": 1})
    assert not needs_single_feeds({"x": SOUND, "y": STATE}, {"x": 0})
    assert not needs_single_feeds({"rate": np.array(1)}, {})
    assert count_samples({"x": SOUND, "y": STATE}, {"y": 1}) == 5
    assert one_sample({"x": SOUND}, {"x": 1}, 2)["x"].tolist() == SOUND[:, [2]].tolist()


@pytest.mark.parametrize(
    ("arrays", "axes", "options", "named"),
    [
        (ARRAYS, {"stat": 1}, {}, "'stat'"),
        (ARRAYS, {"state": -1}, {}, "'state' is -1"),
        (ARRAYS, {"state": 3}, {}, "'state' is 3.* 2x5x3"),
        (ARRAYS, {"rate": 1, "state": 1}, {}, "'rate' is 1"),
        (ARRAYS, {"state": 2}, {}, "'input' 5, 'state' 3"),
        (ARRAYS, {"state": 1}, {"batch_size": 4}, "batch_size is 4"),
        ({**ARRAYS, "input": SOUND[:0], "state": STATE[:, :0]}, {"state": 1}, {}, "no samples"),
        ({**ARRAYS, "labels": np.arange(4)}, {"state": 1}, {}, "'labels' .*4 .*5"),
    ],
)
def test_what_does_not_fit_is_refused(data, arrays, axes, options, named):
    with pytest.raises(CalibrationDataError, match=named):
        open_batches(BatchAxes(data(arrays), axes), INPUTS, **options)


def test_a_sample_of_the_only_input_is_one_whatever_lies_along_axis_0(data):
    inputs = (floats("x", "time", "batch", 3),)
    batches = open_batches(BatchAxes(data({"x": STATE, "labels": np.arange(5)}), {"x": 1}), inputs)
    reader = pickle.loads(pickle.dumps(batches.source))  # as a worker has it
    read = [reader.read(batch)[0] for shard in batches.cut(2) for batch in shard.batches]
    for feeds in (list(batches), read):
        assert [feed["x"].tolist() for feed in feeds] == [STATE[:, [row]].tolist() for row in range(5)]
        assert {batch_rows(feed) for feed in feeds} == {None}
    assert [one.first for one in batches.labelled()] == [0, 1, 2, 3, 4]
    assert [(shard.first, shard.samples) for shard in batches.cut(2)] == [(0, 2), (2, 2), (4, 1)]
    head, again = batches.begun(2)
    assert head.samples == 2 and {batch_rows(feed) for feed in again} == {None}


@pytest.mark.parametrize("place", ["folder", "random:3", "d.npy", STATE, [ARRAYS], 3])
def test_axes_are_given_of_named_arrays_only(place):
    named = f"'{place}'" if isinstance(place, str) else type(place).__name__
    with pytest.raises(CalibrationDataError, match=named):
        open_batches(BatchAxes(place, {"state": 1}), INPUTS)
