"""The names of files that hold calibration tables."""

import re
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


def test_a_cache_that_is_converted_does_not_become_portable(tmp_path):
    (tmp_path / "legacy.cache").write_bytes(b"0 3ff0000000000000 3fefff2e48e8a71e\nx: 3c010204\n")
    converted = CalibrationTable.load(tmp_path / "legacy.cache").save(tmp_path / "other.cache")
    data = converted.read_bytes()
    assert data.startswith(b"TRT-8601-EntropyCalibration2\n")
    assert portability("EntropyCalibration2", read_origin(converted, data)).startswith("not known: ")


@pytest.mark.parametrize(
    ("data", "named"),
    [
        (b"", "neither a JSON table nor a TensorRT calibration cache"),
        (b"{}", "not a calibration table"),
        (b"TRT-8601-Magic\na: 3c010204\n", "first line"),
        (HEADER, "no tensors"),
        (HEADER + b"a: 3c010204\noops\n", "line 3"),
        (HEADER + b"a: 3c010204\na: 3c010204\n", "'a' stands twice"),
        (HEADER + b"a: 7fc00000\n", r"'a' \(nan\)"),
        (HEADER + b"a: 7f800000\n", r"'a' \(inf\)"),
        (HEADER + b"a: bc010204\n", r"'a' \(-0.00"),
        (HEADER + b"\xff\xfe: 3c010204\n", "not text"),
    ],
)
def test_malformed_files(data, named, tmp_path):
    (tmp_path / "t").write_bytes(data)
    with pytest.raises(TableError, match=named):
        CalibrationTable.load(tmp_path / "t")


HUGE = "1" + "0" * 400


def table_of(ranges, version=1):
    return f'{{"format": "trtint8-calibration-table", "version": {version}, "amax": {ranges}}}'


def data_of(ranges):
    return f'{{"CLS": "TensorsData", "data": {ranges}}}'


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (table_of(f'{{"a": {HUGE}}}'), "damaged"),
        (table_of('{"a": Infinity}'), "'a'"),
        (table_of('{"a": true}'), "damaged"),
        (table_of('{"a": null}'), "damaged"),
        (table_of("[1]"), "damaged"),
        (table_of('{"\\ud800": 1}'), "lone surrogate"),
        (table_of('{}, "samples": -1'), "damaged"),
        (table_of('{}, "samples": 1.5'), "damaged"),
        (table_of('{}, "histograms": {"a": 5}'), "damaged"),
        (table_of("{}", HUGE), "version 1000"),
        ("[" * 100_000, "nested too deeply"),
        ('{"a":' * 100_000, "nested too deeply"),
        (f'{{"act_quant_info": {{"a": {HUGE}}}}}', "PPQ"),
        ('{"act_quant_info": {"a": [1]}}', "PPQ"),
        ('{"act_quant_info": {"a": Infinity}}', "'a' is inf"),
        ('{"act_quant_info": {"\\ud800": 1}}', "lone surrogate"),
        (data_of(f'{{"a": {{"lowest": {HUGE}, "highest": 1}}}}'), "not a calibration"),
        (data_of("[1]"), "ONNX Runtime"),
        (data_of('{"a": 5}'), "ONNX Runtime"),
    ],
    ids=range(19),
)
def test_hostile_json_is_refused_with_one_short_sentence(content, named, tmp_path):
    path = tmp_path / "t.json"
    path.write_text(content)
    with pytest.raises(TableError, match=named) as refused:
        CalibrationTable.load(path)
    assert len(str(refused.value)) < 500 + len(str(path)) and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("suffix", "name", "options"),
    [
        *((suffix, "x: 1\nimages", {}) for suffix in (".cache", ".txt", ".csv")),
        *((".txt", name, {}) for name in ("#a", " a", "a ", "\u00a0a")),
        (".cache", "8601\nx", {"tensorrt_version": "8601\nx"}),
        (".json", "onnxruntime_json", {"format_name": "onnxruntime_json"}),
    ],
)
def test_what_a_file_would_not_give_back_is_not_written(tmp_path, suffix, name, options):
    with pytest.raises(TableError, match=re.escape(repr(name))):
        CalibrationTable({"a" if options else name: 1.0}).save(tmp_path / f"t{suffix}", **options)
    assert not list(tmp_path.iterdir())


