from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pytest

from calibrators import records
from calibrators.errors import TableError
from calibrators.records import Count, Line, NonNegative, Positive, Probability, RecordError, Sha256, Text


@dataclass(frozen=True)
class Part:
    count: Count
    share: Probability = 0.5


@dataclass(frozen=True)
class Whole:
    name: str
    level: float
    parts: tuple[Part, ...] = ()
    data: bytes = b""


@dataclass(frozen=True)
class Limited:
    amax: NonNegative = 0.0
    seconds: Positive = 1.0
    digest: Sha256 = ""


WHOLE = Whole("étage", 1.5, (Part(3), Part(0, 1.0)), b"\x00\xff")


def test_round_trip():
    data = records.render(WHOLE)
    assert records.to_record(records.parse(data), Whole) == WHOLE
    assert data.decode().startswith('{\n  "name": "étage",\n  "level": 1.5,\n')
    assert json.loads(data)["data"] == "AP8="


def test_the_format_goes_first():
    assert list(json.loads(records.render(WHOLE, "a-format")))[:2] == ["format", "name"]


@pytest.mark.parametrize(("level", "text"), [(math.inf, "inf"), (-math.inf, "-inf")])
def test_infinities_are_text(level, text):
    data = records.render(Whole("a", level))
    assert json.loads(data)["level"] == text
    assert records.to_record(records.parse(data), Whole, numbers_as_text=True).level == level
    with pytest.raises(RecordError, match=r"Expected `float`, got `str` - at `\$\.level`"):
        records.to_record(records.parse(data), Whole)


@dataclass(frozen=True)
class Levels:
    level: float
    known: float | None
    either: Part | float
    both: tuple[float, float]
    parts: tuple[Part, ...]
    named: Mapping[str, Levels]


def test_null_is_nan_where_there_has_to_be_a_number():
    inner = {"level": 1, "known": 2, "either": {"count": 3}, "both": [4, 5], "parts": [], "named": {}}
    levels = {**inner, "level": None, "known": None, "either": None, "both": [None, 1]}
    document = {**levels, "parts": [{"count": 1}], "named": {"a": inner, "b": {**inner, "level": None}}}
    found = records.to_record(document, Levels, null_as_nan=True)
    assert math.isnan(found.level) and found.known is None and math.isnan(found.either)
    assert math.isnan(found.both[0]) and found.parts == (Part(1),)
    assert found.named["a"].either == Part(3) and math.isnan(found.named["b"].level)
    for wrong in ({"parts": None}, {"parts": [{"count": None}]}, {"named": None}, {"both": None}):
        with pytest.raises(RecordError, match="got `null`"):
            records.to_record({**document, **wrong}, Levels, null_as_nan=True)
    with pytest.raises(RecordError, match=r"got `null` - at `\$\.level`"):
        records.to_record(document, Levels)
    for _ in range(2000):
        document = {**inner, "named": {"a": document}}
    with pytest.raises(RecordError, match="it is nested too deeply"):
        records.to_record(document, Levels, null_as_nan=True)


def test_nan_is_text():
    data = records.render(Whole("a", math.nan))
    assert json.loads(data)["level"] == "nan"
    assert math.isnan(records.to_record(records.parse(data), Whole, numbers_as_text=True).level)


def test_numbers_of_numpy():
    assert json.loads(records.render(Whole("a", np.float64(0.25))))["level"] == 0.25
    with pytest.raises(TypeError, match="JSON holds no ndarray"):
        records.render(Whole("a", np.zeros(1)))


def test_names_that_are_not_text():
    whole = Whole("file\udcff", 1.0)
    assert records.to_record(records.parse(records.render(whole)), Whole) == whole


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
def test_encodings_of_shells(encoding):
    assert records.parse('{"name": "étage"}'.encode(encoding)) == {"name": "étage"}


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        ({}, "Object missing required field `name`"),
        ([], "Expected `object`, got `array`"),
        (None, "Expected `object`, got `null`"),
        ({"name": "a", "level": True}, "Expected `float`, got `bool` - at `$.level`"),
        ({"name": "a", "level": 10**400}, "Number out of range - at `$.level`"),
        ({"name": "a", "level": 1, "parts": [{"count": -1}]}, "Expected `int` >= 0 - at `$.parts[0].count`"),
        ({"name": "a", "level": 1, "parts": [{"count": 1.5}]}, "Expected `int`, got `float` - at `$.parts"),
        (
            {"name": "a", "level": 1, "parts": [{"count": 1 << 63}]},
            "Expected `int` <= 9223372036854775807",
        ),
        ({"name": "a", "level": 1, "parts": [{"count": 1, "share": 1.5}]}, "Expected `float` <= 1.0 - at "),
        ({"name": "a", "level": 1, "data": "?"}, "Invalid base64 encoded string - at `$.data`"),
    ],
)
def test_wrong_documents(document, problem):
    with pytest.raises(RecordError) as caught:
        records.to_record(document, Whole)
    assert str(caught.value).startswith(problem)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("amax", math.nan),
        ("amax", math.inf),
        ("amax", -1e-9),
        ("seconds", 0),
        ("seconds", math.nan),
        ("digest", "0A" * 32),
        ("digest", "0a" * 32 + "\n"),
    ],
)
def test_limits(field, value):
    with pytest.raises(RecordError, match=rf"Expected `(float|str)` .* - at `\$\.{field}`"):
        records.to_record({field: value}, Limited)


