from __future__ import annotations

import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrators.data.batches import Batches, open_batches
from calibrators.data.inputs import InputSpec
from calibrators.data.preprocessing import Preprocessing
from calibrators.errors import CalibrationDataError, UnsupportedError

Image = pytest.importorskip("PIL.Image", reason="Pillow is not installed (pip install 'trtint8[images]')")

FLOAT, INT = np.dtype(np.float32), np.dtype(np.int64)
VECTOR = InputSpec("x", FLOAT, ("N", 3))
IMAGE = InputSpec("x", FLOAT, ("N", 3, "H", "W"))
TOKENS = InputSpec("ids", INT, ("N", 2))
RAW = Preprocessing(scale=1)


def vectors(count: int) -> np.ndarray:
    return np.arange(count * 3, dtype=np.float32).reshape(count, 3)


def pixels(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, shape, np.uint8)


def whole(batches: Batches, name: str = "x") -> np.ndarray:
    return np.concatenate([feed[name] for feed in batches])


def sizes(batches: Batches) -> list[int]:
    return [len(feed["x"]) for feed in batches]


def refused(data, match, inputs=(VECTOR,), **options):
    with pytest.raises(CalibrationDataError, match=match):
        list(open_batches(data, inputs, **options))


def save_images(folder: Path, names: list[str], size: tuple[int, int] = (4, 4)) -> np.ndarray:
    """Saves one lossless image per name; returns them NHWC."""
    folder.mkdir(exist_ok=True, parents=True)
    stack = pixels(len(names), *size, 3)
    for name, image in zip(names, stack, strict=True):
        Image.fromarray(image).save(folder / name)
    return stack


