"""Random samples: the shapes that are asked for, and the integers that inputs take."""

from __future__ import annotations

import numpy as np
import pytest

from calibrators.data.inputs import InputSpec
from calibrators.data.opening import open_batches
from calibrators.data.sources.random_samples import warn_of_random, with_shapes
from tests.calibrators.data.sample_data import FLOAT, IMAGE, INT, TOKENS, VECTOR, refused
from tests.calibrators.specs import floats

IDS = InputSpec("ids", INT, ("N", "S"), 30)
MASK = InputSpec("mask", INT, ("N", "S"), 2)


def first(data, inputs, **options):
    return next(iter(open_batches(data, inputs, **options)))


@pytest.mark.parametrize(
    ("data", "spec", "shape"),
    [
        ("random:5,x=3x8x6", IMAGE, (5, 3, 8, 6)),
        ("random:2,a,b=c=7", floats("a,b=c", "N", "W"), (2, 7)),
        ("random:4,x=3x8", InputSpec("x", FLOAT, None), (4, 3, 8)),
    ],
)
def test_a_dynamic_input_gets_the_shape_that_is_asked_for(data, spec, shape):
    array = first(data, [spec])[spec.name]
    assert (array.shape, array.dtype) == (shape, FLOAT)


def test_one_of_several_inputs_may_be_empty():
    cached, mask = floats("cached", "N", 2, "P", 4), InputSpec("mask", INT, ("N", "P"), 2)
    feed = first("random:5,cached=2x0x4,ids=3", [IDS, cached, mask])
    shapes = {name: array.shape for name, array in feed.items()}
    assert shapes == {"ids": (5, 3), "cached": (5, 2, 0, 4), "mask": (5, 0)}


def test_tokens_are_all_rows_of_the_table_with_the_same_probability():
    feed = first("random:200,ids=40", [IDS], batch_size=200)
    assert feed["ids"].dtype == INT
    counts = np.bincount(feed["ids"].reshape(-1), minlength=30)
    assert len(counts) == 30
    # 267 are expected of each, with a standard deviation of 16.
    assert counts.min() > 187
    assert counts.max() < 347


def test_a_dimension_of_the_same_name_gets_the_same_size():
    feed = first("random:6,ids=9", [IDS, MASK])
    assert feed["ids"].shape == feed["mask"].shape == (6, 9)
    lengths = feed["mask"].sum(axis=1)
    assert np.array_equal(feed["mask"], np.arange(9) < lengths[:, None])
    assert 1 <= lengths.min() < lengths.max() <= 9


def test_booleans_and_narrow_integers_are_within_their_type():
    feed = first(
        "random:32", [InputSpec("b", np.dtype(bool), ("N",)), InputSpec("i", np.dtype("i1"), ("N",), 9000)]
    )
    assert (feed["b"].dtype, set(feed["b"].tolist())) == (np.dtype(bool), {False, True})
    assert feed["i"].dtype == np.dtype("i1")
    assert 0 <= feed["i"].min() < feed["i"].max() == 127


@pytest.mark.parametrize("dtype", ["u1", "i1"])
def test_the_largest_value_of_a_type_is_drawn_too(dtype):
    largest = np.iinfo(dtype).max
    for bound in (largest + 1, 9000):
        spec = InputSpec("x", np.dtype(dtype), ("N", 4000), bound)
        values = first("random:8", [spec])["x"]
        assert (values.min(), values.max()) == (0, largest)
    spec = InputSpec("x", np.dtype(dtype), ("N", 4000), largest)
    assert first("random:8", [spec])["x"].max() == largest - 1


def test_samples_do_not_depend_on_the_batch_size_or_on_the_others():
    whole = first("random:8,ids=3", [IDS])["ids"]
    parts = [feed["ids"] for feed in open_batches("random:8,ids=3", [IDS], batch_size=3)]
    assert np.array_equal(np.concatenate(parts), whole)


@pytest.mark.parametrize(
    ("data", "spec", "named"),
    [
        ("random:4,x=3x8", IMAGE, "3x8 .*'x' .*does not fit"),
        ("random:4,x=4x8x8", IMAGE, "does not fit"),
        ("random:4,x=3x0x8", IMAGE, "every sample of 'x' .*is empty"),
        ("random:4,y=3x8x8", IMAGE, "'y', .*'x'"),
        ("random:4,x", IMAGE, "'x' .*NAME=SHAPE"),
        ("random:4,x=3xHx8", IMAGE, "NAME=SHAPE"),
        ("random:4,x=3x8x8,x=3x8x8", IMAGE, "each input once"),
        ("random:4", IMAGE, "'x' .*NxHxW|random:8,x=3x64x64"),
        ("random:4", InputSpec("x", FLOAT, None), "random:8,x=3x64x64"),
        ("random:4", floats("x"), "no batch axis"),
        ("random:4", TOKENS, "'ids' .*which integers"),
        ("random:4,x=99999x99999x9", InputSpec("x", FLOAT, None), "268,435,456"),
        ("random:4", floats("x", "N", 100_000, 100_000), "10,000,000,000 .*268,435,456"),
        *(
            (f"random:{count}", VECTOR, f"'random:{count[:9]}.*from 1 to 9999999")
            for count in ("", "0", "-1", "many", "1.5", "1e3", str(2**63 - 1), "1" + "0" * 20, "1" * 5000)
        ),
    ],
)
def test_what_cannot_be_drawn_is_refused(data, spec, named):
    refused(data, named, [spec])


def test_shapes_are_added_for_what_is_dynamic_and_not_said():
    shapes = {"x": (8, 3, 640, 480), "ids": (8, 128), "v": (8, 2)}
    inputs = [IMAGE, IDS, floats("v", "N", 2), VECTOR]
    assert with_shapes("random:4", inputs, shapes) == "random:4,x=3x640x480,ids=128"
    assert with_shapes("random:4,ids=16", inputs, shapes) == "random:4,ids=16,x=3x640x480"
    assert with_shapes("random:4", inputs, {}) == "random:4"


def test_ranges_of_random_values_are_warned_of():
    with pytest.warns(UserWarning, match="'random:16'"):
        warn_of_random("random:16")
    for data in ("randomly.npz", "folder", None, {"x": np.zeros((4, 3))}):
        warn_of_random(data)  # and warnings are errors here
