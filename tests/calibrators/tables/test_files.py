"""The names of files that hold calibration tables."""

import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrators import records
from calibrators.errors import TableError
from calibrators.tables.cache_origin import read_origin
from calibrators.tables.files import (
    FORMATS,
    TABLE_SUFFIXES,
    check_format_name,
    check_table_name,
    is_table_name,
    read_table,
)
from calibrators.tables.formats import common
from calibrators.tables.formats.common import warn_widened
from calibrators.tables.table import CalibrationTable, Provenance
from calibrators.tensorrt.calibration_cache import portability
from tests.calibrators.tables.formats.golden_files import ONE_ENDED

HEADER = b"TRT-8601-EntropyCalibration2\n"


def test_what_a_cache_and_its_sidecar_hold(tmp_path):
    table = CalibrationTable({"a": 1.27}, "minmax", Provenance("m", "d", 5, {"numpy": "2"}))
    record = read_table(table.save(tmp_path / "t.cache", tensorrt_version="10300"))
    assert (record.method, record.model, record.data, record.samples) == ("minmax", "m", "d", 5)
    assert record.versions == {"tensorrt": "10300"} and record.histograms == {}
    assert record.amax == {"a": float(np.float32(0.01)) * 127}
    (tmp_path / "t.cache.json").unlink()
    alone = read_table(tmp_path / "t.cache")
    assert (alone.amax, alone.method, alone.model, alone.samples) == (record.amax, "minmax", None, None)


def test_tensors_that_were_zero_in_all_batches_are_read_from_a_cache_and_can_be_set(tmp_path):
    cache = tmp_path / "t.cache"
    cache.write_bytes(HEADER + b"a: 3c010204\ndead: 0\n")
    table = CalibrationTable.load(cache)
    assert table.amax == {"a": table.amax["a"], "dead": 0.0}
    assert CalibrationTable.load(table.save(tmp_path / "t.json")) == table
    alive = table.override({"dead": 2.0}).save(tmp_path / "alive.cache")
    assert CalibrationTable.load(alive).amax["dead"] == pytest.approx(2.0)
    assert list(CalibrationTable.load(table.without("dead").save(tmp_path / "rest.cache")).amax) == ["a"]
    with pytest.warns(UserWarning, match="the range of 'dead' is 0"):
        written = table.save(tmp_path / "dead.cache")
    assert CalibrationTable.load(written).amax == {"a": table.amax["a"]}
    with pytest.raises(
        TableError, match=r"not positive numbers: 'dead' \(0\.0\); calibrate again or set them"
    ):
        table.without("a").save(tmp_path / "refused.cache")
    assert not (tmp_path / "refused.cache").exists()


#: As Windows' editors and shells write text.
MARKED = ["utf-8-sig", "utf-16"]


@pytest.mark.parametrize("encoding", MARKED)
@pytest.mark.parametrize(
    ("name", "format_name"),
    [("t.json", None), ("t.cache", None), ("t.txt", None), ("t.csv", None), ("t.json", "ppq")],
)
def test_a_byte_order_mark_does_not_belong_to_the_table(name, format_name, encoding, tmp_path):
    table = CalibrationTable({"ä::a": 2.5, "b c": 1.0})
    (tmp_path / "plain").mkdir()
    plain = table.save(tmp_path / "plain" / name, format_name=format_name)
    marked = tmp_path / name
    marked.write_bytes(plain.read_text(encoding="utf-8").encode(encoding))
    assert CalibrationTable.load(marked).amax == CalibrationTable.load(plain).amax


@pytest.mark.parametrize(
    ("method", "read_back"),
    [
        ("auto", "entropy"),
        ("mse", "entropy"),
        ("entropy", "entropy"),
        ("minmax", "minmax"),
        ("percentile", "entropy"),
    ],
)
def test_the_method_in_a_cache(tmp_path, method, read_back):
    table = CalibrationTable({"a": 1.0}, method)
    assert table.method_in_cache == read_back
    assert CalibrationTable.load(table.save(tmp_path / "t.cache")).method == read_back