class TestArrays:
    @given(st.integers(1, 70), st.none() | st.integers(1, 80))
    def test_batches_joined_are_the_source(self, count, batch_size):
        batches = open_batches(vectors(count), [VECTOR], batch_size=batch_size)
        assert np.array_equal(whole(batches), vectors(count))
        assert np.array_equal(whole(batches), vectors(count)), "a second pass gives the same"
        size = batch_size or 32
        assert sizes(batches) == [size] * (count // size) + [count % size] * (count % size > 0)
        assert (batches.num_samples, batches.batch_size) == (count, size)

    @given(st.integers(1, 40), st.integers(1, 9), st.none() | st.integers(1, 50), st.integers(0, 5))
    def test_labels_stay_with_their_samples_under_shuffle_and_limit(self, count, batch_size, limit, seed):
        batches = open_batches(
            {"x": vectors(count), "labels": np.arange(count)},
            [VECTOR],
            batch_size=batch_size,
            limit=limit,
            shuffle=True,
            seed=seed,
        )
        result = whole(batches)
        assert len(result) == batches.num_samples == min(count, limit or count)
        assert np.array_equal(result, vectors(count)[batches.labels])
        assert len(set(batches.labels.tolist())) == len(result)

    def test_shuffle_depends_on_the_seed_only(self):
        first, again, other = (
            open_batches(vectors(50), [VECTOR], shuffle=True, seed=seed, batch_size=size)
            for seed, size in [(1, 7), (1, 50), (2, 7)]
        )
        assert np.array_equal(whole(first), whole(again))
        assert not np.array_equal(whole(first), whole(other))
        assert not np.array_equal(whole(first), vectors(50))

    def test_limit_takes_the_first_samples(self):
        assert np.array_equal(whole(open_batches(vectors(9), [VECTOR], limit=4)), vectors(4))

    def test_arrays_are_contiguous(self):
        batches = open_batches(np.asfortranarray(vectors(9)), [VECTOR], batch_size=4)
        assert all(feed["x"].flags.c_contiguous for feed in batches)

    def test_a_dict_feeds_by_name(self):
        ids = np.arange(10).reshape(5, 2)
        batches = open_batches({"ids": ids, "x": vectors(5)}, [VECTOR, TOKENS], batch_size=2)
        assert np.array_equal(whole(batches), vectors(5))
        assert np.array_equal(whole(batches, "ids"), ids)
        assert batches.labels is None

    def test_an_input_named_labels_is_fed(self):
        inputs = [VECTOR, InputSpec("labels", INT, ("N",))]
        batches = open_batches({"x": vectors(2), "labels": np.array([5, 6])}, inputs)
        assert whole(batches, "labels").tolist() == [5, 6]
        assert batches.labels is None

    def test_unnamed_data_needs_a_single_input(self):
        refused(
            vectors(4),
            r"an array names no input and the model has 2: 'x' \(float32, Nx3\), 'ids' \(int64, Nx2\); pass",
            [VECTOR, TOKENS],
        )

    def test_refuses_names_that_do_not_match(self):
        refused({"y": vectors(4)}, r"unknown 'y' and missing 'x'; the model has 'x' \(float32, Nx3\)")
        refused({}, "missing 'x'")

    @pytest.mark.parametrize("dtype", ["float64", "float16", "int64", "uint8", "bool"])
    def test_casts_nothing(self, dtype):
        refused(
            np.ones((4, 3), dtype), rf"data is {dtype}; convert it yourself with array.astype\('float32'\)"
        )

    def test_refuses_values_that_are_no_arrays(self):
        refused({"x": [[1.0, 2.0, 3.0]]}, "input 'x' is a list; convert it to a NumPy array")

    def test_refuses_empty_arrays(self):
        refused(vectors(0), "the data has no samples")

    def test_refuses_arrays_without_a_common_axis(self):
        data = {"x": vectors(4), "ids": np.ones((5, 2), np.int64)}
        refused(data, "do not share a number of samples along axis 0: 'x' 4x3, 'ids' 5x2;", [VECTOR, TOKENS])
        refused(np.array(1, np.float32), "'x' scalar")


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
            r"takes float32 but its data is uint8 images; declare .* preprocessing=.* or --mean",
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
        with pytest.warns(UserWarning, match="left out the last 3 samples: .* fixed batch of 4"):
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
        spec = InputSpec("x", FLOAT, ("N", 1000))
        np.save(tmp_path / "d.npy", np.zeros((4000, 1000), np.float32))
        tracemalloc.start()
        batches = open_batches(tmp_path / "d.npy", [spec])
        first = next(iter(batches))["x"]
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert type(first) is np.ndarray
        assert first.shape == (32, 1000)
        assert peak < 2_000_000

    def test_npy_needs_a_single_input(self, tmp_path):
        np.save(tmp_path / "d.npy", vectors(4))
        refused(tmp_path / "d.npy", "d.npy' names no input and the model has 2", [VECTOR, TOKENS])

    def test_refuses_paths_it_cannot_use(self, tmp_path):
        refused(tmp_path / "none.npz", "none.npz' does not exist")
        (tmp_path / "d.csv").write_text("1")
        refused(
            tmp_path / "d.csv", "cannot take data from the file .*d.csv'; pass a .npz, a .npy, or a folder"
        )

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
            ([0.5, 1], "not float64 of shape 2"),
            (np.eye(2, dtype=np.int64), "not int64 of shape 2x2"),
            ([True, False], "not bool of shape 2"),
            ([[0], [1, 2]], "cannot become an array"),
        ],
    )
    def test_refuses_what_is_no_class_index(self, labels, match):
        refused(vectors(2), f"^labels .*{match}", labels=labels)

    def test_refuses_unusable_files(self, tmp_path):
        np.savez(tmp_path / "l.npz", a=vectors(2), b=vectors(2))
        refused(vectors(2), "l.npz' has no array named 'labels' among a, b;", labels=tmp_path / "l.npz")
        refused(vectors(2), "l.txt' must be a .npy or .npz file", labels="l.txt")
        refused(vectors(2), "cannot read 'none.npy'", labels="none.npy")


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

    def test_images_in_arrays_are_preprocessed(self, tmp_path):
        x = pixels(3, 4, 6, 3)
        np.save(tmp_path / "a.npy", x[0])
        np.savez(tmp_path / "b.npz", pictures=x[1:])
        assert np.array_equal(whole(open_batches(tmp_path, [IMAGE], preprocessing=RAW)), RAW(x))

    def test_refuses_other_ranks(self, tmp_path):
        np.save(tmp_path / "a.npy", np.zeros((1, 1, 3), np.float32))
        refused(
            tmp_path, "file 'a.npy': the array of shape 1x1x3 is neither a sample nor a batch .* rank 1 or 2"
        )

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

    def test_names_the_samples_whose_shapes_differ(self, tmp_path):
        np.save(tmp_path / "a.npy", np.zeros(3, np.float32))
        np.save(tmp_path / "b.npy", np.zeros(4, np.float32))
        spec = InputSpec("x", FLOAT, ("N", "T"))
        refused(tmp_path, "'b.npy' gives 'x' the shape 1x4 but 'a.npy' gives 1x3;", [spec])
        assert [f["x"].shape for f in open_batches(tmp_path, [spec], batch_size=1)] == [(1, 3), (1, 4)]


