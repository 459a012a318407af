"""The warnings of ranges that lose too much."""

import re
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
    assert read_ranges({"a": 2.5, "b": (-3.0, 3.0)}) == {"a": 2.5, "b": 3.0}  # and warnings are errors here


@pytest.mark.parametrize(("low", "high", "amax"), [(-1.0, 4.0, 4.0), (-6.0, 2.0, 6.0), (0.0, 5.0, 5.0)])
def test_pairs_get_as_wide_as_their_wider_side(low, high, amax, tmp_path):
    (tmp_path / "ranges.txt").write_text(f"a: {low}, {high}\n")
    for given in ({"a": (low, high)}, str(tmp_path / "ranges.txt")):
        with pytest.warns(UserWarning, match=r"'a' \("):
            assert read_ranges(given) == {"a": amax}


@pytest.mark.parametrize(
    "value", [0.0, -1.0, float("nan"), float("inf"), (2.0, 1.0), (0.0, 0.0), (1.0, 2.0, 3.0), "wide", None]
)
def test_what_is_no_range(value):
    with pytest.raises(TableError, match="range of 'a' is "):
        read_ranges({"a": value})


def test_files(tmp_path):
    file = tmp_path / "ranges.txt"
    file.write_text("# by hand\n\ngpu_0/conv1_1: 5.43116007373\nscope::relu:2\n")
    assert read_ranges(file) == {"gpu_0/conv1_1": 5.43116007373, "scope::relu": 2.0}
    table = CalibrationTable({"a": 2.0, "b": 3.0})
    for name in ("ranges.json", "ranges.cache"):
        assert read_ranges(table.save(tmp_path / name)) == pytest.approx({"a": 2.0, "b": 3.0})


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (None, r"ranges\.txt"),
        ("", "no ranges"),
        ("a 5\n", "line 1 is not"),
        ("a: five\n", "line 1: 'five'"),
        (": 5\n", "line 1 is not"),
        ("a: 1\n\nb: 1, 2, 3\n", "line 3 is not"),
        ("a: 1\na: 2\n", "line 2: .*'a'"),
        ("a: 0\n", "'a' is 0.0"),
    ],
)
def test_bad_text_files(tmp_path, text, named):
    file = tmp_path / "ranges.txt"
    if text is not None:
        file.write_text(text)
    with pytest.raises(TableError, match=named):
        read_ranges(file)


LOSS = RangeLoss(0.025, 9.03, 42.18)
FIGURES = r"\(2.50% clipped, 9.0 dB where 42.2 dB are possible\)"


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ("a", f"^1 .*'a' {FIGURES}; "),
        ("ab", f"^2 .*'a' {FIGURES}, 'b' {FIGURES}; "),
        ("abcde", f"^5 .*'a' {FIGURES}, 'b' {FIGURES}, 'c' {FIGURES} and 2 more; "),
    ],
)
@pytest.mark.parametrize(
    ("method", "advice"), [("auto", "validate$"), ("percentile", "method auto or mse, or .* by hand$")]
)
def test_which_ranges_lose_and_what_to_do(names, words, method, advice):
    assert re.search(f"{words}.*{advice}", loss_warning(dict.fromkeys(names, LOSS), method))
    assert loss_warning({}, method) is None


@pytest.mark.parametrize(
    ("method", "advice"),
    [("auto", "validate"), ("mse", "method auto or entropy,"), ("entropy", "method auto,")],
)
def test_a_few_huge_values_are_left_out_of_what_is_possible(method, advice):
    loss = RangeLoss(0.0001, 77.8, 77.8, RangeLoss(0.0001, 0.0, 41.3))
    words = rf"'b' \(0.01% clipped, 0.0 dB where 41.3 dB are possible without its few huge values\).*{advice}"
    assert re.search(words, loss_warning({"a": LOSS, "b": loss}, method))


def test_noisy_outputs_are_warned_of():
    def warning(level, count):
        return noise_warning(RangeChoice("wide", {"wide": level, "mse": 30.0}, {"wide": count, "mse": count}))

    assert "15.0 dB for a typical one of 16 samples" in warning(14.96, 16)
    assert "-0.4 dB on 1 sample," in warning(-0.4, 1)
    assert warning(15.0, 16) is noise_warning(None) is noise_warning(RangeChoice("mse", {}, {})) is None


def test_a_table_is_itself_and_a_file_is_read(tmp_path):
    table = CalibrationTable({"a": 1.5})
    path = table.save(tmp_path / "t.json")
    assert as_table(table) is table
    assert as_table(path) == as_table(str(path)) == table
    assert is_table(table) and table_among(table) is table
    assert table_among(path) == table_among(str(path)) == table
    for name in ("t.json", "t.cache", "t.txt", "t.csv", "t.flatbuffers"):
        assert is_table(name) and is_table(Path(name))
    for other in ("data.npz", "folder", np.zeros(3), None):
        assert not is_table(other) and table_among(other) is None
    path.write_text("{}")
    with pytest.raises(TableError, match=r"t\.json'"):
        as_table(path)
