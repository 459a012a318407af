"""Options of data that make no sense."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from calibrators.data.inputs import DataOptions, InputSpec
from calibrators.data.opening import open_batches, open_data
from calibrators.errors import CalibrationDataError
from tests.calibrators.data.sample_data import RAW, VECTOR, refused, vectors
from tests.calibrators.specs import floats, integers


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"mean": (0.5,)}, r"dict; give trtint8.Preprocessing\(\*\*values\)"),
        ("preprocess.toml", r"str; read .*Preprocessing.load\(path\)"),
        (Path("p.toml"), r"\w+; read .*Preprocessing.load\(path\)"),
        (len, "builtin_function_or_method; give a trtint8.Preprocessing"),
    ],
)
def test_preprocessing_of_another_type(given, named):
    for use in (DataOptions, lambda **options: open_batches(vectors(2), [VECTOR], **options)):
        with pytest.raises(CalibrationDataError, match=f"preprocessing is a {named}"):
            use(preprocessing=given)


def test_options_have_defaults_that_leave_the_data_as_it_is():
    options = DataOptions()
    assert (options.batch_size, options.limit, options.shuffle, options.seed) == (None, None, False, 0)
    assert (options.preprocessing, options.labels, options.default_batch_size) == (None, None, 32)


@pytest.mark.parametrize(
    ("name", "value"),
    [("seed", -1), *((name, value) for name in ("batch_size", "limit") for value in (0, -1, 2.0, True))],
)
def test_options_check_themselves(name, value):
    for use in (DataOptions, lambda **options: open_batches(vectors(4), [VECTOR], **options)):
        with pytest.raises(CalibrationDataError, match=f"^{name} is {value};"):
            use(**{name: value})


@pytest.mark.parametrize(
    "option",
    [{"batch_size": 2}, {"limit": 2}, {"shuffle": True}, {"preprocessing": RAW}, {"labels": [0]}],
    ids=lambda option: next(iter(option)),
)
def test_batches_are_returned_as_they_are_and_take_no_more_options(option):
    batches = open_batches(vectors(4), [VECTOR])
    assert open_batches(batches, [VECTOR]) is batches
    refused(batches, f"opened already, so {next(iter(option))} would", **option)


@pytest.mark.parametrize(("side", "size"), [(32, 32), (128, 8), (224, 2), (640, 1)])
def test_batches_on_the_cpu_are_small(side, size):
    image = floats("image", "N", 3, side, side)
    row = integers("row", "N")
    found = DataOptions(limit=7).on_cpu([row, image])
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
    image = floats("image", "N", 3, "height", 1 << 17)
    assert DataOptions().on_cpu([image]).default_batch_size.size({}) == 1
    unknown = InputSpec("x", np.dtype(np.float32), None)
    assert DataOptions().on_cpu([unknown]).default_batch_size.size({}) == 32


def test_large_outputs_make_smaller_batches():
    tokens = integers("ids", "N", "T")
    logits = ("N", "T", 50_000)
    rule = DataOptions().on_cpu([tokens], [logits])
    for length, size in ((64, 4), (8, 32), (4096, 1)):
        assert rule.default_batch_size.size({"ids": np.zeros((1, length), np.int64)}) == size
    row = floats("x", "N", 8)
    sizes = {(("N", 1000),): 32, (("N", 1 << 22), None): 4, (("N", "unknown", 8),): 32, ((),): 32}
    for outputs, size in sizes.items():
        assert DataOptions().on_cpu([row], outputs).default_batch_size == size
