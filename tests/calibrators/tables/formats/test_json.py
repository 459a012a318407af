"""trtint8's own tables: what a damaged one is refused with."""

import base64
import json
import sys
import warnings
import zlib

import numpy as np
import pytest

from calibrators import records
from calibrators.data.samples import SampleSizes
from calibrators.errors import TableError
from calibrators.histograms.histogram import Histogram, bins_within
from calibrators.histograms.thresholds import METHODS
from calibrators.tables.formats import json as json_format
from calibrators.tables.table import CalibrationTable, Provenance


@pytest.fixture
def path(tmp_path):
    histogram = Histogram()
    histogram.observe(np.float32([0.5, 1.0]))
    table = CalibrationTable.from_histograms({"a": histogram}, "minmax", Provenance("m", "d", 2, {"x": "1"}))
    return table.save(tmp_path / "t.json")


def refused(path, change, words):
    """Asserts that a table is refused after ``change`` was made to its document."""
    document = json.loads(path.read_bytes())
    change(document)
    path.write_text(json.dumps(document))
    with pytest.raises(TableError, match=words):
        CalibrationTable.load(path)


def counts(values):
    return packed(np.array(values, "<i8").tobytes())


def packed(data):
    return base64.b64encode(zlib.compress(data)).decode()


@pytest.mark.parametrize(
    ("change", "place"),
    [
        (lambda d: d["amax"].update(a="1.0"), r"\$\.amax\[\.\.\.\]"),
        (lambda d: d.pop("amax"), "field `amax`"),
        (lambda d: d.update(samples=-1), r"\$\.samples"),
        (lambda d: d.update(overridden=[3]), r"\$\.overridden\[0\]"),
        (lambda d: d["versions"].update(x=1), r"\$\.versions\[\.\.\.\]"),
        (lambda d: d["histograms"]["a"].update(zeros=-1), r"\$\.histograms\[\.\.\.\]\.zeros"),
        (lambda d: d["histograms"]["a"].update(amax=float("nan")), r"\$\.histograms\[\.\.\.\]\.amax"),
        (lambda d: d["histograms"]["a"].update(counts="*"), r"\$\.histograms\[\.\.\.\]\.counts"),
        (lambda d: d["histograms"]["a"].pop("infs"), r"field `infs` - at `\$\.histograms\[\.\.\.\]`"),
        *(
            (lambda d, value=value: d["amax"].update(a=value), rf": 'a' \({value}\)$")
            for value in (float("nan"), float("inf"), -1.0)
        ),
        (lambda d: d.update(version=2), "version 2, .*version 1"),
        (lambda d: d.update(version="1"), "version '1', .*version 1"),
        (lambda d: d.update(format=["x"]), '"format": "trtint8-calibration-table"'),
    ],
)
def test_wrong_fields_are_named(path, change, place):
    refused(path, change, f"'{path}'.*{place}")


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"counts": counts([1, -1])}, "negative"),
        ({"counts": packed(bytes(7))}, "multiple of element size"),
        ({"counts": packed(bytes((8 << 20) + 8))}, "8,388,608 bytes"),
        ({"counts": base64.b64encode(zlib.compress(bytes(64))[:-2]).decode()}, "cut off"),
        ({"counts": "AAAA"}, "decompressing"),
        ({"counts": counts([1 << 60] * 3)}, "more than any calibration counts"),
        ({"counts": counts([1] * 2048)}, ""),
        ({"counts": counts([0] * 2048)}, ""),
        ({"counts": packed(b"")}, ""),
        *(({"bin_width": width}, "") for width in (0, 1e-30, 1e-300, 2.0, 1e300)),
        *(({"amax": amax}, "") for amax in (1e30, 0.0)),
        *(({"zeros": zeros}, "") for zeros in (1 << 62, 10**30)),
        ({"infs": (1 << 63) - 1}, ""),
    ],
)
def test_numbers_that_no_calibration_counts_are_refused(path, change, problem):
    words = rf"'{path}'.*('a'|histograms\[\.\.\.\]).*{problem}"
    refused(path, lambda document: document["histograms"]["a"].update(change), words)
    broken = Histogram(np.ones(2048, np.int64), 1.0, 5.0)
    with pytest.raises(TableError, match="'x'"):  # nor are they written
        CalibrationTable({"x": 5.0}, histograms={"x": broken}).save(path)


