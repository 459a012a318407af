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
    histogram.observe(np.array([0.5, 1.0], np.float32))
    table = CalibrationTable.from_histograms({"a": histogram}, "minmax", Provenance("m", "d", 2, {"x": "1"}))
    return table.save(tmp_path / "t.json")


def refusal(path, change):
    """The message with which a table is refused after ``change`` was made to its document."""
    document = json.loads(path.read_bytes())
    change(document)
    path.write_text(json.dumps(document))
    with pytest.raises(TableError) as caught:
        CalibrationTable.load(path)
    return str(caught.value)


def packed(data):
    return base64.b64encode(zlib.compress(data)).decode()


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda d: d["amax"].update(a="1.0"), "Expected `float`, got `str` - at `$.amax[...]`"),
        (lambda d: d.pop("amax"), "Object missing required field `amax`"),
        (lambda d: d.update(samples=-1), "Expected `int` >= 0 - at `$.samples`"),
        (lambda d: d.update(overridden=[3]), "Expected `str`, got `int` - at `$.overridden[0]`"),
        (lambda d: d["versions"].update(x=1), "Expected `str`, got `int` - at `$.versions[...]`"),
        (
            lambda d: d["histograms"]["a"].update(zeros=-1),
            "Expected `int` >= 0 - at `$.histograms[...].zeros`",
        ),
        (
            lambda d: d["histograms"]["a"].update(amax=float("nan")),
            "Expected `float` >= 0.0 - at `$.histograms[...].amax`",
        ),
        (
            lambda d: d["histograms"]["a"].update(counts="*"),
            "Invalid base64 encoded string - at `$.histograms[...].counts`",
        ),
        (
            lambda d: d["histograms"]["a"].pop("infs"),
            "Object missing required field `infs` - at `$.histograms[...]`",
        ),
    ],
)
def test_wrong_fields_are_named(path, change, problem):
    assert refusal(path, change) == (
        f"the table '{path}' is damaged ({problem}); correct it, or calibrate again"
    )


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"counts": packed(np.array([1, -1], "<i8").tobytes())}, "a count is negative"),
        ({"counts": packed(bytes(7))}, "buffer size must be a multiple of element size"),
        ({"counts": packed(bytes((8 << 20) + 8))}, "its counts are cut off, or more than 8,388,608 bytes"),
        (
            {"counts": base64.b64encode(zlib.compress(bytes(64))[:-2]).decode()},
            "its counts are cut off, or more than 8,388,608 bytes",
        ),
        ({"counts": "AAAA"}, "Error -3 while decompressing data: unknown compression method"),
        ({"bin_width": 0}, "its bins do not reach its largest value"),
        ({"bin_width": 1e-30}, "its bins do not reach its largest value"),
        (
            {"counts": packed(np.array([1 << 60, 1 << 60, 1 << 60], "<i8").tobytes())},
            "its counts are more than any calibration counts",
        ),
    ],
)
def test_histograms_that_cannot_be_decoded(path, change, problem):
    assert refusal(path, lambda document: document["histograms"]["a"].update(change)) == (
        f"'{path}': the histogram of 'a' cannot be decoded ({problem}); calibrate again"
    )


@pytest.mark.parametrize(("value", "shown"), [(float("nan"), "nan"), (float("inf"), "inf"), (-1, "-1.0")])
def test_ranges_that_are_none_name_the_tensor(path, value, shown):
    assert refusal(path, lambda document: document["amax"].update(a=value)) == (
        f"'{path}': a range must be a number that is not negative, and no larger than a float32 holds: "
        f"'a' ({shown})"
    )


def test_another_format_or_version(path):
    assert refusal(path, lambda document: document.update(version=2)) == (
        f"'{path}' is a table of version 2, and this trtint8 reads version 1; use the trtint8 that wrote it "
        "or calibrate again"
    )
    assert refusal(path, lambda document: document.update(version="1")) == (
        f"'{path}' is a table of version '1', and this trtint8 reads version 1; use the trtint8 that wrote "
        "it or calibrate again"
    )
    assert refusal(path, lambda document: document.update(format=["x"])) == (
        f'\'{path}\' is JSON but not a calibration table: it has no "format": "trtint8-calibration-table", '
        "and is none of PPQ or ONNX Runtime either"
    )


def test_mistakes_of_who_edits_it_have_a_line_and_a_column():
    with pytest.raises(TableError) as caught:
        json_format.parse(b'{\n  "amax": {"a" 1}\n}', "t.json")
    assert str(caught.value) == (
        "'t.json' is neither a JSON table nor a TensorRT calibration cache: Expecting ':' delimiter: line 2 "
        "column 16 (char 17); ranges as text end in .txt, .csv or (ONNX Runtime's) .cache, and ONNX "
        "Runtime's flatbuffers in .flatbuffers"
    )


