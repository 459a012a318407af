"""How a table shows itself."""

import json
import re
import struct

import numpy as np
import pytest

from calibrators.errors import TableError
from calibrators.histograms import thresholds
from calibrators.histograms.histogram import Histogram
from calibrators.histograms.rules import range_loss
from calibrators.tables.choice import RangeChoice
from calibrators.tables.formats import tensorrt_cache
from calibrators.tables.table import CalibrationTable, Provenance
from tests.calibrators.histograms.kernels import whole

HEADER = b"TRT-8601-EntropyCalibration2\n"


def _table(model=None):
    histograms = {}
    for seed, name in enumerate(("a", "b::c d")):
        histograms[name] = Histogram()
        histograms[name].observe(np.random.default_rng(seed).standard_normal(5000).astype(np.float32))
    return CalibrationTable.from_histograms(
        histograms, "entropy", Provenance(model, "data", 50, {"numpy": "2"})
    )


def test_another_method_comes_from_the_stored_histograms_and_spares_what_was_set_by_hand():
    table = _table().override({"a": 2.5}).with_method("mse")
    assert table.amax == {"a": 2.5, "b::c d": thresholds.mse(table.histograms["b::c d"])}
    assert _table().with_choice({"a": 9.0, "b::c d": 3.5}, CHOICE).with_method("mse") == _table().with_method(
        "mse"
    )
    with pytest.raises(TableError, match="no histograms"):
        CalibrationTable({"a": 1.0}).with_method("mse")
    with pytest.raises(TableError, match="'magic'"):
        table.with_method("magic")


CHOICE = RangeChoice("wide", {"wide": 31.25, "mse": 30.5}, {"wide": 16, "mse": 4})


def test_a_choice_spares_what_was_set_by_hand_and_survives_the_file(tmp_path):
    table = _table("m").override({"a": 2.5}).with_choice({"a": 9.0, "b::c d": 3.5}, CHOICE)
    assert (table.amax, table.method, table.choice) == ({"a": 2.5, "b::c d": 3.5}, "auto", CHOICE)
    assert [table.method_of(name) for name in table.amax] == ["by hand", "wide"]
    assert CalibrationTable.load(table.save(tmp_path / "t.json")) == table


@pytest.mark.parametrize(("rule", "method"), [("wide", "wide"), ("mse", "by hand")])
def test_ranges_by_another_rule_count_as_set_by_hand_where_tables_are_merged(rule, method):
    other = RangeChoice(rule, {rule: 20.0}, {rule: 3})
    merged = CalibrationTable({"a": 1.0}, "auto", choice=CHOICE).merged(
        CalibrationTable({"b": 2.0}, "auto", choice=other)
    )
    assert (merged.amax, merged.choice) == ({"a": 1.0, "b": 2.0}, CHOICE)
    assert [merged.method_of(name) for name in "ab"] == ["wide", method]


def test_signed_ranges():
    histograms = {}
    for name, ends in {"both": (-1.0, 3.0), "below": (-4.0, 1.0), "even": (-2.0, 2.0), "none": ()}.items():
        histograms[name] = Histogram()
        histograms[name].observe(np.array(ends, np.float32))
    table = CalibrationTable.from_histograms(histograms, "minmax", Provenance())
    assert {name: table.signed_range(name) for name in table.amax} == {
        "both": (-1.0, 3.0),
        "below": (-4.0, 1.0),
        "even": (-2.0, 2.0),
        "none": (0.0, 0.0),
    }
    narrow = table.override({"both": 0.5, "below": 3.0, "even": 1.0, "none": 2.0, "new": 5.0})
    assert {name: narrow.signed_range(name) for name in narrow.amax} == {
        "both": (-0.5, 0.5),
        "below": (-3.0, 1.0),
        "even": (-1.0, 1.0),
        "none": (-2.0, 2.0),
        "new": (-5.0, 5.0),
    }
    assert CalibrationTable({"x": 1.0}).signed_range("x") is None
    with pytest.raises(TableError, match="'y'"):
        table.signed_range("y")


@pytest.mark.parametrize("ending", [".json", ".cache"])
def test_signed_ranges_are_in_our_own_tables_alone(tmp_path, ending):
    histogram = whole(np.float32([-0.3, 3.0]))
    table = CalibrationTable.from_histograms({"x": histogram}, "minmax", Provenance())
    loaded = CalibrationTable.load(table.save(tmp_path / f"t{ending}"))
    low = float(np.float32(-0.3))
    assert loaded.signed_range("x") == (None if ending == ".cache" else (low, 3.0))
    assert loaded.merged(CalibrationTable({"x": 2.0})).signed_range("x") == (-2.0, 2.0)


def test_a_range_of_another_table_does_not_get_the_histogram_of_the_first():
    first = _table()
    merged = first.merged(CalibrationTable({"a": 99.0}, "entropy"))
    # An entropy range may cut values off, so it tells no peak.
    assert (merged.amax["a"], merged.peaks.get("a"), list(merged.histograms)) == (99.0, None, ["b::c d"])
    with pytest.raises(TableError, match=r"no histograms to apply the method 'entropy' to \(for 'a'\)"):
        merged.with_method("entropy")
    # A range that was set by hand over the first table's histogram is replaced, too.
    assert first.override({"a": 2.5}).merged(_table()) == first


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


