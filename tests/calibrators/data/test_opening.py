from pathlib import Path

import numpy as np
import pytest

from calibrators.data.batches import sample_order
from calibrators.data.feeds import BatchAxes
from calibrators.data.inputs import DataOptions, InputSpec, fixed_batches
from calibrators.data.opening import kind_of, open_batches, open_data
from calibrators.data.samples import check_feed
from calibrators.data.sequences import StateSequences, Steps
from calibrators.data.sources.arrays import ArrayFile, Arrays, ArraysAlongAxes
from calibrators.data.sources.folders import Folder
from calibrators.data.sources.random_samples import RandomSamples
from calibrators.data.sources.streams import Stream
from calibrators.errors import CalibrationDataError
from tests.calibrators.data.sample_data import refused
from tests.calibrators.specs import floats


def test_a_shuffled_order_depends_on_the_seed_and_comes_before_the_limit():
    order = np.random.default_rng(7).permutation(6)
    assert sample_order(6, DataOptions(shuffle=True, seed=7, limit=4), None).tolist() == order[:4].tolist()


@pytest.mark.parametrize(
    ("limit", "order"),
    [
        (1, [0]),
        (2, [0, 4]),
        (3, [0, 3, 4]),
        (4, [0, 3, 4, 6]),
        (5, [0, 3, 4, 6, 1]),
        (7, [0, 3, 4, 6, 1, 5, 7]),
        (10, [0, 3, 4, 6, 1, 5, 7, 2, 8, 9]),
        (11, list(range(11))),
        (12, list(range(11))),
    ],
)
def test_a_limit_takes_samples_of_every_class_in_turn(limit, order):
    """Four classes with 3, 1, 2 and 5 samples; of those that have one more, evenly spaced ones are taken."""
    classes = np.repeat(np.arange(4), [3, 1, 2, 5])
    assert sample_order(11, DataOptions(limit=limit), None, classes).tolist() == order


def test_a_fixed_batch_and_classes():
    with pytest.warns(UserWarning, match="the last sample"):
        assert sample_order(8, DataOptions(limit=5), 2, np.repeat(np.arange(2), 4)).tolist() == [0, 4, 1, 5]
    inputs = [InputSpec(name, np.dtype(np.float32), shape) for name, shape in (("x", (4, 3)), ("y", ("n",)))]
    assert fixed_batches(inputs) == {4}


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (np.zeros(3), Arrays),
        ({"x": np.zeros(3)}, Arrays),
        (BatchAxes({}, {}), ArraysAlongAxes),
        ("random:3", RandomSamples),
        ("/", Folder),
        (Path("/"), Folder),
        (__file__, ArrayFile),
        (StateSequences({}, {}), Steps),
        ([{}], Stream),
        (iter(()), Stream),
        (None, Stream),
    ],
)
def test_kinds_of_data(data, kind):
    assert kind_of(data) is kind


def test_who_takes_the_batches_may_choose_their_size():
    data, inputs = np.zeros((8, 3), np.float32), [floats("x", "n", 3)]
    left_open = open_data(data, inputs, DataOptions(default_batch_size=None))
    assert left_open.batch_size is None
    assert left_open.fitting(3).batch_size == 3
    seen = []
    assert left_open.fitting(lambda sample: len(seen.append(sample["x"].shape) or "four")).batch_size == 4
    assert seen == [(1, 3)]
    assert open_data(data, inputs, DataOptions(5, default_batch_size=None)).fitting(3).batch_size == 5
    stream = open_data([{"x": data}], inputs, DataOptions(default_batch_size=None))
    assert [len(feed["x"]) for feed in stream.fitting(3)] == [8]  # as the user has put them together


def test_what_a_loader_gives_is_copied_before_it_is_asked_for_more():
    buffer, inputs = np.zeros((2, 3), np.float32), [floats("x", "n", 3)]

    def loader():
        for number in range(3):
            buffer[:] = number
            yield {"x": buffer, "labels": buffer[:, 0]}

    batches = open_data(loader, inputs, DataOptions())
    assert [feed["x"][0, 0] for feed in list(batches)] == [0, 1, 2]
    assert [batch.labels.tolist() for batch in list(batches.labelled())] == [[0, 0], [1, 1], [2, 2]]