def test_mistakes_of_who_edits_it_have_a_line_and_a_column(path, monkeypatch):
    with pytest.raises(TableError, match=r"'t\.json' .*':' .*line 2 column 16"):
        json_format.parse(b'{\n  "amax": {"a" 1}\n}', "t.json")
    monkeypatch.setattr(records, "MOST_BYTES", 100)
    with pytest.raises(TableError, match=f"'{path}': .*100 bytes"):
        CalibrationTable.load(path)


def test_fields_of_a_person_are_left_alone(path):
    document = json.loads(path.read_bytes())
    path.write_text(json.dumps({**document, "comment": "corrected by hand"}))
    assert CalibrationTable.load(path).amax == {"a": 1.0}


@pytest.fixture
def table():
    histogram = Histogram()
    histogram.observe(np.float32([0, 0.5, -1.0, 3.0, np.inf]))
    return CalibrationTable.from_histograms(
        {"a::b": histogram},
        "minmax",
        Provenance("model", "data", 5, {"numpy": "2"}, {"x": SampleSizes((3, 64), (3, 96))}),
    )


def test_the_file_is_json_that_a_person_can_read(table, tmp_path):
    document = json.loads(table.save(tmp_path / "t.json").read_text())
    assert list(document)[:2] == ["format", "version"] and list(document)[-1] == "histograms"
    assert (document["format"], document["version"]) == ("trtint8-calibration-table", 1)
    assert document["amax"] == {"a::b": 3.0} and document["method"] == "minmax"
    stored = document["histograms"]["a::b"]
    assert (stored["amax"], stored["zeros"], stored["infs"]) == (3.0, 1, 1)


def test_it_reads_back_to_the_same_table(table, tmp_path):
    assert CalibrationTable.load(table.save(tmp_path / "t.json")) == table


@pytest.fixture
def crowded():
    values = np.random.default_rng(4).standard_normal(20_000).astype(np.float32)
    histograms = {"ordinary": Histogram(), "crowded": Histogram()}
    histograms["ordinary"].observe(values)
    values[7] = 1e6
    histograms["crowded"].observe(values)
    return CalibrationTable.from_histograms(histograms, "percentile", Provenance())


def test_octaves_are_stored_where_a_huge_value_crowds_the_others(crowded, tmp_path):
    path = crowded.save(tmp_path / "t.json")
    stored = json.loads(path.read_text())["histograms"]
    assert stored["ordinary"]["octaves"] is None and stored["crowded"]["octave"] < 127
    found = CalibrationTable.load(path)
    assert found == crowded
    assert found.amax["crowded"] == pytest.approx(found.amax["ordinary"], rel=0.01)
    for method in METHODS:
        assert found.with_method(method).amax == crowded.with_method(method).amax


def test_a_file_of_an_older_version_has_no_octaves(crowded, tmp_path):
    path = crowded.save(tmp_path / "t.json")
    document = json.loads(path.read_text())
    for histogram in document["histograms"].values():
        del histogram["octave"], histogram["octaves"]
    path.write_text(json.dumps(document))
    found = CalibrationTable.load(path)
    assert found.histograms["crowded"].octaves is None
    assert found.histograms["ordinary"] == crowded.histograms["ordinary"]
    assert found.with_method("percentile").amax["crowded"] == 512.0  # the first bin


@pytest.mark.parametrize(
    "change",
    [
        *({"octave": octave} for octave in (0, 254, 10**30, None, -1)),
        *({"octaves": octaves} for octaves in (packed(b""), packed(bytes(9 << 20)), "AAAA")),
        *({"octaves": counts(values)} for values in ([1] * 256, [-1] * 256, [1] * 100)),
    ],
)
def test_octaves_that_no_calibration_counts_are_refused(crowded, tmp_path, change):
    path = crowded.save(tmp_path / "t.json")
    words = r"'crowded'|histograms\[\.\.\.\]"
    refused(path, lambda document: document["histograms"]["crowded"].update(change), words)