class TestImageFolders:
    def test_sorted_by_name_whatever_the_ending(self, tmp_path):
        x = save_images(tmp_path, ["c.PNG", "a.bmp", "b.ppm"])
        (tmp_path / "README.md").write_text("no image")
        batches = open_batches(tmp_path, [IMAGE], preprocessing=RAW, batch_size=2)
        assert np.array_equal(whole(batches), RAW(x[[1, 2, 0]]))
        assert (batches.num_samples, batches.labels, batches.class_names) == (3, None, None)

    @pytest.mark.parametrize("ending", [".jpg", ".jpeg", ".webp"])
    def test_lossy_formats(self, tmp_path, ending):
        save_images(tmp_path, ["a" + ending])
        assert whole(open_batches(tmp_path, [IMAGE], preprocessing=RAW)).shape == (1, 3, 4, 4)

    def test_class_folders_give_labels(self, tmp_path):
        dogs = save_images(tmp_path / "dog", ["1.png", "2.png"])
        cats = save_images(tmp_path / "cat", ["9.png"])
        (tmp_path / "cow").mkdir()
        (tmp_path / ".cache").mkdir()
        batches = open_batches(tmp_path, [IMAGE], preprocessing=RAW)
        assert batches.class_names == ("cat", "cow", "dog")
        assert batches.labels.tolist() == [0, 2, 2]
        assert batches.labels.dtype == np.int64
        assert np.array_equal(whole(batches), RAW(np.concatenate([cats, dogs])))

    def test_labels_of_ones_own_have_no_class_names(self, tmp_path):
        save_images(tmp_path / "dog", ["1.png"])
        batches = open_batches(tmp_path, [IMAGE], preprocessing=RAW, labels=[4])
        assert (batches.labels.tolist(), batches.class_names) == ([4], None)

    @given(st.integers(0, 3), st.integers(1, 6))
    def test_class_labels_stay_with_their_images(self, tmp_path_factory, seed, limit):
        folder = tmp_path_factory.mktemp("classes")
        for label in range(3):
            for i in range(2):
                (folder / str(label)).mkdir(exist_ok=True)
                Image.new("RGB", (2, 2), (label, i, 0)).save(folder / str(label) / f"{i}.png")
        batches = open_batches(
            folder, [IMAGE], preprocessing=RAW, shuffle=True, seed=seed, limit=limit, batch_size=4
        )
        assert whole(batches)[:, 0, 0, 0].tolist() == batches.labels.tolist()
        assert len(batches.labels) == limit

    @pytest.mark.parametrize(
        ("layout", "shape"), [("NCHW", ("N", 1, "H", "W")), ("NHWC", ("N", None, None, 1))]
    )
    def test_grey_where_the_model_has_one_channel(self, tmp_path, layout, shape):
        save_images(tmp_path, ["a.png"])
        (feed,) = open_batches(
            tmp_path, [InputSpec("x", FLOAT, shape)], preprocessing=Preprocessing(layout=layout, scale=1)
        )
        grey = np.asarray(Image.open(tmp_path / "a.png").convert("L"))
        assert np.array_equal(feed["x"].squeeze(), grey)
        assert feed["x"].ndim == 4

    def test_grey_files_become_rgb(self, tmp_path):
        Image.new("L", (4, 4), 7).save(tmp_path / "a.png")
        assert np.array_equal(
            whole(open_batches(tmp_path, [IMAGE], preprocessing=RAW)), np.full((1, 3, 4, 4), 7)
        )

    def test_images_of_many_sizes_meet_after_resize_and_crop(self, tmp_path):
        save_images(tmp_path, ["a.png"], (4, 9))
        save_images(tmp_path, ["b.png"], (7, 5))
        refused(tmp_path, "'b.png' gives 'x' the shape 1x3x7x5 but 'a.png'", [IMAGE], preprocessing=RAW)
        batches = open_batches(tmp_path, [IMAGE], preprocessing=Preprocessing(resize=4, crop=(4, 4)))
        assert whole(batches).shape == (2, 3, 4, 4)

    def test_are_read_when_they_are_needed(self, tmp_path):
        save_images(tmp_path, ["a.png", "b.png"])
        (tmp_path / "b.png").write_bytes(b"nonsense")
        batches = iter(open_batches(tmp_path, [IMAGE], preprocessing=RAW, batch_size=1))
        assert next(batches)["x"].shape == (1, 3, 4, 4)
        with pytest.raises(CalibrationDataError, match=r"cannot read the image .*b.png'"):
            next(batches)

    def test_refuses_more_than_8_bits(self, tmp_path):
        Image.fromarray(np.full((4, 4), 4000, np.uint16)).save(tmp_path / "a.png")
        refused(tmp_path, "a.png' has more than 8 bits per channel", [IMAGE], preprocessing=RAW)

    def test_need_preprocessing_for_a_float_model(self, tmp_path):
        save_images(tmp_path, ["a.png"])
        refused(tmp_path, "takes float32 but its data is uint8 images; declare", [IMAGE])

    def test_are_fed_as_they_are_to_a_uint8_model(self, tmp_path):
        x = save_images(tmp_path, ["a.png"])
        assert np.array_equal(
            whole(open_batches(tmp_path, [InputSpec("x", np.dtype(np.uint8), ("N", 4, 4, 3))])), x
        )

    def test_need_a_single_input(self, tmp_path):
        save_images(tmp_path, ["a.png"])
        refused(tmp_path, "a folder of images names no input and the model has 2", [IMAGE, TOKENS])

    def test_need_pillow(self, tmp_path, monkeypatch):
        save_images(tmp_path, ["a.png"])
        monkeypatch.setitem(sys.modules, "PIL", None)
        with pytest.raises(UnsupportedError, match=r'pip install "trtint8\[images\]"'):
            list(open_batches(tmp_path, [IMAGE], preprocessing=RAW))

    def test_refuses_a_folder_without_samples(self, tmp_path):
        (tmp_path / "empty_class").mkdir()
        refused(
            tmp_path,
            r"has no samples; put images \(.bmp .jpeg .jpg .png .ppm .webp\) or arrays \(.npy .npz\)",
        )

    @pytest.mark.parametrize("other", ["array", "class"])
    def test_refuses_a_mixed_folder(self, tmp_path, other):
        save_images(tmp_path, ["a.png"])
        if other == "array":
            np.save(tmp_path / "b.npy", vectors(1))
        else:
            save_images(tmp_path / "dog", ["a.png"])
        refused(tmp_path, "mixes arrays, images and sub-folders of images", [IMAGE])


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
            ([vectors(2)], "item 0 of the data is a ndarray; yield dicts"),
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
        refused(feeds, "samples of different shapes cannot share a batch", [spec], batch_size=2)

    def test_refuses_to_shuffle(self):
        refused([{"x": vectors(2)}], "cannot shuffle an iterable", shuffle=True)


