"""Options of data that make no sense."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from calibrators.data.inputs import DataOptions, InputSpec
from calibrators.data.opening import open_batches, open_data
from calibrators.errors import CalibrationDataError
from tests.calibrators.data.sample_data import RAW, VECTOR, refused, vectors


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"mean": (0.5,)},
            r"preprocessing is a dict; give trtint8.Preprocessing\(\*\*values\), with its values",
        ),
        ("preprocess.toml", r"preprocessing is a str; read the file with trtint8.Preprocessing.load\(path\)"),
        (Path("p.toml"), r"preprocessing is a \w+; read the file with trtint8.Preprocessing.load"),
        (
            len,
            r"preprocessing is a builtin_function_or_method; give a trtint8.Preprocessing, such as",
        ),
    ],
)
def test_preprocessing_of_another_type(given, message):
    with pytest.raises(CalibrationDataError, match=message):
        DataOptions(preprocessing=given)
    with pytest.raises(CalibrationDataError, match=message):
        open_batches(vectors(2), [VECTOR], preprocessing=given)


def test_options_have_defaults_that_leave_the_data_as_it_is():
    options = DataOptions()
    assert (options.batch_size, options.limit, options.shuffle, options.seed) == (None, None, False, 0)
    assert (options.preprocessing, options.labels, options.default_batch_size) == (None, None, 32)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"batch_size": 0}, "batch_size is 0; give a positive integer"),
        ({"limit": True}, "limit is True; give a positive integer"),
        ({"limit": 2.0}, "limit is 2.0; give a positive integer"),
        ({"seed": -1}, "seed is -1; give an integer of 0 or more"),
    ],
)
def test_options_check_themselves(options, sentence):
    with pytest.raises(CalibrationDataError, match=sentence):
        DataOptions(**options)


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


@pytest.mark.parametrize(
    ("shape", "size"),
    [
        (("N", 3, 32, 32), 32),
        (("N", 3, 128, 128), 8),
        (("N", 3, 224, 224), 2),
        (("N", 3, 640, 640), 1),
    ],
)
def test_batches_on_the_cpu_are_small(shape, size):
    image, row = InputSpec("image", np.dtype(np.float32), shape), InputSpec("row", np.dtype(np.int64), ("N",))
    options = DataOptions(limit=7)
    found = options.on_cpu([row, image])
    assert (found.default_batch_size, found.batch_size, found.limit) == (size, None, 7)
    assert DataOptions(batch_size=50).on_cpu([image]).batch_size == 50


@pytest.mark.parametrize("shape", [("N", 3, "height", "width"), (None, 3, None, 128), None])
@pytest.mark.parametrize(("height", "size"), [(32, 32), (128, 8), (640, 2)])
def test_where_a_size_is_open_the_first_sample_decides(shape, height, size):
    image = InputSpec("image", np.dtype(np.float32), shape)
    images = np.zeros((40, 3, height, 128), np.float32)
    batches = open_data({"image": images}, [image], DataOptions().on_cpu([image]))
    assert batches.batch_size == size and len(next(iter(batches))["image"]) == size


def test_an_open_size_counts_as_one_where_no_sample_can_be_read_beforehand():
    image = InputSpec("image", np.dtype(np.float32), ("N", 3, "height", 1 << 17))
    assert DataOptions().on_cpu([image]).default_batch_size.size({}) == 1
    unknown = InputSpec("x", np.dtype(np.float32), None)
    assert DataOptions().on_cpu([unknown]).default_batch_size.size({}) == 32


def test_large_outputs_make_smaller_batches():
    tokens = InputSpec("ids", np.dtype(np.int64), ("N", "T"))
    logits = ("N", "T", 50_000)
    rule = DataOptions().on_cpu([tokens], [logits])
    for length, size in ((64, 4), (8, 32), (4096, 1)):
        assert rule.default_batch_size.size({"ids": np.zeros((1, length), np.int64)}) == size
    row = InputSpec("x", np.dtype(np.float32), ("N", 8))
    sizes = {(("N", 1000),): 32, (("N", 1 << 22), None): 4, (("N", "unknown", 8),): 32, ((),): 32}
    for outputs, size in sizes.items():
        assert DataOptions().on_cpu([row], outputs).default_batch_size == size