@pytest.mark.filterwarnings("ignore:.* has one number per tensor:UserWarning")
@pytest.mark.parametrize("name", ["#a", " a", "a ", "\u00a0a"])
@pytest.mark.parametrize("suffix", [".json", ".csv", ".cache", ".flatbuffers"])
def test_other_files_give_such_names_back(tmp_path, suffix, name):
    names = [name, "a\nb\x1b"] if suffix == ".json" else [name]
    path = CalibrationTable(dict.fromkeys(names, 1.0)).save(tmp_path / f"t{suffix}")
    assert list(CalibrationTable.load(path).amax) == names


@pytest.mark.filterwarnings("ignore:.* has one number per tensor:UserWarning")
@pytest.mark.parametrize("suffix", [".json", ".txt", ".csv", ".cache", ".flatbuffers"])
@pytest.mark.parametrize("number", [np.float32, np.float64, np.int64, int])
def test_numbers_of_numpy_are_written_like_others(number, suffix, tmp_path):
    table = CalibrationTable({"a": number(3), "b": number(1)})
    assert table.fingerprint == CalibrationTable({"a": 3.0, "b": 1.0}).fingerprint
    assert all(type(value) is float for value in table.amax.values())
    path = table.save(tmp_path / f"t{suffix}")
    assert CalibrationTable.load(path).amax == pytest.approx({"a": 3.0, "b": 1.0}, rel=1e-6)


@pytest.mark.parametrize(
    ("name", "format_name", "ending"),
    [
        ("t.json", "text", ".txt"),
        ("t.JSON", "csv", ".csv"),
        ("t.json", "onnxruntime", ".flatbuffers"),
        ("t.cache", "text", ".txt"),
        ("t.csv", "ppq", ".json"),
        # Recognized by its ending alone.
        *(
            (f"t{other}", format_name, ending)
            for other in ("", ".dat", ".table")
            for format_name, ending in (("text", ".txt"), ("csv", ".csv"), ("onnxruntime", ".flatbuffers"))
        ),
    ],
)
def test_a_format_under_the_ending_of_another_is_refused(name, format_name, ending, tmp_path):
    table, path = CalibrationTable({"a": 1.0}), tmp_path / name
    path.write_bytes(b"kept")
    with pytest.raises(TableError, match=rf"'{format_name}' .*'{path}'.*\{ending}$"):
        table.save(path, format_name=format_name)
    assert path.read_bytes() == b"kept"
    assert table.save(tmp_path / f"u{ending.upper()}", format_name=format_name).stat().st_size


@pytest.mark.parametrize(
    ("method", "read_back"),
    [
        (name, "minmax" if name == "minmax" else "entropy")
        for name in ("auto", "mse", "entropy", "minmax", "percentile")
    ],
)
def test_the_method_in_a_cache(tmp_path, method, read_back):
    table = CalibrationTable({"a": 1.0}, method)
    assert table.method_in_cache == read_back
    assert CalibrationTable.load(table.save(tmp_path / "t.cache")).method == read_back


@pytest.mark.parametrize(
    ("name", "format_name"),
    [("t.cache", None), ("t.txt", None), ("t.csv", None), ("t.flatbuffers", None), ("t.json", "ppq")],
)
def test_a_table_without_ranges_is_not_written_where_it_could_not_be_read(name, format_name, tmp_path):
    path, empty = tmp_path / name, CalibrationTable({})
    path.write_bytes(b"kept")
    with pytest.raises(TableError, match=rf"'{path}': .*no ranges.*\.json"):
        empty.save(path, format_name=format_name)
    assert path.read_bytes() == b"kept" and list(tmp_path.iterdir()) == [path]
    assert CalibrationTable.load(empty.save(tmp_path / "own.json")) == empty


@pytest.mark.parametrize(
    ("path", "named"), [(3, "given as int"), (None, "NoneType"), (b"t.json", "bytes"), ("", "is empty")]
)
def test_what_is_no_path_is_refused(path, named):
    with pytest.raises(TableError, match=named):
        CalibrationTable.load(path)


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
    alone = (
        (check_table_name, (".cache",)),
        (check_table_name, ("folder/.JSON",)),
        (check_format_name, (".txt", "text")),
    )
    for check, arguments in (*alone, (check_format_name, ("folder/.JSON", "ppq"))):
        with pytest.raises(TableError, match=rf"'{arguments[0]}' is an ending alone"):
            check(*arguments)


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
        *((file, None) for file in ("t.json", "t.txt", "t.csv", "t.flatbuffers", "t.ranges.json")),
        # Recognized by their content, under any ending that names no format.
        *(
            (f"t{end}", name)
            for end in (".json", ".dat", "", ".table")
            for name in ("ppq", "onnxruntime-json")
        ),
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
