"""Pictures of results."""

import math
import sys
from xml.etree import ElementTree

import numpy as np
import pytest

from calibrators.display.picture import plot_levels, plot_points
from calibrators.errors import OutputError, TableError, UnsupportedError
from calibrators.histograms.histogram import Histogram
from calibrators.tables.table import CalibrationTable, Provenance


@pytest.fixture
def table():
    histogram, silent = Histogram(), Histogram()
    histogram.observe(np.random.default_rng(0).standard_normal(1000).astype(np.float32))
    silent.observe(np.zeros(10, np.float32))
    made = CalibrationTable.from_histograms({"x": histogram, "silent": silent}, "minmax", Provenance())
    return made.override({"y": 1.0})


def without_matplotlib(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "calibrators.display.charts", raising=False)
    import calibrators.display

    monkeypatch.delattr(calibrators.display, "charts", raising=False)


def test_without_matplotlib_it_says_what_to_install(table, monkeypatch):
    without_matplotlib(monkeypatch)
    with pytest.raises(UnsupportedError, match=r"run pip install .*matplotlib"):
        table.plot("x")


def test_what_cannot_be_drawn_is_named(table):
    with pytest.raises(TableError, match="no tensor 'z'; it has 'x', 'silent', 'y'"):
        table.plot("z")
    for name in ("y", "silent"):
        with pytest.raises(TableError, match=f"no histogram of '{name}'"):
            table.plot(name)


def test_pictures_are_svg(table):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed (pip install 'trtint8[notebook]')")
    histogram = table.plot("x")
    assert histogram.title == f"'x': amax {table.amax['x']:.6g} by minmax, 0.000 % clipped"
    levels = plot_levels([("first", 30.0), ("second", math.nan), ("third", 20.0)], "levels")
    points = plot_points(
        [(0.0, 98.0, True), (0.1, 99.0, False), (0.2, math.inf, False)],
        "%",
        "points",
        ("arithmetic in float, %", "top1, %"),
    )
    for picture in (histogram, levels, points):
        root = ElementTree.fromstring(picture.svg)
        assert root.get("aria-label") == picture.title
        texts = [text.text for text in root.iter("{http://www.w3.org/2000/svg}text")]
        assert len(texts) > 3
    assert {"10 %", "98.25 %", "99 %"} <= set(texts)
    assert points.svg.count("var(--accent)") >= 2


@pytest.mark.parametrize("count", [1, 60, 61, 1000])
def test_the_layers_of_a_picture_are_named(count):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed (pip install 'trtint8[notebook]')")
    names = [f"{'a_long_name/' * 5}{place}" for place in range(count)]
    picture = plot_levels([(name, 30.0) for name in names], "levels")
    shown = [text for text in ElementTree.fromstring(picture.svg).itertext() if text.startswith("...")]
    every = -(-count // 60)
    assert len(set(shown)) == len(shown) and all(len(text) <= 40 for text in shown)
    assert [text.split("/")[-1] for text in shown] == [str(place) for place in range(0, count, every)]


@pytest.mark.parametrize("name", ["$\\frac{$", "a$b$c", "\u5c42/\u5377", "a\nb", "a\x01b", "<b>&", ""])
def test_names_may_be_anything(name, tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed (pip install 'trtint8[notebook]')")
    picture = plot_levels([(name, 30.0), ("other", 20.0)], f"levels of {name}")
    shown = "".join(ElementTree.fromstring(picture.svg).itertext())
    assert not name.isprintable() or (name in shown and f"levels of {name}".strip() in shown)
    picture.save(tmp_path / "levels.png")


def test_lines_of_a_histogram_are_named(table):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed (pip install 'trtint8[notebook]')")
    texts = set(ElementTree.fromstring(table.plot("x").svg).itertext())
    assert {"minmax", "entropy", "percentile", "mse"} <= texts


def test_no_tick_of_a_share_is_below_zero_or_above_100_percent():
    pytest.importorskip("matplotlib", reason="matplotlib is not installed (pip install 'trtint8[notebook]')")
    picture = plot_points([(0.0, 100.0, True)], "%", "points", ("in float", "top1"))
    texts = [text for text in ElementTree.fromstring(picture.svg).itertext() if text.endswith(" %")]
    values = [float(text.removesuffix(" %").replace("\N{MINUS SIGN}", "-")) for text in texts]
    assert {0.0, 100.0} <= set(values) and all(0 <= value <= 100 for value in values)


PNG = b"\x89PNG\r\n\x1a\n"


def test_pictures_are_png_too_and_their_axes_are_labelled(table, tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed (pip install 'trtint8[notebook]')")
    labels = "arithmetic in float, %", "top1, %"
    pictures = {
        "histogram": (table.plot("x"), ("magnitude of a value", "number of values")),
        "levels": (
            plot_levels([("first", 30.0), ("second", 20.0)], "levels"),
            ("layers, in the order", "SQNR after each layer, dB", "first", "second"),
        ),
        "points": (plot_points([(0.0, 98.0, True), (0.1, 99.0, False)], "%", "points", labels), labels),
    }
    for name, (picture, shown) in pictures.items():
        written = picture.save(tmp_path / f"{name}.png").read_bytes()
        assert written.startswith(PNG) and picture.save(tmp_path / "again.PNG").read_bytes() == written
        width, height = (int.from_bytes(written[start : start + 4], "big") for start in (16, 20))
        assert width >= 1000 and height >= 300
        texts = " ".join(ElementTree.fromstring(picture.svg).itertext())
        assert all(label in texts for label in (*shown, *picture.title.split()))
        with pytest.raises(OutputError, match=f"{name}.jpg.*SVG or PNG"):
            picture.save(tmp_path / f"{name}.jpg")
