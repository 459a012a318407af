"""The warnings of ranges that lose too much."""

import warnings
from pathlib import Path

import numpy as np
import pytest

from calibrators.errors import TableError
from calibrators.histograms.rules import RangeLoss
from calibrators.tables.choice import RangeChoice
from calibrators.tables.ranges import (
    as_table,
    is_table,
    loss_warning,
    noise_warning,
    read_ranges,
    table_among,
)
from calibrators.tables.table import CalibrationTable


def test_numbers_and_symmetric_pairs_are_taken_as_they_are():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert read_ranges({"a": 2.5, "b": (-3.0, 3.0)}) == {"a": 2.5, "b": 3.0}


@pytest.mark.parametrize(("low", "high", "amax"), [(-1.0, 4.0, 4.0), (-6.0, 2.0, 6.0), (0.0, 5.0, 5.0)])
def test_pairs_get_as_wide_as_their_wider_side(low, high, amax):
    with pytest.warns(UserWarning, match=r"INT8 is symmetric, so ranges got wider.*'a' \("):
        assert read_ranges({"a": (low, high)}) == {"a": amax}


@pytest.mark.parametrize(
    "value", [0.0, -1.0, float("nan"), float("inf"), (2.0, 1.0), (0.0, 0.0), (1.0, 2.0, 3.0), "wide", None]
)
def test_what_is_no_range(value):
    with pytest.raises(TableError, match="the dynamic range of 'a' is "):
        read_ranges({"a": value})


def test_a_text_file(tmp_path):
    file = tmp_path / "ranges.txt"
    file.write_text("# by hand\n\ngpu_0/conv1_1: 5.43116007373\nscope::relu:2\n")
    assert read_ranges(file) == {"gpu_0/conv1_1": 5.43116007373, "scope::relu": 2.0}
    file.write_text("a: -1, 3\n")
    with pytest.warns(UserWarning, match="wider"):
        assert read_ranges(str(file)) == {"a": 3.0}


def test_tables_and_caches(tmp_path):
    table = CalibrationTable({"a": 2.0, "b": 3.0})
    for name in ("ranges.json", "ranges.cache"):
        assert read_ranges(table.save(tmp_path / name)) == pytest.approx({"a": 2.0, "b": 3.0})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no ranges"),
        ("a 5\n", "line 1 is not 'tensor: range'"),
        ("a: five\n", "line 1: 'five' is not a number"),
        (": 5\n", "line 1 is not 'tensor: range'"),
        ("a: 1\n\nb: 1, 2, 3\n", "line 3 is not 'tensor: range'"),
        ("a: 1\na: 2\n", "line 2: tensor 'a' stands twice"),
        ("a: 0\n", "the dynamic range of 'a' is 0.0"),
    ],
)
def test_bad_text_files(tmp_path, text, message):
    file = tmp_path / "ranges.txt"
    file.write_text(text)
    with pytest.raises(TableError, match=message):
        read_ranges(file)


def test_a_missing_file(tmp_path):
    with pytest.raises(TableError, match="cannot read the"):
        read_ranges(tmp_path / "missing.txt")


LOSS = RangeLoss(0.025, 9.03, 42.18)
FIGURES = "(2.50% clipped, 9.0 dB where 42.2 dB are possible)"


def test_no_loss_no_warning():
    assert loss_warning({}, "entropy") is None


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ("a", f"1 range loses much of the tensor's values: 'a' {FIGURES}; "),
        ("ab", f"2 ranges lose much of the tensors' values: 'a' {FIGURES}, 'b' {FIGURES}; "),
        (
            "abcde",
            f"5 ranges lose much of the tensors' values: 'a' {FIGURES}, 'b' {FIGURES}, 'c' {FIGURES} "
            "and 2 more; ",
        ),
    ],
)
@pytest.mark.parametrize(
    ("method", "advice"),
    [
        ("auto", "the network's outputs were best so; validate"),
        ("percentile", "choose the method auto or mse, or set these ranges by hand"),
    ],
)
def test_the_sentence(names, words, method, advice):
    assert loss_warning(dict.fromkeys(names, LOSS), method) == words + advice


@pytest.mark.parametrize(
    ("method", "advice"),
    [
        ("auto", "validate"),
        ("mse", "choose the method auto or entropy, or"),
        ("entropy", "choose the method auto, or"),
    ],
)
def test_a_few_huge_values_are_left_out_of_what_is_possible(method, advice):
    loss = RangeLoss(0.0001, 77.8, 77.8, RangeLoss(0.0001, 0.0, 41.3))
    warning = loss_warning({"a": LOSS, "b": loss}, method)
    assert "'b' (0.01% clipped, 0.0 dB where 41.3 dB are possible without its few huge values)" in warning
    assert advice in warning


@pytest.mark.parametrize(
    ("level", "count", "words"),
    [
        (15.0, 16, None),
        (14.96, 16, "an SQNR of only 15.0 dB for a typical one of 16 samples, and no range that was tried"),
        (-0.4, 1, "an SQNR of only -0.4 dB on 1 sample, and no range"),
    ],
)
def test_noisy_outputs_are_warned_of(level, count, words):
    found = noise_warning(RangeChoice("wide", {"wide": level, "mse": 30.0}, {"wide": count, "mse": count}))
    assert found is None if words is None else found and words in found


def test_outputs_that_were_not_compared_are_not_warned_of():
    assert noise_warning(None) is None
    assert noise_warning(RangeChoice("mse", {}, {})) is None


@pytest.mark.parametrize("name", ["t.json", "t.cache", "t.txt", "t.csv", "t.flatbuffers"])
def test_paths_of_tables(name):
    assert is_table(name) and is_table(Path(name))


@pytest.mark.parametrize("other", ["data.npz", "folder", np.zeros(3), None])
def test_what_is_no_table(other):
    assert not is_table(other)
    assert table_among(other) is None


def test_a_table_is_itself_and_a_file_is_read(tmp_path):
    table = CalibrationTable({"a": 1.5})
    path = table.save(tmp_path / "t.json")
    assert as_table(table) is table
    assert as_table(path) == as_table(str(path)) == table
    assert is_table(table) and table_among(table) is table
    assert table_among(path) == table_among(str(path)) == table
    path.write_text("{}")
    with pytest.raises(TableError, match="not a calibration table"):
        as_table(path)
