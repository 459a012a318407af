import io
import tracemalloc
import zipfile

import numpy as np
import pytest

from calibrators.data.opening import open_batches
from calibrators.data.sources.arrays import read_archive
from calibrators.errors import CalibrationDataError
from tests.calibrators.specs import floats

VALUES = np.arange(60, dtype=np.float32).reshape(10, 2, 3)
LABELS = np.arange(10)
INPUTS = (floats("x", "N", 2, 3),)


def _opened(folder):
    return io.BytesIO((folder / "d.npz").read_bytes())


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_the_first_rows(save, tmp_path):
    save(tmp_path / "d.npz", x=VALUES, labels=LABELS)
    archive = read_archive(_opened(tmp_path), 4)
    assert archive.rows == 10
    np.testing.assert_array_equal(archive.arrays["x"], VALUES[:4])
    np.testing.assert_array_equal(archive.arrays["labels"], LABELS[:4])


@pytest.mark.parametrize("first", [None, 10, 11])
def test_all_rows(first, tmp_path):
    np.savez(tmp_path / "d.npz", x=VALUES, labels=LABELS)
    archive = read_archive(_opened(tmp_path), first)
    assert archive.rows is None
    np.testing.assert_array_equal(archive.arrays["x"], VALUES)


@pytest.mark.parametrize(
    "arrays",
    [{"x": VALUES, "y": LABELS[:3]}, {"x": np.asfortranarray(VALUES)}, {"x": VALUES, "y": np.array(1)}],
)
def test_arrays_that_are_read_whole(arrays, tmp_path):
    np.savez(tmp_path / "d.npz", **arrays)
    archive = read_archive(_opened(tmp_path), 2)
    assert archive.rows is None
    assert {name: array.shape for name, array in archive.arrays.items()} == {
        name: array.shape for name, array in arrays.items()
    }


def test_batches_of_a_limit_are_those_of_the_whole(tmp_path):
    np.savez(tmp_path / "d.npz", x=VALUES, labels=LABELS)
    some = open_batches(tmp_path / "d.npz", INPUTS, batch_size=3, limit=5)
    assert (some.num_samples, some.labels.tolist()) == (5, [0, 1, 2, 3, 4])
    np.testing.assert_array_equal(np.concatenate([feed["x"] for feed in some]), VALUES[:5])
    # Labels that are given apart are one per sample of the file.
    assert open_batches(tmp_path / "d.npz", INPUTS, limit=2, labels=LABELS).labels.tolist() == [0, 1]


SORTED = np.repeat([2, 5, 9], [5, 2, 3])


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("limit", [1, 2, 3, 5, 9, 10, 11])
def test_a_limit_takes_rows_of_every_class_where_they_lie_sorted(save, limit, tmp_path):
    save(tmp_path / "d.npz", x=VALUES, labels=SORTED)
    in_memory = open_batches({"x": VALUES, "labels": SORTED}, INPUTS, limit=limit)
    read = open_batches(tmp_path / "d.npz", INPUTS, batch_size=2, limit=limit)
    x, labels = np.concatenate([feed["x"] for feed in read]), read.labels.tolist()
    np.testing.assert_array_equal(x, np.concatenate([feed["x"] for feed in in_memory]))
    assert labels == in_memory.labels.tolist() == [SORTED[row] for row in (x[:, 0, 0] / 6).astype(int)]
    assert len(labels) == read.num_samples == min(limit, 10) and len(set(labels)) == min(limit, 3)
    shuffled = [
        open_batches(data, INPUTS, limit=limit, shuffle=True) for data in (tmp_path / "d.npz", {"x": VALUES})
    ]
    np.testing.assert_array_equal(*(np.concatenate([feed["x"] for feed in one]) for one in shuffled))


@pytest.mark.parametrize("labels", [SORTED[::-1], np.arange(10), SORTED / 2, np.stack([SORTED, SORTED], 1)])
def test_a_limit_takes_the_first_rows_where_they_are_not_sorted_by_class(labels, tmp_path):
    np.savez(tmp_path / "d.npz", x=VALUES, labels=labels)
    for data in tmp_path / "d.npz", {"x": VALUES, "labels": labels}:
        batches = open_batches(data, INPUTS, limit=4)
        np.testing.assert_array_equal(np.concatenate([feed["x"] for feed in batches]), VALUES[:4])
        np.testing.assert_array_equal(batches.labels, labels[:4])


def test_a_limit_bounds_the_memory(tmp_path):
    np.savez_compressed(tmp_path / "d.npz", x=np.zeros((20_000, 2, 3, 256), np.float32))
    inputs = (floats("x", "N", 2, 3, 256),)
    tracemalloc.start()
    (feed,) = open_batches(tmp_path / "d.npz", inputs, limit=8)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(feed["x"]) == 8
    assert peak < 2_000_000  # the file holds 123 MB


def test_a_shape_larger_than_the_member_is_refused_before_memory_is_taken(tmp_path):
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        stream, {"descr": "<f4", "fortran_order": False, "shape": (10**12, 2, 3)}
    )
    with zipfile.ZipFile(tmp_path / "d.npz", "w") as archive:
        archive.writestr("x.npy", stream.getvalue() + bytes(100))
    problem = r"its array 'x' has 100 bytes, but the shape \(1000000000000, 2, 3\) needs 24000000000000"
    for limit in (None, 1):
        with pytest.raises(CalibrationDataError, match=problem):
            open_batches(tmp_path / "d.npz", INPUTS, limit=limit)
