"""Batches: preprocessing, a fixed batch, labels."""

from __future__ import annotations

import numpy as np
import pytest

from calibrators.data.feeds import OneSample, batch_rows
from calibrators.data.inputs import InputSpec
from calibrators.data.opening import open_batches
from tests.calibrators.data.sample_data import (
    FLOAT,
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


class TestPreprocessing:
    def test_applies_to_uint8_images(self):
        x = pixels(5, 4, 6, 3)
        batches = open_batches({"x": x}, [IMAGE], preprocessing=RAW, batch_size=2)
        assert np.array_equal(whole(batches), x.transpose(0, 3, 1, 2).astype(np.float32))

    def test_the_only_array_needs_no_name(self, tmp_path):
        x = pixels(5, 4, 6, 3)
        np.savez(tmp_path / "d.npz", images=x, labels=np.arange(5))
        batches = open_batches(tmp_path / "d.npz", [IMAGE], preprocessing=RAW)
        assert np.array_equal(whole(batches), RAW(x))
        assert batches.labels.tolist() == [0, 1, 2, 3, 4]

    def test_leaves_other_inputs_alone(self):
        x, ids = pixels(2, 4, 6, 3), np.ones((2, 2), np.int64)
        (feed,) = open_batches({"x": x, "ids": ids}, [IMAGE, TOKENS], preprocessing=RAW)
        assert np.array_equal(feed["x"], RAW(x))
        assert np.array_equal(feed["ids"], ids)

    def test_gives_the_inputs_floating_point_type(self):
        (feed,) = open_batches(
            pixels(2, 4, 4, 3), [InputSpec("x", np.dtype(np.float16), IMAGE.shape)], preprocessing=RAW
        )
        assert feed["x"].dtype == np.float16

    def test_raw_images_into_a_float_model_are_refused(self):
        refused(
            pixels(2, 4, 4, 3),
            r"takes float32 but its data is uint8 images; declare .* preprocessing=",
            [IMAGE],
        )

    def test_raw_images_into_a_uint8_model_are_fed(self):
        x = pixels(2, 4, 4, 3)
        assert np.array_equal(
            whole(open_batches(x, [InputSpec("x", np.dtype(np.uint8), (None, 4, 4, 3))])), x
        )

    @pytest.mark.parametrize("data", [np.ones((2, 3, 4, 4), np.float32), np.ones((2, 3), np.uint8)])
    def test_refuses_what_is_no_raw_image(self, data):
        refused(
            data,
            rf"preprocessing was given but .*: 'x' is {data.dtype} of shape 2x3",
            [IMAGE],
            preprocessing=RAW,
        )

    def test_refuses_a_model_that_takes_integers(self):
        spec = InputSpec("x", np.dtype(np.uint8), (None, 4, 4, 3))
        refused(pixels(2, 4, 4, 3), "'x' takes uint8; leave the preprocessing out", [spec], preprocessing=RAW)


class TestFixedBatch:
    spec = InputSpec("x", FLOAT, (4, 3))

    def test_sets_the_batch_size(self):
        batches = open_batches(vectors(8), [self.spec])
        assert sizes(batches) == [4, 4]
        assert batches.batch_size == 4

    def test_leaves_a_partial_batch_out_and_says_so(self):
        with pytest.warns(UserWarning, match="left out the last 3 samples, .* fixed batch of 4"):
            batches = open_batches(vectors(11), [self.spec], labels=np.arange(11))
        assert np.array_equal(whole(batches), vectors(8))
        assert batches.num_samples == 8
        assert batches.labels.tolist() == list(range(8))

    def test_refuses_another_batch_size(self):
        refused(
            vectors(8), "batch_size is 2 but the model has a fixed batch of 4;", [self.spec], batch_size=2
        )
        refused([], "empty list", [self.spec], batch_size=2)
        refused(
            [{"x": vectors(8)}],
            "batch_size is 2 but the model has a fixed batch of 4",
            [self.spec],
            batch_size=2,
        )

    def test_refuses_too_few_samples(self):
        refused(vectors(3), "the data has 3 samples but the model has a fixed batch of 4; give", [self.spec])
        refused(vectors(9), "the data has 2 samples but", [self.spec], limit=2)

    def test_refuses_inputs_that_disagree(self):
        data = {"x": vectors(4), "y": vectors(4)}
        refused(
            data, "different fixed first dimensions: 'x'", [self.spec, InputSpec("y", FLOAT, (2, "N", 3))]
        )

    @pytest.mark.parametrize("batch_size", [None, 4])
    def test_of_an_iterable_leaves_the_rest_out(self, batch_size):
        feeds = [{"x": vectors(4)}, {"x": vectors(4)}, {"x": vectors(3)}]
        batches = open_batches(feeds, [self.spec], batch_size=batch_size)
        with pytest.warns(UserWarning, match="left out the last 3 samples"):
            assert sizes(batches) == [4, 4]

    def test_of_an_iterable_leaves_out_what_the_limit_cut(self):
        batches = open_batches([{"x": vectors(4)}] * 3, [self.spec], limit=6)
        with pytest.warns(UserWarning, match="left out the last 2 samples"):
            assert sizes(batches) == [4]

    def test_a_small_feed_in_the_middle_is_passed_on_for_the_preflight(self):
        assert sizes(open_batches([{"x": vectors(3)}, {"x": vectors(4)}], [self.spec])) == [3, 4]


class TestLabels:
    @pytest.mark.parametrize("given_as", ["list", "array", "npy", "npz", "other npz"])
    def test_given_apart(self, tmp_path, given_as):
        values = np.array([3, 1, 2], np.int8)
        np.save(tmp_path / "l.npy", values)
        np.savez(tmp_path / "l.npz", labels=values, other=vectors(2))
        np.savez(tmp_path / "o.npz", y=values)
        labels = {
            "list": values.tolist(),
            "array": values,
            "npy": tmp_path / "l.npy",
            "npz": str(tmp_path / "l.npz"),
            "other npz": tmp_path / "o.npz",
        }[given_as]
        batches = open_batches(vectors(3), [VECTOR], labels=labels)
        assert batches.labels.tolist() == [3, 1, 2]
        assert batches.labels.dtype == np.int64

    def test_given_apart_replace_the_datas_own(self):
        batches = open_batches({"x": vectors(2), "labels": np.array([0, 1])}, [VECTOR], labels=[7, 8])
        assert batches.labels.tolist() == [7, 8]

    def test_class_indices_beyond_int64_are_refused(self):
        """As they are, and not as the negative numbers that they would become."""
        largest = np.iinfo(np.int64).max
        held = open_batches(vectors(2), [VECTOR], labels=np.array([1, largest], np.uint64))
        assert held.labels.tolist() == [1, largest] and held.labels.dtype == np.int64
        labels = np.array([1, largest + 1], np.uint64)
        match = "^{} the class index 9223372036854775808, which no model has; check the labels$"
        refused({"x": vectors(2), "labels": labels}, match.format("'labels' has"))
        refused(vectors(2), match.format("labels has"), labels=labels)

    def test_refuses_another_length(self):
        refused(
            vectors(3), "labels has 2 entries but the data has 3 samples; give one per sample", labels=[0, 1]
        )
        refused(
            {"x": vectors(3), "labels": np.arange(4)}, "'labels' has 4 entries but the data has 3 samples"
        )

    @pytest.mark.parametrize(
        ("labels", "match"),
        [
            (3, "not int64 of shape scalar"),
            (["cat", "dog"], "not <U3 of shape 2"),
            ([[0], [1, 2]], "cannot become an array"),
        ],
    )
    def test_refuses_what_is_no_number(self, labels, match):
        refused(vectors(2), f"^labels .*{match}", labels=labels)

    @pytest.mark.parametrize("labels", [np.eye(3), np.array([0.5, 1, 2]), np.array([[[1]], [[2]], [[3]]])])
    def test_labels_that_are_no_class_indices_stay_as_they_are(self, labels):
        batches = open_batches({"x": vectors(3), "labels": labels}, [VECTOR], batch_size=2)
        assert batches.labels.dtype == labels.dtype and np.array_equal(batches.labels, labels)
        second = list(batches.labelled())[1]
        assert np.array_equal(second.labels, labels[2:])

    def test_refuses_unusable_files(self, tmp_path):
        np.savez(tmp_path / "l.npz", a=vectors(2), b=vectors(2))
        refused(vectors(2), "l.npz' has no array named 'labels' among a, b;", labels=tmp_path / "l.npz")
        refused(vectors(2), "l.txt' must be a .npy or .npz file", labels="l.txt")
        refused(vectors(2), "cannot read 'none.npy'", labels="none.npy")