def test_cache_golden_bytes():
    cache = tensorrt_cache.parse(HEADER + b"images: 3c010204\nb::c d: 1020304\n", "c")
    assert cache.version == "8601" and cache.algorithm == "EntropyCalibration2"
    assert cache.scales["images"] == struct.unpack(">f", bytes.fromhex("3c010204"))[0]
    assert tensorrt_cache.render(cache) == HEADER + b"images: 3c010204\nb::c d: 01020304\n"


@pytest.mark.parametrize("value", ["2.6", None, True, [1.0], (-1, 1), np.array([1.0])])
def test_a_range_is_a_number(value):
    for make in (lambda: CalibrationTable({"a": value}), lambda: _table().override({"a": value})):
        with pytest.raises(TableError, match=r"'a' \("):
            make()


@pytest.mark.parametrize("name", [5, None, b"a"])
def test_a_name_is_a_text(name):
    for make in (lambda: CalibrationTable({name: 1.0}), lambda: _table().override({name: 1.0})):
        with pytest.raises(TableError, match=re.escape(repr(name))):
            make()


def test_a_table_does_not_change_with_the_ranges_it_was_made_of():
    ranges = {"a": 1.0}
    table = CalibrationTable(ranges)
    ranges["a"] = 2.0
    assert table.amax == {"a": 1.0}


def test_what_a_table_does_not_have():
    one, two = (CalibrationTable({"a": 1.0}, provenance=Provenance(model=name)) for name in ("x", "y"))
    assert one.scale("a") == np.float32(1 / 127)
    for ask, named in (
        (lambda: one.scale("zz"), "'zz'"),
        (lambda: one.method_of("zz"), "'zz'"),
        (lambda: one.merged(two), r"\(x and y\)"),
        (lambda: one.override(None), "None"),
        (lambda: one.override("t.json"), r"'t\.json'"),
    ):
        with pytest.raises(TableError, match=named):
            ask()


@pytest.mark.parametrize(
    ("patterns", "shown"),
    [("*", r"'\*'"), (["conv?", "c"], r"'conv\?', 'c'"), (["conv1", "c"], "'conv1', 'c'")],
)
def test_a_table_does_not_lose_all_of_its_tensors(patterns, shown):
    table = CalibrationTable({"conv1": 1.0, "c": 2.0})
    with pytest.raises(TableError, match=f"^without {shown} no"):
        table.without(patterns)
    assert table.without([]) == table
    assert list(table.without("conv1").amax) == ["c"]  # one pattern by itself is one


@pytest.mark.parametrize(
    "wrong",
    [
        {"model": "a\nb"},
        {"data": "a\r"},
        {"data": "x" * 201},
        {"versions": {"numpy": "2\x1b[2J"}},
        {"versions": {"numpy": "\x00"}},
        {"versions": {"\r": "2"}},
        {"versions": {"\u2028": "2"}},
    ],
)
def test_what_no_file_of_a_table_holds_is_no_provenance(tmp_path, wrong):
    with pytest.raises(TableError, match="provenance"):
        Provenance(**wrong)
    file = CalibrationTable({"a": 1.0}).save(tmp_path / "t.json")
    file.write_text(json.dumps({**json.loads(file.read_text()), **wrong}))
    with pytest.raises(TableError, match="is damaged"):
        CalibrationTable.load(file)


@pytest.fixture
def table():
    histogram = whole(np.float32([0, 0, 1, 1, 1, 1, 1, 8]))
    return CalibrationTable.from_histograms({"<x>": histogram}, "minmax", Provenance(samples=7))


def test_the_text_is_one_line(table):
    assert repr(table) == "<CalibrationTable: 1 tensor, minmax, 7 samples>"
    chosen = table.with_choice({"<x>": 2.0}, RangeChoice("mse", {"mse": 30.0}, {"mse": 4}))
    assert repr(chosen) == "<CalibrationTable: 1 tensor, auto (mse), 7 samples>"
    assert repr(CalibrationTable({"x": 1.0, "y": 2.0})) == "<CalibrationTable: 2 tensors, manual>"


def test_a_notebook_shows_every_tensor(table):
    page = table.override({"<x>": 2.54})._repr_html_()
    for cell in ("&lt;x&gt;", "2.54", "0.02", "by hand", "8", "12.500 %"):
        assert f">{cell}</td>" in page
    assert "<svg" in page and "<x>" not in page
    plain = CalibrationTable({"x": 1.27})._repr_html_()  # has no columns of histograms
    assert ">0.01</td>" in plain and "magnitudes" not in plain


def test_a_tensor_without_a_histogram_among_others_has_empty_cells(table):
    assert table.override({"y": 1.0})._repr_html_().count("<td") == 14


def test_the_data_frame_has_what_is_known(table):
    pytest.importorskip("pandas", reason="pandas is not installed (pip install 'trtint8[notebook]')")
    (row,) = table.override({"<x>": 2.54}).to_pandas().to_dict("records")
    assert row == {
        "tensor": "<x>",
        "amax": 2.54,
        "scale": pytest.approx(0.02),
        "method": "by hand",
        "largest": 8.0,
        "zeros": 0.25,
        "clipped": 0.125,
    }
    frame = CalibrationTable({"y": 1.0}).to_pandas()
    assert frame[["largest", "zeros", "clipped"]].isna().all().all()
