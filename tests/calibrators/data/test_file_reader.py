"""Samples that can be read in any order, and files that a worker opens again."""

import pickle

import numpy as np
import pytest

from calibrators.data.batches import Batches
from calibrators.data.opening import open_batches
from calibrators.errors import CalibrationDataError
from tests.calibrators.data.sample_data import VECTOR, refused, vectors, whole


@pytest.fixture
def npz(tmp_path):
    path = tmp_path / "data.npz"
    np.savez(path, x=vectors(23), labels=np.arange(23))
    return path


def sent(batches):
    """All samples, through a reader that has been where a worker's would have been."""
    reader = pickle.loads(pickle.dumps(batches.source))
    shards = (pickle.loads(pickle.dumps(shard)) for shard in batches.cut(2))
    return np.concatenate([whole(Batches.of_shard(shard, reader)) for shard in shards])


def test_a_path_is_read_by_another_process_in_another_folder(npz, monkeypatch):
    monkeypatch.chdir(npz.parent)
    batches = open_batches("data.npz", [VECTOR], batch_size=4)
    monkeypatch.chdir("/")
    np.testing.assert_array_equal(sent(batches), vectors(23), strict=True)


def test_only_numbers_of_samples_travel_where_data_is_a_path(npz):
    batches = open_batches(npz, [VECTOR], batch_size=4)
    assert [batch.tolist() for shard in batches.cut(6) for batch in shard.batches][1] == [4, 5, 6, 7]


def test_data_that_a_worker_sees_differently_is_refused(npz):
    batches = open_batches(npz, [VECTOR])
    np.savez(npz, x=vectors(9))
    with pytest.raises(CalibrationDataError, match=r"data.npz' has 9 samples for a worker but 23"):
        sent(batches)


def test_paths_that_hold_no_samples_are_refused(tmp_path):
    refused(tmp_path / "none.npz", "none.npz' does not exist")
    (tmp_path / "d.csv").write_text("1")
    refused(tmp_path / "d.csv", "cannot take data from the file .*d.csv'; pass a .npz, a .npy, or a folder")
