from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrators.data.samples import DataFingerprint


def fingerprint(*feeds: dict[str, np.ndarray]) -> str:
    data = DataFingerprint()
    for feed in feeds:
        data.observe(feed)
    return data.hexdigest()


def feed(count: int = 6) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {"x": rng.normal(size=(count, 2, 3)).astype(np.float32), "ids": rng.integers(0, 9, (count, 4))}


def rows(source: dict[str, np.ndarray], index: object) -> dict[str, np.ndarray]:
    return {name: array[index] for name, array in source.items()}


@given(st.integers(1, 20), st.integers(1, 25), st.randoms(use_true_random=False))
def test_independent_of_batch_size_and_order(count, batch_size, random):
    whole = feed(count)
    order = list(range(count))
    random.shuffle(order)
    batches = [rows(whole, order[i : i + batch_size]) for i in range(0, count, batch_size)]
    assert fingerprint(*batches) == fingerprint(whole)
    assert fingerprint(rows(whole, slice(None, None, -1))) == fingerprint(whole)


def test_is_64_hexadecimal_digits_and_stable():
    value = fingerprint({"x": np.arange(6, dtype=np.float32).reshape(2, 3)})
    assert value == "0ec4c66cc81d08b0fe1b24ac5a8837a75fffc5b46852d50736d78757525f55fe"


def test_digests_are_those_of_the_samples_one_by_one():
    whole = feed(4)
    digests = DataFingerprint().observe(whole)
    single = [DataFingerprint().observe(rows(whole, slice(row, row + 1))) for row in range(4)]
    assert [[digest] for digest in digests] == single
    assert len(set(digests)) == 4


def test_independent_of_the_order_of_names_and_of_memory():
    x, ids = feed().values()
    assert fingerprint({"ids": ids, "x": np.asfortranarray(x)}) == fingerprint({"x": x, "ids": ids})


@pytest.mark.parametrize(
    "change",
    [
        lambda x: {"y": x},
        lambda x: {"x": x.astype(np.float64)},
        lambda x: {"x": x.view(np.int32)},
        lambda x: {"x": x.reshape(6, 3, 2)},
        lambda x: {"x": x[:5]},
        lambda x: {"x": np.concatenate([x, x])},
        lambda x: {"x": np.concatenate([x[:5], x[:1]])},
        lambda x: {"x": x + np.float32(1e-6)},
        lambda x: {"x": x, "z": x},
    ],
    ids=["name", "dtype", "view", "shape", "fewer", "twice", "repeated", "values", "another input"],
)
def test_every_difference_shows(change):
    x = feed()["x"]
    assert fingerprint(change(x)) != fingerprint({"x": x})


def test_values_may_not_wander_between_samples_or_inputs():
    a, b = np.zeros((2, 1), np.float32), np.float32([[0], [1]])
    assert fingerprint({"x": a, "y": b}) != fingerprint({"x": b, "y": a})
    assert fingerprint({"x": b, "y": b}) != fingerprint({"x": b, "y": b[::-1]})
    assert fingerprint() != fingerprint(feed(1))


@pytest.mark.parametrize("scale", [np.float32(2), np.ones(3, np.float32)])
def test_counts_samples(scale):
    data = DataFingerprint()
    assert data.samples == 0
    for batch in (feed(4), feed(3)):
        data.observe(batch)
    assert data.samples == 7
    # Without a common axis, inputs are one sample.
    data.observe({"x": np.zeros((2, 3), np.float32), "scale": np.asarray(scale)})
    assert data.samples == 8
