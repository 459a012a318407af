"""Data frames."""

import sys
from xml.etree import ElementTree

import pytest

from calibrators.display.picture import Picture, data_frame, picture_of
from calibrators.errors import OutputError, UnsupportedError


def test_columns_become_a_data_frame():
    pytest.importorskip("pandas", reason="pandas is not installed (pip install 'trtint8[notebook]')")
    frame = data_frame({"name": ("a", "b"), "value": [1.5, None]})
    assert list(frame.columns) == ["name", "value"] and list(frame["name"]) == ["a", "b"]
    assert frame["value"].isna().tolist() == [False, True]


def test_without_pandas_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UnsupportedError, match=r"run pip install .*pandas"):
        data_frame({})


CHART = (
    '<svg viewBox="0 0 340 150" class="chart" aria-hidden="true"><rect style="fill: var(--bar)"/>'
    "<text>1 k</text></svg>"
)


def test_a_chart_brings_its_size_its_colours_and_its_title():
    picture = picture_of(CHART, 'a <b> & "c"')
    root = ElementTree.fromstring(picture._repr_svg_())
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert (root.get("width"), root.get("height"), root.get("viewBox")) == ("476", "210", "0 0 340 150")
    assert root.get("aria-label") == 'a <b> & "c"' and root.get("aria-hidden") is None
    assert root.get("style").startswith("--bar:#8fa3b5;--accent:")
    assert [child.tag.split("}")[1] for child in root] == ["rect", "text"]


def test_it_is_shown_and_saved(tmp_path):
    picture = Picture("<svg/>", "a < b")
    assert repr(picture) == "<Picture: a < b>"
    assert picture._repr_svg_() == "<svg/>"
    assert picture.save(tmp_path / "a.svg").read_text() == "<svg/>"


@pytest.mark.parametrize("name", ["a.png", "a.html", "a"])
def test_a_picture_without_a_drawing_is_written_as_svg_alone(tmp_path, name):
    with pytest.raises(OutputError, match=rf"the picture \'.*{name}\': it is written as SVG; .* in \.svg$"):
        Picture("<svg/>", "a").save(tmp_path / name)
    assert not list(tmp_path.iterdir())
