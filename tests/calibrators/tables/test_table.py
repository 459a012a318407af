import struct
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrators.errors import TableError
from calibrators.histograms import thresholds
from calibrators.histograms.histogram import Histogram
from calibrators.histograms.losses import range_loss
from calibrators.tables.choice import RangeChoice
from calibrators.tables.formats import tensorrt_cache
from calibrators.tables.table import CalibrationTable, Provenance

HEADER = b"TRT-8601-EntropyCalibration2\n"


def _table(model=None):
    histograms = {}
    for seed, name in enumerate(("a", "b::c d")):
        histograms[name] = Histogram()
        histograms[name].observe(np.random.default_rng(seed).standard_normal(5000).astype(np.float32))
    return CalibrationTable.from_histograms(
        histograms, "entropy", Provenance(model, "data", 50, {"numpy": "2"})
    )


def test_json_keeps_everything(tmp_path):
    table = _table("m").override({"a": 2.5})
    assert CalibrationTable.load(table.save(tmp_path / "t.json")) == table


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


def test_another_method_comes_from_the_stored_histograms_and_spares_what_was_set_by_hand():
    table = _table().override({"a": 2.5}).with_method("mse")
    assert table.amax == {"a": 2.5, "b::c d": thresholds.mse(table.histograms["b::c d"])}
    with pytest.raises(TableError, match="no histograms"):
        CalibrationTable({"a": 1.0}).with_method("mse")
    with pytest.raises(TableError, match="unknown calibration method 'magic'"):
        table.with_method("magic")


CHOICE = RangeChoice("wide", {"wide": 31.25, "mse": 30.5}, {"wide": 16, "mse": 4})


def test_a_choice_spares_what_was_set_by_hand_and_survives_the_file(tmp_path):
    table = _table("m").override({"a": 2.5}).with_choice({"a": 9.0, "b::c d": 3.5}, CHOICE)
    assert (table.amax, table.method, table.choice) == ({"a": 2.5, "b::c d": 3.5}, "auto", CHOICE)
    assert [table.method_of(name) for name in table.amax] == ["by hand", "wide"]
    assert CalibrationTable.load(table.save(tmp_path / "t.json")) == table


def test_another_method_ends_the_choice():
    table = _table().with_choice({"a": 9.0, "b::c d": 3.5}, CHOICE).with_method("mse")
    assert (table.method, table.choice, table.method_of("a")) == ("mse", None, "mse")


@pytest.mark.parametrize(("rule", "method"), [("wide", "wide"), ("mse", "by hand")])
def test_ranges_by_another_rule_count_as_set_by_hand_where_tables_are_merged(rule, method):
    other = RangeChoice(rule, {rule: 20.0}, {rule: 3})
    merged = CalibrationTable({"a": 1.0}, "auto", choice=CHOICE).merged(
        CalibrationTable({"b": 2.0}, "auto", choice=other)
    )
    assert (merged.amax, merged.choice) == ({"a": 1.0, "b": 2.0}, CHOICE)
    assert [merged.method_of(name) for name in "ab"] == ["wide", method]


def test_losses_of_ranges_that_were_not_set_by_hand():
    table = _table().with_choice({"a": 0.5, "b::c d": 0.25}, CHOICE)
    histograms = table.histograms
    assert list(table.excessive_losses.items()) == [
        ("b::c d", range_loss(histograms["b::c d"], 0.25)),
        ("a", range_loss(histograms["a"], 0.5)),
    ]
    assert list(table.override({"b::c d": 0.25}).excessive_losses) == ["a"]
    assert _table().excessive_losses == {}


def test_diff_puts_the_largest_ratio_first():
    differences = CalibrationTable({"a": 1.0, "b": 4.0, "c": 1.0}).diff(
        CalibrationTable({"a": 2.0, "b": 1.0, "c": 1.0})
    )
    assert [(d.name, d.ratio) for d in differences] == [("b", 4.0), ("a", 2.0)]


def test_rounding_to_float32_is_no_difference(tmp_path):
    """As by a calibration cache, which holds scales in float32."""
    amax = {str(number): 0.1 * 1.37**number for number in range(60)}
    table = CalibrationTable(amax)
    back = CalibrationTable.load(table.save(tmp_path / "t.cache"))
    assert back.amax != table.amax
    assert table.diff(back) == back.diff(table) == []
    assert table.diff(CalibrationTable({n: float(np.float32(v)) for n, v in amax.items()})) == []
    (found,) = table.diff(CalibrationTable({**amax, "7": amax["7"] * (1 + 1e-6)}))
    assert found.name == "7"


