from __future__ import annotations

import json
import math
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

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
    assert list(json.loads(records.render(WHOLE, "a-format")))[:2] == ["format", "name"]


@pytest.mark.parametrize(("level", "text"), [(math.inf, "inf"), (-math.inf, "-inf"), (math.nan, "nan")])
def test_infinities_are_text(level, text):
    data = records.render(Whole("a", level))
    assert json.loads(data)["level"] == text
    found = records.to_record(records.parse(data), Whole, numbers_as_text=True).level
    assert found == level or (math.isnan(found) and math.isnan(level))
    with pytest.raises(RecordError, match=r"`float`, .*`str` - at `\$\.level`"):
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


def parts_with(**part):
    return {"name": "a", "level": 1, "parts": [part]}


@pytest.mark.parametrize(
    ("document", "place"),
    [
        ({}, "`name`"),
        ([], "`array`"),
        (None, "`null`"),
        ({"name": "a", "level": True}, r"`bool` - at `\$\.level`"),
        ({"name": "a", "level": 10**400}, r"at `\$\.level`"),
        (parts_with(count=-1), r"`int` >= 0 - at `\$\.parts\[0\]\.count`"),
        (parts_with(count=1.5), r"`float` - at `\$\.parts"),
        (parts_with(count=1 << 63), "`int` <= 9223372036854775807"),
        (parts_with(count=1, share=1.5), "`float` <= 1.0"),
        ({"name": "a", "level": 1, "data": "?"}, r"at `\$\.data`"),
    ],
)
def test_wrong_documents(document, place):
    with pytest.raises(RecordError, match=place):
        records.to_record(document, Whole)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("amax", value) for value in (math.nan, math.inf, -1e-9)),
        *(("seconds", value) for value in (0, math.nan)),
        *(("digest", value) for value in ("0A" * 32, "0a" * 32 + "\n")),
    ],
)
def test_limits(field, value):
    document = {"amax": 0, "seconds": 1e-300, "digest": "0a" * 32}
    assert records.to_record(document, Limited) == Limited(0.0, 1e-300, "0a" * 32)
    with pytest.raises(RecordError, match=rf"at `\$\.{field}`"):
        records.to_record({**document, field: value}, Limited)


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
    assert records.fits(line, records.Line)
    wrong = [
        f"\r{line}",
        *(f"{line}{end}" for end in ("\n", "\x1b[2J", "\x9b", "\u2028", "\ud800")),
        "x" * 201,
    ]
    for other in wrong:
        assert not records.fits(other, records.Line)
        with pytest.raises(RecordError, match=r"at `\$\.line`"):
            records.to_record({"line": other}, Texts)
    assert not records.fits(None, records.Line)


def test_fields_that_are_not_known():
    document = {"count": 1, "surplus": 2}
    assert records.to_record(document, Part) == Part(1)
    with pytest.raises(RecordError, match="Object contains unknown field `surplus`"):
        records.to_record(document, Part, exact=True)


@pytest.mark.parametrize(
    ("data", "named"),
    [
        (b"", "line 1 column 1 "),
        (b'{"a": 1,\n "b" 2}', "':' .*line 2 column 6 "),
        (b"[" * 100_000, "nested too deeply"),
        (b"PK\3\4\xff", "not text"),
    ],
)
def test_what_is_not_json(data, named):
    with pytest.raises(RecordError, match=named):
        records.parse(data)


def test_files_of_a_limited_size(tmp_path, monkeypatch):
    path = tmp_path / "r.json"
    path.write_bytes(b"[1, 2]")
    monkeypatch.setattr(records, "MOST_BYTES", 6)
    assert records.read(path) == [1, 2]
    path.write_bytes(b"[1, 2] ")
    for place, error, named in (
        (path, RecordError, "6 bytes; make one$"),
        (tmp_path / "missing", FileNotFoundError, "No such file or directory"),
    ):
        with pytest.raises(error):
            records.read(place)
        with (
            pytest.raises(TableError, match=f"^cannot read the table: .*{named}"),
            records.reading("the table", TableError, "make one"),
        ):
            records.read(place)


def test_a_lone_surrogate_in_place_of_a_number_is_refused():
    with pytest.raises(RecordError, match=r"the name '\\ud800' holds a lone surrogate"):
        records.to_record({"count": "\ud800"}, Part, numbers_as_text=True)


def _socket(path):
    with socket.socket(socket.AF_UNIX) as opened:
        opened.bind(str(path))