def test_a_cache_that_is_converted_does_not_become_portable(tmp_path):
    (tmp_path / "legacy.cache").write_bytes(b"0 3ff0000000000000 3fefff2e48e8a71e\nx: 3c010204\n")
    converted = CalibrationTable.load(tmp_path / "legacy.cache").save(tmp_path / "other.cache")
    data = converted.read_bytes()
    assert data.startswith(b"TRT-8601-EntropyCalibration2\n")
    assert portability("EntropyCalibration2", read_origin(converted, data)).startswith("not known: ")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "neither a JSON table nor a TensorRT calibration cache"),
        (b"{}", "not a calibration table"),
        (b"TRT-8601-Magic\na: 3c010204\n", "its first line must be"),
        (HEADER, "holds no tensors"),
        (HEADER + b"a: 3c010204\noops\n", "line 3"),
        (HEADER + b"a: 3c010204\na: 3c010204\n", "'a' stands twice"),
        (HEADER + b"a: 7fc00000\n", r"'a' \(nan\)"),
        (HEADER + b"a: 7f800000\n", r"'a' \(inf\)"),
        (HEADER + b"a: bc010204\n", r"'a' \(-0.00"),
        (HEADER + b"\xff\xfe: 3c010204\n", "is not text"),
    ],
)
def test_malformed_files(data, words, tmp_path):
    (tmp_path / "t").write_bytes(data)
    with pytest.raises(TableError, match=words):
        CalibrationTable.load(tmp_path / "t")


HUGE = "1" + "0" * 400


TABLE = '{"format": "trtint8-calibration-table", "version": 1, "amax": RANGES}'


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (TABLE.replace("RANGES", '{"a": HUGE}'), "damaged"),
        (TABLE.replace("RANGES", '{"a": Infinity}'), "a range must be"),
        (TABLE.replace("RANGES", '{"a": true}'), "damaged"),
        (TABLE.replace("RANGES", '{"a": null}'), "damaged"),
        (TABLE.replace("RANGES", "[1]"), "damaged"),
        (TABLE.replace("RANGES", '{"\\ud800": 1}'), "lone surrogate"),
        (TABLE.replace("RANGES", '{}, "samples": -1'), "damaged"),
        (TABLE.replace("RANGES", '{}, "samples": 1.5'), "damaged"),
        (TABLE.replace("RANGES", '{}, "histograms": {"a": 5}'), "damaged"),
        (TABLE.replace(": 1,", ": HUGE,").replace("RANGES", "{}"), "table of version 1000"),
        ("[" * 100_000, "nested too deeply"),
        ('{"a":' * 100_000, "nested too deeply"),
        ('{"act_quant_info": {"a": HUGE}}', "not a table of PPQ"),
        ('{"act_quant_info": {"a": [1]}}', "not a table of PPQ"),
        ('{"act_quant_info": {"a": Infinity}}', "the range of 'a' is inf"),
        ('{"act_quant_info": {"\\ud800": 1}}', "lone surrogate"),
        ('{"CLS": "TensorsData", "data": {"a": {"lowest": HUGE, "highest": 1}}}', "not a calibration"),
        ('{"CLS": "TensorsData", "data": [1]}', "not a calibration table of ONNX Runtime"),
        ('{"CLS": "TensorsData", "data": {"a": 5}}', "not a calibration table of ONNX Runtime"),
    ],
    ids=range(19),
)
def test_hostile_json_is_refused_with_one_short_sentence(content, words, tmp_path):
    path = tmp_path / "t.json"
    path.write_text(content.replace("HUGE", HUGE))
    with pytest.raises(TableError, match=words) as refused:
        CalibrationTable.load(path)
    assert len(str(refused.value)) < 500 + len(str(path)) and "\n" not in str(refused.value)


@pytest.mark.parametrize("suffix", [".cache", ".txt", ".csv"])
def test_a_name_cannot_inject_lines(tmp_path, suffix):
    path = tmp_path / f"t{suffix}"
    with pytest.raises(TableError, match=r"cannot hold the name 'x: 1\\nimages'; write trtint8's own format"):
        CalibrationTable({"x: 1\nimages": 1.0}).save(path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["#a", " a", "a ", "\u00a0a"])
