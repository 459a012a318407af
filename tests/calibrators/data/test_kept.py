"""The samples that are kept depend on the data alone."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrators.data.samples import DataFingerprint, SampleKeeper


def keep(feeds, count=3, **limits):
    keeper, data = SampleKeeper(count, **limits), DataFingerprint()
    for feed in feeds:
        keeper.observe(feed, data.observe(feed))
    return keeper


def batches(rows, size):
    return [{"x": rows[start : start + size]} for start in range(0, len(rows), size)]


def values(keeper):
    return [sample["x"].tolist() for sample in keeper.samples]


def rows(count):
    return np.arange(count * 2, dtype=np.float32).reshape(count, 2)


@given(st.integers(1, 30), st.integers(1, 9), st.integers(1, 9), st.data())
def test_order_batch_size_and_partition_leave_no_trace(count, kept, size, data):
    wanted = keep(batches(rows(count), count), kept)
    order = data.draw(st.permutations(range(count)))
    cut = data.draw(st.integers(0, count))
    parts = [keep(batches(rows(count)[part], size), kept) for part in (order[:cut], order[cut:])]
    assert values(parts[0].merge(parts[1])) == values(wanted)
    assert values(keep(batches(rows(count)[order], size), kept)) == values(wanted)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=12, unique=True), st.integers(0, 12), st.data())
def test_nor_does_the_order_of_samples_of_different_sizes(sizes, cut, data):
    feeds = [{"x": np.zeros((1, size), np.float32)} for size in sizes]
    order = data.draw(st.permutations(feeds))
    wanted = keep(feeds, 5, most_bytes=200)
    first, second = (keep(part, 5, most_bytes=200) for part in (order[:cut], order[cut:]))
    assert values(keep(order, 5, most_bytes=200)) == values(wanted) == values(first.merge(second))
    total = sum(sample["x"].nbytes for sample in wanted.samples)
    assert len(wanted.samples) == 1 or (total <= 200 and len(wanted.samples) <= 5)


def test_those_with_the_smallest_digests_are_kept_in_their_order():
    keeper = SampleKeeper(2)
    keeper.observe({"x": rows(4)}, [7, 3, 9, 5])
    assert values(keeper) == [[[2.0, 3.0]], [[6.0, 7.0]]]


@pytest.mark.parametrize(("most_bytes", "kept"), [(40, 5), (39, 4), (16, 2), (15, 1), (1, 1)])
def test_bytes_are_limited_but_one_sample_is_kept(most_bytes, kept):
    assert len(keep(batches(rows(9), 2), 5, most_bytes=most_bytes).samples) == kept
    assert keep(batches(rows(9), 2), 0, most_bytes=most_bytes).samples == []


def test_equal_samples_are_kept_once():
    assert len(keep(batches(np.concatenate([rows(2), rows(2)]), 3), 4).samples) == 2


def test_a_buffer_may_be_overwritten():
    buffer = np.ones((1, 2), np.float32)
    keeper = keep([{"x": buffer}])
    buffer[:] = 5
    assert values(keeper) == [[[1.0, 1.0]]]


def test_whole_batches():
    keeper = keep(batches(rows(8), 4), 3, whole_batches=True)
    assert sorted(values(keeper)) == [rows(8)[:4].tolist(), rows(8)[4:].tolist()]


def test_inputs_without_a_common_axis_are_one_sample():
    feed = {"x": rows(3), "factor": np.float32(2) * np.ones((), np.float32)}
    (sample,) = keep([feed]).samples
    assert sample["x"].tolist() == rows(3).tolist() and sample["factor"] == 2


class TestOutputs:
    """What the model gives out for samples is kept as long as they are."""

    def test_those_of_kept_samples(self):
        keeper = SampleKeeper(2)
        assert keeper.observe({"x": rows(3)}, [7, 3, 9]) == {0: 7, 1: 3}
        assert keeper.observe({"x": rows(2)}, [3, 8]) == {}
        keeper.add_outputs({7: [np.array([70])], 9: [np.array([90])]})
        assert keeper.outputs == [None, [np.array([70])]]
        assert keeper.observe({"x": rows(1)}, [5]) == {0: 5}
        assert keeper.outputs == [None, None]
        keeper.add_outputs({7: [np.array([70])], 5: [np.array([50])]})
        assert keeper.outputs == [None, [np.array([50])]]

    def test_large_ones_are_not(self):
        keeper = SampleKeeper(2)
        keeper.observe({"x": rows(2)}, [1, 2])
        keeper.add_outputs({1: [np.zeros(1 << 20, np.uint8)], 2: [np.zeros(1 << 20, np.uint8), np.zeros(1)]})
        assert [outputs is None for outputs in keeper.outputs] == [False, True]

    def test_of_both_parts_of_the_data(self):
        first, second = SampleKeeper(2), SampleKeeper(2)
        first.observe({"x": rows(2)}, [1, 4])
        second.observe({"x": rows(3)}, [4, 2, 1])
        first.add_outputs({4: [np.array([40])]})
        second.add_outputs({1: [np.array([10])], 2: [np.array([20])]})
        assert first.merge(second).outputs == [[np.array([10])], [np.array([20])]]

    def test_a_feed_that_is_one_sample_has_no_rows(self):
        keeper = SampleKeeper(2)
        assert keeper.observe({"x": rows(2), "z": rows(3)}, [1]) == {}
        assert SampleKeeper(2, whole_batches=True).observe({"x": rows(2)}, [1, 2]) == {}
