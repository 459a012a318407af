"""Batches: preprocessing, a fixed batch, labels."""

from __future__ import annotations

import numpy as np
import pytest

from calibrators.data.feeds import OneSample, batch_rows
from calibrators.data.inputs import InputSpec
from calibrators.data.opening import open_batches
from tests.calibrators.data.sample_data import (
    IMAGE,
    RAW,
    TOKENS,
    VECTOR,
    pixels,
    refused,
    sizes,
    vectors,
    whole,
)
from tests.calibrators.specs import floats


@pytest.mark.parametrize(
    ("data", "batch_size", "rows"),
    [
        (vectors(8), 3, 3),
        (vectors(8), 100, 8),
        (iter(vectors(8)), 3, 3),
        (iter([{VECTOR.name: vectors(2)}, {VECTOR.name: vectors(5)}]), None, 1),
    ],
    ids=["of an array", "one batch", "of a generator's samples", "batches as they come"],
)
def test_the_samples_of_most_batches(data, batch_size, rows):
    assert open_batches(data, [VECTOR], batch_size=batch_size).usual_rows == rows


class CannotTell:
    """Data with a ``__len__`` that raises, as readers of ONNX Runtime and loaders of streams have it."""

    def __init__(self, error, items=None):
        self.error, self.items = error, [{VECTOR.name: vectors(2)}] * 3 if items is None else items

    def __len__(self):
        raise self.error

    def __iter__(self):
        return iter(self.items)


@pytest.mark.parametrize("error", [NotImplementedError(), TypeError("no len()"), OverflowError("too long")])
def test_data_that_cannot_tell_its_length_is_a_stream(error):
    batches = open_batches(CannotTell(error), [VECTOR])
    assert batches.num_samples is None
    assert [sizes(batches), sizes(batches)] == [[2, 2, 2]] * 2  # as often as it gives iterators
    assert sizes(open_batches(CannotTell(error), [VECTOR], batch_size=4)) == [4, 2]
    assert sizes(open_batches(CannotTell(error, []), [VECTOR])) == []


def test_a_reader_that_is_an_iterator_is_read_once():
    class Reader(CannotTell):
        def __iter__(self):
            return self

        def __next__(self):
            return self.items.pop(0) if self.items else next(iter(()))

    assert sizes(open_batches(Reader(NotImplementedError()), [VECTOR])) == [2, 2, 2]


def test_a_feed_that_is_one_sample_stays_one_in_a_stream():
    feeds = [OneSample({VECTOR.name: vectors(3)}), OneSample({VECTOR.name: vectors(2)})]
    assert [batch_rows(feed) for feed in open_batches(feeds, [VECTOR])] == [None, None]
    assert [len(feed[VECTOR.name]) for feed in open_batches(feeds, [VECTOR], limit=1)] == [3]


def test_batches_as_samples():
    batches = open_batches(vectors(7), [VECTOR], batch_size=3).whole()
    assert (batches.num_samples, batches.batch_size, batches.num_batches) == (3, 1, 3)
    assert [(len(feed[VECTOR.name]), batch_rows(feed)) for feed in batches] == [
        (3, None),
        (3, None),
        (1, None),
    ]
    assert [(shard.first, shard.samples) for shard in batches.cut(2)] == [(0, 2), (2, 1)]
    streamed = open_batches(iter([{VECTOR.name: vectors(4)}]), [VECTOR]).whole()
    assert streamed.num_samples is None
    assert [(len(feed[VECTOR.name]), batch_rows(feed)) for feed in streamed] == [(4, None)]


UINT8 = InputSpec("x", np.dtype(np.uint8), (None, 4, 4, 3))


class TestPreprocessing:
    def test_applies_to_uint8_images(self, tmp_path):
        x, ids = pixels(5, 4, 6, 3), np.ones((5, 2), np.int64)
        feeds = list(open_batches({"x": x, "ids": ids}, [IMAGE, TOKENS], preprocessing=RAW, batch_size=2))
        assert [feed["ids"].tolist() for feed in feeds] == [ids[:2].tolist()] * 2 + [ids[:1].tolist()]
        assert np.array_equal(np.concatenate([feed["x"] for feed in feeds]), x.transpose(0, 3, 1, 2))
        np.savez(tmp_path / "d.npz", images=x, labels=np.arange(5))  # the only array needs no name
        half = InputSpec("x", np.dtype(np.float16), IMAGE.shape)
        for spec in (IMAGE, half):
            batches = open_batches(tmp_path / "d.npz", [spec], preprocessing=RAW)
            assert np.array_equal(whole(batches), RAW(x)) and whole(batches).dtype == spec.dtype
            assert batches.labels.tolist() == [0, 1, 2, 3, 4]

    def test_raw_images(self):
        x = pixels(2, 4, 4, 3)
        refused(x, "float32 .*uint8 images; declare", [IMAGE])
        assert np.array_equal(whole(open_batches(x, [UINT8])), x)
        refused(x, "'x' takes uint8; leave", [UINT8], preprocessing=RAW)

    @pytest.mark.parametrize("data", [np.ones((2, 3, 4, 4), np.float32), np.ones((2, 3), np.uint8)])
    def test_refuses_what_is_no_raw_image(self, data):
        refused(data, f"'x' is {data.dtype} of shape 2x3", [IMAGE], preprocessing=RAW)


