"""Ranges as text and as CSV."""

import json

import pytest

from calibrators.errors import TableError
from calibrators.tables.formats import plain
from tests.calibrators.tables.formats.golden_files import golden


def test_text():
    with pytest.warns(UserWarning, match=r"ranges got wider.*'scope::relu' \(-1\.5, 6\)"):
        assert plain.TEXT.parse(golden("ranges.txt"), "golden") == {"images": 2.64, "scope::relu": 6.0}


def test_csv():
    assert plain.CSV.parse(golden("ranges.csv"), "golden") == {"images": 2.64, "scope, relu": 6.5}


@pytest.mark.parametrize("name", ["=1+1", "+x", "-x", "@x", "'x", " x ", '"x', "a,b", ":bug:", "é"])
def test_csv_gives_every_name_back(name):
    # Also one that a spreadsheet would compute: the file is read again, and the tensor has to be found.
    assert plain.CSV.parse(plain.CSV.render({name: 1.5}), "it") == {name: 1.5}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no column 'tensor'; its first line must be tensor,amax"),
        ("tensor,scale\na,1\n", "has no column 'amax'"),
        ("tensor,amax\na,wide\n", "line 2: 'wide' is not a number"),
        ("tensor,amax\na\n", "line 2: '' is not a number"),
        ("tensor,amax\na,1\na,2\n", "line 3: tensor 'a' stands twice"),
        ("tensor,amax\na,-1\n", "line 2: the range of 'a' is -1.0"),
        ("tensor,amax\na,nan\n", "line 2: the range of 'a' is nan"),
    ],
)
def test_csv_malformed(text, message):
    with pytest.raises(TableError, match=message):
        plain.CSV.parse(text.encode(), "it")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("tensor,amax\n" + "a" * 200_000 + ",1\n", "is not CSV: field larger than field limit"),
        ("a" * 200_000, "is not CSV: field larger than field limit"),
        ("amax,tensor\n1\n", "line 2 has no tensor"),
        ("tensor,amax\na,1\n,2\n", "line 3 has no tensor; add its name or remove the line"),
        ('tensor,amax\n"",2\n', "line 2 has no tensor; add its name or remove the line"),
    ],
    ids=["field", "header", "cut", "empty", "quoted"],
)
def test_csv_that_cannot_be_read(content, words):
    with pytest.raises(TableError, match=words):
        plain.CSV.parse(content.encode(), "t.csv")


def test_ppq():
    assert plain.PPQ.parse(golden("ppq.json"), "golden") == {"images": 2.64, "relu::out": 6.5}


@pytest.mark.parametrize("values", [{"a": "wide"}, {"a": None}, [1], None])
def test_ppq_malformed(values):
    with pytest.raises(TableError, match="is not a table of PPQ"):
        plain.PPQ.parse(json.dumps({"act_quant_info": values}).encode(), "it")


def test_a_tensor_that_stands_twice():
    with pytest.raises(TableError, match=r"^'it': 'a' stands twice; remove one of them$"):
        plain.PPQ.parse(b'{"act_quant_info": {"a": 1.0, "b": 2.0, "a": 3.0}}', "it")