@pytest.mark.parametrize("read", [records.read_bytes, records.open_file])
@pytest.mark.parametrize(
    "make",
    [
        os.mkfifo,
        _socket,
        lambda path: path.symlink_to("/dev/zero"),
        lambda path: path.symlink_to("/dev/tty"),
        lambda path: path.symlink_to("/dev/null"),
        lambda path: path.mkdir(),
        lambda path: path.symlink_to(path),
        lambda path: None,
    ],
    ids=["pipe", "socket", "endless", "terminal", "null", "folder", "loop", "nothing"],
)
def test_what_is_no_regular_file_is_refused_and_not_waited_for(make, read, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # a socket's path may have few letters
    make(Path("there"))
    with pytest.raises(OSError, match="there"):
        read("there")


def test_a_pipe_to_a_link_in_dev_fd_is_no_pipe_of_the_user(tmp_path):
    reading, writing = os.pipe()
    (tmp_path / "link").symlink_to(f"/dev/fd/{reading}")
    with os.fdopen(reading, "rb"), os.fdopen(writing, "wb"), pytest.raises(OSError, match="it is a pipe"):
        records.read_bytes(tmp_path / "link")


def test_a_pipe_that_the_user_has_connected_is_read_to_its_end(monkeypatch):
    for most in (records.MOST_BYTES, 5):
        monkeypatch.setattr(records, "MOST_BYTES", most)
        reading, writing = os.pipe()
        with os.fdopen(reading, "rb"):
            with os.fdopen(writing, "wb") as stream:
                stream.write(b"[1, 2]")
            if most > 5:
                assert records.read(f"/dev/fd/{reading}") == [1, 2]
                continue
            with pytest.raises(RecordError, match="5 bytes"):
                records.read_bytes(f"/dev/fd/{reading}")


def test_names_that_no_file_can_have():
    with pytest.raises(RecordError, match="its name holds a character that no name can have"):
        records.read_bytes("a\0b")
    with pytest.raises(OSError, match="too long"):
        records.read_bytes("a" * 300)


def test_a_link_is_not_followed_where_that_is_not_wanted(tmp_path):
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "link").symlink_to("file")
    assert records.read_bytes(tmp_path / "link") == b"x"
    assert records.read_bytes(tmp_path / "file", follow_link=False) == b"x"
    with pytest.raises(OSError, match="link"):
        records.read_bytes(tmp_path / "link", follow_link=False)


@pytest.mark.parametrize(
    "data",
    [
        b"[" + b"[]," * 4_000 + b"[]]",
        b"[" + b"{}," * 4_000 + b"{}]",
        b"[" + b'{"":0},' * 4_000 + b"{}]",
        b"[" + b"0," * 30_000 + b"0]",
        b"[" + b'"",' * 12_000 + b'""]',
        b'"' + b"a" * 300_000 + "😀".encode() + b'"',
        b'"' + b"a" * 300_000 + b'\\ud83d\\ude00"',
        ("[" + "[]," * 4_000 + "[]]").encode("utf-16"),
    ],
    ids=["lists", "dicts", "entries", "numbers", "texts", "wide text", "escaped letter", "utf-16"],
)
def test_a_document_that_would_fill_memory_is_refused_before_it_is_parsed(data, monkeypatch):
    monkeypatch.setattr(records.json, "loads", None)
    monkeypatch.setattr(records, "MOST_MEMORY", 1 << 20)
    assert not records.is_readable(data)
    with pytest.raises(RecordError, match=r"may take more than [\d,]+ bytes of memory"):
        records.parse(data)


def test_what_is_within_the_limit_is_parsed():
    data = json.dumps({str(number): 1.5 for number in range(300_000)}).encode()
    assert records.is_readable(data)
    assert len(records.parse(data)) == 300_000


def test_parts_of_a_document_of_another_program():
    part = Part(3, 0.25)
    for text in (
        '{"x": [[1, {"y": 2}]], "count": 3, "share": 0.25}',
        '{"count": 3, "x": NaN, "share": 0.25}',
    ):
        for encoding in ("utf-8", "utf-16"):
            assert records.read_parts(text.encode(encoding), Part) == part
    for wrong in (b"", b"[", b'{"count": -1}', b'{"count": "3"}', b"{}", b"[" * 100_000, b"\xff"):
        with pytest.raises(RecordError):
            records.read_parts(wrong, Part)