def test_an_array_that_nobody_has_named_feeds_the_only_input(tmp_path):
    np.savez(tmp_path / "d.npz", np.arange(8, dtype=np.float32).reshape(4, 2))
    inputs = [floats("x", "n", 2)]
    (batch,) = (one.feed for one in open_batches(tmp_path / "d.npz", inputs).labelled())
    assert batch["x"].tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]


@pytest.mark.parametrize("suffix", [".npz", ".npy"])
def test_ragged_arrays_are_told_how_to_be_stored(tmp_path, suffix):
    path = tmp_path / f"d{suffix}"
    ragged = np.array([[1, 2], [3]], dtype=object)
    np.savez(path, x=ragged) if suffix == ".npz" else np.save(path, ragged)
    with pytest.raises(CalibrationDataError, match=r"pad .*batch_size=1"):
        open_batches(path, [floats("x", "n", 2)])


class _Rows:
    """A dataset with one sample per index, as Hugging Face has it."""

    column_names, format = ("x", "label"), {"type": "numpy"}

    def __len__(self):
        return 2

    def __getitem__(self, index):
        return {"x": np.zeros(3 + index, np.float32), "label": index}

    def with_format(self, _):
        return self


@pytest.mark.parametrize(
    ("shape", "way"),
    [
        (("n", "t"), "1x4 .* 1x3; set batch_size=1"),
        (("n", 4), "1x4 .* 1x3; the model takes nx4, so bring all"),
        ((2, "t"), "1x4 .* 1x3; the model has a fixed batch .*, so bring all"),
    ],
)
@pytest.mark.parametrize("kind", ["folder", "feeds", "dataset"])
def test_samples_of_different_shapes_are_told_what_the_model_takes(tmp_path, kind, shape, way):
    for index in range(2):
        np.save(tmp_path / f"{index}.npy", np.zeros(3 + index, np.float32))
    feeds = [{"x": np.zeros((1, 3 + index), np.float32)} for index in range(2)]
    data = {"folder": tmp_path, "feeds": feeds, "dataset": _Rows()}[kind]
    inputs = [InputSpec("x", np.dtype(np.float32), shape)]
    refused(data, way, inputs, batch_size=2)
    if shape == ("n", "t"):
        alone = open_batches(data, inputs, batch_size=1)
        assert [feed["x"].shape for feed in alone] == [(1, 3), (1, 4)]


def test_arrays_of_many_lengths_are_told_to_be_a_list():
    lengths = [np.zeros((4, 3 + index), np.float32) for index in range(2)]
    objects = np.empty(2, object)
    objects[:] = lengths
    for data in ({"x": objects}, {"x": lengths}, objects):
        for shape, is_told in ((("n", 4, "t"), True), (("n", 4, 4), False)):
            with pytest.raises(CalibrationDataError) as refusal:
                open_batches(data, [InputSpec("x", np.dtype(np.float32), shape)])
            assert (
                "list of dicts, one per sample, in which 'x' has the shape 1x4xt" in str(refusal.value)
            ) == is_told
    one_by_one = open_batches([{"x": array[None]} for array in lengths], [floats("x", "n", 4, "t")])
    assert [feed["x"].shape for feed in one_by_one] == [(1, 4, 3), (1, 4, 4)]


@pytest.mark.parametrize(
    ("shape", "moved"),
    [
        ((8, 3, 5, 6), "numpy.moveaxis(array, -3, -4)[None]"),
        ((8, 5, 6, 3), "numpy.moveaxis(array, -1, -4)[None]"),
        ((3, 8, 5, 6), "numpy.expand_dims(array, 0)"),
        ((2, 8, 3, 5, 6), "numpy.moveaxis(array, -3, -4)"),
        ((2, 8, 5, 6, 3), "numpy.moveaxis(array, -1, -4)"),
    ],
)
def test_frames_of_videos_are_told_where_their_axes_belong(shape, moved):
    spec = floats("x", "n", 3, 8, 5, 6)
    frames = np.zeros(shape, np.float32)
    with pytest.raises(CalibrationDataError) as refusal:
        check_feed({"x": frames}, [spec])
    assert str(refusal.value).endswith(moved)
    check_feed({"x": eval(moved, {"numpy": np, "array": frames})}, [spec])
    with pytest.raises(CalibrationDataError, match=r"images, .* 4 dimensions, .* has 5; .*3x8x5x6"):
        open_batches(np.zeros((8, 5, 6, 3), np.uint8), [spec])