def test_values_within_the_limits():
    document = {"amax": 0, "seconds": 1e-300, "digest": "0a" * 32}
    assert records.to_record(document, Limited) == Limited(0.0, 1e-300, "0a" * 32)


@dataclass(frozen=True)
class Texts:
    text: Text = ""
    line: Line = ""


@pytest.mark.parametrize("text", ["", "a\nb\x00\x1b'\"", "é\U0001f433\u2028", "x" * 10_000])
def test_a_text_is_any_but_half_a_character(text):
    assert records.to_record({"text": text}, Texts).text == text
    with pytest.raises(RecordError, match=r"at `\$\.text`"):
        records.to_record({"text": f"{text}\udc80"}, Texts)


@pytest.mark.parametrize("line", ["", "10.9.0.34+cu12", "0a" * 32, "other samples", "é", "x" * 200])
def test_a_line_is_short_and_without_control_characters(line):
    assert records.to_record({"line": line}, Texts).line == line
    assert records.is_line(line)
    for wrong in (
        f"{line}\n",
        f"\r{line}",
        f"{line}\x1b[2J",
        f"{line}\x9b",
        f"{line}\u2028",
        f"{line}\ud800",
        "x" * 201,
    ):
        assert not records.is_line(wrong)
        with pytest.raises(RecordError, match=r"at `\$\.line`"):
            records.to_record({"line": wrong}, Texts)
    assert not records.is_line(None)


def test_fields_that_are_not_known():
    document = {"count": 1, "surplus": 2}
    assert records.to_record(document, Part) == Part(1)
    with pytest.raises(RecordError, match="Object contains unknown field `surplus`"):
        records.to_record(document, Part, exact=True)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "Expecting value: line 1 column 1 (char 0)"),
        (b'{"a": 1,\n "b" 2}', "Expecting ':' delimiter: line 2 column 6 (char 14)"),
        (b"[" * 100_000, "it is nested too deeply"),
        (b"PK\3\4\xff", "it is not text"),
    ],
)
def test_what_is_not_json(data, problem):
    with pytest.raises(RecordError) as caught:
        records.parse(data)
    assert str(caught.value) == problem


def test_files_of_a_limited_size(tmp_path, monkeypatch):
    path = tmp_path / "r.json"
    path.write_bytes(b"[1, 2]")
    monkeypatch.setattr(records, "MOST_BYTES", 6)
    assert records.read(path) == [1, 2]
    path.write_bytes(b"[1, 2] ")
    with pytest.raises(RecordError, match="it is larger than 6 bytes"):
        records.read(path)
    with pytest.raises(FileNotFoundError):
        records.read(tmp_path / "missing.json")


def test_what_cannot_be_read_is_said_in_one_sentence(tmp_path, monkeypatch):
    path = tmp_path / "r.json"
    expected = r"^cannot read the table: No such file or directory$"
    with pytest.raises(TableError, match=expected), records.reading("the table", TableError, "; make one"):
        records.read(path)
    path.write_text("{")
    monkeypatch.setattr(records, "MOST_BYTES", 0)
    expected = r"^cannot read the table: it is larger than 0 bytes; make one$"
    with pytest.raises(TableError, match=expected), records.reading("the table", TableError, "; make one"):
        records.read(path)


def test_a_lone_surrogate_in_place_of_a_number_is_refused():
    with pytest.raises(RecordError, match=r"the name '\\ud800' holds a lone surrogate"):
        records.to_record({"count": "\ud800"}, Part, numbers_as_text=True)


def test_a_named_pipe_into_which_nobody_writes_is_empty(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert records.read_bytes(tmp_path / "pipe") == b""
    with pytest.raises(IsADirectoryError):
        records.read_bytes(tmp_path)
    with pytest.raises(RecordError, match="its name holds a character that no name can have"):
        records.read_bytes("a\0b")