@pytest.mark.parametrize(
    ("method", "read_back"),
    [
        ("auto", "entropy"),
        ("mse", "entropy"),
        ("entropy", "entropy"),
        ("minmax", "minmax"),
        ("percentile", "percentile"),
    ],
)
def test_the_method_in_a_cache(tmp_path, method, read_back):
    table = CalibrationTable({"a": 1.0}, method)
    assert table.method_in_cache == read_back
    assert CalibrationTable.load(table.save(tmp_path / "t.cache")).method == read_back


@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), -1.0, 0.0, "2.6", None, (-1, 1), True, 10**400]
)
def test_a_range_set_by_hand_is_a_positive_number(value):
    with pytest.raises(TableError, match="'a'"):
        _table().override({"a": value})


def test_cache_golden_bytes():
    cache = tensorrt_cache.parse(HEADER + b"images: 3c010204\nb::c d: 1020304\n", "c")
    assert cache.version == "8601" and cache.algorithm == "EntropyCalibration2"
    assert cache.scales["images"] == struct.unpack(">f", bytes.fromhex("3c010204"))[0]
    assert tensorrt_cache.render(cache) == HEADER + b"images: 3c010204\nb::c d: 01020304\n"


@given(st.floats(2.0**-120, 2.0**120, width=32))
def test_scales_survive_the_table_bit_for_bit(scale):
    table = CalibrationTable({"x": scale * 127})
    assert float(table.scale("x")) == scale


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
        (HEADER + b"a: 0\n", r"'a' \(0.0\)"),
        (HEADER + b"\xff\xfe: 3c010204\n", "is not text"),
    ],
)
def test_malformed_files(data, words, tmp_path):
    (tmp_path / "t").write_bytes(data)
    with pytest.raises(TableError, match=words):
        CalibrationTable.load(tmp_path / "t")


def test_tables_of_different_models_are_not_merged():
    from calibrators.tables.table import Provenance

    one, two = (CalibrationTable({"a": 1.0}, provenance=Provenance(model=name)) for name in ("x", "y"))
    with pytest.raises(TableError, match=r"the tables are of different models \(x and y\)"):
        one.merged(two)


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


@pytest.mark.parametrize("value", ["2.6", None, True, [1.0], np.array([1.0])])
def test_a_range_is_a_number(value):
    with pytest.raises(TableError, match=r"a range must be a number .*: 'a' \("):
        CalibrationTable({"a": value})


@pytest.mark.parametrize("name", [5, None, b"a"])
def test_a_name_is_a_text(name):
    for make in (lambda: CalibrationTable({name: 1.0}), lambda: _table().override({name: 1.0})):
        with pytest.raises(TableError, match="is no text; give names of tensors"):
            make()


@pytest.mark.filterwarnings("ignore:.* has one number per tensor:UserWarning")
@pytest.mark.parametrize("suffix", [".json", ".txt", ".csv", ".cache", ".flatbuffers"])
@pytest.mark.parametrize("number", [np.float32, np.float64, np.int64, int])
def test_numbers_of_numpy_are_written_like_others(number, suffix, tmp_path):
    table = CalibrationTable({"a": number(3), "b": number(1)})
    assert table.fingerprint == CalibrationTable({"a": 3.0, "b": 1.0}).fingerprint
    assert all(type(value) is float for value in table.amax.values())
    path = table.save(tmp_path / f"t{suffix}")
    assert CalibrationTable.load(path).amax == pytest.approx({"a": 3.0, "b": 1.0}, rel=1e-6)


def test_a_table_does_not_change_with_the_ranges_it_was_made_of():
    ranges = {"a": 1.0}
    table = CalibrationTable(ranges)
    ranges["a"] = 2.0
    assert table.amax == {"a": 1.0}


def test_a_format_that_does_not_exist_is_refused(tmp_path):
    with pytest.raises(TableError, match=r"format_name is 'onnxruntime_json'; use one of .*onnxruntime-json"):
        _table().save(tmp_path / "t.json", format_name="onnxruntime_json")
    assert not list(tmp_path.iterdir())


def test_a_tensor_that_the_table_does_not_have():
    table = _table()
    for ask in (table.scale, table.method_of):
        with pytest.raises(TableError, match="the table has no tensor 'zz'; its names are like"):
            ask("zz")


def test_one_pattern_by_itself_is_one():
    table = CalibrationTable({"conv1": 1.0, "c": 2.0})
    assert list(table.without("conv1").amax) == ["c"]