def test_a_name_that_text_would_not_give_back_is_refused(tmp_path, name):
    table = CalibrationTable({name: 1.0})
    with pytest.raises(TableError, match="a text table cannot hold the name"):
        table.save(tmp_path / "t.txt")
    for suffix in (".json", ".csv", ".cache", ".flatbuffers"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert list(CalibrationTable.load(table.save(tmp_path / f"t{suffix}")).amax) == [name]


def test_json_keeps_any_name(tmp_path):
    table = CalibrationTable({"a\nb\x1b": 1.0})
    assert CalibrationTable.load(table.save(tmp_path / "t.json")).amax == {"a\nb\x1b": 1.0}


def test_the_version_of_a_header_cannot_inject_lines(tmp_path):
    with pytest.raises(TableError, match="header is '8601\\\\nx'; give digits, like 8601"):
        CalibrationTable({"a": 1.0}).save(tmp_path / "t.cache", tensorrt_version="8601\nx")


@pytest.mark.filterwarnings("ignore:.* has one number per tensor:UserWarning")
@pytest.mark.parametrize("suffix", [".json", ".txt", ".csv", ".cache", ".flatbuffers"])
@pytest.mark.parametrize("number", [np.float32, np.float64, np.int64, int])
def test_numbers_of_numpy_are_written_like_others(number, suffix, tmp_path):
    table = CalibrationTable({"a": number(3), "b": number(1)})
    assert table.fingerprint == CalibrationTable({"a": 3.0, "b": 1.0}).fingerprint
    assert all(type(value) is float for value in table.amax.values())
    path = table.save(tmp_path / f"t{suffix}")
    assert CalibrationTable.load(path).amax == pytest.approx({"a": 3.0, "b": 1.0}, rel=1e-6)


def test_a_format_that_does_not_exist_is_refused(tmp_path):
    with pytest.raises(TableError, match=r"format_name is 'onnxruntime_json'; use one of .*onnxruntime-json"):
        CalibrationTable({"a": 1.0}).save(tmp_path / "t.json", format_name="onnxruntime_json")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "format_name", "ending"),
    [
        ("t.json", "text", ".txt"),
        ("t.JSON", "csv", ".csv"),
        ("t.json", "onnxruntime", ".flatbuffers"),
        ("t.cache", "text", ".txt"),
        ("t.csv", "ppq", ".json"),
    ],
)
def test_a_format_under_the_ending_of_another_is_refused(name, format_name, ending, tmp_path):
    words = (
        rf"format '{format_name}' does not fit the name '.*{name}', which ends as .*; end it in \{ending}$"
    )
    with pytest.raises(TableError, match=words):
        CalibrationTable({"a": 1.0}).save(tmp_path / name, format_name=format_name)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["t.json", "t.dat", "t", "t.table"])
@pytest.mark.parametrize("format_name", ["ppq", "onnxruntime-json"])
def test_a_format_recognized_by_its_content_is_read_back_under_any_ending_that_names_none(
    name, format_name, tmp_path
):
    table = CalibrationTable({"a": 1.0, "b": 2.5})
    path = table.save(tmp_path / name, format_name=format_name)
    assert CalibrationTable.load(path).amax == table.amax


@pytest.mark.parametrize(
    ("format_name", "ending"), [("text", ".txt"), ("csv", ".csv"), ("onnxruntime", ".flatbuffers")]
)
def test_a_format_recognized_by_its_ending_alone_is_not_written_without_it(format_name, ending, tmp_path):
    for name in ("t.dat", "t", "t.table"):
        path = tmp_path / name
        path.write_bytes(b"kept")
        with pytest.raises(TableError) as caught:
            CalibrationTable({"a": 1.0}).save(path, format_name=format_name)
        assert str(caught.value) == (
            f"the format '{format_name}' is recognized by its ending alone, which the name '{path}' lacks; "
            f"end it in {ending}"
        )
        assert path.read_bytes() == b"kept"
    written = CalibrationTable({"a": 1.0}).save(tmp_path / f"t{ending.upper()}", format_name=format_name)
    assert written.stat().st_size


@pytest.mark.parametrize(
    ("name", "format_name"),
    [("t.cache", None), ("t.txt", None), ("t.csv", None), ("t.flatbuffers", None), ("t.json", "ppq")],
)
def test_a_table_without_ranges_is_not_written_where_it_could_not_be_read(name, format_name, tmp_path):
    path, empty = tmp_path / name, CalibrationTable({})
    path.write_bytes(b"kept")
    with pytest.raises(TableError) as caught:
        empty.save(path, format_name=format_name)
    assert str(caught.value) == (
        f"cannot write '{path}': the table has no ranges, and only trtint8's own format (.json) holds such a "
        "table; calibrate a model, or set ranges by hand"
    )
    assert path.read_bytes() == b"kept" and list(tmp_path.iterdir()) == [path]
    assert CalibrationTable.load(empty.save(tmp_path / "own.json")) == empty


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (3, "the table is given as int; give the path"),
        (None, "the table is given as NoneType; give the path"),
        (b"t.json", "the table is given as bytes; give the path"),
        ("", "the path of the table is empty; give the path"),
    ],
)
def test_what_is_no_path_is_refused(path, message):
    with pytest.raises(TableError) as caught:
        CalibrationTable.load(path)
    assert str(caught.value) == message


