import pickle
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrators.data.batches import Batches
from calibrators.data.images.preprocessing import Preprocessing
from calibrators.data.opening import open_batches
from tests.calibrators.specs import floats, normal

INPUTS = (floats("x", "n", 3),)
DATA = normal(1, 23, 3)


def _read(shards, batches=2):
    """All batches, through a reader that has been where a worker's would have been."""
    reader = pickle.loads(pickle.dumps(shards.source))
    return [
        feed["x"]
        for shard in shards.cut(batches)
        for feed in Batches.of_shard(pickle.loads(pickle.dumps(shard)), reader)
    ]


def _expected(data, inputs=INPUTS, **options):
    return [feed["x"] for feed in open_batches(data, inputs, **options)]


def _same(found, expected):
    assert len(found) == len(expected) > 0
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other, strict=True)


@pytest.fixture
def npz(tmp_path):
    path = tmp_path / "data.npz"
    np.savez(path, x=DATA, labels=np.arange(23))
    return path


@pytest.fixture
def folder(tmp_path):
    for number, sample in enumerate(DATA):
        np.save(tmp_path / f"{number:02}.npy", sample)
    return tmp_path


@given(
    count=st.integers(1, 23),
    size=st.integers(1, 9),
    batches=st.integers(1, 9),
    limit=st.none() | st.integers(1, 30),
    shuffle=st.booleans(),
)
def test_shards_hold_the_batches_of_one_pass(count, size, batches, limit, shuffle):
    options = {"batch_size": size, "limit": limit, "shuffle": shuffle, "seed": 3}
    shards = open_batches(DATA[:count], INPUTS, **options)
    _same(_read(shards, batches), _expected(DATA[:count], **options))
    cut = list(shards.cut(batches))
    assert [shard.first for shard in cut] == [sum(s.samples for s in cut[:i]) for i in range(len(cut))]
    assert sum(shard.samples for shard in cut) == shards.num_samples == min(count, limit or count)
    assert len(cut) == -(-shards.num_batches // batches)


@pytest.mark.parametrize("options", [{}, {"batch_size": 5, "shuffle": True, "limit": 17}])
@pytest.mark.parametrize("kind", ["dict", "npz", "folder", "random"])
def test_every_kind_of_data(kind, options, request):
    data = {"dict": {"x": DATA}, "random": "random:23"}.get(kind) or request.getfixturevalue(kind)
    _same(_read(open_batches(data, INPUTS, **options)), _expected(data, **options))


def test_an_iterable_is_copied_and_regrouped_here():
    buffer = np.empty((1, 3), np.float32)

    def loader():
        for sample in DATA:
            buffer[:] = sample
            yield {"x": buffer}

    shards = open_batches(loader, INPUTS, batch_size=4, limit=10)
    _same(_read(shards, 3), _expected(DATA, batch_size=4, limit=10))
    assert shards.num_samples is shards.num_batches is None
    assert [shard.samples for shard in shards.cut(2)] == [8, 2]


@given(
    count=st.integers(1, 23),
    size=st.integers(1, 9),
    batches=st.integers(1, 9),
    shuffle=st.booleans(),
    limit=st.none() | st.integers(1, 30),
)
def test_labels_travel_with_their_samples(count, size, batches, shuffle, limit):
    data = {
        "x": np.repeat(np.arange(count, dtype=np.float32)[:, None], 3, axis=1),
        "labels": np.arange(count),
    }
    shards = open_batches(data, INPUTS, batch_size=size, shuffle=shuffle, limit=limit, seed=3)
    seen = 0
    for shard in shards.cut(batches):
        assert len(shard.labels) == shard.samples
        sent = Batches.of_shard(pickle.loads(pickle.dumps(shard)), shards.source)
        for batch in sent.labelled(shard.first):
            rows = len(batch.feed["x"])
            np.testing.assert_array_equal(batch.feed["x"][:, 0], batch.labels[:rows])
            assert batch.first == seen
            seen += rows
    assert seen == shards.num_samples


def test_labels_from_beside_the_data(npz, tmp_path):
    np.save(tmp_path / "labels.npy", np.arange(100, 123))
    for labels in (np.arange(100, 123), tmp_path / "labels.npy"):
        for data in (DATA, npz, lambda: [{"x": DATA[:9]}, {"x": DATA[9:]}]):
            (shard,) = open_batches(data, INPUTS, labels=labels, batch_size=9).cut(9)
            assert shard.labels.tolist() == list(range(100, 123))
    for data, options, labels in ((npz, {"batch_size": 9, "limit": 4}, [0, 1, 2, 3]), (DATA, {}, None)):
        (shard,) = open_batches(data, INPUTS, **options).cut(9)
        assert shard.labels is labels or shard.labels.tolist() == labels


@pytest.mark.parametrize("kind", ["array", "iterable", "nothing"])
def test_a_pass_that_has_begun_goes_on_with_its_first_batch(kind):
    feeds = [{"x": DATA[:9]}, {"x": DATA[9:]}] if kind != "nothing" else []
    data = DATA if kind == "array" else iter(feeds)
    head, shards = open_batches(data, INPUTS, batch_size=4, labels=np.arange(len(feeds) and 23)).begun()
    if kind == "nothing":
        assert head is None
        assert list(shards.cut(1)) == []
        return
    assert (head.first, head.samples, head.labels.tolist()) == (0, 4, [0, 1, 2, 3])
    (feed,) = Batches.of_shard(head, shards.source)
    np.testing.assert_array_equal(feed["x"], DATA[:4])
    _same(_read(shards), _expected(DATA, batch_size=4))


@pytest.mark.parametrize(("samples", "taken"), [(1, 4), (4, 4), (5, 8), (100, 23)])
def test_a_pass_may_begin_with_several_batches(samples, taken):
    head, shards = open_batches([{"x": DATA}], INPUTS, batch_size=4).begun(samples)
    assert (head.first, head.samples) == (0, taken)
    found = np.concatenate([feed["x"] for feed in Batches.of_shard(head, shards.source)])
    np.testing.assert_array_equal(found, DATA[:taken])
    _same(_read(shards), _expected(DATA, batch_size=4))


@pytest.mark.parametrize("begin", [lambda data: data.begun(9), lambda data: data.read_ahead(1 << 20)])
def test_a_failure_behind_the_first_batch_waits_for_its_turn(begin):
    def loader():
        yield {"x": DATA[:4]}
        raise OSError("the disk is gone")

    _, batches = begin(open_batches(loader, INPUTS))
    found = iter(batches)
    np.testing.assert_array_equal(next(found)["x"], DATA[:4])
    with pytest.raises(OSError, match="the disk is gone"):
        next(found)


def test_raw_images_are_preprocessed_by_the_worker():
    inputs = (floats("x", "n", 3, 4, 4),)
    images = np.random.default_rng(2).integers(0, 256, (9, 4, 4, 3), np.uint8)
    options = {"preprocessing": Preprocessing(mean=(0.5,)), "batch_size": 2}
    shards = open_batches({"pictures": images}, inputs, **options)
    assert next(shards.cut(1)).batches[0]["x"].dtype == np.uint8
    _same(_read(shards), _expected({"pictures": images}, inputs, **options))
    # Those of an iterable have been preprocessed before.
    _same(_read(open_batches([{"x": images}], inputs, **options)), _expected(images, inputs, **options))


def test_ray_is_not_imported_before_it_is_asked_for():
    code = (
        "import sys, trtint8; from calibrators.ray import distributed; trtint8.calibrate;"
        "import numpy as np; from calibrators.data.inputs import InputSpec;"
        "from calibrators.data import opening;"
        "opening.open_batches(np.ones((2, 1)), [InputSpec('x', np.dtype(float), (None, 1))]);"
        "print([name for name in sys.modules if name.partition('.')[0] == 'ray'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@given(samples=st.integers(0, 30), batch_size=st.integers(1, 30))
def test_batches_that_are_read_ahead_are_those_of_the_pass(samples, batch_size):
    data = open_batches(DATA, INPUTS, batch_size=batch_size, labels=np.arange(23))
    first, batches = data.read_ahead(samples * DATA[0].nbytes)
    passed, expected = list(batches.labelled()), list(data.labelled())
    assert all(one.feed is other.feed for one, other in zip(first, passed, strict=False))
    assert len(first) == -(-min(max(samples, 1), 23) // batch_size)
    _same([one.feed["x"] for one in passed], [one.feed["x"] for one in expected])
    _same(*([one.labels[: len(one.feed["x"])] for one in pass_] for pass_ in (passed, expected)))
    assert [one.first for one in passed] == [one.first for one in expected]


def test_batches_that_are_read_ahead_of_a_loader_that_reuses_its_buffer():
    def feeds():
        buffer = np.empty((2, 3), np.float32)
        for value in range(5):
            buffer[:] = value
            yield {"x": buffer}

    first, batches = open_batches(feeds(), INPUTS).read_ahead(5 * DATA[0].nbytes)
    assert [one.feed["x"][0, 0] for one in first] == [0, 1, 2]
    assert [feed["x"][0, 0] for feed in batches] == [0, 1, 2, 3, 4]
