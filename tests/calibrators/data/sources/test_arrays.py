"""Arrays, files and random values as sources of batches."""

from __future__ import annotations

import os
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrators.data.opening import open_batches
from calibrators.data.sources.arrays import load_labels
from calibrators.errors import CalibrationDataError, DamagedFileError
from tests.calibrators.data.sample_data import (
    FLOAT,
    IMAGE,
    RAW,
    TOKENS,
    VECTOR,
    refused,
    sizes,
    vectors,
    whole,
)
from tests.calibrators.specs import floats, integers


class TestArrays:
    @given(st.integers(1, 70), st.none() | st.integers(1, 80))
    def test_batches_joined_are_the_source(self, count, batch_size):
        batches = open_batches(np.asfortranarray(vectors(count)), [VECTOR], batch_size=batch_size)
        for _ in range(2):  # a second pass gives the same
            feeds = [feed["x"] for feed in batches]
            assert np.array_equal(np.concatenate(feeds), vectors(count))
            assert all(x.flags.c_contiguous for x in feeds)
        size = batch_size or 32
        assert sizes(batches) == [size] * (count // size) + [count % size] * (count % size > 0)
        assert (batches.num_samples, batches.batch_size) == (count, size)

    @given(
        st.integers(1, 40),
        st.integers(1, 9),
        st.none() | st.integers(1, 50),
        st.booleans(),
        st.integers(0, 5),
    )
    def test_labels_stay_with_their_samples(self, count, batch_size, limit, shuffle, seed):
        data = {"x": vectors(count), "labels": np.arange(count)}
        options = {"limit": limit, "shuffle": shuffle, "seed": seed}
        batches = open_batches(data, [VECTOR], batch_size=batch_size, **options)
        order = np.random.default_rng(seed).permutation(count) if shuffle else np.arange(count)
        assert batches.labels.tolist() == order[:limit].tolist()
        assert np.array_equal(whole(batches), vectors(count)[batches.labels])
        assert batches.num_samples == min(count, limit or count)

    def test_a_dict_feeds_by_name(self):
        ids = np.arange(10).reshape(5, 2)
        batches = open_batches({"ids": ids, "x": vectors(5)}, [VECTOR, TOKENS], batch_size=2)
        assert np.array_equal(whole(batches), vectors(5))
        assert np.array_equal(whole(batches, "ids"), ids)
        assert batches.labels is None

    def test_an_input_named_labels_is_fed(self):
        inputs = [VECTOR, integers("labels", "N")]
        batches = open_batches({"x": vectors(2), "labels": np.array([5, 6])}, inputs)
        assert whole(batches, "labels").tolist() == [5, 6]
        assert batches.labels is None

    @pytest.mark.parametrize(
        ("data", "inputs", "named"),
        [
            (vectors(4), [VECTOR, TOKENS], r"2: 'x' \(float32, Nx3\), 'ids' \(int64, Nx2\)"),
            ({"y": vectors(4)}, [VECTOR], r"unknown 'y' and missing 'x'; .*'x' \(float32, Nx3\)"),
            ({}, [VECTOR], "missing 'x'"),
            ({"x": [[1.0, 2.0, 3.0]]}, [VECTOR], "'x' is a list"),
            (vectors(0), [VECTOR], "no samples"),
            (np.array(1, np.float32), [VECTOR], "'x' scalar"),
            ({"x": vectors(4), "ids": np.ones((5, 2), np.int64)}, [VECTOR, TOKENS], "'x' 4x3, 'ids' 5x2"),
            *(
                (np.ones((4, 3), dtype), [VECTOR], rf"{dtype}; .*astype\('float32'\)")
                for dtype in ("float64", "float16", "int64", "uint8", "bool")
            ),
        ],
    )
    def test_refuses_what_does_not_fit_and_casts_nothing(self, data, inputs, named):
        refused(data, named, inputs)


def test_random_samples_are_normal_and_depend_on_the_seed_only():
    spec = floats("x", "N", 3, 10, 10)
    first, again, other = (
        whole(open_batches("random:40", [spec], seed=seed, batch_size=size))
        for seed, size in [(0, 7), (0, 40), (1, 7)]
    )
    assert (first.shape, first.dtype) == ((40, 3, 10, 10), FLOAT)
    assert abs(first.mean()) < 0.05 and abs(first.std() - 1) < 0.05
    assert np.array_equal(first, again) and not np.array_equal(first, other)
    assert sizes(open_batches("random:8", [floats("x", 4, 3)])) == [4, 4]
    refused("random:4", "preprocessing", preprocessing=RAW)


class TestFiles:
    @pytest.mark.parametrize("as_type", [str, Path])
    def test_npz(self, tmp_path, as_type):
        path = tmp_path / "d.npz"
        np.savez(path, x=vectors(5), labels=np.arange(5, dtype=np.int32))
        batches = open_batches(as_type(path), [VECTOR], batch_size=2)
        path.unlink()  # read once, when opened
        assert np.array_equal(whole(batches), vectors(5))
        assert batches.labels.dtype == np.int64

    def test_npy_is_not_read_into_memory(self, tmp_path):
        spec = floats("x", "N", 1000)
        np.save(tmp_path / "d.npy", np.zeros((4000, 1000), np.float32))
        tracemalloc.start()
        batches = open_batches(tmp_path / "d.npy", [spec])
        first = next(iter(batches))["x"]
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert type(first) is np.ndarray
        assert first.shape == (32, 1000)
        assert peak < 2_000_000

    @pytest.mark.parametrize("size", [0, 100, 200])
    def test_npy_that_another_process_changes(self, tmp_path, size):
        np.save(tmp_path / "d.npy", vectors(4))
        batches = iter(open_batches(tmp_path / "d.npy", [VECTOR], batch_size=1))
        os.truncate(tmp_path / "d.npy", size)
        with pytest.raises(DamagedFileError, match=r"d\.npy': .*another process has changed it"):
            next(batches)

    def test_npy_needs_a_single_input(self, tmp_path):
        np.save(tmp_path / "d.npy", vectors(4))
        refused(tmp_path / "d.npy", "d.npy' names no input and the model has 2", [VECTOR, TOKENS])

    @pytest.mark.parametrize("name", ["d.npz", "d.npy"])
    @pytest.mark.parametrize("content", [b"", b"nonsense", b"PK\x03\x04nonsense", b"\x93NUMPY"])
    def test_refuses_damaged_files(self, tmp_path, name, content):
        (tmp_path / name).write_bytes(content)
        refused(tmp_path / name, f"cannot read .*{name}': ")

    def test_refuses_an_npy_that_is_called_npz_and_the_reverse(self, tmp_path):
        for name, save in [("d.npz", np.save), ("d.npy", np.savez)]:
            with (tmp_path / name).open("wb") as stream:
                save(stream, vectors(2))
            refused(tmp_path / name, f"cannot read .*{name}': ")

    def test_refuses_a_damaged_member(self, tmp_path):
        np.savez_compressed(tmp_path / "d.npz", x=np.random.default_rng(0).random((50, 3), np.float32))
        content = bytearray((tmp_path / "d.npz").read_bytes())
        content[200:260] = bytes(60)
        (tmp_path / "d.npz").write_bytes(content)
        refused(tmp_path / "d.npz", r"cannot read .*d.npz': ")

    def test_refuses_python_objects(self, tmp_path):
        np.savez(tmp_path / "d.npz", x=np.array([{}], object))
        np.save(tmp_path / "d.npy", np.array([{}], object))
        refused(tmp_path / "d.npz", "cannot read .*d.npz': Object arrays cannot be loaded")
        refused(tmp_path / "d.npy", "cannot read .*d.npy': ")

    def test_refuses_an_empty_npy(self, tmp_path):
        np.save(tmp_path / "d.npy", vectors(0))
        refused(tmp_path / "d.npy", "the data has no samples|cannot read")


def npy(header):
    text = header.encode()
    return b"\x93NUMPY\x01\0" + (len(text) + 1).to_bytes(2, "little") + text + b"\n"


def header(shape):
    return f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}}}"