def test_a_table_that_would_be_too_large_keeps_no_octaves(crowded, tmp_path, monkeypatch):
    monkeypatch.setattr(json_format, "MOST_BYTES_OF_COUNTS", 3 * 2048 * 8)
    with pytest.warns(UserWarning, match="keeps histograms of 2048 bins"):
        crowded.save(tmp_path / "t.json")
    found = CalibrationTable.load(tmp_path / "t.json")
    assert found.amax == crowded.amax and found.histograms["crowded"].octaves is None


def test_counts_that_unpack_to_too_much_together(path):
    bomb = packed(bytes(8 << 20))

    def change(document):
        one = {**document["histograms"]["a"], "counts": bomb}
        document["histograms"] = {f"t{i}": one for i in range(30)}

    refused(path, change, f"'{path}': .*'t25' .*209,715,200 bytes")


@pytest.mark.parametrize(
    ("name", "once", "again"),
    [("a", '"a": 1.0', '"a": 2.0'), ("method", '"method": "minmax"', '"method": "mse"')],
)
def test_a_tensor_that_stands_twice(path, name, once, again):
    text = path.read_text()
    assert once in text
    path.write_text(text.replace(once, f"{once}, {again}"))
    with pytest.raises(TableError, match=f"'{path}': '{name}' "):
        CalibrationTable.load(path)


def test_nesting_that_the_parser_just_takes():
    """Looking for names that stand twice needs a little more of the stack than parsing."""
    table = '{"format": "trtint8-calibration-table", "version": 1, "amax": {"a": 1.0}, "remark": REMARK}'
    limit = sys.getrecursionlimit()
    for depth in range(limit // 2, limit):
        try:
            record = json_format.parse(
                table.replace("REMARK", '{"b":' * depth + "1" + "}" * depth).encode(), "t"
            )
        except TableError as error:
            assert "nested too deeply" in str(error)
        else:
            assert record.amax == {"a": 1.0}


def many(tensors, values=(0.5, 1.0, 3.0)):
    histogram = Histogram()
    histogram.observe(np.array(values, np.float32))
    return CalibrationTable.from_histograms(
        {f"t{index}": histogram for index in range(tensors)}, "entropy", Provenance()
    )


def test_more_histograms_than_are_read_again_have_fewer_bins(tmp_path, monkeypatch):
    monkeypatch.setattr(json_format, "MOST_BYTES_OF_COUNTS", 10 * 2048 * 8)
    tensors_to_bins = {0: 2048, 10: 2048, 11: 1024, 21: 512, 20480: 1, 10**9: 1}
    assert {
        count: bins_within(json_format.MOST_BYTES_OF_COUNTS, count) for count in tensors_to_bins
    } == tensors_to_bins
    whole, table = many(10), many(11)
    assert CalibrationTable.load(whole.save(tmp_path / "t.json")) == whole  # and warnings are errors here
    with pytest.warns(UserWarning, match="1024 bins"):
        table.save(tmp_path / "t.json")
    found = CalibrationTable.load(tmp_path / "t.json")
    assert (found.amax, found.peaks) == (table.amax, table.peaks)
    assert found.histograms["t0"] == table.histograms["t0"].coarsened(1024)
    amax = many(30).amax
    larger = CalibrationTable(amax, histograms=dict.fromkeys(amax, found.histograms["t0"]))
    with pytest.warns(UserWarning, match="512 bins"):
        table.merged(larger).save(tmp_path / "m.json")
    assert len(CalibrationTable.load(tmp_path / "m.json").histograms["t29"].counts) == 512


def test_a_file_that_would_be_too_large_has_fewer_bins_or_none(tmp_path, monkeypatch):
    table = many(8, np.random.default_rng(3).standard_normal(100_000))
    size = len(table.save(tmp_path / "t.json").read_bytes())
    for limit, bins in ((size, 2048), (size - 1, 1024), (1000, 0)):
        monkeypatch.setattr(records, "MOST_BYTES", limit)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = CalibrationTable.load(table.save(tmp_path / "t.json"))
        assert found.amax == table.amax
        assert max((len(one.counts) for one in found.histograms.values()), default=0) == bins
    monkeypatch.setattr(records, "MOST_BYTES", 100)
    with pytest.raises(TableError, match="8 tensors"):
        table.save(tmp_path / "u.json")
    assert not (tmp_path / "u.json").exists()
