"""Iterables of feed dicts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrators.data.opening import open_batches
from calibrators.errors import CalibrationDataError
from tests.calibrators.data.sample_data import (
    IMAGE,
    RAW,
    VECTOR,
    pixels,
    refused,
    sizes,
    vectors,
    whole,
)
from tests.calibrators.specs import floats

FEEDS = ({"x": vectors(2)}, {"x": vectors(5)}, {"x": vectors(1)})
SCALED = [VECTOR, floats("scale")]


class Indexed:
    """The sequence protocol, and no more of it than that."""

    def __init__(self, items):
        self.items = items

    def __getitem__(self, index):
        return self.items[index]


@pytest.mark.parametrize("data", [list(FEEDS), lambda: iter(FEEDS), Indexed(FEEDS)])
def test_feeds_are_passed_on_as_they_come_again_and_again(data):
    batches = open_batches(data, [VECTOR])
    assert sizes(batches) == sizes(batches) == [2, 5, 1]
    assert (batches.num_samples, batches.batch_size, batches.labels) == (None, None, None)


def test_a_generator_can_be_read_once():
    batches = open_batches((feed for feed in FEEDS), [VECTOR])
    assert sizes(batches) == [2, 5, 1]
    with pytest.raises(CalibrationDataError, match="already read"):
        list(batches)


@given(st.lists(st.integers(1, 7), min_size=1, max_size=6), st.integers(1, 9), st.none() | st.integers(1, 30))
def test_regrouped_batches_joined_are_the_source(lengths, batch_size, limit):
    source = vectors(sum(lengths))
    feeds = [{"x": part} for part in np.split(source, np.cumsum(lengths)[:-1])]
    batches = open_batches(feeds, [VECTOR], batch_size=batch_size, limit=limit)
    assert np.array_equal(whole(batches), source[:limit])
    assert set(sizes(batches)[:-1]) <= {batch_size}
    assert np.array_equal(whole(open_batches(feeds, [VECTOR], limit=limit)), source[:limit])


def test_regrouping_survives_a_loader_that_reuses_its_buffer():
    def load():
        buffer = np.empty((2, 3), np.float32)
        for i in range(3):
            buffer[...] = vectors(6)[2 * i : 2 * i + 2]
            yield {"x": buffer}

    assert np.array_equal(whole(open_batches(load, [VECTOR], batch_size=3)), vectors(6))


def test_nothing_is_asked_for_beyond_the_limit():
    def load():
        yield {"x": vectors(2)}
        raise AssertionError("asked for more")

    assert sizes(open_batches(load, [VECTOR], limit=2)) == [2]


def test_a_feed_without_a_common_axis_counts_as_one_sample():
    feeds = [{"x": vectors(2), "scale": np.array(1, np.float32)}] * 3
    found = list(open_batches(feeds, SCALED, limit=2))
    assert [(len(feed["x"]), feed["scale"].shape) for feed in found] == [(2, ()), (2, ())]
    refused(feeds, "batches of 2", SCALED, batch_size=2)


def test_arrays_are_contiguous_and_labels_are_not_fed():
    (feed,) = open_batches([{"x": np.asfortranarray(vectors(4)), "labels": np.arange(4)}], [VECTOR])
    assert feed.keys() == {"x"} and feed["x"].flags.c_contiguous


def test_images_are_preprocessed():
    x = pixels(2, 4, 6, 3)
    (feed,) = open_batches([{"image": x}], [IMAGE], preprocessing=RAW)
    assert np.array_equal(feed["x"], RAW(x))


def test_labels_are_compared_at_the_end():
    feeds = list(FEEDS)
    assert open_batches(feeds, [VECTOR], labels=np.arange(8)).labels.tolist() == list(range(8))
    limited = open_batches(feeds, [VECTOR], labels=np.arange(8), limit=3)
    assert (limited.labels.tolist(), sizes(limited)) == ([0, 1, 2], [2, 1])
    refused(feeds, "labels has 9 .*8", labels=np.arange(9))
    refused(feeds, "labels has 2 .*3", labels=np.arange(2), limit=3)


@pytest.mark.parametrize(
    ("data", "named"),
    [
        (["ab"], "item 0 .*str; yield arrays, tuples of arrays, or dicts"),
        ([{"x": vectors(2)}, {"y": vectors(2)}], "item 1 .*unknown 'y' and missing 'x'"),
        ([{"x": vectors(2).astype(np.float64)}], "item 0 .*float64; convert"),
        ([{"x": [1.0]}], "item 0 .*is a list"),
        ([], "empty list"),
        (lambda: 3, "returned a int"),
        (3, "cannot take data from a int"),
        (None, "cannot take data from a NoneType"),
        (Indexed, "'Indexed' needs arguments"),
        (lambda size: [size], "'<lambda>' needs arguments"),
        (memoryview(np.zeros((2, 3), np.float32)), "cannot take data from a memoryview"),
        (np.float32(1), "cannot take data from a float32"),
    ],
)
def test_refuses_what_are_no_feed_dicts(data, named):
    refused(data, named)


def test_refuses_to_shuffle():
    refused([{"x": vectors(2)}], "shuffle", shuffle=True)