class TestRandom:
    def test_is_normal_and_depends_on_the_seed_only(self):
        spec = InputSpec("x", FLOAT, ("N", 3, 10, 10))
        first, again, other = (
            whole(open_batches("random:40", [spec], seed=seed, batch_size=size))
            for seed, size in [(0, 7), (0, 40), (1, 7)]
        )
        assert first.shape == (40, 3, 10, 10)
        assert first.dtype == FLOAT
        assert abs(first.mean()) < 0.05
        assert abs(first.std() - 1) < 0.05
        assert np.array_equal(first, again)
        assert not np.array_equal(first, other)

    def test_fills_a_fixed_batch(self):
        assert sizes(open_batches("random:8", [InputSpec("x", FLOAT, (4, 3))])) == [4, 4]

    @pytest.mark.parametrize("count", ["", "0", "-3", "many", "1.5"])
    def test_refuses_a_count_that_is_not_positive(self, count):
        refused(f"random:{count}", f"'random:{count}' needs a positive number of samples")

    @pytest.mark.parametrize(
        ("spec", "match"),
        [
            (TOKENS, r"input 'ids' \(int64, Nx2\): it is not floating-point"),
            (IMAGE, r"input 'x' \(float32, Nx3xHxW\): a dimension other than the batch is not fixed"),
            (InputSpec("x", FLOAT, None), "is not fixed"),
        ],
    )
    def test_refuses_inputs_it_cannot_fill(self, spec, match):
        refused("random:4", match, [spec])

    def test_refuses_preprocessing(self):
        refused("random:4", "preprocessing was given but the data is not uint8 images", preprocessing=RAW)


class TestOptions:
    def test_batches_are_returned_as_they_are(self):
        batches = open_batches(vectors(4), [VECTOR])
        assert open_batches(batches, [VECTOR]) is batches

    @pytest.mark.parametrize(
        "option",
        [{"batch_size": 2}, {"limit": 2}, {"shuffle": True}, {"preprocessing": RAW}, {"labels": [0]}],
        ids=lambda option: next(iter(option)),
    )
    def test_batches_take_no_more_options(self, option):
        refused(
            open_batches(vectors(4), [VECTOR]), f"opened already, so {next(iter(option))} would", **option
        )

    @pytest.mark.parametrize("name", ["batch_size", "limit"])
    @pytest.mark.parametrize("value", [0, -1, 2.0, True])
    def test_refuses_numbers_that_are_not_positive(self, name, value):
        refused(vectors(4), f"{name} is {value}; give a positive integer", **{name: value})

    def test_refuses_a_negative_seed(self):
        refused(vectors(4), "seed is -1; give", shuffle=True, seed=-1)
