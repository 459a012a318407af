"""Iterables of feed dicts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrators.data.inputs import InputSpec
from calibrators.data.opening import open_batches
from calibrators.errors import CalibrationDataError
from tests.calibrators.data.sample_data import (
    FLOAT,
    IMAGE,
    RAW,
    VECTOR,
    pixels,
    refused,
    sizes,
    vectors,
    whole,
)


class TestIterables:
    feeds = ({"x": vectors(2)}, {"x": vectors(5)}, {"x": vectors(1)})

    @pytest.mark.parametrize(
        "data", [list(feeds), lambda: iter(TestIterables.feeds)], ids=["list", "callable"]
    )
    def test_feeds_are_passed_on_as_they_come_again_and_again(self, data):
        batches = open_batches(data, [VECTOR])
        assert sizes(batches) == sizes(batches) == [2, 5, 1]
        assert (batches.num_samples, batches.batch_size, batches.labels) == (None, None, None)

    def test_the_sequence_protocol_suffices(self):
        class Loader:
            def __getitem__(self, index):
                return TestIterables.feeds[index]

        assert sizes(open_batches(Loader(), [VECTOR])) == [2, 5, 1]

    def test_a_generator_can_be_read_once(self):
        batches = open_batches((feed for feed in self.feeds), [VECTOR])
        assert sizes(batches) == [2, 5, 1]
        with pytest.raises(CalibrationDataError, match=r"already read .*; pass a callable .* or a list"):
            list(batches)

    @given(
        st.lists(st.integers(1, 7), min_size=1, max_size=6), st.integers(1, 9), st.none() | st.integers(1, 30)
    )
    def test_regrouped_batches_joined_are_the_source(self, lengths, batch_size, limit):
        source = vectors(sum(lengths))
        feeds = [{"x": part} for part in np.split(source, np.cumsum(lengths)[:-1])]
        batches = open_batches(feeds, [VECTOR], batch_size=batch_size, limit=limit)
        assert np.array_equal(whole(batches), source[:limit])
        assert set(sizes(batches)[:-1]) <= {batch_size}
        assert np.array_equal(whole(open_batches(feeds, [VECTOR], limit=limit)), source[:limit])

    def test_regrouping_survives_a_loader_that_reuses_its_buffer(self):
        def load():
            buffer = np.empty((2, 3), np.float32)
            for i in range(3):
                buffer[...] = vectors(6)[2 * i : 2 * i + 2]
                yield {"x": buffer}

        assert np.array_equal(whole(open_batches(load, [VECTOR], batch_size=3)), vectors(6))

    def test_nothing_is_asked_for_beyond_the_limit(self):
        def load():
            yield {"x": vectors(2)}
            raise AssertionError("asked for more")

        assert sizes(open_batches(load, [VECTOR], limit=2)) == [2]

    def test_a_feed_without_a_common_axis_counts_as_one_sample(self):
        inputs = [VECTOR, InputSpec("scale", FLOAT, ())]
        feeds = [{"x": vectors(2), "scale": np.array(1, np.float32)}] * 3
        assert sizes(open_batches(feeds, inputs, limit=2)) == [2, 2]
        refused(feeds, "cannot regroup the data to batches of 2", inputs, batch_size=2)

    def test_scalars_stay_scalars(self):
        inputs = [VECTOR, InputSpec("scale", FLOAT, ())]
        (feed,) = open_batches([{"x": vectors(2), "scale": np.array(1, np.float32)}], inputs)
        assert feed["scale"].shape == ()

    def test_arrays_are_contiguous(self):
        (feed,) = open_batches([{"x": np.asfortranarray(vectors(4))}], [VECTOR])
        assert feed["x"].flags.c_contiguous

    def test_labels_in_feeds_are_not_fed(self):
        (feed,) = open_batches([{"x": vectors(2), "labels": np.arange(2)}], [VECTOR])
        assert feed.keys() == {"x"}

    def test_images_are_preprocessed(self):
        x = pixels(2, 4, 6, 3)
        (feed,) = open_batches([{"image": x}], [IMAGE], preprocessing=RAW)
        assert np.array_equal(feed["x"], RAW(x))

    def test_labels_are_compared_at_the_end(self):
        feeds = list(self.feeds)
        assert open_batches(feeds, [VECTOR], labels=np.arange(8)).labels.tolist() == list(range(8))
        assert open_batches(feeds, [VECTOR], labels=np.arange(8), limit=3).labels.tolist() == [0, 1, 2]
        assert sizes(open_batches(feeds, [VECTOR], labels=np.arange(8), limit=3)) == [2, 1]
        refused(feeds, "labels has 9 entries but the data has 8 samples", labels=np.arange(9))
        refused(feeds, "labels has 2 entries but the data has 3 samples", labels=np.arange(2), limit=3)

    @pytest.mark.parametrize(
        ("data", "match"),
        [
            (["ab"], "item 0 of the data: it is a str; yield arrays, tuples of arrays, or dicts"),
            ([{"x": vectors(2)}, {"y": vectors(2)}], "item 1 of the data: .*unknown 'y' and missing 'x'"),
            ([{"x": vectors(2).astype(np.float64)}], "item 0 of the data: .*data is float64; convert"),
            ([{"x": [1.0]}], "item 0 of the data: .* is a list"),
            ([], "the data is an empty list"),
            (lambda: 3, "callable returned a int"),
            (3, "cannot take data from a int; pass a path, an array"),
            (None, "cannot take data from a NoneType"),
        ],
    )
    def test_refuses_what_are_no_feed_dicts(self, data, match):
        refused(data, match)

    def test_refuses_to_join_different_shapes(self):
        spec = InputSpec("x", FLOAT, ("N", "T"))
        feeds = [{"x": np.zeros((1, width), np.float32)} for width in (3, 4)]
        words = (
            r"samples of different shapes cannot share a batch .*\); bring them .*, or set batch_size to 1"
        )
        refused(feeds, words, [spec], batch_size=2)

    def test_refuses_to_shuffle(self):
        refused([{"x": vectors(2)}], "cannot shuffle an iterable", shuffle=True)


class Indexed:
    def __init__(self, items):
        self.items = items

    def __getitem__(self, index):
        return self.items[index]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            Indexed,
            "the data's callable 'Indexed' needs arguments; pass one that needs none, or what it returns",
        ),
        (lambda size: [size], "the data's callable '<lambda>' needs arguments; pass one that needs none"),
        (
            memoryview(np.zeros((2, 3), np.float32)),
            "cannot take data from a memoryview; pass a path, an array",
        ),
        (np.float32(1), "cannot take data from a float32; pass a path, an array"),
    ],
)
def test_what_gives_no_feeds_is_refused(data, message):
    with pytest.raises(CalibrationDataError, match=f"^{message}"):
        list(open_batches(data, [VECTOR]))