class TestFixedBatch:
    spec = floats("x", 4, 3)

    @pytest.mark.parametrize("batch_size", [None, 4])
    def test_sets_the_batch_size(self, batch_size):
        batches = open_batches(vectors(8), [self.spec], batch_size=batch_size)
        assert sizes(batches) == [4, 4]
        assert batches.batch_size == 4

    def test_leaves_a_partial_batch_out_and_says_so(self):
        with pytest.warns(UserWarning, match="last 3 samples, .*4"):
            batches = open_batches(vectors(11), [self.spec], labels=np.arange(11))
        assert np.array_equal(whole(batches), vectors(8))
        assert (batches.num_samples, batches.labels.tolist()) == (8, list(range(8)))

    @pytest.mark.parametrize(
        ("data", "options", "named"),
        [
            (vectors(8), {"batch_size": 2}, "batch_size is 2 .*4"),
            ([{"x": vectors(8)}], {"batch_size": 2}, "batch_size is 2 .*4"),
            ([], {"batch_size": 2}, "empty list"),
            (vectors(3), {}, "3 samples .*4"),
            (vectors(9), {"limit": 2}, "2 samples .*4"),
        ],
    )
    def test_refuses_what_does_not_fill_it(self, data, options, named):
        refused(data, named, [self.spec], **options)

    def test_refuses_inputs_that_disagree(self):
        other = floats("y", 2, "N", 3)
        refused({"x": vectors(4), "y": vectors(4)}, "first dimensions: 'x'", [self.spec, other])

    @pytest.mark.parametrize(
        ("feeds", "options", "left_out", "found"),
        [
            ((4, 4, 3), {}, 3, [4, 4]),
            ((4, 4, 3), {"batch_size": 4}, 3, [4, 4]),
            ((4, 4, 4), {"limit": 6}, 2, [4]),
        ],
    )
    def test_of_an_iterable_leaves_the_rest_out(self, feeds, options, left_out, found):
        batches = open_batches([{"x": vectors(rows)} for rows in feeds], [self.spec], **options)
        with pytest.warns(UserWarning, match=f"last {left_out} samples"):
            assert sizes(batches) == found

    def test_a_small_feed_in_the_middle_is_passed_on_for_the_preflight(self):
        assert sizes(open_batches([{"x": vectors(3)}, {"x": vectors(4)}], [self.spec])) == [3, 4]


class TestLabels:
    @pytest.mark.parametrize("given_as", ["list", "array", "l.npy", "l.npz", "o.npz"])
    def test_given_apart(self, tmp_path, given_as):
        values = np.array([3, 1, 2], np.int8)
        np.save(tmp_path / "l.npy", values)
        np.savez(tmp_path / "l.npz", labels=values, other=vectors(2))
        np.savez(tmp_path / "o.npz", y=values)
        labels = {"list": values.tolist(), "array": values}.get(given_as, tmp_path / given_as)
        for data in (vectors(3), {"x": vectors(3), "labels": np.arange(3)}):  # they replace the data's own
            batches = open_batches(data, [VECTOR], labels=labels)
            assert (batches.labels.tolist(), batches.labels.dtype) == ([3, 1, 2], np.int64)

    def test_class_indices_beyond_int64_are_refused(self):
        """As they are, and not as the negative numbers that they would become."""
        largest = np.iinfo(np.int64).max
        held = open_batches(vectors(2), [VECTOR], labels=np.array([1, largest], np.uint64))
        assert held.labels.tolist() == [1, largest] and held.labels.dtype == np.int64
        labels = np.array([1, largest + 1], np.uint64)
        refused({"x": vectors(2), "labels": labels}, "^'labels' .*9223372036854775808,")
        refused(vectors(2), "^labels .*9223372036854775808,", labels=labels)

    @pytest.mark.parametrize(
        ("labels", "named"),
        [
            ([0, 1], "labels has 2 .*3"),
            (3, "^labels .*int64 of shape scalar"),
            (["cat", "dog", "cow"], "^labels .*<U3 of shape 3"),
            ([[0], [1, 2], 3], "^labels .*cannot become an array"),
            ("l.txt", r"'l\.txt' .*\.npy or \.npz"),
            ("none.npy", "'none.npy'"),
        ],
    )
    def test_refuses_what_is_no_number_per_sample(self, labels, named):
        refused(vectors(3), named, labels=labels)
        refused({"x": vectors(3), "labels": np.arange(4)}, "'labels' has 4 .*3")

    @pytest.mark.parametrize("labels", [np.eye(3), np.array([0.5, 1, 2]), np.array([[[1]], [[2]], [[3]]])])
    def test_labels_that_are_no_class_indices_stay_as_they_are(self, labels):
        batches = open_batches({"x": vectors(3), "labels": labels}, [VECTOR], batch_size=2)
        assert batches.labels.dtype == labels.dtype and np.array_equal(batches.labels, labels)
        second = list(batches.labelled())[1]
        assert np.array_equal(second.labels, labels[2:])

    def test_refuses_a_file_of_several_arrays(self, tmp_path):
        np.savez(tmp_path / "l.npz", a=vectors(2), b=vectors(2))
        refused(vectors(2), "l.npz' .*'labels' among 'a', 'b';", labels=tmp_path / "l.npz")