def test_fields_of_a_person_are_left_alone(path):
    document = json.loads(path.read_bytes())
    path.write_text(json.dumps({**document, "comment": "corrected by hand"}))
    assert CalibrationTable.load(path).amax == {"a": 1.0}


def test_huge_files(path, monkeypatch):
    monkeypatch.setattr(records, "MOST_BYTES", 100)
    with pytest.raises(TableError) as caught:
        CalibrationTable.load(path)
    assert str(caught.value) == (
        f"cannot read the table '{path}': it is larger than 100 bytes; give a calibration table"
    )


@pytest.fixture
def table():
    histogram = Histogram()
    histogram.observe(np.array([0, 0.5, -1.0, 3.0, np.inf], np.float32))
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
        {"octave": 0},
        {"octave": 254},
        {"octave": 10**30},
        {"octave": None},
        {"octave": -1},
        {"octaves": packed(b"")},
        {"octaves": packed(np.ones(256, "<i8").tobytes())},
        {"octaves": packed(np.full(256, -1, "<i8").tobytes())},
        {"octaves": packed(np.ones(100, "<i8").tobytes())},
        {"octaves": packed(bytes(9 << 20))},
        {"octaves": "AAAA"},
    ],
)
def test_octaves_that_no_calibration_counts_are_refused(crowded, tmp_path, change):
    path = crowded.save(tmp_path / "t.json")
    words = refusal(path, lambda document: document["histograms"]["crowded"].update(change))
    assert "'crowded'" in words or "histograms[...]" in words


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

    assert refusal(path, change) == (
        f"'{path}': the histogram of 't25' cannot be decoded (all counts together are more than "
        "209,715,200 bytes); calibrate again"
    )


def test_a_tensor_that_stands_twice(path):
    text = path.read_text()
    for name, once, twice in (
        ("a", '"a": 1.0', '"a": 1.0, "a": 2.0'),
        ("method", '"method": "minmax"', '"method": "minmax", "method": "mse"'),
    ):
        assert once in text
        path.write_text(text.replace(once, twice))
        with pytest.raises(TableError) as caught:
            CalibrationTable.load(path)
        assert str(caught.value) == f"'{path}': '{name}' stands twice; remove one of them"


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
    assert [
        bins_within(json_format.MOST_BYTES_OF_COUNTS, count) for count in (0, 10, 11, 21, 20480, 10**9)
    ] == [
        2048,
        2048,
        1024,
        512,
        1,
        1,
    ]
    whole = many(10)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert CalibrationTable.load(whole.save(tmp_path / "t.json")) == whole
    table = many(11)
    with pytest.warns(UserWarning, match="keeps histograms of 1024 bins"):
        table.save(tmp_path / "t.json")
    found = CalibrationTable.load(tmp_path / "t.json")
    assert (found.amax, found.peaks) == (table.amax, table.peaks)
    assert found.histograms["t0"] == table.histograms["t0"].coarsened(1024)
    with pytest.warns(UserWarning, match="keeps histograms of 512 bins"):
        table.merged(
            CalibrationTable(
                {**many(30).amax}, histograms=dict.fromkeys(many(30).amax, found.histograms["t0"])
            )
        ).save(tmp_path / "m.json")
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
    with pytest.raises(TableError, match="a table of 8 tensors would be larger than what is read again"):
        table.save(tmp_path / "u.json")
    assert not (tmp_path / "u.json").exists()


def test_a_histogram_that_is_none_is_not_written(tmp_path):
    broken = Histogram(np.ones(2048, np.int64), 1.0, 5.0)
    with pytest.raises(TableError, match="the histogram of 'x' is none that a calibration counts"):
        CalibrationTable({"x": 5.0}, histograms={"x": broken}).save(tmp_path / "t.json")


@pytest.mark.parametrize(
    "change",
    [
        {"bin_width": 1e-300},
        {"bin_width": 2.0},
        {"bin_width": 1e300},
        {"amax": 1e30},
        {"amax": 0.0},
        {"zeros": 1 << 62},
        {"zeros": 10**30},
        {"infs": (1 << 63) - 1},
        {"counts": packed(np.ones(2048, "<i8").tobytes())},
        {"counts": packed(np.zeros(2048, "<i8").tobytes())},
        {"counts": packed(b"")},
    ],
)
def test_numbers_that_no_calibration_counts_are_refused(path, change):
    words = refusal(path, lambda document: document["histograms"]["a"].update(change))
    assert "'a'" in words or "histograms[...]" in words