@pytest.mark.parametrize("name", ["d.npy", "d.npz"])
@pytest.mark.parametrize(
    "content",
    [
        b"\x93NUMPY",
        npy(header("(4, 3)"))[:40],
        npy(header("(-1, 3)")),
        npy(header(f"({10**22}, 3)")),
        npy(header(f"({10**18}, 3)")),
        npy(header("(True, 3)")),
        npy(header("(1.5, 3)")),
        npy("(" * 9000),
        npy("-" * 9000 + "1"),
        npy("{[1]: 2}"),
    ],
    ids=range(10),
)
def test_refuses_headers_of_arrays_that_cannot_be(name, content, tmp_path):
    if name == "d.npz":
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            archive.writestr("x.npy", content)
    else:
        (tmp_path / name).write_bytes(content)
    refused(tmp_path / name, f"cannot read .*{name}': ")


@pytest.mark.parametrize(
    ("offset", "value", "words"), [(8, 99, "compression method"), (6, 1, "encrypted"), (4, 255, "version")]
)
def test_refuses_archives_that_cannot_be_opened(offset, value, words, tmp_path):
    path = tmp_path / "d.npz"
    np.savez(path, x=np.zeros((4, 3), np.float32))
    content = bytearray(path.read_bytes())
    # The same field stands in the member's own header and, two bytes later, in the directory's.
    content[offset] = content[content.index(b"PK\x01\x02") + offset + 2] = value
    path.write_bytes(content)
    refused(path, f"d.npz': .*{words}")


@pytest.mark.parametrize("name", ["d.npy", "d.npz"])
@pytest.mark.parametrize(
    "make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero"), lambda path: path.symlink_to(path)]
)
def test_what_is_no_file_is_refused_and_not_waited_for(name, make, tmp_path):
    make(tmp_path / name)
    with pytest.raises(CalibrationDataError, match=name):
        open_batches(tmp_path / name, (IMAGE,))
    with pytest.raises(CalibrationDataError, match=f"cannot read '.*{name}'"):
        load_labels(tmp_path / name, None)