@pytest.mark.filterwarnings("ignore:.*has one number per tensor")
@pytest.mark.parametrize("name", ["t.txt", "t.csv", "t.cache", "t.flatbuffers", "t.json"])
def test_more_tensors_than_are_read_again_are_not_written(name, tmp_path, monkeypatch):
    monkeypatch.setattr(common, "MOST_TENSORS", 3)
    table = CalibrationTable(dict.fromkeys("abc", 1.0))
    assert CalibrationTable.load(table.save(tmp_path / name)).amax.keys() == {*"abc"}
    larger = CalibrationTable(dict.fromkeys("abcd", 1.0))
    with pytest.raises(TableError, match=r"has 4 tensors or more, and 3 are the most"):
        larger.save(tmp_path / f"other-{name}")
    monkeypatch.undo()
    larger.save(tmp_path / name)
    monkeypatch.setattr(common, "MOST_TENSORS", 3 if name in ("t.json", "t.flatbuffers") else 1)
    with pytest.raises(TableError, match=r"has (4 tensors or more|2 tensors or more|more than 1 lines)"):
        CalibrationTable.load(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("t.txt", b"\r" * 50),
        ("t.txt", "\u2028".encode() * 50),
        ("t.csv", b"tensor,amax\n" * 50),
        ("t.cache", b"TRT-8601-EntropyCalibration2\n" + b"\x0b" * 50),
        ("t.cache", b"\n" * 50),
    ],
)
def test_files_of_more_lines_than_a_table_has_are_refused(name, content, tmp_path, monkeypatch):
    monkeypatch.setattr(common, "MOST_TENSORS", 10)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(TableError, match=r"has more than 10 lines"):
        CalibrationTable.load(tmp_path / name)


@pytest.mark.parametrize("name", ["t.txt", "t.csv"])
def test_lines_of_more_values_than_any_table_has_are_refused(name, tmp_path, monkeypatch):
    monkeypatch.setattr(records, "MOST_MEMORY", 10_000)
    (tmp_path / name).write_bytes(b"tensor,amax" + b"," * 1000)
    with pytest.raises(TableError, match=r"holds more values than any table"):
        CalibrationTable.load(tmp_path / name)


def test_endings():
    assert {".json", ".cache", ".txt", ".csv", ".flatbuffers"} <= set(TABLE_SUFFIXES)
    assert all(is_table_name(f"folder.npz/t{ending.upper()}") for ending in TABLE_SUFFIXES)
    assert not any(map(is_table_name, ("t.npz", "t", "json", "t.json.gz")))


def test_a_name_without_a_format_is_refused_before_any_work():
    assert check_table_name("a/t.cache") == Path("a/t.cache")
    with pytest.raises(TableError) as caught:
        check_table_name("t.xyz")
    assert all(word in str(caught.value) for word in ("'t.xyz'", *TABLE_SUFFIXES))
    for name in (".cache", "folder/.JSON"):
        with pytest.raises(TableError) as caught:
            check_table_name(name)
        assert str(caught.value) == f"the name '{name}' is an ending alone; put a name before it"


@pytest.mark.parametrize(("name", "format_name"), [(".txt", "text"), ("folder/.JSON", "ppq")])
def test_an_ending_alone_is_no_name_for_a_format_either(name, format_name):
    with pytest.raises(TableError) as caught:
        check_format_name(name, format_name)
    assert str(caught.value) == f"the name '{name}' is an ending alone; put a name before it"


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("value", ["nan", "inf"])
@ONE_ENDED
def test_no_format_takes_what_is_no_range(name, value):
    written = FORMATS[name].render({"a": float(value)})
    with pytest.raises(TableError, match=rf"the range of 'a' is {value}"):
        FORMATS[name].parse(written, "it")


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("data", [b"\xff\xfe\x00", b"{", b""])
@ONE_ENDED
def test_no_format_takes_garbage(name, data):
    with pytest.raises(TableError):
        FORMATS[name].parse(data, "it")


names = st.text(st.characters(codec="utf-8", exclude_categories=("C", "Z")), min_size=1, max_size=12)


@pytest.mark.parametrize("name", FORMATS)
@given(
    ranges=st.dictionaries(names.filter(lambda n: not n.startswith("#")), st.floats(1e-30, 1e30), min_size=1)
)
@ONE_ENDED
def test_round_trips_are_exact(name, ranges):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert FORMATS[name].parse(FORMATS[name].render(ranges), "it") == ranges


@pytest.mark.parametrize(
    ("file", "format_name"),
    [
        ("t.json", None),
        ("t.txt", None),
        ("t.csv", None),
        ("t.flatbuffers", None),
        ("t.json", "ppq"),
        ("t.json", "onnxruntime-json"),
        ("t.ranges.json", None),
    ],
)
@ONE_ENDED
def test_tables_find_their_format_again(tmp_path, file, format_name):
    table = CalibrationTable({"a": 1.5, "b::c": 0.1})
    path = table.save(tmp_path / file, format_name=format_name)
    assert CalibrationTable.load(path).amax == table.amax


def test_ranges_that_are_no_numbers_are_not_said_to_be_wider(recwarn):
    warn_widened({"a": (float("nan"), float("nan")), "b": (-float("inf"), float("inf")), "c": (-1.0, 1.0)})
    assert not recwarn.list
    warn_widened({"a": (float("nan"), 1.0), "b": (-0.5, 1.0)})
    (found,) = recwarn.list
    assert "'b'" in str(found.message) and "'a'" not in str(found.message)
