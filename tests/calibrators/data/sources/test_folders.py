"""Folders of arrays."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrators.data.inputs import InputSpec
from calibrators.data.opening import open_batches
from calibrators.data.sources.arrays import read_arrays
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
from tests.calibrators.specs import floats


class TestArrayFolders:
    def test_one_sample_a_file_in_the_order_of_names(self, tmp_path):
        for i, name in enumerate(["b.npy", "c.NPY", "a.npy", ".hidden.npy", "notes.txt"]):
            with (tmp_path / name).open("wb") as stream:
                np.save(stream, vectors(5)[i])
        batches = open_batches(tmp_path, [VECTOR], batch_size=2)
        assert np.array_equal(whole(batches), vectors(5)[[2, 0, 1]])
        assert (batches.num_samples, sizes(batches), batches.labels) == (3, [2, 1], None)

    @given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.integers(1, 9), st.booleans())
    def test_blocks_of_samples_join(self, tmp_path_factory, lengths, batch_size, shuffle):
        folder = tmp_path_factory.mktemp("blocks")
        count = sum(lengths)
        ends = np.cumsum(lengths)
        for i, (length, end) in enumerate(zip(lengths, ends, strict=True)):
            rows = slice(end - length, end)
            np.savez(folder / f"{i}.npz", x=vectors(count)[rows], labels=np.arange(count)[rows])
        batches = open_batches(folder, [VECTOR], batch_size=batch_size, shuffle=shuffle)
        assert np.array_equal(whole(batches), vectors(count)[batches.labels])
        assert sorted(batches.labels.tolist()) == list(range(count))

    def test_each_block_is_read_once_per_batch(self, tmp_path, monkeypatch):
        for i in range(3):
            np.savez(tmp_path / f"{i}.npz", x=vectors(12)[4 * i : 4 * i + 4])
        batches = open_batches(tmp_path, [VECTOR], batch_size=6, shuffle=True, seed=1)
        read = []
        monkeypatch.setattr(
            "calibrators.data.sources.folders.read_arrays",
            lambda path, binding: read.append(path.name) or read_arrays(path, binding),
        )
        order = np.random.default_rng(1).permutation(12)
        assert [feed["x"].tolist() for feed in batches] == vectors(12)[order].reshape(2, 6, 3).tolist()
        assert len(read) <= 6

    def test_samples_and_blocks_may_be_neighbours(self, tmp_path):
        np.save(tmp_path / "a.npy", vectors(3)[0])
        np.save(tmp_path / "b.npy", vectors(3)[1:])
        assert np.array_equal(whole(open_batches(tmp_path, [VECTOR])), vectors(3))

    def test_several_inputs_and_labels_a_sample(self, tmp_path):
        for i in range(3):
            np.savez(tmp_path / f"{i}.npz", x=vectors(3)[i], ids=np.array([i, i]), labels=i)
        batches = open_batches(tmp_path, [VECTOR, TOKENS])
        assert np.array_equal(whole(batches), vectors(3))
        assert whole(batches, "ids")[:, 0].tolist() == batches.labels.tolist() == [0, 1, 2]

    def test_arrays_as_labels(self, tmp_path):
        maps = np.arange(18).reshape(3, 2, 3)
        for i in range(3):
            np.savez(tmp_path / f"{i}.npz", x=vectors(3)[i], labels=maps[i])
        assert np.array_equal(open_batches(tmp_path, [VECTOR]).labels, maps)
        np.savez(tmp_path / "3.npz", x=vectors(1)[0], labels=np.zeros((1, 3)))
        refused(tmp_path, "labels' the shape 1x1x3 .*; set batch_size=1")
        batches = open_batches(tmp_path, [VECTOR], batch_size=1)
        assert [batch.labels.shape for batch in batches.labelled()] == [*[(1, 2, 3)] * 3, (1, 1, 3)]
        assert {name for feed in batches for name in feed} == {"x"}
        others = open_batches(tmp_path, [VECTOR], batch_size=2, labels=np.arange(4))
        assert [batch.labels[0] for batch in others.labelled()] == [0, 2]

    def test_images_in_arrays_are_preprocessed(self, tmp_path):
        x = pixels(3, 4, 6, 3)
        np.save(tmp_path / "a.npy", x[0])
        np.savez(tmp_path / "b.npz", pictures=x[1:])
        assert np.array_equal(whole(open_batches(tmp_path, [IMAGE], preprocessing=RAW)), RAW(x))

    def test_refuses_other_ranks(self, tmp_path):
        np.save(tmp_path / "a.npy", np.zeros((1, 1, 3), np.float32))
        refused(tmp_path, "'a.npy': .*1x1x3 .*rank 1 or 2")

    def test_refuses_an_unknown_rank(self, tmp_path):
        np.save(tmp_path / "a.npy", vectors(1))
        refused(tmp_path, "file 'a.npy': the rank of input 'x' is unknown", [InputSpec("x", FLOAT, None)])

    def test_refuses_a_batch_axis_in_some_arrays(self, tmp_path):
        np.savez(tmp_path / "a.npz", x=vectors(1), ids=np.zeros(2, np.int64))
        refused(tmp_path, "file 'a.npz': some of its arrays have a batch axis", [VECTOR, TOKENS])

    def test_refuses_different_lengths_in_a_file(self, tmp_path):
        np.savez(tmp_path / "a.npz", x=vectors(3), ids=np.zeros((2, 2), np.int64))
        refused(tmp_path, "file 'a.npz': its arrays do not share a number of samples", [VECTOR, TOKENS])

    def test_refuses_labels_in_some_files(self, tmp_path):
        np.savez(tmp_path / "a.npz", x=vectors(1), labels=[0])
        np.savez(tmp_path / "b.npz", x=vectors(1))
        refused(tmp_path, "only 1 of the 2 files in .* have 'labels'")

    def test_names_the_file_with_another_dtype(self, tmp_path):
        np.save(tmp_path / "a.npy", vectors(1))
        np.save(tmp_path / "b.npy", vectors(1).astype(np.float64))
        refused(tmp_path, "file 'b.npy': input 'x' takes float32 but its data is float64")

    def test_refuses_only_empty_files(self, tmp_path):
        np.savez(tmp_path / "a.npz", x=vectors(0))
        refused(tmp_path, "have no samples: all arrays are empty")


def test_images_of_another_size_for_an_input_that_no_preprocessing_makes(tmp_path):
    """Resizing belongs to preprocessing, which makes floating-point images."""
    pytest.importorskip("PIL.Image").new("RGB", (8, 6)).save(tmp_path / "a.png")
    raw = InputSpec("x", np.dtype(np.uint8), ("N", 4, 4, 3))
    refused(tmp_path, r"comes out as 6x8 .* does not take; give files of the size that it takes$", [raw])
    wanted = floats("x", "N", 3, 4, 4)
    refused(tmp_path, "6x8 .* does not take; .*preprocessing", [wanted], preprocessing=RAW)
